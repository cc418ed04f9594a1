//! Tests of the end of a connection. Closing with unread input, and input which comes after the
//! close, cause a reset. It may destroy what the client has not read yet (RFC 9112, 9.6).

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use headway_server::metrics::Snapshot;

use super::tools::*;
use crate::support::{Served, config};

/// Refused connections that a worker keeps open for a while.
const KEPT_MAX: u64 = 64;

/// Checks that the server ends the connection, and without a reset.
fn ends_without_reset(client: &mut TcpStream, what: &str) {
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect(what);
    assert_eq!(rest, b"", "{what}");
    let error = client.take_error().expect("SO_ERROR");
    assert!(error.is_none(), "{what}: {error:?}");
}

/// Waits until the server's socket has what its client has sent: a busy kernel may deliver it later.
fn wait_until_delivered(client: &TcpStream) {
    let port = format!(":{:04X}", client.local_addr().expect("an address").port());
    let is_under_way = || {
        let sockets = fs::read_to_string("/proc/net/tcp").expect("the sockets");
        sockets.lines().any(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let is_own = fields.get(1).is_some_and(|local| local.ends_with(&port));
            let unacknowledged = fields.get(4).and_then(|queues| queues.split(':').next());
            is_own && unacknowledged != Some("00000000")
        })
    };
    for _ in 0..10_000 {
        if !is_under_way() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("what the client sent was not delivered");
}

/// How often the worker has made a call.
fn calls(served: &mut Served, name: &str) -> u64 {
    let trace = served.snapshot().trace;
    trace.calls.get(name).copied().unwrap_or(0)
}

/// A worker that has room for one connection of an address, and a client which has it.
fn full_server(root: &std::path::Path, events: &str) -> (Served, TcpStream) {
    let more = format!("max-connections-per-address = 1\ndefer-accept = false\n{events}");
    let mut served = Served::start(config(root, &more));
    let inside = served.connect();
    served.wait_for("the first", |now| now.counters.connections_open == 1);
    (served, inside)
}

#[test]
fn refused_client_gets_503_and_no_reset_when_its_request_comes_late() {
    let root = root();
    for events in MECHANISMS {
        let (mut served, _inside) = full_server(root.path(), events);
        let head = "POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\n";
        for (number, (early, late)) in [("", "GET /a HTTP/1.1\r\n"), (head, "hello")]
            .iter()
            .enumerate()
        {
            let mut client = served.connect();
            client.write_all(early.as_bytes()).unwrap();
            served.wait_for("the refusal", |now| {
                now.counters.connections_rejected_per_address == number as u64 + 1
            });
            // The answer is here: a worker refuses in one step.
            client.write_all(late.as_bytes()).unwrap();
            let response = read_response(&mut client);
            assert_eq!(response.status, 503, "{events}");
            ends_without_reset(&mut client, events);
        }
    }
}

#[test]
fn refused_clients_are_kept_only_where_a_request_may_follow_and_up_to_a_limit() {
    let root = root();
    let more = "max-connections-per-address = 1\ndefer-accept = false";
    let crowd = |address: SocketAddr| {
        let connect = |_| {
            let mut client = TcpStream::connect(address).expect("connect");
            send_request(&mut client, "/none");
            client
        };
        (0..21).map(connect).collect::<Vec<_>>()
    };
    let (mut served, requests) = Served::start_late(config(root.path(), more), &[], crowd);
    let rejected =
        |count| move |now: &Snapshot| now.counters.connections_rejected_per_address == count;
    served.wait_for("all but one", rejected(20));
    assert_eq!(
        calls(&mut served, "shutdown"),
        0,
        "their requests were there"
    );
    let silent: Vec<TcpStream> = (0..2 * KEPT_MAX).map(|_| served.connect()).collect();
    served.wait_for("all", rejected(20 + 2 * KEPT_MAX));
    assert_eq!(calls(&mut served, "shutdown"), KEPT_MAX);
    drop((requests, silent));
    // All of them are closed in the end, and others are kept.
    served.wait_for("their close", |now| {
        now.trace.calls.get("close").copied().unwrap_or(0) >= 21 + 2 * KEPT_MAX
    });
    let _inside = served.connect();
    served.wait_for("the first", |now| now.counters.connections_open == 1);
    let mut late = served.connect();
    served.wait_for("the last", rejected(21 + 2 * KEPT_MAX));
    send_request(&mut late, "/a");
    assert_eq!(read_response(&mut late).status, 503);
    ends_without_reset(&mut late, "it is kept again");
}

/// The client has asked for the close itself, and sends more nevertheless.
#[test]
fn response_is_whole_when_more_comes_behind_a_request_that_closes() {
    let root = root();
    let content = contents(0, large());
    fs::write(root.path().join("large"), &content).unwrap();
    for events in mechanisms() {
        let served = Served::start(config(root.path(), events));
        let mut client = tiny_client(&served);
        let request = "GET /large HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        client.write_all(request.as_bytes()).unwrap();
        let head = read_head(&mut client);
        assert_eq!(head.field("Connection"), Some("close"), "{events}");
        send_request(&mut client, "/large");
        let mut body = vec![0; content.len()];
        client.read_exact(&mut body).expect(events);
        assert!(body == content, "{events}");
        ends_without_reset(&mut client, events);
    }
}

#[test]
fn close_is_no_reset_when_more_comes_while_a_helper_works() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in mechanisms() {
        let more = format!("listing = true\nindex = []\n{events}");
        let mut served = Served::start_holding_helpers(config(root.path(), &more));
        let mut client = served.connect();
        let request = "GET / HTTP/1.0\r\nHost: test\r\n\r\n";
        client.write_all(request.as_bytes()).unwrap();
        served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
        send_request(&mut client, "/a");
        wait_until_delivered(&client);
        // The worker has seen it once it answers the second of these.
        served.snapshot();
        served.snapshot();
        served.release_helpers();
        assert_eq!(read_response(&mut client).status, 200, "{events}");
        ends_without_reset(&mut client, events);
    }
}

/// It reads only after it has sent what the server's socket takes, which is more than a lingering close
/// discards.
#[test]
fn error_page_is_whole_when_its_client_goes_on_to_send_a_body() {
    const PAGE: usize = 30_000;
    let root = root();
    fs::write(root.path().join("413.html"), contents(0, PAGE)).unwrap();
    for events in mechanisms() {
        let page = root.path().join("413.html");
        let more = format!("{events}\nerror-pages = {{ 413 = {page:?} }}");
        let mut served = Served::start(config(root.path(), &more));
        let mut client = tiny_client(&served);
        let head = "POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 99999999\r\n\r\n";
        client.write_all(head.as_bytes()).unwrap();
        served.wait_for("the answer", |now| now.counters.http_requests.get(413) == 1);
        client.set_nonblocking(true).unwrap();
        let mut sent = 0;
        let mut waits = 0;
        while sent < 8 << 20 && waits < 20 {
            match client.write(&[0; 16_384]) {
                Ok(count) => sent += count,
                // The server reads, or it reads no more.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    waits += 1;
                    served.snapshot();
                }
                Err(error) => panic!("{events}: {error} after {sent} bytes"),
            }
        }
        client.set_nonblocking(false).unwrap();
        let response = read_response(&mut client);
        assert!(response.body == contents(0, PAGE), "{events}");
    }
}
