//! The outcome of a request for each kind of server, good or bad. Every outcome is produced by its
//! cause.

use crate::support;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use headway_latency::{Outcome, Row};
use headway_load::checksum;
use headway_load::engine::{Address, Document, Mode, Plan, Schedule, Sources, Target};
use headway_test_support::unused_address;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use support::{Server, Step, closed, closed_to, count, outcomes, response, run, run_until, send};

/// The outcome of every one of three requests to a server that always does this.
fn always(steps: Vec<Step>) -> Outcome {
    let server = Server::start(move |_| steps.clone());
    let (rows, _) = run(&closed(&server, 3));
    assert!(
        rows.iter().all(|row| row.error == rows[0].error),
        "{rows:?}"
    );
    rows[0].error
}

fn document(body: &str) -> Document {
    Document {
        size_bytes: Some(body.len() as u64),
        checksum: Some(checksum::of(body.as_bytes())),
        class: 2,
        ..Document::path("/")
    }
}

fn verified(server: &Server, body: &str) -> Plan {
    let mut plan = closed(server, 3);
    plan.work.documents = vec![document(body)];
    plan.verify = true;
    plan
}

const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";

#[test]
fn outcome_is_ok_when_the_response_is_complete_in_any_framing() {
    let framings = [
        send(response("hello")),
        send(CHUNKED),
        vec![
            Step::Send(b"HTTP/1.1 200 OK\r\n\r\nhello".to_vec()),
            Step::Close,
        ],
        vec![
            Step::Send(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_vec()),
            Step::Close,
        ],
        vec![Step::Dribble(response("hello"))],
        vec![Step::Dribble(CHUNKED.into())],
        send([b"HTTP/1.1 100 Continue\r\n\r\n".to_vec(), response("hello")].concat()),
        vec![
            Step::Send(response("hello")[..30].to_vec()),
            Step::Wait(Duration::from_millis(5)),
            Step::Send(response("hello")[30..].to_vec()),
        ],
    ];
    for steps in framings {
        let script = steps.clone();
        let server = Server::start(move |_| script.clone());
        let (rows, _) = run(&verified(&server, "hello"));
        for row in &rows {
            assert_eq!(row.error, Outcome::Ok, "{steps:?}");
            assert_eq!(
                (row.bytes, row.size_bytes, row.status, row.class),
                (5, 5, 200, 2)
            );
        }
    }
}

#[test]
fn large_body_is_counted_when_it_is_discarded_unread() {
    let body = "x".repeat(3_000_000);
    let bytes = response(&body);
    let server = Server::start(move |_| send(bytes.clone()));
    let (rows, measured) = run(&closed(&server, 3));
    assert!(
        rows.iter()
            .all(|row| row.error == Outcome::Ok && row.bytes == 3_000_000)
    );
    assert!(measured.bytes > 9_000_000);
    let (rows, _) = run(&verified(&server, &body));
    assert_eq!(outcomes(&rows), [Outcome::Ok; 3]);
    assert_eq!(measured.connections_opened, 1);
}

#[test]
fn status_is_an_error_when_it_is_not_the_expected_one() {
    let missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone";
    let server = Server::start(move |_| send(missing));
    let (rows, measured) = run(&closed(&server, 3));
    assert_eq!(outcomes(&rows), [Outcome::Status; 3]);
    assert!(rows.iter().all(|row| row.status == 404 && row.bytes == 4));
    // The response was whole, so the connection carries the next request.
    assert_eq!(measured.connections_opened, 1);
    let mut plan = closed(&server, 3);
    plan.expect_status = Some(404);
    assert_eq!(outcomes(&run(&plan).0), [Outcome::Ok; 3]);
}

#[test]
fn length_is_an_error_when_it_is_not_the_files() {
    for body in ["hell", "hello, world"] {
        let bytes = response(body);
        let server = Server::start(move |_| send(bytes.clone()));
        let (rows, _) = run(&verified(&server, "hello"));
        assert_eq!(outcomes(&rows), [Outcome::Length; 3], "{body}");
        assert!(
            rows.iter()
                .all(|row| row.size_bytes == 5 && row.bytes == body.len() as u64)
        );
    }
}

#[test]
fn length_is_an_error_when_more_comes_than_was_promised() {
    let bytes = [response("hello"), b"more".to_vec()].concat();
    assert_eq!(always(send(bytes)), Outcome::Length);
}

#[test]
fn content_is_an_error_when_one_byte_differs_and_it_is_verified() {
    let server = Server::start(|_| send(response("hellO")));
    let mut plan = verified(&server, "hello");
    assert_eq!(outcomes(&run(&plan).0), [Outcome::Content; 3]);
    plan.verify = false;
    assert_eq!(outcomes(&run(&plan).0), [Outcome::Ok; 3]);
}

#[test]
fn outcome_is_malformed_when_the_bytes_are_no_response() {
    let two_lengths = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx";
    for garbage in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "\0\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}\u{7}\u{8}",
        two_lengths,
    ] {
        assert_eq!(always(send(garbage)), Outcome::Malformed, "{garbage:?}");
    }
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "X-Field: y\r\n".repeat(10_000));
    assert_eq!(
        always(vec![Step::Send(endless.into()), Step::Ignore]),
        Outcome::Malformed
    );
}

#[test]
fn outcome_is_closed_early_when_the_server_closes_before_the_end() {
    let half = response("hello")[..60].to_vec();
    for steps in [
        vec![Step::Close],
        vec![Step::Send(b"HTTP/1.1 200".to_vec()), Step::Close],
        vec![Step::Send(half), Step::Close],
        vec![
            Step::Send(CHUNKED.as_bytes()[..CHUNKED.len() - 2].to_vec()),
            Step::Close,
        ],
    ] {
        assert_eq!(always(steps.clone()), Outcome::ClosedEarly, "{steps:?}");
    }
}

#[test]
fn outcome_is_reset_when_the_server_resets_the_connection() {
    assert_eq!(always(vec![Step::Reset]), Outcome::Reset);
    let half = response("hello")[..60].to_vec();
    let steps = vec![
        Step::Send(half),
        Step::Wait(Duration::from_millis(20)),
        Step::Reset,
    ];
    assert_eq!(always(steps), Outcome::Reset);
}

#[test]
fn outcome_is_refused_when_no_server_listens() {
    let address = unused_address();
    let target = Target::new(Address::Inet(address), "test.example");
    let (rows, measured) = run(&closed_to(target, 3));
    assert_eq!(outcomes(&rows), [Outcome::Refused; 3]);
    assert!(
        rows.iter()
            .all(|row| row.first_byte_ns == 0 && row.status == 0)
    );
    let message = measured.failure.unwrap().message;
    assert!(
        message.starts_with(&format!("connect({address}): ")),
        "{message}"
    );
    // A client whose connection is refused backs off: 10 ms, then 20 ms.
    assert!(rows[1].intended_ns >= rows[0].end_ns + 10_000_000);
    assert!(rows[2].intended_ns >= rows[1].end_ns + 20_000_000);
}

#[test]
fn outcome_is_unreachable_without_a_route() {
    let folder = std::env::temp_dir().join(format!("headway-nobody-{}", std::process::id()));
    let target = Target::new(Address::Unix(folder), "test.example");
    let (rows, measured) = run(&closed_to(target, 2));
    assert_eq!(outcomes(&rows), [Outcome::Unreachable; 2]);
    assert!(
        measured
            .failure
            .unwrap()
            .message
            .starts_with("connect(unix:")
    );
    // 192.0.2.0/24 is reserved (RFC 5737), so it cannot be bound to either.
    let mut target = Target::new(Address::Inet(unused_address()), "test.example");
    target.sources = Sources::List(vec!["192.0.2.1".parse().unwrap()]);
    let (rows, _) = run(&closed_to(target, 1));
    assert_eq!(outcomes(&rows), [Outcome::Unreachable]);
}

#[test]
fn outcome_is_timed_out_when_the_server_never_answers() {
    let server = Server::start(|_| vec![Step::Ignore]);
    let mut plan = closed(&server, 3);
    plan.timeout = Some(Duration::from_millis(30));
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::TimedOut; 3]);
    assert!(
        rows.iter()
            .all(|row| row.response_ns() >= 30_000_000 && row.first_byte_ns == 0)
    );
}

#[test]
fn outcome_is_timed_out_when_the_response_does_not_end() {
    let half = response("hello")[..60].to_vec();
    let server = Server::start(move |_| vec![Step::Send(half.clone()), Step::Ignore]);
    let mut plan = closed(&server, 2);
    plan.timeout = Some(Duration::from_millis(30));
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::TimedOut; 2]);
    assert!(
        rows.iter()
            .all(|row| row.first_byte_ns > 0 && row.status == 200 && row.bytes < 5)
    );
}

#[test]
fn outcome_is_abandoned_when_the_run_ends_without_waiting() {
    let server = Server::start(|_| vec![Step::Ignore]);
    let mut plan = closed(&server, 1_000);
    plan.timeout = None;
    // The first word stops the run, the second abandons what is in flight.
    let (rows, measured) = run_until(&plan, Some(Box::new(|_| true)));
    assert_eq!(outcomes(&rows), [Outcome::Abandoned]);
    assert!(measured.stopped);
}

#[test]
fn outcome_is_no_connection_when_all_are_busy_and_the_queue_is_full() {
    let server = Server::start(|_| vec![Step::Ignore]);
    let mut plan = Plan::open(
        server.target(),
        closed(&server, 1).work,
        Schedule::constant(1000.0),
        2,
    );
    let engine_mode = &mut plan.mode;
    if let Mode::Open { waiting_max, .. } = engine_mode {
        *waiting_max = 3;
    }
    plan.stop.requests = Some(50);
    plan.timeout = Some(Duration::from_secs(1));
    let (rows, measured) = run(&plan);
    // Two in flight and three in the queue time out; all others had no place.
    assert_eq!(count(&rows, Outcome::TimedOut), 5);
    assert_eq!(count(&rows, Outcome::NoConnection), 45);
    assert_eq!(
        (measured.limits.waiting, measured.limits.waiting_peak),
        (45, 3)
    );
    let unsent = rows.iter().filter(|row| row.connection == u32::MAX);
    assert_eq!(unsent.count(), 48);
    assert!(
        rows.iter()
            .filter(|row| row.error == Outcome::TimedOut)
            .all(|row| row.response_ns() >= 1_000_000_000)
    );
}

#[test]
fn request_is_retried_once_when_a_keep_alive_connection_was_closed() {
    // Keeps the connection, by its words, and leaves at the second request.
    let server = Server::start(|request| match request.ordinal {
        0 => send(response("hello")),
        _ => vec![Step::Close],
    });
    let (rows, measured) = run(&closed(&server, 4));
    assert_eq!(outcomes(&rows), [Outcome::Ok; 4]);
    assert_eq!((measured.retried, measured.connections_opened), (3, 4));
    // Once only: a server that leaves on the new connection as well has failed.
    let server = Server::start(|request| match request.connection {
        0 if request.ordinal == 0 => send(response("hello")),
        _ => vec![Step::Close],
    });
    let (rows, measured) = run(&closed(&server, 2));
    assert_eq!(outcomes(&rows), [Outcome::Ok, Outcome::ClosedEarly]);
    assert_eq!(measured.retried, 1);
    // Not at all when a part of the response has come.
    let half = response("hello")[..60].to_vec();
    let server = Server::start(move |request| match request.ordinal {
        0 => send(response("hello")),
        _ => vec![Step::Send(half.clone()), Step::Close],
    });
    let (rows, measured) = run(&closed(&server, 2));
    assert_eq!(outcomes(&rows), [Outcome::Ok, Outcome::ClosedEarly]);
    assert_eq!(measured.retried, 0);
}

#[test]
fn server_is_named_when_a_response_names_it() {
    let server = Server::start(|_| send(response("hello")));
    assert_eq!(
        run(&closed(&server, 1)).1.server.as_deref(),
        Some("scripted/1")
    );
}

#[test]
fn request_is_sent_in_parts_when_the_socket_buffer_is_full() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = closed(&server, 3);
    plan.headers = vec![("X-Large".into(), "y".repeat(6_000_000))];
    let (rows, measured) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok; 3]);
    assert_eq!(measured.connections_opened, 1);
}

#[test]
fn connection_is_closed_when_the_response_precedes_the_end_of_its_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Inet(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut clients = Vec::new();
        for client in listener.incoming() {
            // Answers before it has read anything, claims to keep the connection, and never reads.
            let mut client = client.unwrap();
            let _ = client.write_all(&response("hello"));
            clients.push(client);
        }
    });
    let mut plan = closed_to(Target::new(address, "test.example"), 3);
    plan.headers = vec![("X-Large".into(), "y".repeat(20_000_000))];
    let (rows, measured) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok; 3]);
    assert_eq!((measured.connections_opened, measured.retried), (3, 0));
}

/// A Unix listener whose queue is full returns EAGAIN where TCP would wait.
#[test]
fn unix_socket_is_retried_when_its_accept_queue_is_full() {
    let path = std::env::temp_dir().join(format!("headway-full-{}.sock", std::process::id()));
    let listener = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    net::listen(&listener, 0).unwrap();
    let mut plan = closed_to(Target::new(Address::Unix(path.clone()), "test.example"), 12);
    plan.mode = Mode::Closed { connections: 12 };
    plan.requests_per_connection = Some(1);
    let server = UnixListener::from(listener);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        for client in server.incoming() {
            let mut client = client.unwrap();
            let mut head = [0; 4096];
            let _ = client.read(&mut head);
            let _ = client.write_all(&response("hello"));
        }
    });
    let (rows, measured) = run(&plan);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(count(&rows, Outcome::Ok), 12, "{:?}", measured.outcomes);
    assert!(measured.failure.is_none());
}

#[test]
fn row_has_no_connection_when_the_accept_queue_stays_full_after_another_request() {
    let path = std::env::temp_dir().join(format!("headway-busy-{}.sock", std::process::id()));
    let address = SocketAddrUnix::new(&path).unwrap();
    let listener = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    net::bind(&listener, &address).unwrap();
    net::listen(&listener, 0).unwrap();
    let server = UnixListener::from(listener);
    let answering = std::thread::spawn(move || {
        let (mut client, _) = server.accept().unwrap();
        let _ = client.read(&mut [0; 4096]);
        // The queue is full before the response, and nothing is accepted afterwards.
        let mut queued = Vec::new();
        loop {
            let flags = SocketFlags::NONBLOCK;
            let socket =
                net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            let connected = net::connect(&socket, &address);
            queued.push(socket);
            if connected.is_err() {
                break;
            }
        }
        client.write_all(&response("hello")).unwrap();
        (server, queued)
    });
    let mut plan = closed_to(Target::new(Address::Unix(path.clone()), "test.example"), 2);
    plan.requests_per_connection = Some(1);
    plan.timeout = Some(Duration::from_secs(1));
    let (rows, _) = run(&plan);
    drop(answering.join().unwrap());
    std::fs::remove_file(&path).unwrap();
    assert_eq!((rows[0].error, rows[0].connection), (Outcome::Ok, 0));
    assert_eq!(rows[1].connection, Row::NO_CONNECTION, "{}", rows[1].error);
}
