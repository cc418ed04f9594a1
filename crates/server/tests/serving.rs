//! Tests of the request path, end to end, with every event mechanism.
//!
//! These tests do not judge whether the loop sleeps: the worker shares its address space with the
//! test's threads, and a page fault in any of its calls may wait for another thread's mmap. The
//! tests of whole servers (`processes`, `programs`, `upstreams`) judge it.

use crate::support;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

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

#[test]
fn last_response_and_the_end_of_the_connection_share_a_segment() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), vec![b'x'; 500]).unwrap();
    let served = Served::start(config(root.path(), ""));
    assert_eq!(served.get("/file").status, 200);
    let segments = (0..20).map(|_| {
        let mut stream = served.connect();
        let request = b"GET /file HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        assert!(response.ends_with(&[b'x'; 500]));
        received_segments(&stream)
    });
    // That of the handshake, one that acknowledges the request, and one with everything.
    assert_eq!(segments.min(), Some(3));
}

/// `tcpi_segs_in` of tcp(7).
fn received_segments(stream: &TcpStream) -> u32 {
    const AT: usize = 140;
    let mut info = [0_u8; AT + 4];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the array.
    let got = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!((got, length as usize), (0, info.len()));
    u32::from_ne_bytes(info[AT..].try_into().unwrap())
}
