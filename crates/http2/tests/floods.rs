//! Clients that send much of which nothing comes: their connections end.

use std::io::IoSlice;

use headway_http2::Received;
use headway_test_support::http2::*;

use super::client::OUTPUT_BYTES_MAX;
use super::frames::Raw;

/// RFC 9113, 7.
const ENHANCE_YOUR_CALM: Option<u32> = Some(11);

/// Sends frames until the connection ends or this many bytes were sent. How many were sent, and the
/// error of the GOAWAY.
fn flood(
    raw: &mut Raw,
    bytes_max: usize,
    mut frames: impl FnMut(usize) -> Vec<u8>,
) -> (usize, Option<u32>) {
    let (mut sent, mut round) = (0, 0);
    while sent < bytes_max && !raw.session.is_over() {
        let bytes = frames(round);
        raw.feed(&bytes);
        sent += bytes.len();
        round += 1;
        // A test would keep them all.
        raw.frames.retain(|frame| frame.kind == GOAWAY);
    }
    (sent, raw.goaway())
}

#[test]
fn floods_without_requests_end_the_connection() {
    let empty_headers = frame(CONTINUATION, 0, 1, b"");
    let open = || frame(HEADERS, 0, 1, &request_block("GET", "/"));
    let post = || frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/"));
    for (what, begin, repeated) in [
        ("PING", Vec::new(), frame(PING, 0, 0, &[0; 8])),
        ("answers to PING", Vec::new(), frame(PING, ACK, 0, &[0; 8])),
        (
            "SETTINGS",
            Vec::new(),
            settings(&[(INITIAL_WINDOW_SIZE, 1)]),
        ),
        ("empty SETTINGS", Vec::new(), settings(&[])),
        ("WINDOW_UPDATE", Vec::new(), window_update(0, 1)),
        (
            "PRIORITY",
            Vec::new(),
            frame(PRIORITY, 0, 5, &[0, 0, 0, 3, 7]),
        ),
        ("unknown frames", Vec::new(), frame(0x42, 0, 0, b"")),
        ("CONTINUATION", open(), empty_headers),
        (
            "long CONTINUATION",
            open(),
            frame(CONTINUATION, 0, 1, &block(&[("a", "b".repeat(9000))])),
        ),
        ("empty DATA", post(), frame(DATA, 0, 1, b"")),
        ("tiny DATA", post(), frame(DATA, 0, 1, b"x")),
        ("padded DATA", post(), frame(DATA, 8, 1, &[99; 100])),
        ("RST_STREAM", get(1, "/"), reset(1)),
    ] {
        let mut raw = Raw::new(&[]);
        raw.feed(&begin);
        let repeated = repeated.repeat(100);
        let (sent, error) = flood(&mut raw, 4 << 20, |_| repeated.clone());
        assert!(raw.session.is_over(), "{what}");
        println!("{what}: {sent} bytes, {error:?}");
        assert!(error.is_some() && error != Some(0), "{what}: {error:?}");
        assert!(sent < 1 << 20, "{what}: {sent}");
    }
}

#[test]
fn bodies_of_tiny_frames_end_the_connection_although_they_are_taken() {
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/")));
    let (_, mut stream) = raw.requests.pop().unwrap();
    let mut buffer = [0; 4000];
    let (sent, error) = flood(&mut raw, 4 << 20, |_| {
        while let Received::Data(_) = stream.receive(&mut buffer) {}
        frame(DATA, 0, 1, b"x").repeat(50)
    });
    assert_eq!(error, ENHANCE_YOUR_CALM);
    assert!(sent < 1 << 20, "{sent}");
    assert!(stream.is_reset());
}

#[test]
fn usual_bodies_downloads_and_pings_end_no_connection() {
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/")));
    let (_, mut stream) = raw.requests.pop().unwrap();
    let mut buffer = vec![0; 40_000];
    let (sent, error) = flood(&mut raw, 20 << 20, |_| {
        while let Received::Data(_) = stream.receive(&mut buffer) {}
        frame(DATA, 0, 1, &[7; 50]).repeat(20)
    });
    assert!(error.is_none() && sent >= 20 << 20);
    // A window update for each frame that the client gets, of 100 bytes.
    let mut raw = Raw::new(&[]);
    raw.feed(&get(1, "/"));
    let (_, mut stream) = raw.requests.pop().unwrap();
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
    stream.send(&[IoSlice::new(head)]).unwrap();
    let (sent, error) = flood(&mut raw, 4 << 20, |_| {
        stream.send(&[IoSlice::new(&[1; 100])]).unwrap();
        [window_update(0, 100), window_update(1, 100)].concat()
    });
    assert!(error.is_none() && sent >= 4 << 20);
    // Requests, and pings between them.
    let mut raw = Raw::new(&[]);
    for round in 0..300 {
        raw.feed(&get(2 * round + 1, "/"));
        raw.feed(&frame(PING, 0, 0, &[0; 8]).repeat(1000));
        assert_eq!(raw.requests.drain(..).count(), 1);
    }
    assert!(raw.goaway().is_none() && !raw.session.is_over());
}

#[test]
fn window_updates_of_one_byte_end_the_connection() {
    let mut raw = Raw::new(&[(INITIAL_WINDOW_SIZE, 0)]);
    raw.feed(&get(1, "/"));
    let (_, mut stream) = raw.requests.pop().unwrap();
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
    stream.send(&[IoSlice::new(head)]).unwrap();
    let (sent, error) = flood(&mut raw, 4 << 20, |_| {
        let _ = stream.send(&[IoSlice::new(&[1; 100])]);
        window_update(1, 1)
    });
    assert_eq!(error, ENHANCE_YOUR_CALM);
    assert!(sent < 1 << 20, "{sent}");
}

#[test]
fn rapid_reset_ends_the_connection_at_once_when_it_comes_in_one_piece() {
    let mut raw = Raw::new(&[]);
    let mut bytes = Vec::new();
    for stream in 0..10_000 {
        bytes.extend(get(2 * stream + 1, "/"));
        bytes.extend(reset(2 * stream + 1));
    }
    raw.feed(&bytes);
    assert!(raw.session.is_over());
    assert_eq!(raw.goaway(), ENHANCE_YOUR_CALM);
    assert!(raw.requests.len() <= 25, "{}", raw.requests.len());
}

#[test]
fn rapid_reset_ends_the_connection_when_each_request_has_begun() {
    let mut raw = Raw::new(&[]);
    let (mut begun, mut is_begun) = (0, false);
    while !raw.session.is_over() && begun < 10_000 {
        let stream = 2 * begun + 1;
        raw.feed(&match is_begun {
            false => get(stream, "/"),
            true => reset(stream),
        });
        if is_begun {
            begun += 1;
            raw.requests.clear();
        }
        is_begun = !is_begun;
        raw.turn();
    }
    assert_eq!(raw.goaway(), ENHANCE_YOUR_CALM);
    assert!(begun < 1000, "{begun}");
}

#[test]
fn client_that_gives_up_some_requests_goes_on() {
    let mut raw = Raw::new(&[]);
    for number in 0..5000 {
        let stream = 2 * number + 1;
        raw.feed(&get(stream, "/"));
        let (_, mut of) = raw.requests.pop().unwrap();
        match number % 5 {
            0 | 1 => raw.feed(&reset(stream)),
            _ => {
                let response = b"HTTP/1.1 204 No Content\r\n\r\n";
                of.send(&[IoSlice::new(response)]).unwrap();
            }
        }
        drop(of);
        raw.turn();
    }
    assert!(!raw.session.is_over());
    assert_eq!(raw.goaway(), None);
}

#[test]
fn long_header_list_is_answered_431_or_ends_the_connection() {
    let long = |bytes: usize| block(&[("a", "b".repeat(bytes))]);
    let all = |bytes| [request_block("GET", "/"), long(bytes)].concat();
    // Within the frame that a client may send.
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &all(16_280)));
    assert!(raw.requests.is_empty());
    let answered = raw
        .frames
        .iter()
        .any(|frame| frame.kind == HEADERS && frame.stream == 1);
    assert!(answered && !raw.session.is_over());
    // Many entries that a table keeps: each reference is one byte.
    let mut raw = Raw::new(&[]);
    let mut bomb = request_block("GET", "/");
    bomb.extend(kept(b"a", "b".repeat(4000).as_bytes()));
    bomb.extend([KEPT_AGAIN; 12_000]);
    raw.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb));
    assert!(raw.requests.is_empty() && raw.session.is_over());
    assert_eq!(raw.goaway(), ENHANCE_YOUR_CALM);
}

#[test]
fn table_may_not_be_larger_than_it_was_said() {
    let mut raw = Raw::new(&[(1, u32::MAX)]);
    // A dynamic table size update to 64 KiB (RFC 7541, 6.3).
    let update = [0x3f, 0xe1, 0xff, 0x03];
    let block = [&update[..], &request_block("GET", "/")].concat();
    raw.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
    assert!(raw.session.is_over() && raw.requests.is_empty());
}

#[test]
fn answers_to_control_frames_do_not_pass_the_limit_when_the_client_does_not_read() {
    let mut raw = Raw::new(&[]);
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(3000);
    for _ in 0..100 {
        if raw.session.takes_input() {
            raw.session.feed(&pings);
        }
        while raw.session.next_request().is_some() {}
        let length = raw.session.with_output(<[u8]>::len);
        assert!(length <= 2 * OUTPUT_BYTES_MAX, "{length}");
    }
    assert!(!raw.session.takes_input());
}
