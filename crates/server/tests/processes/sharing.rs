//! Workers that accept from one socket: how connections are shared, and that none is left waiting.

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use headway_test_support::server::{self, Server, kill};
use serde_json::Value;

use crate::clients::*;
use crate::shortage::leave_room;

/// Clients that come one after the other and stay.
const CLIENTS: u64 = 24;

fn of_workers(status: &Value, name: &str) -> Vec<u64> {
    let workers = status["workers"].as_array().unwrap();
    let number = |worker: &Value| worker["counters"][name].as_u64().unwrap();
    workers.iter().map(number).collect()
}

fn client(server: &Server) -> TcpStream {
    let mut client = server.connect();
    send_get(&mut client, "/a");
    assert_eq!(read_response(&mut client), (200, b"hello".into()));
    client
}

/// As many as [`CLIENTS`], each when all workers wait again: one that comes at once finds the
/// worker of the one before it still accepting.
fn one_by_one(server: &Server) -> Vec<TcpStream> {
    let next = |_| {
        let client = client(server);
        // Every worker has answered this, and nothing else is to be done.
        server.status();
        client
    };
    (0..CLIENTS).map(next).collect()
}

fn start(events: &str, more: &[&str]) -> (tempfile::TempDir, Server) {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let server = Server::start(
        program(),
        root.path(),
        &[&["--events", events, "--listeners", "shared"], more].concat(),
    );
    (root, server)
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn workers_accept_in_turn_with_a_shared_listener() {
    const NAME: &str = "workers_accept_in_turn_with_a_shared_listener";
    for events in ["epoll", "epoll-edge", "io_uring"] {
        if events == "io_uring" && !has_io_uring(NAME) {
            continue;
        }
        let (_root, server) = start(events, &[]);
        let _clients = one_by_one(&server);
        let status = server.status();
        let open = of_workers(&status, "connections_open");
        assert_eq!(open.iter().sum::<u64>(), CLIENTS, "{events}");
        // Not exactly a half each: a worker may still be busy with the client before.
        let least = open.iter().min().unwrap();
        assert!(*least >= CLIENTS / 4, "{events}: {open:?}");
        let skew = status["skew"]["connections_open"].as_f64().unwrap();
        let most = *open.iter().max().unwrap() as f64;
        let expected = most * 2.0 / CLIENTS as f64;
        assert!(
            (skew - expected).abs() < 1e-9,
            "{events}: {skew} of {open:?}"
        );
        let metrics = server::get(&server.status, "/metrics").2;
        let skew = metrics.lines().find_map(|line| {
            line.strip_prefix("headway_worker_skew_ratio{of=\"connections_open\"} ")
        });
        let skew: f64 = skew.expect("a skew").parse().unwrap();
        assert!((skew - expected).abs() < 1e-9, "{events}: {skew}");
        let page = server::get(&server.status, "/status").2;
        assert!(
            page.contains("Busiest worker ÷ average (1 is balanced)"),
            "{page}"
        );
    }
}

#[test]
fn worker_with_more_connections_yields_accepts_to_the_others() {
    let (_root, server) = start("epoll", &[]);
    let workers = server.status();
    let other = workers["workers"][1]["pid"].as_i64().unwrap() as i32;
    let stopped = Stopped::stop(vec![other]);
    // One worker accepts all, although it yields for a moment again and again.
    let _first: Vec<TcpStream> = (0..CLIENTS).map(|_| client(&server)).collect();
    drop(stopped);
    let status = server.status();
    assert_eq!(of_workers(&status, "connections_open"), [CLIENTS, 0]);
    assert!(of_workers(&status, "accept_yielded")[0] > 0);
    // By turns each would accept half of the next ones. After a pause, a worker may accept
    // connections for as long.
    let second = |_| {
        std::thread::sleep(Duration::from_millis(15));
        client(&server)
    };
    let _second: Vec<TcpStream> = (0..CLIENTS).map(second).collect();
    let open = of_workers(&server.status(), "connections_open");
    assert!(open[1] > CLIENTS * 3 / 4, "{open:?}");
}

#[test]
fn worker_accepts_its_share_of_a_burst_and_then_pauses_accepting() {
    for events in ["epoll", "epoll-edge"] {
        let (_root, server) = start(events, &[]);
        let mut workers = server.children("serve-worker");
        let first = Stopped::stop(workers.split_off(1));
        let second = Stopped::stop(workers);
        // All wait in the one queue when a worker looks.
        let mut clients: Vec<TcpStream> = (0..CLIENTS)
            .map(|_| {
                let mut client = server.connect();
                send_get(&mut client, "/a");
                client
            })
            .collect();
        drop(first);
        // The other one does not come, so the first serves them all the same.
        for client in &mut clients {
            assert_eq!(read_response(client), (200, b"hello".into()), "{events}");
        }
        drop(second);
        let status = server.status();
        let rounds = status["workers"].as_array().unwrap().iter();
        let longest = rounds.map(|worker| &worker["counters"]["accept_batch_connections"]["max"]);
        let longest: Vec<u64> = longest.map(|most| most.as_u64().unwrap()).collect();
        let most = longest.iter().max().unwrap();
        assert!(*most <= CLIENTS / 2, "{events}: {longest:?}");
        let stood_back: u64 = of_workers(&status, "accept_yielded").iter().sum();
        assert!(stood_back > 0, "{events}");
    }
}

#[test]
fn backlog_of_a_shared_listener_is_divided_among_its_workers() {
    for (sharing, herd, expected) in [
        ("reuseport", "off", 128),
        ("shared", "off", 64),
        ("shared", "on", 64),
    ] {
        let root = root();
        let arguments = [
            "--listeners",
            sharing,
            &format!("--thundering-herd={herd}"),
            "--accept-batch",
            "auto",
            "--backlog",
            "128",
        ];
        let server = Server::start(program(), root.path(), &arguments);
        let lengths = of_workers(&server.status(), "accept_backlog");
        assert_eq!(lengths, [expected; 2], "{sharing} {herd}");
    }
}

#[test]
fn all_clients_are_served_when_every_worker_is_woken_for_each() {
    for events in ["select", "poll", "epoll"] {
        let (_root, server) = start(events, &["--thundering-herd"]);
        let _clients: Vec<TcpStream> = (0..CLIENTS).map(|_| client(&server)).collect();
        let status = server.status();
        let accepted: u64 = of_workers(&status, "connections_accepted").iter().sum();
        assert_eq!(accepted, CLIENTS, "{events}");
    }
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn another_worker_accepts_when_the_woken_one_has_no_descriptors() {
    const NAME: &str = "another_worker_accepts_when_the_woken_one_has_no_descriptors";
    for events in ["epoll", "epoll-edge", "io_uring"] {
        if events == "io_uring" && !has_io_uring(NAME) {
            continue;
        }
        let (_root, server) = start(events, &[]);
        // Both know the file and have a helper; nothing but accepting takes descriptors from here
        // on.
        drop((0..8).map(|_| client(&server)).collect::<Vec<_>>());
        server.wait_for("idleness", |server| {
            counter(&server.status(), "connections_open") == 0
        });
        let first = server.status()["workers"][0]["pid"].as_i64().unwrap() as i32;
        leave_room(first, 0);
        // It is notified of every other connection first. If it did not pass the notice on, the
        // connection would wait forever.
        let _clients: Vec<TcpStream> = (0..6).map(|_| client(&server)).collect();
        let status = server.status();
        assert_eq!(of_workers(&status, "connections_open"), [0, 6], "{events}");
        assert!(of_workers(&status, "accept_pauses")[0] > 0, "{events}");
    }
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn all_clients_are_served_when_workers_that_share_a_listener_are_full_and_clients_leave() {
    const NAME: &str =
        "all_clients_are_served_when_workers_that_share_a_listener_are_full_and_clients_leave";
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in ["epoll", "epoll-edge", "io_uring", "poll"] {
        if events == "io_uring" && !has_io_uring(NAME) {
            continue;
        }
        let arguments = [
            "--events",
            events,
            "--listeners",
            "shared",
            "--max-connections",
            "3",
        ];
        let server = Server::start(program(), root.path(), &arguments);
        let mut waiting: Vec<TcpStream> = (0..20)
            .map(|_| {
                let mut client = server.connect();
                send_get(&mut client, "/a");
                client
            })
            .collect();
        // The kernel's queue is first in, first out; each that leaves makes room for the next.
        for mut client in waiting.drain(..) {
            assert_eq!(
                read_response(&mut client),
                (200, b"hello".into()),
                "{events}"
            );
        }
        assert_eq!(
            counter(&server.status(), "connections_accepted"),
            20,
            "{events}"
        );
    }
}

#[test]
fn service_continues_when_workers_that_share_a_listener_are_killed() {
    let (_root, server) = start("epoll", &[]);
    for death in 1..=3 {
        let workers = server.children("serve-worker");
        kill(workers[death % workers.len()]);
        // All workers share the queue, so no client has to wait for the new worker.
        for _ in 0..4 {
            assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
        }
        server.wait_for("the successor", |server| {
            let status = server.status();
            status["master"]["worker_deaths"] == death
                && of_workers(&status, "connections_accepted").len() == 2
        });
    }
    let clients = one_by_one(&server);
    let open = of_workers(&server.status(), "connections_open");
    let least = open.iter().min().unwrap();
    assert!(
        *least >= CLIENTS / 4,
        "the successor has its turn: {open:?}"
    );
    drop(clients);
    assert!(!server.stop().contains("panicked"));
}
