//! Any bytes as the response of an HTTP/1.1 upstream to GET, HEAD and a WebSocket request.
#![no_main]

use headway_gateway::proxy::{Body, Forwarding, ProxyCodec};
use headway_gateway::{Codec, HeadLimits, ResponseEvent, Request};
use headway_http::Parsed;
use libfuzzer_sys::fuzz_target;

/// Small, so that the limits are met often.
const LIMITS: HeadLimits = HeadLimits {
    head_bytes_max: 256,
    fields_max: 6,
};

const REQUESTS: [&[u8]; 3] = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
];

/// Short inputs are cut everywhere, long ones at this many places, which find the same and take
/// less time.
const CUTS: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    for request in REQUESTS {
        let whole = outcome(request, &[bytes]);
        for cut in (0..bytes.len()).step_by(bytes.len() / CUTS + 1) {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(outcome(request, &[front, back]), whole, "cut at {cut}");
        }
    }
});

/// Heads, body, and how it ended; not whether the connection is clean, which depends on what has
/// arrived.
fn outcome(request: &[u8], pieces: &[&[u8]]) -> (String, Vec<u8>) {
    let mut codec = codec(request);
    let (mut text, mut body) = (String::new(), Vec::new());
    for piece in pieces {
        let mut input = *piece;
        loop {
            match codec.feed(&mut input) {
                Ok(None) => break,
                Ok(Some(ResponseEvent::Head(answer))) => text += &format!("{answer:?}"),
                Ok(Some(ResponseEvent::Body(bytes))) => body.extend_from_slice(bytes),
                Ok(Some(ResponseEvent::End(_))) => return (text + "end", body),
                Ok(Some(event)) => panic!("{event:?}"),
                Err(fault) => return (text + &fault.to_string(), body),
            }
        }
    }
    text += &format!("{:?}", codec.finish());
    (text, body)
}

fn codec(bytes: &[u8]) -> ProxyCodec {
    let Parsed::Complete(head) = headway_http::parse(bytes, &headway_http::HeadLimits::default())
    else {
        panic!("the requests above are sound");
    };
    let forwarding = Forwarding {
        remote: ([192, 0, 2, 7], 50_000).into(),
        client: None,
        https: false,
        certificate: None,
        trusts_client: false,
        authority: b"back",
        keeps_host: true,
        via: b"headway",
        strip: b"",
        keep: true,
        upgrades: true,
    };
    ProxyCodec::new(
        &Request::new(&head, bytes),
        &forwarding,
        Body::None,
        &LIMITS,
    )
    .expect("a GET may be passed on")
}
