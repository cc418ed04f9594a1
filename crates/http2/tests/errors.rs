//! Stream errors and connection errors of RFC 9113, and what is not an error.

use std::io::IoSlice;

use headway_http2::{Received, Session};
use headway_test_support::http2::*;

use super::client::{LIMITS, contents};
use super::frames::Raw;

// RFC 9113, 7.
const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Frame types and flags that only these tests send.
const PUSH_PROMISE: u8 = 5;
const PADDED: u8 = 8;
const HAS_PRIORITY: u8 = 0x20;

fn post(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &request_block("POST", "/"))
}

fn answer(raw: &mut Raw) {
    let (_, mut stream) = raw.requests.remove(0);
    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(
        stream.send(&[IoSlice::new(response)]),
        Ok(Some(response.len()))
    );
    drop(stream);
    raw.turn();
}

#[test]
fn connection_errors_have_their_error_codes() {
    let after_an_answer = |bytes: Vec<u8>| (true, bytes);
    let at_once = |bytes: Vec<u8>| (false, bytes);
    let setting = |name, value| at_once(settings(&[(name, value)]));
    let window = |stream, more| window_update(stream, more);
    for ((is_answered, bytes), expected) in [
        (setting(2, 2), PROTOCOL_ERROR),
        (setting(8, 2), PROTOCOL_ERROR),
        (setting(9, 2), PROTOCOL_ERROR),
        (setting(4, 1 << 31), FLOW_CONTROL_ERROR),
        (setting(5, 16_383), PROTOCOL_ERROR),
        (setting(5, 1 << 24), PROTOCOL_ERROR),
        (at_once(frame(SETTINGS, 0, 1, b"")), PROTOCOL_ERROR),
        (at_once(frame(SETTINGS, ACK, 0, &[0; 6])), FRAME_SIZE_ERROR),
        (at_once(frame(PING, 0, 1, &[0; 8])), PROTOCOL_ERROR),
        (at_once(frame(GOAWAY, 0, 1, &[0; 8])), PROTOCOL_ERROR),
        (at_once(frame(GOAWAY, 0, 0, &[0; 7])), FRAME_SIZE_ERROR),
        (at_once(frame(PUSH_PROMISE, 0, 1, &[0; 4])), PROTOCOL_ERROR),
        (at_once(frame(PRIORITY, 0, 0, &[0; 5])), PROTOCOL_ERROR),
        (at_once(frame(PRIORITY, 0, 1, &[0; 4])), FRAME_SIZE_ERROR),
        (
            at_once(frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0])),
            PROTOCOL_ERROR,
        ),
        (at_once(reset(1)), PROTOCOL_ERROR),
        (at_once(window(1, 1)), PROTOCOL_ERROR),
        (
            at_once(frame(WINDOW_UPDATE, 0, 0, &[0; 3])),
            FRAME_SIZE_ERROR,
        ),
        (at_once(frame(DATA, 0, 0, b"x")), PROTOCOL_ERROR),
        (
            at_once(frame(HEADERS, END_HEADERS | PADDED, 1, b"\x01")),
            PROTOCOL_ERROR,
        ),
        (
            at_once(frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, &[0; 4])),
            FRAME_SIZE_ERROR,
        ),
        (
            at_once(frame(HEADERS, END_HEADERS, 1, &[0x80])),
            COMPRESSION_ERROR,
        ),
        (
            after_an_answer(frame(RST_STREAM, 0, 1, &[0; 3])),
            FRAME_SIZE_ERROR,
        ),
        (after_an_answer(get(1, "/")), STREAM_CLOSED),
    ] {
        let mut raw = Raw::new(&[]);
        if is_answered {
            raw.feed(&get(1, "/"));
            answer(&mut raw);
        }
        raw.feed(&bytes);
        assert_eq!(raw.goaway(), Some(expected), "{bytes:?}");
        assert!(raw.session.is_over());
    }
}

#[test]
fn settings_within_their_limits_are_no_errors() {
    let mut raw = Raw::new(&[]);
    for (name, value) in [
        (1, 0),
        (2, 0),
        (2, 1),
        (3, 0),
        (4, (1 << 31) - 1),
        (5, 1 << 14),
        (5, (1 << 24) - 1),
        (6, 0),
    ] {
        raw.feed(&settings(&[(name, value)]));
        assert_eq!(raw.goaway(), None, "{name} {value}");
    }
    raw.feed(&get(1, "/"));
    assert_eq!(raw.requests.len(), 1);
}

#[test]
fn frame_that_is_too_long_is_an_error_before_its_payload_has_come() {
    for (kind, stream) in [(DATA, 1), (HEADERS, 3), (SETTINGS, 0), (0x42, 0)] {
        let mut raw = Raw::new(&[]);
        raw.feed(&post(1));
        let whole = frame(kind, 0, stream, &[0; (16 << 10) + 1]);
        raw.feed(&whole[..9]);
        assert_eq!(raw.goaway(), Some(FRAME_SIZE_ERROR), "{kind}");
    }
    // The longest one.
    let mut raw = Raw::new(&[]);
    raw.feed(&get(1, "/"));
    raw.feed(&frame(0x42, 0, 0, &[0; 16 << 10]));
    assert_eq!(raw.goaway(), None);
}

#[test]
fn header_may_come_in_64_frames_behind_its_first_one() {
    for (count, expected) in [(64, (1, None)), (65, (0, Some(ENHANCE_YOUR_CALM)))] {
        let mut raw = Raw::new(&[]);
        raw.feed(&frame(HEADERS, END_STREAM, 1, &request_block("GET", "/")));
        raw.feed(&frame(CONTINUATION, 0, 1, b"").repeat(count - 1));
        raw.feed(&frame(CONTINUATION, END_HEADERS, 1, b""));
        assert_eq!((raw.requests.len(), raw.goaway()), expected);
    }
}

#[test]
fn data_that_is_ignored_is_given_back_to_the_window_of_the_connection() {
    let data = |stream| frame(DATA, 0, stream, &[7; 16 << 10]);
    for is_kept in [true, false] {
        let mut raw = Raw::new(&[]);
        raw.feed(&[post(1), window_update(1, 0)].concat());
        assert_eq!(raw.reset(1), Some(PROTOCOL_ERROR));
        if !is_kept {
            raw.requests.clear();
        }
        // More than the window.
        (0..20).for_each(|_| raw.feed(&data(1)));
        assert_eq!(raw.goaway(), None, "{is_kept}");
    }
    let mut raw = Raw::new(&[]);
    let length = block(&[("content-length", "5")]);
    let sized = [request_block("POST", "/"), length].concat();
    for number in 0..20 {
        let stream = 2 * number + 1;
        raw.feed(&frame(HEADERS, END_HEADERS, stream, &sized));
        raw.feed(&data(stream));
        assert_eq!(
            (raw.reset(stream), raw.goaway()),
            (Some(PROTOCOL_ERROR), None)
        );
        raw.requests.clear();
    }
}

#[test]
fn client_that_takes_long_frames_gets_its_header_in_one() {
    // SETTINGS_MAX_FRAME_SIZE.
    let mut raw = Raw::new(&[(5, 1 << 16)]);
    raw.feed(&get(1, "/"));
    let long = "x".repeat(40_000);
    let response = format!("HTTP/1.1 204 No Content\r\nX-Long: {long}\r\n\r\n");
    let (_, mut stream) = raw.requests.remove(0);
    stream.send(&[IoSlice::new(response.as_bytes())]).unwrap();
    raw.turn();
    let own = raw.frames.iter().filter(|frame| frame.stream == 1);
    let kinds: Vec<u8> = own.map(|frame| frame.kind).collect();
    assert_eq!(kinds, [HEADERS]);
}

#[test]
fn continuation_of_another_stream_is_an_error() {
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, END_STREAM, 1, &request_block("GET", "/")));
    raw.feed(&frame(CONTINUATION, END_HEADERS, 3, b""));
    assert_eq!(
        (raw.requests.len(), raw.goaway()),
        (0, Some(PROTOCOL_ERROR))
    );
}

#[test]
fn setting_that_makes_the_window_of_a_stream_too_large_is_an_error() {
    let mut raw = Raw::new(&[(INITIAL_WINDOW_SIZE, 0)]);
    raw.feed(&get(1, "/"));
    raw.feed(&window_update(1, u32::MAX >> 1));
    assert_eq!((raw.reset(1), raw.goaway()), (None, None));
    raw.feed(&settings(&[(INITIAL_WINDOW_SIZE, 1)]));
    assert_eq!(raw.goaway(), Some(FLOW_CONTROL_ERROR));
}

#[test]
fn setting_does_not_apply_to_a_stream_whose_window_was_its_error() {
    let mut raw = Raw::new(&[]);
    raw.feed(&[post(1), window_update(1, u32::MAX >> 1)].concat());
    assert_eq!(raw.reset(1), Some(FLOW_CONTROL_ERROR));
    raw.feed(&settings(&[(INITIAL_WINDOW_SIZE, 70_000)]));
    assert_eq!(raw.goaway(), None);
}

#[test]
fn stream_whose_header_is_too_long_has_ended() {
    let long = block(&[("a", "b".repeat(16_280))]);
    let all = [request_block("POST", "/"), long].concat();
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, END_HEADERS, 1, &all));
    // Its body is not wanted.
    assert_eq!(raw.reset(1), Some(NO_ERROR));
    raw.feed(&frame(DATA, END_STREAM, 1, b"x"));
    raw.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &all));
    assert_eq!((raw.reset(3), raw.goaway()), (None, None));
    raw.feed(&get(3, "/"));
    assert_eq!(raw.goaway(), Some(STREAM_CLOSED));
    let resets = raw.frames.iter().filter(|frame| frame.kind == RST_STREAM);
    assert_eq!(resets.count(), 1);
}

#[test]
fn only_the_answer_to_the_last_ping_of_a_shutdown_ends_what_is_accepted() {
    let mut raw = Raw::new(&[]);
    let last = frame(PING, ACK, 0, b"shutdown");
    // There was no such ping yet.
    raw.feed(&[&last[..], &get(1, "/")].concat());
    assert_eq!((raw.requests.len(), raw.goaway()), (1, None));
    raw.session.shut_down();
    raw.turn();
    raw.feed(&[frame(PING, ACK, 0, &[7; 8]), get(3, "/")].concat());
    assert_eq!(raw.requests.len(), 2);
    raw.feed(&[&last[..], &get(5, "/")].concat());
    assert_eq!((raw.requests.len(), raw.goaway()), (2, Some(NO_ERROR)));
}

#[test]
fn first_frame_is_settings_or_an_error() {
    let mut raw = Raw::new(&[]);
    raw.session = Session::new(LIMITS);
    raw.feed(&[PREFACE, &get(1, "/")[..]].concat());
    assert_eq!(
        (raw.goaway(), raw.requests.len()),
        (Some(PROTOCOL_ERROR), 0)
    );
}

#[test]
fn stream_errors_do_not_affect_other_streams() {
    let depends_on_itself = [&[0, 0, 0, 1, 0][..], &request_block("GET", "/")].concat();
    let flags = END_HEADERS | END_STREAM;
    let length = block(&[("content-length", "5")]);
    let sized = [request_block("POST", "/"), length].concat();
    for (begin, bytes, expected) in [
        (
            Vec::new(),
            frame(HEADERS, flags | HAS_PRIORITY, 1, &depends_on_itself),
            PROTOCOL_ERROR,
        ),
        (
            Vec::new(),
            [
                frame(HEADERS, END_STREAM | HAS_PRIORITY, 1, &depends_on_itself),
                frame(CONTINUATION, END_HEADERS, 1, b""),
            ]
            .concat(),
            PROTOCOL_ERROR,
        ),
        (post(1), post(1), PROTOCOL_ERROR),
        (
            post(1),
            frame(HEADERS, flags, 1, &block(&[(":path", "/")])),
            PROTOCOL_ERROR,
        ),
        (
            frame(HEADERS, END_HEADERS, 1, &sized),
            frame(HEADERS, flags, 1, &block(&[("a", "b")])),
            PROTOCOL_ERROR,
        ),
        (get(1, "/"), frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
        (
            get(1, "/"),
            frame(HEADERS, flags, 1, &block(&[("a", "b")])),
            STREAM_CLOSED,
        ),
        (get(1, "/"), window_update(1, 0), PROTOCOL_ERROR),
        (
            get(1, "/"),
            window_update(1, u32::MAX >> 1),
            FLOW_CONTROL_ERROR,
        ),
        (
            [post(1), reset(1)].concat(),
            frame(DATA, 0, 1, b"x"),
            STREAM_CLOSED,
        ),
    ] {
        let mut raw = Raw::new(&[]);
        raw.feed(&begin);
        raw.feed(&bytes);
        assert_eq!(raw.reset(1), Some(expected), "{bytes:?}");
        for (_, stream) in &mut raw.requests {
            assert!(stream.is_reset());
        }
        // Frames that the client has sent before it gets RST_STREAM are ignored.
        let more = [
            frame(DATA, 0, 1, b"x"),
            frame(HEADERS, flags, 1, &block(&[("a", "b")])),
        ]
        .concat();
        raw.feed(&more);
        raw.requests.clear();
        raw.feed(&more);
        raw.feed(&get(3, "/"));
        assert_eq!((raw.requests.len(), raw.goaway()), (1, None), "{bytes:?}");
        assert_eq!(
            raw.frames
                .iter()
                .filter(|frame| frame.kind == RST_STREAM)
                .count(),
            1
        );
    }
}

#[test]
fn many_stream_errors_end_the_connection() {
    let mut raw = Raw::new(&[]);
    let mut number = 0;
    while raw.goaway().is_none() && number < 1000 {
        raw.feed(&get(2 * number + 1, "/"));
        raw.feed(&window_update(2 * number + 1, 0));
        raw.requests.clear();
        number += 1;
    }
    assert_eq!(raw.goaway(), Some(ENHANCE_YOUR_CALM));
    assert!((100..=110).contains(&number), "{number}");
}

#[test]
fn data_beyond_a_window_is_an_error_of_the_stream_or_the_connection() {
    let data = |stream| frame(DATA, 0, stream, &[7; 16 << 10]);
    let mut raw = Raw::new(&[]);
    raw.feed(&post(1));
    (0..4).for_each(|_| raw.feed(&data(1)));
    assert_eq!(raw.reset(1), None);
    raw.feed(&frame(DATA, 0, 1, b"x"));
    assert_eq!(
        (raw.reset(1), raw.goaway()),
        (Some(FLOW_CONTROL_ERROR), None)
    );
    let mut raw = Raw::new(&[]);
    for stream in [1, 3, 5, 7, 9] {
        raw.feed(&post(stream));
    }
    for stream in [1, 3, 5, 7] {
        (0..4).for_each(|_| raw.feed(&data(stream)));
    }
    assert_eq!(raw.goaway(), None);
    raw.feed(&frame(DATA, 0, 9, b"x"));
    assert_eq!(raw.goaway(), Some(FLOW_CONTROL_ERROR));
}

#[test]
fn padding_counts_in_the_windows_and_is_returned() {
    let mut raw = Raw::new(&[]);
    raw.feed(&post(1));
    let (_, mut stream) = raw.requests.remove(0);
    let padded = [&[200][..], b"hello", &[0; 200]].concat();
    let mut buffer = [0; 4000];
    // More padding than the window.
    for _ in 0..1000 {
        raw.feed(&frame(DATA, PADDED, 1, &padded));
        assert_eq!(stream.receive(&mut buffer), Received::Data(10));
        assert_eq!(&buffer[..10], b"5\r\nhello\r\n");
    }
    assert_eq!((raw.reset(1), raw.goaway()), (None, None));
}

#[test]
fn windows_of_open_streams_follow_the_setting() {
    let mut raw = Raw::new(&[(INITIAL_WINDOW_SIZE, 10)]);
    raw.feed(&get(1, "/"));
    let (_, mut stream) = raw.requests.remove(0);
    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n012345678901234567890123456789";
    let mut left = &response[..];
    // A window that is smaller than the sent data, then the same, then a larger one.
    for (window, seen) in [(10, 10), (4, 10), (10, 10), (12, 12), (50, 30)] {
        raw.feed(&settings(&[(INITIAL_WINDOW_SIZE, window)]));
        let sent = stream.send(&[IoSlice::new(left)]).unwrap().unwrap_or(0);
        left = &left[sent..];
        raw.turn();
        assert_eq!(raw.data(1).0.len(), seen, "{window}");
    }
    assert!(left.is_empty() && raw.data(1).1);
}

#[test]
fn headers_longer_than_a_frame_are_split_in_both_directions() {
    let mut raw = Raw::new(&[]);
    let block = [request_block("GET", "/"), block(&[("x", "y".repeat(3000))])].concat();
    let (front, rest) = block.split_at(2);
    raw.feed(&frame(HEADERS, END_STREAM, 1, front));
    let (middle, back) = rest.split_at(1000);
    raw.feed(&frame(CONTINUATION, 0, 1, middle));
    raw.feed(&frame(CONTINUATION, END_HEADERS, 1, back));
    let (head, mut stream) = raw.requests.remove(0);
    assert!(head.contains(&"y".repeat(3000)) && head.starts_with("GET / "));
    let long = String::from_utf8(
        contents(40_000)
            .iter()
            .map(|byte| b'!' + byte % 90)
            .collect(),
    );
    let response = format!(
        "HTTP/1.1 204 No Content\r\nX-Long: {}\r\n\r\n",
        long.unwrap()
    );
    stream.send(&[IoSlice::new(response.as_bytes())]).unwrap();
    raw.turn();
    let own: Vec<&Frame> = raw
        .frames
        .iter()
        .filter(|frame| frame.stream == 1)
        .collect();
    let kinds: Vec<u8> = own.iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, [HEADERS, CONTINUATION, CONTINUATION]);
    assert!(own.iter().all(|frame| frame.payload.len() <= 16 << 10));
    assert!(raw.data(1).1 && raw.goaway().is_none());
}

#[test]
fn unread_body_is_stopped_without_an_error() {
    let mut raw = Raw::new(&[]);
    // More bodies than the connection's window has room for.
    for number in 0..40 {
        let stream = 2 * number + 1;
        raw.feed(&post(stream));
        raw.feed(&frame(DATA, 0, stream, &[7; 16 << 10]));
        answer(&mut raw);
        assert_eq!(raw.reset(stream), Some(NO_ERROR));
        raw.feed(&frame(DATA, 0, stream, &[7; 1000]));
    }
    assert_eq!(raw.goaway(), None);
}

#[test]
fn endless_header_block_ends_the_connection_before_it_needs_much_memory() {
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, 0, 1, &request_block("GET", "/")));
    let more = frame(CONTINUATION, 0, 1, &[b'x'; 16 << 10]);
    let mut sent = 0;
    while raw.goaway().is_none() && sent < 20 {
        raw.feed(&more);
        sent += 1;
    }
    assert_eq!((raw.goaway(), sent), (Some(ENHANCE_YOUR_CALM), 3));
}

#[test]
fn client_that_does_not_read_is_not_read_until_it_does() {
    let mut session = Session::new(LIMITS);
    session.feed(&hello(&[]));
    let (mut number, mut streams) = (0, Vec::new());
    while session.takes_input() && number < 50 {
        // With requests, so that PING frames are not a flood.
        let pings = frame(PING, 0, 0, &[0; 8]).repeat(1000);
        session.feed(&[get(2 * number + 1, "/"), pings].concat());
        loop {
            while let Some((_, stream)) = session.next_request() {
                streams.push(stream);
            }
            if !session.go_on() {
                break;
            }
        }
        number += 1;
    }
    assert!(number < 50 && !session.is_over());
    let length = session.with_output(<[u8]>::len);
    session.sent(length);
    while session.next_request().is_some() || session.go_on() {}
    assert!(session.takes_input() && session.has_output());
}

#[test]
fn streams_after_the_last_one_of_goaway_are_ignored_and_the_others_are_answered() {
    let mut raw = Raw::new(&[]);
    raw.feed(&get(1, "/"));
    raw.session.shut_down();
    raw.turn();
    let ping = raw.frames.iter().find(|frame| frame.kind == PING);
    let answer_to_ping = frame(PING, ACK, 0, &ping.expect("it is announced").payload);
    raw.feed(&answer_to_ping);
    for (stream, last) in [(3, 3), (5, 3)] {
        raw.feed(&post(stream));
        raw.feed(&frame(DATA, 0, last, b"x"));
        raw.feed(&window_update(last, 1));
    }
    assert_eq!((raw.requests.len(), raw.goaway()), (1, Some(NO_ERROR)));
    assert_eq!((raw.reset(3), raw.reset(5)), (None, None));
    assert!(!raw.session.is_over());
    answer(&mut raw);
    assert!(raw.data(1).1 && raw.session.is_over());
}
