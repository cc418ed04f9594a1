//! Upgraded connections: bytes in both directions, a side that disconnects, is silent or does not
//! read.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::faults::{FakeUpstream, GOOD, proxy, read_head};
use crate::site::*;

const UPGRADE: &str = "GET /app/socket HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n\r\n";

const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: def\r\n\r\n";

/// An upstream that agrees to an upgrade with these lines and then calls a function. It answers other requests
/// normally.
pub fn agreeing<const N: usize>(
    required: [&'static str; N],
    agreed: impl Fn(&str) -> String + Send + Sync + 'static,
    then: impl Fn(TcpStream) + Send + Sync + 'static,
) -> FakeUpstream {
    FakeUpstream::new(move |mut stream| {
        let Some(head) = read_head(&mut stream) else {
            return;
        };
        if required.iter().all(|line| head.contains(line)) {
            stream.write_all(agreed(&head).as_bytes()).unwrap();
            then(stream);
        } else {
            stream.write_all(GOOD.as_bytes()).unwrap();
        }
    })
}

fn upgrading(then: impl Fn(TcpStream) + Send + Sync + 'static) -> FakeUpstream {
    let required = [
        "Upgrade: websocket\r\n",
        "Connection: Upgrade\r\n",
        "Key: abc\r\n",
    ];
    agreeing(required, |_| AGREED.to_owned(), then)
}

/// An upgraded connection.
fn open(server: &Server) -> TcpStream {
    let mut stream = server.connect();
    send(&mut stream, UPGRADE);
    let response = switched(&mut stream);
    assert_eq!(response.status, 101);
    stream
}

/// The head of the response; what follows is the other protocol.
fn switched(stream: &mut TcpStream) -> Response {
    receive_head(stream).unwrap()
}

fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset ends it as well.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

pub fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 9000];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = stream.write_all(b"bye");
}

#[test]
fn websocket_bytes_pass_both_ways_after_101() {
    for events in ["epoll", "epoll-edge", "poll", "select"] {
        pass_both_ways(events);
    }
}

/// An upstream which sends its last bytes with the 101 still gets what the client sends.
#[test]
fn websocket_client_may_go_on_when_the_upstream_ended_with_its_101() {
    for events in ["epoll", "epoll-edge", "poll", "select"] {
        let site = Site::new();
        let (sender, heard) = channel();
        let upstream = FakeUpstream::new(move |mut stream| {
            if read_head(&mut stream).is_none() {
                return;
            }
            stream
                .write_all(format!("{AGREED}last words").as_bytes())
                .unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let _ = sender.send(rest(&mut stream));
        });
        let server = site.serve_configured(&format!(
            "events = {events:?}\n[[location]]\nprefix = \"/app/\"\nproxy = {:?}\n",
            upstream.address
        ));
        let mut stream = open(&server);
        assert_eq!(rest(&mut stream), b"last words", "{events}");
        send(&mut stream, "one more word");
        stream.shutdown(Shutdown::Write).unwrap();
        let heard = heard.recv_timeout(headway_test_support::WAIT_MAX);
        assert_eq!(heard.unwrap(), b"one more word", "{events}");
        is_well(&server);
    }
}

#[test]
fn upgrade_is_passed_on_when_the_upstream_requires_one() {
    let site = Site::new();
    let upstream = FakeUpstream::sending(
        "HTTP/1.1 426 Upgrade Required\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: a/1\r\n\
         Content-Length: 0\r\n\r\n",
    );
    let server = proxy(&site, &[&upstream.address], "");
    for (asked, options) in [("", "Upgrade"), ("Connection: close\r\n", "close, Upgrade")] {
        let mut stream = server.connect();
        send(
            &mut stream,
            format!("GET /app/x HTTP/1.1\r\nHost: x\r\n{asked}\r\n"),
        );
        let response = receive(&mut stream).unwrap();
        assert_eq!(response.status, 426);
        assert_eq!(response.field("Upgrade"), Some("websocket, a/1"));
        assert_eq!(response.field("Connection"), Some(options));
    }
    let upstream = FakeUpstream::sending(
        "HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n",
    );
    let server = proxy(&site, &[&upstream.address], "");
    assert_eq!(get(&server, "/app/x").field("Upgrade"), None);
}

fn pass_both_ways(events: &str) {
    let site = Site::new();
    let upstream = upgrading(|mut stream| {
        stream.write_all(b"hello ").unwrap();
        echo(stream);
    });
    let server = site.serve_configured(&format!(
        "events = {events:?}\n[[location]]\nprefix = \"/app/\"\nproxy = {:?}\nconcurrency = 1\nqueue = 0\n",
        upstream.address
    ));
    let mut stream = server.connect();
    send(&mut stream, format!("{UPGRADE}early "));
    let response = switched(&mut stream);
    assert_eq!(response.status, 101, "{}", response.head);
    for (name, expected) in [
        ("Connection", Some("Upgrade")),
        ("Upgrade", Some("websocket")),
        ("Sec-WebSocket-Accept", Some("def")),
        ("Server", Some("Headway")),
        ("Content-Length", None),
        ("Transfer-Encoding", None),
    ] {
        assert_eq!(response.field(name), expected, "{name}");
    }
    let mut said = [0; 12];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"hello early ");
    // It does not occupy a slot that other requests need.
    assert_eq!(get(&server, "/app/x").text(), "good");
    assert_eq!(counter(&server, "connections_upgraded"), 1);
    let sent = contents(3_000_000);
    let (mut sender, copy) = (stream.try_clone().unwrap(), sent.clone());
    let sending = thread::spawn(move || {
        sender.write_all(&copy).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = rest(&mut stream);
    sending.join().unwrap();
    assert_eq!(
        back.split_off(sent.len()),
        b"bye",
        "what came after the end"
    );
    assert!(back == sent);
    server.wait_for("its end", |server| {
        counter(server, "connections_upgraded") == 0
    });
    assert_eq!(counter(&server, "upgrades"), 1);
    let idle = counter(&server, "upstream_connections_idle");
    assert!(
        idle <= 1,
        "only the other request's connection is of use again: {idle}"
    );
    is_well(&server);
}

#[test]
fn websocket_rejection_is_forwarded_as_an_ordinary_response() {
    let site = Site::new();
    for (raw, expected) in [
        (GOOD, 200),
        ("HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\nno", 400),
        (
            "HTTP/1.1 426 Later\r\nUpgrade: x\r\nContent-Length: 0\r\n\r\n",
            426,
        ),
        (
            "HTTP/1.1 101 Other\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
            502,
        ),
    ] {
        let upstream = FakeUpstream::sending(raw);
        let server = proxy(&site, &[&upstream.address], "");
        let mut stream = server.connect();
        send(&mut stream, UPGRADE);
        let response = receive(&mut stream).unwrap();
        let upgrade = (expected == 426).then_some("x");
        assert_eq!(
            (response.status, response.field("Upgrade")),
            (expected, upgrade),
            "{raw:?}"
        );
        send(&mut stream, "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(receive(&mut stream).unwrap().text(), "a file\n", "{raw:?}");
        assert_eq!(counter(&server, "upgrades"), 0);
        is_well(&server);
    }
}

#[test]
fn websocket_disconnect_reaches_the_other_side() {
    let site = Site::new();
    let (sender, receiver) = channel();
    let sender = std::sync::Mutex::new(sender);
    let upstream = upgrading(move |mut stream| {
        let mut first = [0];
        let _ = stream.read(&mut first);
        match first[0] {
            b'd' => stream.write_all(b"half").unwrap(),
            _ => {
                let end = stream.read(&mut first);
                sender
                    .lock()
                    .unwrap()
                    .send(matches!(end, Ok(0) | Err(_)))
                    .unwrap();
            }
        }
    });
    let server = proxy(&site, &[&upstream.address], "");
    let mut stream = open(&server);
    // A part of it is never read, so the upstream resets its connection.
    send(&mut stream, [&b"d"[..], &contents(50_000)].concat());
    let end = rest(&mut stream);
    assert!(b"half".starts_with(&end), "{end:?}");
    let mut stream = open(&server);
    send(&mut stream, "w");
    drop(stream);
    assert!(receiver.recv_timeout(Duration::from_secs(30)).unwrap());
    server.wait_for("their end", |server| {
        counter(server, "connections_upgraded") == 0
    });
    assert_eq!(counter(&server, "upgrades"), 2);
    is_well(&server);
}

#[test]
fn websocket_sender_waits_when_the_other_side_does_not_read() {
    let site = Site::new();
    let (sender, receiver) = channel();
    let sender = std::sync::Mutex::new(sender);
    let upstream = upgrading(move |mut stream| {
        let timeout = Some(Duration::from_millis(500));
        stream.set_write_timeout(timeout).unwrap();
        let (block, mut sent) = (contents(1 << 16), 0);
        while let Ok(count) = stream.write(&block[sent % 251..]) {
            sent += count;
        }
        sender.lock().unwrap().send(sent).unwrap();
    });
    let server = proxy(&site, &[&upstream.address], "");
    let mut stream = open(&server);
    let sent = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(sent < 64 << 20, "{sent} bytes are waiting somewhere");
    let received = rest(&mut stream);
    assert!(received == contents(sent), "{} of {sent}", received.len());
    is_well(&server);
}

#[test]
fn websocket_closes_after_the_upgrade_timeout() {
    let site = Site::new();
    let upstream = upgrading(echo);
    let more = "upgrade-timeout = \"2s\"\ntimeout = \"1s\"\nrequest-timeout = \"1s\"";
    let server = proxy(&site, &[&upstream.address], more);
    let mut stream = open(&server);
    // Longer than `request-timeout`.
    thread::sleep(Duration::from_millis(1_400));
    send(&mut stream, "a");
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    assert!(rest(&mut stream).is_empty());
    assert_eq!(counter(&server, "handler_timeouts"), 1);
    is_well(&server);
}

#[test]
fn websocket_is_answered_503_above_max_upgrades() {
    let site = Site::new();
    let upstream = upgrading(echo);
    let server = proxy(&site, &[&upstream.address], "max-upgrades = 1");
    let first = open(&server);
    assert_eq!(exchange(&server, UPGRADE).status, 503);
    drop(first);
    server.wait_for("its end", |server| {
        counter(server, "connections_upgraded") == 0
    });
    drop(open(&server));
    let server = proxy(&site, &[&upstream.address], "max-upgrades = 0");
    assert_eq!(
        exchange(&server, UPGRADE).text(),
        "good",
        "refused_address is asked for it"
    );
    is_well(&server);
}
