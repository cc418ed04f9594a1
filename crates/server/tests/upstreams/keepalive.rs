//! Idle upstream connections: the cost of a request over one, and unexpected closes or data.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{net::TcpStream, thread};

use super::faults::{FakeUpstream, GOOD, proxy, read_head};
use crate::site::*;

/// How often the server has made these system calls so far.
fn calls<const N: usize>(server: &Server, names: [&str; N]) -> [u64; N] {
    let status = server.status();
    names.map(|name| {
        status["total"]["trace"]["calls"][name]
            .as_u64()
            .unwrap_or(0)
    })
}

fn ask_again(stream: &mut TcpStream) -> String {
    send(stream, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
    receive(stream).unwrap().text()
}

/// An upstream that answers request after request.
fn faithful() -> FakeUpstream {
    FakeUpstream::new(|mut stream| {
        while read_head(&mut stream).is_some() {
            let _ = stream.write_all(GOOD.as_bytes());
        }
    })
}

#[test]
fn keepalive_request_costs_one_write_and_one_read() {
    const REQUESTS: u64 = 20;
    let site = Site::new();
    let upstream = faithful();
    let server = proxy(&site, &[&upstream.address], "");
    let mut stream = server.connect();
    assert_eq!(ask_again(&mut stream), "good");
    let names = ["write (upstream)", "read (upstream)", "epoll_ctl"];
    let before = calls(&server, names);
    for _ in 0..REQUESTS {
        assert_eq!(ask_again(&mut stream), "good");
    }
    let after = calls(&server, names);
    let [writes, reads, orders] = [0, 1, 2].map(|at| after[at] - before[at]);
    assert_eq!([writes, reads], [REQUESTS, REQUESTS]);
    // Requests for the counters come from clients, too.
    assert!(orders < REQUESTS / 2, "{orders} times epoll_ctl");
    assert_eq!(counter(&server, "upstream_connects"), 1);
    is_well(&server);
}

/// An upstream with Nagle's algorithm keeps back the small end of its response until what came before is acknowledged.
#[test]
fn part_of_a_response_is_acknowledged_at_once() {
    let site = Site::new();
    let read = Arc::new(AtomicBool::new(false));
    let was_read = read.clone();
    let upstream = FakeUpstream::new(move |mut stream| {
        while read_head(&mut stream).is_some() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngo");
            wait_until(&was_read);
            let _ = stream.write_all(b"od");
        }
    });
    let server = proxy(&site, &[&upstream.address], "");
    let names = ["setsockopt", "read (upstream)"];
    let [options_before, reads_before] = calls(&server, names);
    let mut stream = server.connect();
    send(&mut stream, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
    while calls(&server, names)[1] == reads_before {
        thread::sleep(Duration::from_millis(1));
    }
    let [options, _] = calls(&server, names);
    read.store(true, Ordering::SeqCst);
    assert_eq!(receive(&mut stream).unwrap().text(), "good");
    assert!(options > options_before);
    is_well(&server);
}

/// Waits until the loop has handled everything that happened before: the response comes from a
/// later loop iteration.
fn let_a_turn_pass(server: &Server) {
    counter(server, "requests_received");
}

fn wait_until(happened: &AtomicBool) {
    while !happened.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn idle_connection_closes_when_the_upstream_closes_it() {
    let site = Site::new();
    let closed = Arc::new(AtomicBool::new(false));
    let closing = closed.clone();
    let hasty = FakeUpstream::new(move |mut stream| {
        if read_head(&mut stream).is_some() {
            let _ = stream.write_all(GOOD.as_bytes());
            drop(stream);
            closing.store(true, Ordering::SeqCst);
        }
    });
    let server = proxy(&site, &[&hasty.address], "");
    assert_eq!(get(&server, "/app/x").text(), "good");
    wait_until(&closed);
    let_a_turn_pass(&server);
    assert_eq!(counter(&server, "upstream_connections_idle"), 0);
    assert_eq!(get(&server, "/app/x").text(), "good");
    assert_eq!(counter(&server, "upstream_connections_reused"), 0);
    is_well(&server);
}

#[test]
fn unsolicited_data_on_an_idle_connection_is_not_used_as_a_response() {
    let site = Site::new();
    let (requested, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (requesting, sending) = (requested.clone(), sent.clone());
    // Like servers that send 408 on an idle connection.
    let talkative = FakeUpstream::new(move |mut stream| {
        while read_head(&mut stream).is_some() {
            let _ = stream.write_all(GOOD.as_bytes());
            if !sending.load(Ordering::SeqCst) {
                wait_until(&requesting);
                let late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nlate";
                let _ = stream.write_all(late);
                sending.store(true, Ordering::SeqCst);
            }
        }
    });
    let server = proxy(&site, &[&talkative.address], "");
    assert_eq!(get(&server, "/app/x").text(), "good");
    requested.store(true, Ordering::SeqCst);
    wait_until(&sent);
    let_a_turn_pass(&server);
    for _ in 0..3 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    assert_eq!(talkative.count(), 2);
    is_well(&server);
}

/// An upstream that answers this many requests per connection with five bytes each, then reads one
/// more and closes.
fn patient(requests: usize) -> FakeUpstream {
    FakeUpstream::new(move |mut stream| {
        for at in 0..=requests {
            let head = read_head(&mut stream);
            if head.is_none() || stream.read_exact(&mut [0; 5]).is_err() || at == requests {
                return;
            }
            let _ = stream.write_all(GOOD.as_bytes());
        }
    })
}

#[test]
fn post_reuses_a_connection_with_keepalive_unsafe_methods() {
    let site = Site::new();
    for (more, connections) in [("", 3), ("keepalive-unsafe-methods = true", 1)] {
        let upstream = patient(3);
        let server = proxy(&site, &[&upstream.address], more);
        for _ in 0..3 {
            assert_eq!(exchange(&server, post("/app/x", b"hello")).text(), "good");
        }
        assert_eq!(upstream.count(), connections, "{more}");
        is_well(&server);
    }
}

#[test]
fn post_is_not_retried_when_its_reused_connection_closes() {
    let site = Site::new();
    let upstream = patient(1);
    let server = proxy(
        &site,
        &[&upstream.address],
        "keepalive-unsafe-methods = true",
    );
    assert_eq!(exchange(&server, post("/app/x", b"hello")).text(), "good");
    assert_eq!(counter(&server, "upstream_failures"), 0);
    assert_eq!(exchange(&server, post("/app/x", b"hello")).status, 502);
    assert_eq!(counter(&server, "upstream_failures"), 1);
    assert_eq!(upstream.count(), 1);
    assert_eq!(exchange(&server, post("/app/x", b"hello")).text(), "good");
    is_well(&server);
}

#[test]
fn request_is_retried_when_a_reused_connection_returns_garbage() {
    let site = Site::new();
    let upstream = FakeUpstream::new(|mut stream| {
        for raw in [GOOD, "nonsense\r\n\r\n"] {
            if read_head(&mut stream).is_some() {
                let _ = stream.write_all(raw.as_bytes());
            }
        }
    });
    let server = proxy(&site, &[&upstream.address], "");
    for _ in 0..4 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    assert_eq!(counter(&server, "handler_invalid_responses"), 0);
    is_well(&server);
}
