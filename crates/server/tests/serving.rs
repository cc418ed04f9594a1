//! Tests of the request path, end to end, with every event mechanism.
//!
//! These tests do not judge whether the loop sleeps: the worker shares its address space with the
//! test's threads, and a page fault in any of its calls may wait for another thread's mmap. The
//! tests of whole servers (`processes`, `programs`, `upstreams`) judge it.

use crate::support;
use std::fs;
use std::io::{Read, Write};

use support::{Served, config};

#[test]
fn files_of_every_size_arrive_complete_with_every_event_mechanism() {
    let root = tempfile::tempdir().unwrap();
    let sizes = [0, 1, 500, 65_536, 65_537, 262_144, 1_000_003];
    for size in sizes {
        let bytes: Vec<u8> = (0..size).map(|at: usize| (at % 251) as u8).collect();
        fs::write(root.path().join(format!("{size}.bin")), bytes).unwrap();
    }
    for events in ["select", "poll", "epoll", "epoll-edge"] {
        let events_line = format!("events = {events:?}");
        let mut served = Served::start(config(root.path(), &events_line));
        for size in sizes {
            let response = served.get(&format!("/{size}.bin"));
            assert_eq!(response.status, 200, "{events} {size}");
            assert_eq!(
                response.field("Content-Length"),
                Some(size.to_string().as_str())
            );
            let expected: Vec<u8> = (0..size).map(|at: usize| (at % 251) as u8).collect();
            assert!(
                response.body == expected,
                "{events}: {size} bytes arrive as they are"
            );
        }
        let snapshot = served.snapshot();
        assert_eq!(snapshot.counters.requests_received, sizes.len() as u64);
        assert_eq!(snapshot.events, events);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_when_they_exceed_every_buffer() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("last"), "the end").unwrap();
    let served = Served::start(config(root.path(), ""));
    let count = 5_000;
    let mut stream = served.connect();
    let mut sending = stream.try_clone().unwrap();
    // In a thread, because the server stops reading while its responses are not read.
    let sender = std::thread::spawn(move || {
        let filler = "x".repeat(100);
        for number in 0..count {
            let request = format!("GET /{number}?{filler} HTTP/1.1\r\nHost: test\r\n\r\n");
            sending.write_all(request.as_bytes()).unwrap();
        }
        let last = b"GET /last HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        sending.write_all(last).unwrap();
    });
    let mut responses = Vec::new();
    stream.read_to_end(&mut responses).unwrap();
    sender.join().unwrap();
    let responses = String::from_utf8(responses).unwrap();
    assert_eq!(
        responses.matches("HTTP/1.1 404 Not Found\r\n").count(),
        count
    );
    assert!(responses.ends_with("\r\n\r\nthe end"));
}
