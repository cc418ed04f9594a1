//! Workers, the log process and the master are killed.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use headway_test_support::is_running;
use headway_test_support::server::{Server, kill, write};
use rustix::process::{Pid, Signal, kill_process};

use crate::clients::*;

/// For each worker, how many connections it has.
fn open_connections(server: &Server) -> Vec<u64> {
    let status = server.status();
    let workers = status["workers"].as_array().unwrap();
    let open = |worker: &serde_json::Value| worker["counters"]["connections_open"].as_u64();
    workers.iter().map(|worker| open(worker).unwrap()).collect()
}

/// A slow download from each of the two workers, in their order. The kernel chooses the worker, so
/// this takes a few attempts.
fn one_each(server: &Server, path: &str) -> Vec<TcpStream> {
    let mut found: [Option<TcpStream>; 2] = [None, None];
    for _ in 0..200 {
        let before = open_connections(server);
        let mut client = tiny_client(&server.address);
        send_get(&mut client, path);
        let after = open_connections(server);
        if let Some(worker) = (0..2).find(|worker| after[*worker] > before[*worker])
            && found[worker].is_none()
        {
            found[worker] = Some(client);
        }
        if found.iter().all(Option::is_some) {
            return found.into_iter().flatten().collect();
        }
    }
    panic!("all clients went to one worker");
}

#[test]
fn other_connections_survive_when_a_worker_is_killed() {
    let root = root();
    let expected = contents(1, large());
    fs::write(root.path().join("large"), &expected).unwrap();
    fs::write(root.path().join("a"), "hello").unwrap();
    let server = Server::start(program(), root.path(), &[]);
    let mut downloads = one_each(&server, "/large");
    let status = server.status();
    let victim = status["workers"][0]["pid"].as_i64().unwrap() as i32;
    assert!(server.children("serve-worker").contains(&victim));
    kill(victim);
    // Some of these wait in the dead worker's queue, which the master keeps for the next one.
    for _ in 0..40 {
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    }
    server.wait_for("two workers", |server| {
        let workers = server.children("serve-worker");
        workers.len() == 2 && !workers.contains(&victim)
    });
    let mut living = downloads.remove(1);
    let (status, length) = read_head(&mut living);
    assert_eq!((status, length), (200, expected.len()));
    assert!(read_body(&mut living, length) == expected);
    assert!(
        read_to_close(&mut downloads.remove(0)).len() < expected.len(),
        "the dead worker's own client sees that its response is short"
    );
}

#[test]
fn service_continues_when_workers_are_killed_repeatedly() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let server = Server::start(program(), root.path(), &[]);
    for death in 1..=5 {
        let workers = server.children("serve-worker");
        kill(workers[death % workers.len()]);
        server.wait_for("the death to be seen", |server| {
            server.status()["master"]["worker_deaths"] == death
        });
        // A response may be lost with its worker, but the next one comes.
        server.wait_for("service", |server| {
            server.get("/a") == (200, "hello".into())
        });
    }
}

#[test]
fn every_process_ends_by_itself_when_the_master_is_killed() {
    let root = root();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    fs::write(root.path().join("large"), contents(1, large())).unwrap();
    let arguments = ["--log", log.to_str().unwrap()];
    let mut server = Server::start(program(), root.path(), &arguments);
    let mut client = tiny_client(&server.address);
    send_get(&mut client, "/large");
    assert_eq!(read_head(&mut client).0, 200);
    server.wait_for("all kinds of children", |server| {
        server.children("serve-worker").len() == 2
            && server.children("serve-helper").len() >= 2
            && server.children("serve-log").len() == 1
    });
    let children = server.children("serve-");
    server.signal(Signal::KILL);
    server.wait();
    server.wait_for("the end of all children", |_| {
        !children.iter().any(|pid| is_running(*pid))
    });
    assert!(!server.accepts(), "no process listens any more");
}

#[test]
fn log_and_service_continue_when_the_log_process_is_killed() {
    let root = root();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    fs::write(root.path().join("a"), "hello").unwrap();
    let server = Server::start(program(), root.path(), &["--log", log.to_str().unwrap()]);
    for death in 1..=2 {
        kill(server.children("serve-log")[0]);
        let path = format!("/a?{death}");
        for _ in 0..20 {
            assert_eq!(get(&server.address, &path), (200, b"hello".into()));
        }
        server.wait_for("lines in the log", |server| {
            // Lines that were with the dead process are lost, those to come are not.
            get(&server.address, &path);
            fs::read_to_string(&log).is_ok_and(|text| text.contains(&path))
        });
        assert_eq!(server.status()["master"]["log_deaths"], death);
    }
}

#[test]
fn lines_that_do_not_fit_are_counted_when_the_log_process_hangs_and_is_killed() {
    let root = root();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    fs::write(root.path().join("a"), "hello").unwrap();
    let arguments = ["--workers", "1", "--log", log.to_str().unwrap()];
    let server = Server::start(program(), root.path(), &arguments);
    let victim = server.children("serve-log");
    let stopped = Stopped::stop(victim.clone());
    // Long lines fill the socket to the hanging process and the worker's queue.
    let path = format!("/a?{}", "x".repeat(2_000));
    server.wait_for("lines to be dropped", |server| {
        for _ in 0..100 {
            assert_eq!(get(&server.address, &path), (200, b"hello".into()));
        }
        counter(&server.status(), "log_lines_dropped") > 0
    });
    kill(victim[0]);
    drop(stopped);
    server.wait_for("lines in the log", |server| {
        assert_eq!(get(&server.address, "/a?after"), (200, b"hello".into()));
        fs::read_to_string(&log).is_ok_and(|text| text.contains("/a?after"))
    });
    let status = server.status();
    assert_eq!(status["master"]["log_deaths"], 1);
    assert!(counter(&status, "log_lines_dropped") > 0);
    let metrics = headway_test_support::server::get(&server.status, "/metrics").2;
    let dropped = metrics
        .lines()
        .find_map(|line| line.strip_prefix("headway_log_lines_dropped_total{stage=\"queue\"} "));
    assert!(
        dropped.unwrap().parse::<u64>().unwrap() > 0,
        "and reported: {dropped:?}"
    );
}

#[test]
fn status_is_answered_when_a_child_dies_during_the_request() {
    let root = root();
    let server = Server::start(program(), root.path(), &[]);
    let thread = server.thread("status");
    let mut client = TcpStream::connect(&server.status).unwrap();
    write(&mut client, "GET /status.json HTTP/1.1\r\n");
    // The signal of a child's death may come to any thread. It has to meet this one waiting in
    // read, which cannot be seen from here, so it is sent often.
    for _ in 0..50 {
        kill_process(Pid::from_raw(thread).unwrap(), Signal::CHILD).unwrap();
        std::thread::sleep(Duration::from_millis(4));
    }
    let host = format!("Host: {}\r\n\r\n", server.status);
    // A server that has closed refuses the rest; what it said is what counts.
    let _ = client.write_all(host.as_bytes());
    let said = String::from_utf8(read_to_close(&mut client)).unwrap();
    assert!(said.starts_with("HTTP/1.1 200 "), "{said:?}");
}

/// The worker is stopped while the requests come, so that it finds all of them in one iteration, the
/// short one last.
#[test]
fn short_response_is_sent_before_most_of_the_long_ones_requested_with_it() {
    const LONG: usize = 60;
    let root = root();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    fs::write(root.path().join("a"), "hello").unwrap();
    fs::write(root.path().join("long"), contents(1, 500_000)).unwrap();
    let arguments = ["--workers", "1", "--log", log.to_str().unwrap()];
    let server = Server::start(program(), root.path(), &arguments);
    // From here on the file is in memory.
    assert_eq!(get(&server.address, "/long").0, 200);
    let mut clients: Vec<TcpStream> = (0..=LONG).map(|_| server.connect()).collect();
    for client in &mut clients {
        send_get(client, "/a");
        assert_eq!(read_response(client), (200, b"hello".into()));
    }
    let stopped = Stopped::stop(server.children("serve-worker"));
    for (number, client) in clients.iter_mut().enumerate() {
        send_get(client, if number < LONG { "/long?x" } else { "/a?x" });
    }
    drop(stopped);
    for client in &mut clients {
        let (status, body) = read_response(client);
        assert_eq!(status, 200);
        assert!(body.len() == 5 || body == contents(1, 500_000));
    }
    let order = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains("?x"));
        lines
            .map(|line| line.contains("/a?x"))
            .collect::<Vec<bool>>()
    };
    server.wait_for("the log", |_| order().len() == LONG + 1);
    let before = order().iter().take_while(|is_short| !**is_short).count();
    assert!(before < LONG / 2, "{before} long responses came first");
}

#[test]
fn request_is_answered_when_its_connection_was_to_close_for_a_new_one() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let arguments = ["--workers", "1", "--max-connections", "1"];
    let server = Server::start(program(), root.path(), &arguments);
    let mut idle = server.connect();
    send_get(&mut idle, "/a");
    assert_eq!(read_response(&mut idle).0, 200);
    let worker = Stopped::stop(server.children("serve-worker"));
    // Longer than a connection must have been silent to close for another one.
    std::thread::sleep(Duration::from_millis(400));
    let mut new = server.connect();
    send_get(&mut new, "/a");
    send_get(&mut idle, "/a");
    drop(worker);
    assert_eq!(read_response(&mut idle).0, 200, "its request was there");
    assert_eq!(read_response(&mut new).0, 200);
}

/// The worker stands still meanwhile. It finds that the time is over before it learns of the request.
#[test]
fn request_is_answered_when_it_has_come_by_the_end_of_the_idle_timeout() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in ["select", "poll", "epoll", "epoll-edge"] {
        let arguments = [
            "--workers",
            "1",
            "--idle-timeout",
            "400ms",
            "--events",
            events,
        ];
        let server = Server::start(program(), root.path(), &arguments);
        let mut idle = server.connect();
        send_get(&mut idle, "/a");
        assert_eq!(read_response(&mut idle).0, 200);
        let worker = Stopped::stop(server.children("serve-worker"));
        std::thread::sleep(Duration::from_millis(500));
        send_get(&mut idle, "/a");
        drop(worker);
        assert_eq!(read_response(&mut idle), (200, b"hello".into()), "{events}");
        assert_eq!(read_to_close(&mut idle), b"", "{events}");
        let closed = counter(&server.status(), "timeouts_idle");
        assert_eq!(closed, 1, "{events}: for the silence after the second one");
    }
}
