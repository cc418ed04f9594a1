//! The end: requests in flight are finished within a bound.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;

use rustix::process::Signal;

use headway_test_support::is_running;
use headway_test_support::server::Server;

use crate::clients::*;

#[test]
fn slow_download_completes_after_a_stop_signal() {
    let root = root();
    let expected = contents(1, large());
    fs::write(root.path().join("large"), &expected).unwrap();
    fs::write(root.path().join("a"), "hello").unwrap();
    // Also with `cm`, where each closed connection lets others be accepted: none are left to
    // accept.
    for preset in ["headway", "cm"] {
        let arguments = [
            "--workers",
            "1",
            "--drain-timeout",
            "60s",
            "--preset",
            preset,
        ];
        let mut server = Server::start(program(), root.path(), &arguments);
        let mut idle = tiny_client(&server.address);
        send_get(&mut idle, "/a");
        assert_eq!(read_response(&mut idle).0, 200);
        let mut client = tiny_client(&server.address);
        send_get(&mut client, "/large");
        let (status, length) = read_head(&mut client);
        assert_eq!((status, length), (200, expected.len()));
        server.signal(Signal::TERM);
        assert_eq!(read_to_close(&mut idle), b"", "idle clients are let go");
        server.wait_for("the listener to close", |server| !server.accepts());
        assert!(read_body(&mut client, length) == expected);
        assert_eq!(read_to_close(&mut client), b"");
        assert!(server.wait().success());
    }
}

/// A server whose helpers hang, and a client that waits for one of them.
fn waiting_for_helpers(root: &Path, more: &[&str]) -> (Server, Stopped, TcpStream) {
    fs::create_dir(root.join("d")).unwrap();
    let mut arguments = vec!["--workers", "1", "--helpers-max", "1", "--listing"];
    arguments.extend(more);
    let server = Server::start(program(), root, &arguments);
    server.wait_for("a helper", |server| {
        counter(&server.status(), "helpers") == 1
    });
    let stopped = Stopped::stop(server.children("serve-helper"));
    let mut client = tiny_client(&server.address);
    send_get(&mut client, "/d/");
    server.wait_for("the request", |server| {
        counter(&server.status(), "requests_received") == 1
    });
    (server, stopped, client)
}

#[test]
fn request_waiting_for_a_helper_is_answered_after_a_stop_signal() {
    let root = root();
    let (mut server, stopped, mut client) = waiting_for_helpers(root.path(), &[]);
    server.signal(Signal::TERM);
    server.wait_for("the listener to close", |server| !server.accepts());
    drop(stopped);
    assert_eq!(read_response(&mut client).0, 200);
    assert!(server.wait().success());
}

#[test]
fn server_ends_at_the_drain_deadline_when_every_helper_hangs() {
    let root = root();
    let more = ["--drain-timeout", "300ms"];
    let (mut server, _stopped, mut client) = waiting_for_helpers(root.path(), &more);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(read_to_close(&mut client), b"");
}

#[test]
fn server_ends_at_the_drain_deadline_when_a_client_takes_too_long() {
    let root = root();
    fs::write(root.path().join("large"), contents(1, large())).unwrap();
    let mut server = Server::start(program(), root.path(), &["--drain-timeout", "300ms"]);
    let mut deaf = tiny_client(&server.address);
    send_get(&mut deaf, "/large");
    assert_eq!(read_head(&mut deaf).0, 200);
    let children = server.children("serve-");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert!(read_to_close(&mut deaf).len() < large());
    for pid in children {
        assert!(!is_running(pid), "{pid} is left");
    }
}

#[test]
fn requests_in_flight_complete_when_every_process_gets_a_stop_signal() {
    let root = root();
    let expected = contents(1, large());
    fs::write(root.path().join("large"), &expected).unwrap();
    let mut server = Server::start(program(), root.path(), &["--drain-timeout", "60s"]);
    let mut client = tiny_client(&server.address);
    send_get(&mut client, "/large");
    let (_, length) = read_head(&mut client);
    // As a service manager does that signals the whole control group.
    for pid in server.children("serve-") {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
    }
    server.signal(Signal::TERM);
    server.wait_for("the listener to close", |server| !server.accepts());
    assert!(read_body(&mut client, length) == expected);
    assert!(server.wait().success());
}

#[test]
fn clients_get_a_whole_response_or_none_when_the_server_stops_under_load() {
    let root = root();
    fs::write(root.path().join("a"), contents(1, 20_000)).unwrap();
    let mut server = Server::start(program(), root.path(), &[]);
    let address: std::net::SocketAddr = server.address.parse().unwrap();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    let mut responses = 0;
                    while let Some(response) = try_get(address) {
                        assert!(response.is_empty() || response.ends_with(&contents(1, 20_000)));
                        responses += usize::from(!response.is_empty());
                    }
                    responses
                })
            })
            .collect();
        server.wait_for("load", |server| {
            counter(&server.status(), "requests_received") > 100
        });
        server.signal(Signal::TERM);
        assert!(server.wait().success());
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
}

/// A response as far as it came; `None` when no server listens.
fn try_get(address: std::net::SocketAddr) -> Option<Vec<u8>> {
    use std::io::{Read, Write};
    let mut stream = match TcpStream::connect(address) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return None,
        // Reset between the handshake and here: the listener has just gone.
        Err(_) => return Some(Vec::new()),
    };
    let mut response = Vec::new();
    let _ = stream.write_all(b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    let _ = stream.read_to_end(&mut response);
    Some(response)
}
