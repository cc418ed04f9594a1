//! WebSockets over HTTP/2 (RFC 8441) to an upstream of HTTP/1.1.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use h2::Reason;
use h2::ext::Protocol;
use headway_test_support::WAIT_MAX;
use rustix::process::Signal;

use super::client::*;
use crate::site::*;
use crate::upstreams::faults::{FakeUpstream, GOOD, proxy};
use crate::upstreams::websocket::{self, echo};

/// The response that agrees, with the right answer to the key in this header.
fn agreed(head: &str) -> String {
    let key = head
        .lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
    let answer = headway_http2::websocket_answer(key.unwrap());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {answer}\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
    )
}

/// An upstream that agrees and then calls this.
fn agreeing(then: impl Fn(TcpStream) + Send + Sync + 'static) -> FakeUpstream {
    let required = [
        "GET /app/",
        "\r\nUpgrade: websocket\r\n",
        "\r\nConnection: Upgrade\r\n",
        "\r\nsec-websocket-version: 13\r\n",
    ];
    websocket::agreeing(required, agreed, then)
}

fn open(client: &mut Client) -> usize {
    let at = client.begin_websocket("/app/socket");
    client.wait_for_header(at);
    let seen = &client.exchanges[at];
    assert_eq!(seen.status, 200);
    for name in [
        "upgrade",
        "connection",
        "sec-websocket-accept",
        "content-length",
    ] {
        assert_eq!(seen.header(name), "", "{name}");
    }
    assert_eq!(seen.header("sec-websocket-protocol"), "chat");
    at
}

fn wait_until_none_is_upgraded(server: &Server) {
    server.wait_for("their end", |server| {
        counter(server, "connections_upgraded") == 0
    });
}

#[test]
fn bytes_pass_both_ways_beside_other_requests() {
    let site = Site::new();
    let upstream = agreeing(echo);
    let server = proxy(&site, &[&upstream.address], "");
    let mut client = Client::connect(&server);
    let sockets = [open(&mut client), open(&mut client)];
    assert_eq!(counter(&server, "connections_upgraded"), 2);
    // More than all windows and buffers hold.
    let said = contents(3_000_000);
    for at in sockets {
        client.exchanges[at].say(&said);
    }
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    for at in sockets {
        client.wait_for("all of it", |client| {
            client.exchanges[at].received.len() == said.len()
        });
        assert!(client.exchanges[at].received == said);
        assert_eq!(client.exchanges[at].end, None);
    }
    // The client ends its direction; the upstream says more and ends the other.
    for at in sockets {
        client.exchanges[at].is_open = false;
        let seen = client.finish(at);
        assert_eq!(
            (seen.end, &seen.received[said.len()..]),
            (Some(Ok(())), &b"bye"[..])
        );
    }
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    wait_until_none_is_upgraded(&server);
    wait_until_all_have_ended(&server);
    assert_eq!(counter(&server, "upgrades"), 2);
    assert_eq!(counter(&server, "connections_accepted"), 1);
    is_well(&server);
}

#[test]
fn upstream_that_ends_first_is_still_told_what_the_client_says() {
    let (sender, heard) = channel();
    let sender = Mutex::new(sender);
    let upstream = agreeing(move |mut stream| {
        stream.write_all(b"last words").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let _ = sender.lock().unwrap().send(rest);
    });
    let site = Site::new();
    let server = proxy(&site, &[&upstream.address], "");
    let mut client = Client::connect(&server);
    let at = open(&mut client);
    let seen = client.finish(at);
    assert_eq!(
        (seen.end, &seen.received[..]),
        (Some(Ok(())), &b"last words"[..])
    );
    client.exchanges[at].say(b"one more word");
    client.exchanges[at].is_open = false;
    client.wait_for("the end", |_| counter(&server, "connections_upgraded") == 0);
    assert_eq!(heard.recv_timeout(WAIT_MAX).unwrap(), b"one more word");
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn websocket_that_the_client_resets_ends_at_the_upstream() {
    let (sender, ended) = channel();
    let sender = Mutex::new(sender);
    let upstream = agreeing(move |mut stream| {
        let mut first = [0];
        stream.read_exact(&mut first).unwrap();
        if first == *b"w" {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        let end = stream.read(&mut first);
        sender
            .lock()
            .unwrap()
            .send(matches!(end, Ok(0) | Err(_)))
            .unwrap();
    });
    let site = Site::new();
    let server = proxy(&site, &[&upstream.address], "");
    let mut client = Client::connect(&server);
    // Also when the upstream's direction has ended.
    for first in [b"a", b"w"] {
        let at = open(&mut client);
        client.exchanges[at].say(first);
        if first == b"w" {
            client.finish(at);
        } else {
            client.pass();
        }
        client.cancel(at);
        client.wait_for("the end", |_| counter(&server, "connections_upgraded") == 0);
        assert!(ended.recv_timeout(WAIT_MAX).unwrap());
    }
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn response_that_does_not_agree_is_an_error() {
    let site = Site::new();
    for (at, (raw, expected)) in [
        (
            "HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: wrong\r\n\r\nx",
            502,
        ),
        (
            "HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            502,
        ),
        (
            "HTTP/1.1 101 No\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
            502,
        ),
        // The client would take it for an open WebSocket.
        (GOOD, 501),
        ("HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno", 403),
    ]
    .into_iter()
    .enumerate()
    {
        let upstream = FakeUpstream::sending(raw);
        let log = site.path(&format!("log{at}"));
        let server = site.serve_configured(&format!(
            "log = {log:?}\n[[location]]\nprefix = \"/app/\"\nproxy = {:?}\n",
            upstream.address
        ));
        let mut client = Client::connect(&server);
        let at = client.begin_websocket("/app/socket");
        client.exchanges[at].say(b"more");
        let seen = client.finish(at);
        assert_eq!((seen.status, seen.end), (expected, Some(Ok(()))), "{raw:?}");
        assert_eq!(seen.received == b"no", expected == 403);
        let at = client.begin_websocket("/file.txt");
        assert_eq!(client.finish(at).status, 501);
        assert_eq!(client.get("/file.txt").text(), "a file\n");
        wait_until_none_is_upgraded(&server);
        wait_until_all_have_ended(&server);
        // What the client has got.
        let lines = log_lines(&server, &log, 3).concat();
        assert!(lines.contains(&format!("HTTP/2.0\" {expected} ")), "{lines}");
        assert!(lines.contains("HTTP/2.0\" 501 "), "{lines}");
        is_well(&server);
    }
}

#[test]
fn other_protocol_is_refused() {
    let site = Site::new();
    let upstream = FakeUpstream::sending(GOOD);
    let server = proxy(&site, &[&upstream.address], "");
    let mut client = Client::connect(&server);
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    let request = client
        .request("CONNECT", "/app/x")
        .extension(Protocol::from_static("connect-udp"));
    let at = client.begin(request, Some(b"data"));
    let status = client.finish(at).status;
    assert!((400..600).contains(&status), "{status}");
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    assert_eq!(upstream.count(), 0);
    wait_until_all_have_ended(&server);
    is_well(&server);
}

fn reloads(server: &Server) -> u64 {
    server.status()["master"]["reloads"].as_u64().unwrap()
}

#[test]
fn draining_worker_keeps_a_websocket_until_its_end() {
    let site = Site::new();
    let upstream = agreeing(echo);
    let server = proxy(&site, &[&upstream.address], "");
    let mut client = Client::connect(&server);
    let at = open(&mut client);
    let before = reloads(&server);
    server.signal(Signal::HUP);
    server.wait_for("the reload", |server| reloads(server) > before);
    client.exchanges[at].say(b"still here");
    client.wait_for("the echo", |client| {
        client.exchanges[at].received == b"still here"
    });
    client.exchanges[at].is_open = false;
    let seen = client.finish(at);
    assert_eq!(
        (seen.end, seen.received.ends_with(b"bye")),
        (Some(Ok(())), true)
    );
    client.wait_for("the end of the connection", |client| client.end.is_some());
    assert!(matches!(client.end, Some(Ok(()))), "{:?}", client.end);
    is_well(&server);
}

#[test]
fn silent_websocket_ends_after_the_upgrade_timeout() {
    let site = Site::new();
    let upstream = agreeing(echo);
    let server = proxy(&site, &[&upstream.address], "upgrade-timeout = \"1s\"");
    let mut client = Client::connect(&server);
    let at = open(&mut client);
    let seen = client.finish(at);
    assert!(
        matches!(seen.end, Some(Ok(()) | Err(Reason::CANCEL))),
        "{:?}",
        seen.end
    );
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    assert_eq!(counter(&server, "connections_upgraded"), 0);
    is_well(&server);
}
