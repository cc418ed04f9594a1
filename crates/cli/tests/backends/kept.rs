//! Connections to back ends that wait for their next request: what a request over one costs, and
//! what becomes of those that their back end closes or says something over.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{net::TcpStream, thread};

use crate::faults::{BackEnd, GOOD, proxy, read_head};
use crate::serving::Server;
use crate::site::*;

/// How often the server has made these calls so far.
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

/// One that answers request after request.
fn faithful() -> BackEnd {
    BackEnd::new(|mut stream| {
        while read_head(&mut stream).is_some() {
            let _ = stream.write_all(GOOD.as_bytes());
        }
    })
}

#[test]
fn request_costs_one_write_and_one_read_when_its_connection_was_kept() {
    const REQUESTS: u64 = 20;
    let site = Site::new();
    let back_end = faithful();
    let server = proxy(&site, &[&back_end.address], "");
    let mut stream = server.connect();
    assert_eq!(ask_again(&mut stream), "good");
    let names = ["write (back end)", "read (back end)", "epoll_ctl"];
    let before = calls(&server, names);
    for _ in 0..REQUESTS {
        assert_eq!(ask_again(&mut stream), "good");
    }
    let after = calls(&server, names);
    let [writes, reads, orders] = [0, 1, 2].map(|at| after[at] - before[at]);
    assert_eq!([writes, reads], [REQUESTS, REQUESTS]);
    // Those who ask for the counters are clients, too.
    assert!(orders < REQUESTS / 2, "{orders} times epoll_ctl");
    assert_eq!(counter(&server, "backend_connects"), 1);
    is_well(&server);
}

/// What has happened before this is known to the loop afterwards: its answer comes from a turn that
/// began later, and the next request has a turn of its own.
fn let_a_turn_pass(server: &Server) {
    counter(server, "requests");
}

fn wait_until(happened: &AtomicBool) {
    while !happened.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn connection_is_closed_when_its_back_end_does_so_while_it_waits() {
    let site = Site::new();
    let closed = Arc::new(AtomicBool::new(false));
    let closing = closed.clone();
    let hasty = BackEnd::new(move |mut stream| {
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
    assert_eq!(counter(&server, "backend_idle"), 0);
    assert_eq!(get(&server, "/app/x").text(), "good");
    assert_eq!(counter(&server, "backend_reused"), 0);
    is_well(&server);
}

#[test]
fn words_nobody_asked_for_are_no_reply_when_the_next_request_comes() {
    let site = Site::new();
    let (heard, told) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (hearing, telling) = (heard.clone(), told.clone());
    // As servers do that are tired of waiting.
    let talkative = BackEnd::new(move |mut stream| {
        while read_head(&mut stream).is_some() {
            let _ = stream.write_all(GOOD.as_bytes());
            if !telling.load(Ordering::SeqCst) {
                wait_until(&hearing);
                let late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nlate";
                let _ = stream.write_all(late);
                telling.store(true, Ordering::SeqCst);
            }
        }
    });
    let server = proxy(&site, &[&talkative.address], "");
    assert_eq!(get(&server, "/app/x").text(), "good");
    heard.store(true, Ordering::SeqCst);
    wait_until(&told);
    let_a_turn_pass(&server);
    for _ in 0..3 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    assert_eq!(talkative.count(), 2);
    is_well(&server);
}

/// One that answers requests with a body of five bytes, so many over each connection; then it reads
/// one more and closes.
fn patient(requests: usize) -> BackEnd {
    BackEnd::new(move |mut stream| {
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
fn posts_go_over_kept_connections_when_they_may() {
    let site = Site::new();
    for (more, connections) in [("", 3), ("keepalive-unsafe-methods = true", 1)] {
        let back_end = patient(3);
        let server = proxy(&site, &[&back_end.address], more);
        for _ in 0..3 {
            assert_eq!(ask(&server, post("/app/x", b"hello")).text(), "good");
        }
        assert_eq!(back_end.count(), connections, "{more}");
        is_well(&server);
    }
}

#[test]
fn post_is_not_sent_again_when_its_kept_connection_ends() {
    let site = Site::new();
    let back_end = patient(1);
    let server = proxy(
        &site,
        &[&back_end.address],
        "keepalive-unsafe-methods = true",
    );
    assert_eq!(ask(&server, post("/app/x", b"hello")).text(), "good");
    assert_eq!(counter(&server, "backend_failures"), 0);
    assert_eq!(ask(&server, post("/app/x", b"hello")).status, 502);
    assert_eq!(counter(&server, "backend_failures"), 1);
    assert_eq!(back_end.count(), 1);
    assert_eq!(ask(&server, post("/app/x", b"hello")).text(), "good");
    is_well(&server);
}

#[test]
fn another_connection_is_asked_when_a_kept_one_answers_nonsense() {
    let site = Site::new();
    let back_end = BackEnd::new(|mut stream| {
        for words in [GOOD, "nonsense\r\n\r\n"] {
            if read_head(&mut stream).is_some() {
                let _ = stream.write_all(words.as_bytes());
            }
        }
    });
    let server = proxy(&site, &[&back_end.address], "");
    for _ in 0..4 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    assert_eq!(counter(&server, "dynamic_bad_replies"), 0);
    is_well(&server);
}
