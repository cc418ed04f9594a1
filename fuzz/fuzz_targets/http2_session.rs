//! Any bytes as what a client of HTTP/2 sends: as they are, and as frames. Each request gets a response.
#![no_main]

use std::io::IoSlice;

use headway_http::{HeadLimits, Parsed, parse};
use headway_http2::{PREFACE, Received, Session, Settings, Stream};
use libfuzzer_sys::fuzz_target;

/// What may wait for the client: data, and twice as much of other frames.
const OUTPUT_BYTES_MAX: usize = 200 << 10;

const RESPONSES: [&[u8]; 6] = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x\r\nyou\r\n0\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end",
    b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nGrpc-Status: 0\r\n\r\n",
    b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: no\r\n\r\n",
];

struct Answered {
    stream: Stream,
    left: &'static [u8],
}

fuzz_target!(|bytes: &[u8]| {
    let Some(([choice, size], bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let mut session = Session::new(Settings {
        streams_max: 1 + u32::from(choice % 8),
        header_bytes_max: 1000,
        scheme: Some("http"),
    });
    let input = match choice & 128 {
        0 => [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &frames(bytes)].concat(),
        _ => bytes.to_vec(),
    };
    let mut streams = Vec::new();
    for piece in input.chunks(1 + usize::from(*size)) {
        if session.takes_input() {
            session.feed(piece);
        }
        turn(&mut session, &mut streams, *choice);
        while session.go_on() {
            turn(&mut session, &mut streams, *choice);
        }
    }
    if choice & 64 != 0 {
        session.shut_down();
        turn(&mut session, &mut streams, *choice);
    }
    drop(session);
    assert!(
        streams
            .iter_mut()
            .all(|one: &mut Answered| !one.stream.can_send() || one.stream.is_reset())
    );
});

/// Lets all go on, as the server does.
fn turn(session: &mut Session, streams: &mut Vec<Answered>, choice: u8) {
    while let Some((head, stream)) = session.next_request() {
        let limits = HeadLimits {
            is_http2: true,
            ..HeadLimits::default()
        };
        let parsed = parse(&head, &limits);
        assert!(!matches!(parsed, Parsed::Partial), "it would wait for more");
        let left = RESPONSES[usize::from(choice >> 3) % RESPONSES.len()];
        streams.push(Answered { stream, left });
    }
    let mut buffer = [0; 60];
    streams.retain_mut(|one| {
        while let Received::Data(count) = one.stream.receive(&mut buffer) {
            assert!(count <= buffer.len());
        }
        let size = 1 + usize::from(choice & 7) * 4;
        while one.stream.can_send() && !one.left.is_empty() && !one.stream.is_reset() {
            let piece = &one.left[..size.min(one.left.len())];
            match one.stream.send(&[IoSlice::new(piece)]) {
                Ok(Some(count)) => one.left = &one.left[count..],
                Ok(None) => panic!("it has said that it can"),
                Err(_) => return false,
            }
        }
        if one.left.is_empty() {
            one.stream.end();
        }
        !one.left.is_empty() && !one.stream.is_reset()
    });
    session.with_output(|output| assert!(output.len() <= OUTPUT_BYTES_MAX));
    if choice & 32 == 0 {
        let count = session.with_output(|output| output.len());
        session.sent(count);
    }
}

/// Makes frames: each has its kind, its flags, its stream, the length of its payload, and the payload.
fn frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    while let [kind, flags, stream, length, rest @ ..] = bytes {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        frames.extend([
            0,
            0,
            payload.len() as u8,
            // PRIORITY_UPDATE is 16.
            kind % 17,
            *flags,
            0,
            0,
            0,
            *stream,
        ]);
        frames.extend(payload);
    }
    frames
}
