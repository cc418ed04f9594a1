//! Tests of room for new connections: idle ones close for them, and no request in progress is lost.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use headway_control::ToWorker;

use super::tools::*;
use crate::support::{Served, config};

/// Attempts in some seconds.
const TRIES_MAX: usize = 300;

/// Clients that have had one response each, one after the other.
fn idle_clients(served: &Served, count: usize) -> Vec<TcpStream> {
    let ask = |_| {
        let mut client = served.connect();
        send_request(&mut client, "/a");
        assert_eq!(read_response(&mut client).body, b"hello");
        client
    };
    (0..count).map(ask).collect()
}

#[test]
fn longest_idle_connections_close_when_the_connection_limit_is_reached() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in MECHANISMS {
        let mut served = Served::start(config(
            root.path(),
            &format!("max-connections = 5\nidle-timeout = '10m'\n{events}"),
        ));
        let mut busy = served.connect();
        busy.write_all(b"GET /a HTTP/1.1\r\nHost: ").unwrap();
        served.wait_for("the first", |now| now.counters.connections_open == 1);
        let mut inside = idle_clients(&served, 4);
        // The first of them is no longer the one that has been idle longest.
        send_request(&mut inside[0], "/a");
        assert_eq!(read_response(&mut inside[0]).body, b"hello");
        let mut outside = idle_clients(&served, 2);
        for closed in [1, 2] {
            assert_eq!(read_to_close(&mut inside[closed], 1), b"", "{events}");
        }
        for number in [0, 3] {
            let client = &mut inside[number];
            send_request(client, "/a");
            assert_eq!(read_response(client).body, b"hello", "{events}");
        }
        for client in &mut outside {
            send_request(client, "/a");
            assert_eq!(read_response(client).body, b"hello", "{events}");
        }
        busy.write_all(b"x\r\n\r\n").unwrap();
        assert_eq!(read_response(&mut busy).body, b"hello", "{events}");
        let counters = served.snapshot().counters;
        assert_eq!(
            (
                counters.connections_evicted_limit,
                counters.connections_open
            ),
            (2, 5),
            "{events}"
        );
    }
}

#[test]
fn silent_connections_close_when_the_connection_limit_is_reached() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let more = "max-connections = 2\nheader-timeout = '10m'\ndefer-accept = false";
    let mut served = Served::start(config(root.path(), more));
    let silent = [served.connect(), served.connect()];
    served.wait_for("both", |now| now.counters.connections_open == 2);
    let mut clients = idle_clients(&served, 2);
    for mut client in silent {
        assert_eq!(read_to_close(&mut client, 1), b"");
    }
    send_request(&mut clients[0], "/a");
    assert_eq!(read_response(&mut clients[0]).body, b"hello");
    assert_eq!(served.snapshot().counters.connections_evicted_limit, 2);
}

#[test]
fn responses_close_their_connections_while_clients_wait_for_room() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in MECHANISMS {
        let mut served = Served::start(config(
            root.path(),
            &format!("max-connections = 2\nheader-timeout = '10m'\n{events}"),
        ));
        let mut inside = [served.connect(), served.connect()];
        for client in &mut inside {
            client.write_all(b"GET /a HTTP/1.1\r\nHost: ").unwrap();
        }
        served.wait_for("both", |now| now.counters.connections_open == 2);
        let before = served.snapshot().counters.accept_wakeups;
        let mut outside = served.connect();
        send_request(&mut outside, "/a");
        served.wait_for("the third", |now| now.counters.accept_wakeups > before);
        inside[0].write_all(b"x\r\n\r\n").unwrap();
        let response = read_response(&mut inside[0]);
        assert_eq!(response.field("Connection"), Some("close"), "{events}");
        assert_eq!(response.body, b"hello", "{events}");
        assert_eq!(read_to_close(&mut inside[0], 1), b"", "{events}");
        assert_eq!(read_response(&mut outside).body, b"hello", "{events}");
        inside[1].write_all(b"x\r\n\r\n").unwrap();
        assert_eq!(read_response(&mut inside[1]).body, b"hello", "{events}");
        let counters = served.snapshot().counters;
        assert_eq!(counters.connections_evicted_limit, 0, "{events}");
    }
}

#[test]
fn idle_connections_close_when_the_socket_of_a_helper_was_lost() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let mut served = Served::start(config(root.path(), "idle-timeout = '10m'"));
    let mut idle = idle_clients(&served, 1);
    // Not before the connection has been silent for a while.
    for _ in 0..TRIES_MAX {
        // Its socket is lost where descriptors have run out.
        served.order(&ToWorker::Helper { pid: 1 });
        if served.snapshot().counters.connections_evicted_descriptors > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        served.snapshot().counters.connections_evicted_descriptors,
        1
    );
    assert_eq!(read_to_close(&mut idle[0], 1), b"");
    assert_eq!(served.get("/a").body, b"hello");
}
