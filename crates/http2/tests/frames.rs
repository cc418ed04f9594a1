//! A client with frames made by hand, for conversations that no library makes.

use std::io::IoSlice;

use headway_http2::{Received, Session, Settings, Stream};
use headway_test_support::http2::*;

use super::client::{LIMITS, OUTPUT_BYTES_MAX, contents};

/// A session, and a client that has sent its preface.
pub struct Raw {
    pub session: Session,
    /// The frames that the client has received.
    pub frames: Vec<Frame>,
    output: Vec<u8>,
    /// The received requests.
    pub requests: Vec<(String, Stream)>,
}

impl Raw {
    pub fn new(values: &[(u16, u32)]) -> Raw {
        Raw::with(LIMITS, values)
    }

    pub fn with(settings: Settings, values: &[(u16, u32)]) -> Raw {
        let mut raw = Raw {
            session: Session::new(settings),
            frames: Vec::new(),
            output: Vec::new(),
            requests: Vec::new(),
        };
        raw.feed(&hello(values));
        raw
    }

    /// Sends bytes, and receives the resulting frames and requests.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.session.takes_input() {
            self.session.feed(bytes);
        }
        self.turn();
    }

    pub fn turn(&mut self) {
        loop {
            while let Some((head, stream)) = self.session.next_request() {
                self.requests
                    .push((String::from_utf8(head).unwrap(), stream));
            }
            let count = self.session.with_output(|output| {
                self.output.extend(output);
                output.len()
            });
            self.session.sent(count);
            if count == 0 && !self.session.go_on() {
                break;
            }
        }
        let (frames, rest) = Frame::split(&self.output);
        self.output = rest.to_vec();
        self.frames.extend(frames);
    }

    /// The error of the GOAWAY, if there was one.
    pub fn goaway(&self) -> Option<u32> {
        let frame = self.frames.iter().rev().find(|frame| frame.kind == GOAWAY);
        frame.map(Frame::error)
    }

    /// The error of the RST_STREAM, if there was one.
    pub fn reset(&self, stream: u32) -> Option<u32> {
        let is_it = |frame: &&Frame| frame.kind == RST_STREAM && frame.stream == stream;
        self.frames.iter().find(is_it).map(Frame::error)
    }

    /// The data of a stream, and whether it has ended.
    pub fn data(&self, stream: u32) -> (Vec<u8>, bool) {
        let frames = self.frames.iter().filter(|frame| frame.stream == stream);
        let is_over = frames.clone().any(Frame::is_last);
        let data = frames.filter(|frame| frame.kind == DATA);
        (
            data.flat_map(|frame| frame.payload.clone()).collect(),
            is_over,
        )
    }
}

fn send(stream: &mut Stream, bytes: &[u8]) -> usize {
    stream.send(&[IoSlice::new(bytes)]).unwrap().unwrap_or(0)
}

#[test]
fn last_chunk_needs_no_window() {
    let body = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n";
    for size in 1..body.len() {
        end_without_a_window(format!("{body}\r\n").as_bytes(), size, DATA);
        end_without_a_window(format!("{body}a: b\r\n\r\n").as_bytes(), size, HEADERS);
    }
}

/// Sends a response in parts of this size. The client's window is exactly as large as the data. Checks the last frame.
fn end_without_a_window(response: &[u8], size: usize, last: u8) {
    let mut raw = Raw::new(&[(INITIAL_WINDOW_SIZE, 5)]);
    raw.feed(&get(1, "/"));
    let (_, mut stream) = raw.requests.remove(0);
    for piece in response.chunks(size) {
        let mut left = piece;
        while !left.is_empty() {
            assert!(stream.can_send());
            let count = send(&mut stream, left);
            assert!(count > 0, "{size}: it has said that it can");
            left = &left[count..];
            raw.turn();
        }
    }
    assert_eq!(raw.data(1), (b"hello".to_vec(), true), "{size}");
    assert_eq!(raw.frames.last().unwrap().kind, last);
}

#[test]
fn data_waits_for_the_window_and_chunk_framing_is_not_sent() {
    let mut raw = Raw::new(&[(INITIAL_WINDOW_SIZE, 3)]);
    raw.feed(&get(1, "/"));
    let (_, mut stream) = raw.requests.remove(0);
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(send(&mut stream, head), head.len());
    let mut left = &b"5\r\nhello\r\n0\r\n\r\n"[..];
    for (window, seen) in [(0, "hel"), (1, "hell"), (1, "hello")] {
        if window > 0 {
            raw.feed(&window_update(1, window));
        }
        while stream.can_send() && !left.is_empty() {
            left = &left[send(&mut stream, left)..];
        }
        raw.turn();
        assert_eq!(raw.data(1).0, seen.as_bytes());
    }
    assert!(raw.data(1).1 && left.is_empty());
}

#[test]
fn stream_takes_no_data_when_the_window_is_zero() {
    let mut raw = Raw::new(&[(INITIAL_WINDOW_SIZE, 0)]);
    for stream in 0..50 {
        raw.feed(&get(2 * stream + 1, "/"));
    }
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
    for (_, stream) in &mut raw.requests {
        let taken = send(stream, &[&head[..], &contents(1_000_000)].concat());
        assert_eq!(taken, head.len());
        assert!(!stream.can_send());
    }
    raw.turn();
    assert!(raw.frames.iter().all(|frame| frame.kind != DATA));
}

#[test]
fn data_never_exceeds_the_room_for_output_when_the_client_does_not_read() {
    let mut session = Session::new(LIMITS);
    session.feed(&hello(&[(INITIAL_WINDOW_SIZE, 1 << 30)]));
    session.feed(&window_update(0, 1 << 30));
    for stream in 0..50 {
        session.feed(&get(2 * stream + 1, "/"));
    }
    let mut streams = Vec::new();
    while let Some((_, stream)) = session.next_request() {
        streams.push(stream);
    }
    let response = [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"[..],
        &contents(1_000_000),
    ]
    .concat();
    let mut at = vec![0; streams.len()];
    let mut sent = 0;
    for round in 0..2000 {
        for (stream, at) in streams.iter_mut().zip(&mut at) {
            if stream.can_send() && *at < response.len() {
                assert!(session.has_room());
                *at += send(stream, &response[*at..]);
            }
        }
        assert!(session.next_request().is_none());
        // Each of them may need a frame header.
        let length = session.with_output(<[u8]>::len);
        assert!(length <= OUTPUT_BYTES_MAX, "{length}");
        if round > 100 {
            let count = length.min(1 + round * 7919 % 30_000);
            session.sent(count);
            sent += count;
        }
    }
    assert!(sent > 10_000_000, "{sent}");
}

#[test]
fn connection_ends_when_the_preface_or_a_frame_is_invalid() {
    let good = || hello(&[]);
    let mut other = good();
    other[20] ^= 1;
    let ping = |length: usize| [good(), frame(PING, 0, 0, &vec![0; length])].concat();
    for (bytes, what) in [
        (other, "another preface"),
        (
            [good(), frame(HEADERS, END_HEADERS, 0, b"")].concat(),
            "headers of no stream",
        ),
        ([good(), get(2, "/")].concat(), "a stream of the server"),
        (
            [good(), get(3, "/"), get(1, "/")].concat(),
            "an older stream",
        ),
        (
            [good(), frame(CONTINUATION, END_HEADERS, 1, b"")].concat(),
            "a continuation of nothing",
        ),
        (
            [good(), frame(HEADERS, 0, 1, b""), get(3, "/")].concat(),
            "no continuation",
        ),
        (
            [good(), frame(HEADERS, END_HEADERS, 1, &[255; 9])].concat(),
            "no header block",
        ),
        (
            [good(), frame(DATA, 0, 1, b"x")].concat(),
            "data of an idle stream",
        ),
        (
            [good(), window_update(0, 0)].concat(),
            "a window of nothing",
        ),
        (
            [good(), window_update(0, u32::MAX >> 1)].concat(),
            "too large a window",
        ),
        (
            [good(), frame(SETTINGS, 0, 0, b"abc")].concat(),
            "half a setting",
        ),
        (ping(7), "a short ping"),
        (
            [good(), frame(DATA, 0, 1, &vec![0; 17_000])].concat(),
            "a long frame",
        ),
    ] {
        for size in [1, 7, bytes.len()] {
            let mut raw = Raw::with(LIMITS, &[]);
            raw.session = Session::new(LIMITS);
            for piece in bytes.chunks(size) {
                raw.feed(piece);
            }
            assert!(raw.session.is_over(), "{what}");
            // The client gets an error code, if it speaks HTTP/2 at all.
            let is_none = raw.frames.iter().all(|frame| frame.kind != GOAWAY);
            assert!(!is_none || what == "another preface", "{what}");
        }
    }
}

#[test]
fn frames_of_unknown_kinds_are_ignored() {
    let mut raw = Raw::new(&[(0x4242, 7)]);
    raw.feed(&frame(0x42, 0xff, 0, b"anything"));
    raw.feed(&frame(PRIORITY, 0, 5, &[0, 0, 0, 3, 7]));
    raw.feed(&get(1, "/"));
    assert_eq!(raw.requests.len(), 1);
    assert_eq!(raw.goaway(), None);
}

#[test]
fn streams_over_the_limit_are_refused() {
    let mut raw = Raw::with(
        Settings {
            streams_max: 3,
            ..LIMITS
        },
        &[],
    );
    for stream in [1, 3, 5, 7, 9] {
        raw.feed(&get(stream, "/"));
    }
    assert_eq!(raw.requests.len(), 3);
    let refused = Some(7);
    assert_eq!(
        (raw.reset(7), raw.reset(9), raw.reset(5)),
        (refused, refused, None)
    );
    let (_, mut stream) = raw.requests.remove(0);
    send(&mut stream, b"HTTP/1.1 204 No Content\r\n\r\n");
    drop(stream);
    raw.turn();
    raw.feed(&get(11, "/"));
    assert_eq!((raw.requests.len(), raw.reset(11)), (3, None));
}

#[test]
fn end_of_a_body_is_seen_at_once_when_its_frame_is_empty() {
    for (before, expected) in [("", "0\r\n\r\n"), ("abc", "3\r\nabc\r\n")] {
        let mut raw = Raw::new(&[]);
        raw.feed(&frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/")));
        let (_, mut stream) = raw.requests.remove(0);
        assert!(!stream.has_input());
        raw.feed(&frame(DATA, 0, 1, b""));
        assert!(!stream.has_input());
        raw.feed(&frame(DATA, 0, 1, before.as_bytes()));
        raw.feed(&frame(DATA, END_STREAM, 1, b""));
        assert!(stream.has_input());
        let mut buffer = [0; 100];
        let Received::Data(count) = stream.receive(&mut buffer) else {
            panic!("there is something");
        };
        assert_eq!(&buffer[..count], expected.as_bytes());
        assert_eq!(stream.has_input(), !before.is_empty());
    }
}
