//! Tables of header compression follow what is sent, whatever becomes of it (RFC 7541, 2.3).

use std::io::IoSlice;

use headway_http2::{Received, Settings};
use headway_test_support::http2::*;

use super::client::LIMITS;
use super::frames::Raw;

#[test]
fn table_follows_the_headers_of_streams_that_are_not_served() {
    let flags = END_HEADERS | END_STREAM;
    let kept = || kept(b"x", b"kept");
    let post = || frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/"));
    let request = |more: Vec<u8>| [request_block("GET", "/"), more].concat();
    let long = || block(&[("a", "b".repeat(16_280))]);
    for (what, begin, bytes) in [
        (
            "refused",
            post(),
            frame(HEADERS, flags, 3, &request(kept())),
        ),
        (
            "reset",
            [post(), window_update(1, 0)].concat(),
            frame(HEADERS, flags, 1, &kept()),
        ),
        (
            "malformed",
            Vec::new(),
            frame(HEADERS, flags, 3, &[block(&[("A", "b")]), kept()].concat()),
        ),
        (
            "too long",
            Vec::new(),
            [
                frame(HEADERS, END_STREAM, 3, &request(long())),
                frame(CONTINUATION, END_HEADERS, 3, &kept()),
            ]
            .concat(),
        ),
    ] {
        for is_kept in [true, false] {
            let settings = Settings {
                streams_max: 1,
                ..LIMITS
            };
            let mut raw = Raw::with(settings, &[]);
            raw.feed(&begin);
            if what == "reset" && !is_kept {
                raw.requests.clear();
            }
            raw.feed(&bytes);
            raw.requests.clear();
            raw.feed(&frame(HEADERS, flags, 5, &request(vec![KEPT_AGAIN])));
            assert_eq!((raw.requests.len(), raw.goaway()), (1, None), "{what}");
            assert!(raw.requests[0].0.contains("\r\nx: kept\r\n"), "{what}");
        }
    }
    // Streams behind the last one of a shutdown. The trailers of another one may still come.
    let mut raw = Raw::new(&[]);
    raw.feed(&post());
    raw.session.shut_down();
    raw.turn();
    raw.feed(&frame(PING, ACK, 0, b"shutdown"));
    raw.feed(&frame(HEADERS, flags, 3, &request(kept())));
    raw.feed(&frame(HEADERS, flags, 1, &[KEPT_AGAIN]));
    let (_, mut stream) = raw.requests.pop().unwrap();
    let mut buffer = [0; 100];
    let expected = b"0\r\nx: kept\r\n\r\n";
    assert_eq!(stream.receive(&mut buffer), Received::Data(expected.len()));
    assert_eq!(buffer[..expected.len()], *expected);
}

#[test]
fn client_without_a_table_is_sent_no_reference_to_one() {
    let long = block(&[("a", "b".repeat(16_280))]);
    let too_long = [request_block("GET", "/"), long].concat();
    for first in [
        get(1, "/"),
        // Answered without a stream.
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &too_long),
    ] {
        // SETTINGS_HEADER_TABLE_SIZE.
        let mut raw = Raw::new(&[(1, 0)]);
        for request in [first, get(3, "/"), get(5, "/")] {
            raw.feed(&request);
            for (_, mut stream) in std::mem::take(&mut raw.requests) {
                let response = b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n";
                stream.send(&[IoSlice::new(response)]).unwrap();
            }
            raw.turn();
        }
        let frames = raw.frames.iter().filter(|frame| frame.kind == HEADERS);
        let blocks: Vec<&[u8]> = frames.map(|frame| &*frame.payload).collect();
        // The first one says that the table has no room (RFC 7541, 6.3), and the others keep nothing.
        let updates: Vec<bool> = blocks.iter().map(|block| block[0] == 0x20).collect();
        assert_eq!(updates, [true, false, false]);
        assert_eq!(blocks[1], blocks[2]);
    }
}
