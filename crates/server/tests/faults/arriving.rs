//! Tests of many clients at once: none waits too long, and no address takes every slot.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use headway_control::{Drain, ToWorker};
use headway_server::config::raise_descriptor_limit;

use super::tools::*;
use crate::support::{Served, TIMEOUT, config};

/// More than one accept batch takes, and less than the backlog holds.
const CROWD: usize = 700;
/// Clients that have connected and sent a request before the server accepts.
fn crowd(address: SocketAddr) -> Vec<TcpStream> {
    raise_descriptor_limit().expect("two descriptors a client");
    let connect = |_| {
        let mut client = TcpStream::connect(address).expect("connect");
        client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        send_request(&mut client, "/a");
        client
    };
    (0..CROWD).map(connect).collect()
}

#[test]
fn accept_batch_is_the_configured_one_in_a_burst() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    // A batch without a limit also ends after some time, which a slow machine reaches.
    for (policy, expected) in [
        ("accept-batch = 0", 26..=CROWD as u64),
        ("accept-batch = 25", 25..=25),
        ("accept-batch = 0\nmax-connections = 300", 26..=300),
    ] {
        for events in MECHANISMS {
            let config = config(root.path(), &format!("{policy}\n{events}"));
            let (mut served, clients) = Served::start_late(config, &[], crowd);
            // A waiting client gets a slot when another one disconnects.
            for mut client in clients {
                assert_eq!(read_response(&mut client).body, b"hello", "{events}");
            }
            let counters = served.snapshot().counters;
            assert_eq!(counters.connections_accepted, CROWD as u64, "{events}");
            let largest = counters.accept_batch_connections.max();
            assert!(expected.contains(&largest), "{policy}, {events}: {largest}");
        }
    }
}

#[test]
fn last_clients_are_accepted_and_served_when_the_worker_stops() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for accept_count in [0, 25] {
        for events in MECHANISMS {
            let config = config(
                root.path(),
                &format!("accept-batch = {accept_count}\n{events}"),
            );
            let end = [ToWorker::Drain(Drain::within(20_000))];
            let (mut served, (mut last, clients)) = Served::start_late(config, &end, |address| {
                let mut last = TcpStream::connect(address).unwrap();
                last.write_all(b"GET /a HTTP/1.1\r\n").unwrap();
                (last, crowd(address))
            });
            for mut client in clients {
                assert_eq!(read_response(&mut client).body, b"hello", "{events}");
            }
            // The client that is not finished keeps the worker running.
            let counters = served.snapshot().counters;
            assert_eq!(counters.connections_accepted, CROWD as u64 + 1, "{events}");
            // Without a limit all may be accepted at once, before the worker reads the control
            // message.
            let most = if accept_count == 0 {
                CROWD as u64 + 1
            } else {
                accept_count
            };
            let largest = counters.accept_batch_connections.max();
            assert!(largest <= most, "{events}: {largest} in one turn");
            last.write_all(b"Host: test\r\n\r\n").unwrap();
            assert_eq!(read_response(&mut last).body, b"hello", "{events}");
            assert_eq!(read_to_close(&mut last, 1), b"", "{events}");
        }
    }
}

#[test]
fn connection_returns_503_when_its_address_is_at_the_limit() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in MECHANISMS {
        let more = format!("max-connections-per-address = 3\n{events}");
        let mut served = Served::start(config(root.path(), &more));
        let mut inside: Vec<TcpStream> = (0..3).map(|_| served.connect()).collect();
        for client in &mut inside {
            send_request(client, "/a");
            assert_eq!(read_response(client).body, b"hello", "{events}");
        }
        for refused in 1..=5 {
            let mut client = served.connect();
            send_request(&mut client, "/a");
            let response = read_response(&mut client);
            assert_eq!(response.status, 503, "{events}");
            assert_eq!(response.field("Connection"), Some("close"), "{events}");
            assert_eq!(read_to_close(&mut client, 1), b"", "{events}");
            let counters = served.snapshot().counters;
            assert_eq!(
                counters.connections_rejected_per_address, refused,
                "{events}"
            );
            assert_eq!(counters.http_requests.get(503), refused, "{events}");
            assert_eq!(
                (counters.connections_accepted, counters.connections_open),
                (3, 3),
                "{events}"
            );
        }
        send_request(&mut inside[0], "/a");
        assert_eq!(
            read_response(&mut inside[0]).status,
            200,
            "{events}: an established connection stays open"
        );
        drop(inside.pop());
        served.wait_for("room", |now| now.counters.connections_open == 2);
        assert_eq!(served.get("/a").status, 200, "{events}: and room is used");
        served.wait_for("room again", |now| now.counters.connections_open == 2);
        assert_eq!(
            served.get("/a").status,
            200,
            "{events}: every slot is given back"
        );
    }
}

#[test]
fn all_clients_are_served_and_counted_when_the_accept_batch_is_automatic() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in MECHANISMS {
        let config = config(root.path(), &format!("accept-batch = 'auto'\n{events}"));
        let (mut served, clients) = Served::start_late(config, &[], crowd);
        for mut client in clients {
            assert_eq!(read_response(&mut client).body, b"hello", "{events}");
        }
        let counters = served.snapshot().counters;
        assert_eq!(counters.connections_accepted, CROWD as u64, "{events}");
    }
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn many_clients_a_large_file_and_disconnects_are_handled_when_events_use_io_uring() {
    if let Err(error) = headway_event::Events::new(headway_event::Mechanism::IoUring) {
        let test = "many_clients_a_large_file_and_disconnects_are_handled_when_events_use_io_uring";
        return skip(test, &error.to_string());
    }
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let large = contents(0, 3_000_000);
    fs::write(root.path().join("large"), &large).unwrap();
    let config = config(root.path(), "events = 'io_uring'\nmax-connections = 500");
    let (mut served, mut clients) = Served::start_late(config, &[], crowd);
    // A waiting client gets a slot when another one disconnects: a closed socket is closed for its
    // client, too.
    for mut client in clients.drain(..) {
        assert_eq!(read_response(&mut client).body, b"hello");
    }
    assert_eq!(served.get("/large").body, large);
    let end = served.wait_for("all ends", |now| now.counters.connections_open == 0);
    assert_eq!(end.counters.connections_accepted, CROWD as u64 + 1);
    assert_eq!(end.events, "io_uring");
}
