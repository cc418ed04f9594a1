//! More clients than can be served, for longer than a burst lasts, and the responses they get.
//!
//! This works on fast machines too: the worker is stopped most of the time, and each client sends
//! many requests at once, so the accept queue is never empty when the worker accepts.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headway_test_support::server::{Server, without_bpf};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clients::*;

/// Clients that connect in the first cycle.
const FIRST_CLIENTS: usize = 400;
/// Clients per later cycle: more than a worker accepts between two stops.
const MORE_CLIENTS: usize = 60;
const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n";
/// Requests that a client sends before it is accepted: as many as one loop iteration answers.
const REQUESTS: usize = 64;
/// Time for which the worker is stopped in each cycle.
const STOPPED: Duration = Duration::from_millis(60);
/// Time for which the worker runs in each cycle.
const RUNNING: Duration = Duration::from_millis(2);
/// Cycles: together they are longer than a second.
const CYCLES: usize = 25;
/// Most sockets that are open at the same time.
const SOCKETS_MAX: usize = FIRST_CLIENTS + CYCLES * MORE_CLIENTS;

/// Starts to connect. The kernel retransmits the SYN when the queue is full; otherwise all requests
/// are sent.
fn open_connection(address: SocketAddr, requests: &[u8]) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let connected = rustix::net::connect(&socket, &address);
    assert!(
        matches!(connected, Ok(()) | Err(Errno::INPROGRESS)),
        "{connected:?}"
    );
    let _ = rustix::net::send(&socket, requests, SendFlags::NOSIGNAL);
    socket
}

/// Numbers of clients by the response they have got so far.
#[derive(Debug, Default, PartialEq, Eq)]
struct Responses {
    served: usize,
    unavailable: usize,
    reset: usize,
    /// 503 responses with a Retry-After of 1, 2 and 3 s.
    by_retry_after: [usize; 3],
}

/// Returns the index of the response's Retry-After in `by_retry_after`.
fn retry_after(response: &str) -> usize {
    let has = |seconds: &usize| response.contains(&format!("\r\nRetry-After: {seconds}\r\n"));
    let seconds = (1..=3).find(has);
    seconds.unwrap_or_else(|| panic!("{response}")) - 1
}

fn responses(clients: &[OwnedFd]) -> Responses {
    let mut responses = Responses::default();
    for client in clients {
        let mut buffer = [0; 1024];
        match rustix::net::recv(client, &mut buffer, RecvFlags::empty()) {
            Ok((length, _)) if length > 0 => {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if text.starts_with("HTTP/1.1 200 ") {
                    responses.served += 1;
                    continue;
                }
                assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
                assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
                responses.unavailable += 1;
                responses.by_retry_after[retry_after(&text)] += 1;
            }
            Err(Errno::CONNRESET) => responses.reset += 1,
            _ => {}
        }
    }
    responses
}

/// Keeps the queue of the only worker full for longer than a burst lasts.
fn overload(server: &Server) -> Vec<OwnedFd> {
    overload_until(server, &REQUEST.repeat(REQUESTS), || false)
}

/// Keeps the queue of the only worker full with other requests of each client, until `is_enough`.
fn overload_until(server: &Server, requests: &[u8], is_enough: impl Fn() -> bool) -> Vec<OwnedFd> {
    let address = server.address.parse().unwrap();
    let worker = server.children("serve-worker");
    let mut clients = Vec::new();
    for cycle in 0..CYCLES {
        if is_enough() {
            break;
        }
        let stopped = Stopped::stop(worker.clone());
        let wanted = if cycle == 0 {
            FIRST_CLIENTS
        } else {
            MORE_CLIENTS
        };
        clients.extend((0..wanted).map(|_| open_connection(address, requests)));
        std::thread::sleep(STOPPED);
        drop(stopped);
        let begun = Instant::now();
        while begun.elapsed() < RUNNING {
            std::thread::yield_now();
        }
    }
    clients
}

/// Peeks at what a client would read next; `AGAIN` if nothing has arrived.
fn peek(client: &OwnedFd) -> Result<usize, Errno> {
    rustix::net::recv(client, &mut [0; 1], RecvFlags::PEEK).map(|(length, _)| length)
}

/// Returns the clients that have received nothing.
fn silent(clients: Vec<(usize, OwnedFd)>) -> Vec<OwnedFd> {
    let clients = clients.into_iter().map(|(_, client)| client);
    clients
        .filter(|client| peek(client) == Err(Errno::AGAIN))
        .collect()
}

/// Counts the clients that have a response, and those whose connection was closed without one.
fn answered_and_closed(clients: &[OwnedFd]) -> (usize, usize) {
    let peeks: Vec<_> = clients.iter().map(peek).collect();
    let answered = peeks.iter().filter(|peek| **peek == Ok(1));
    let closed = |peek: &&Result<usize, Errno>| matches!(peek, Ok(0) | Err(Errno::CONNRESET));
    (answered.count(), peeks.iter().filter(closed).count())
}

/// Sends one more request; whether there is a connection for it.
fn sends_another(client: &OwnedFd) -> bool {
    rustix::net::send(client, REQUEST, SendFlags::NOSIGNAL).is_ok()
}

/// Clients wait for longer than a second while more connect than can be served. Those that have
/// closed their sending side count as gone and get no response; they still read, so that the test
/// sees it. The others get a response.
fn leave_unanswered(server: &Server) {
    let mut seen = String::new();
    // On a machine that is busy itself, the clients may come too slowly for an overload.
    for _ in 0..10 {
        let clients = overload(server);
        let stopped = Stopped::stop(server.children("serve-worker"));
        // A client without a connection has nothing to wait for.
        let connected = clients.into_iter().filter(sends_another).enumerate();
        let (impatient, patient): (Vec<_>, Vec<_>) = connected.partition(|(at, _)| at % 2 == 0);
        for (_, client) in &impatient {
            rustix::net::shutdown(client, Shutdown::Write).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1_200));
        let (impatient, patient) = (silent(impatient), silent(patient));
        drop(stopped);
        // The queue is half full under overload, but chance may have emptied it just then.
        for _ in 0..50 {
            let counted = counter(&server.status(), "first_requests_abandoned") > 0;
            let (_, gone) = answered_and_closed(&impatient);
            let (answered, closed) = answered_and_closed(&patient);
            if counted && gone > 0 && answered > closed {
                return;
            }
            seen = format!(
                "counted: {counted}; of {} gone clients {gone} closed; of {} others {answered} \
                 answered, {closed} closed",
                impatient.len(),
                patient.len()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    panic!("clients that had gone were answered, or others were not; {seen}");
}

/// Whether one more client is served. It may also be rejected, or its connection reset during a
/// response.
fn is_served(server: &Server) -> bool {
    let Ok(mut client) = TcpStream::connect(&server.address) else {
        return false;
    };
    let request = b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let mut response = Vec::new();
    let sent = client.write_all(request);
    let read = sent.and_then(|()| client.read_to_end(&mut response));
    read.is_ok() && response.starts_with(b"HTTP/1.1 200 ")
}

fn may_open_sockets(test: &str) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let enough = limit
        .maximum
        .is_none_or(|maximum| maximum > SOCKETS_MAX as u64 + 1_000);
    if !enough {
        skip(test, "RLIMIT_NOFILE is too low for thousands of clients");
    }
    enough
}

#[test]
fn excess_connections_get_503_at_the_connection_limit() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let places = 3;
    let arguments = [
        "--workers",
        "1",
        "--accept-batch",
        "auto",
        "--defer-accept=off",
        "--early-reject",
        "503",
        "--max-connections",
        "3",
    ];
    let server = Server::start(program(), root.path(), &arguments);
    let read = |client: &mut TcpStream| {
        let mut response = vec![0; 4096];
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let count = client.read(&mut response).expect("a response");
        String::from_utf8_lossy(&response[..count]).into_owned()
    };
    let connect = || {
        let mut client = TcpStream::connect(&server.address).unwrap();
        client.write_all(REQUEST).unwrap();
        client
    };
    // Requests that do not end: no connection is idle, so none closes for another one.
    let stay = |_| {
        let mut client = TcpStream::connect(&server.address).unwrap();
        client.write_all(&REQUEST[..REQUEST.len() - 2]).unwrap();
        client
    };
    let mut staying: Vec<_> = (0..places).map(stay).collect();
    server.wait_for("them to come", |server| {
        counter(&server.status(), "connections_open") == places
    });
    for _ in 0..3 {
        let response = read(&mut connect());
        assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    }
    assert_eq!(
        counter(&server.status(), "connections_rejected_overload"),
        3
    );
    // One connection is closed, and the next one is accepted.
    staying.pop();
    server.wait_for("room for another", |_| {
        read(&mut connect()).starts_with("HTTP/1.1 200")
    });
}

/// Needs: a hard limit of descriptors above 3000
#[test]
fn excess_connections_are_rejected_at_once_with_early_reject() {
    if !may_open_sockets("excess_connections_are_rejected_at_once_with_early_reject") {
        return;
    }
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for way in ["503", "reset", "off"] {
        let arguments = [
            "--workers",
            "1",
            "--accept-batch",
            "auto",
            "--defer-accept=off",
            "--early-reject",
            way,
        ];
        let server = Server::start(program(), root.path(), &arguments);
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
        assert_eq!(
            counter(&server.status(), "connections_rejected_overload"),
            0,
            "{way}"
        );
        let mut clients = overload(&server);
        let mut status = server.status();
        // On a machine that is busy itself, the clients may come too slowly for an overload.
        for _ in 0..5 {
            let is_rejecting =
                way == "off" || counter(&status, "connections_rejected_overload") > 0;
            if is_rejecting && counter(&status, "accept_syn_dropped") > 0 {
                break;
            }
            clients.clear();
            clients = overload(&server);
            status = server.status();
        }
        let rejected = counter(&status, "connections_rejected_overload");
        let responses = responses(&clients);
        let (unavailable, reset) = (responses.unavailable, responses.reset);
        match way {
            "503" => {
                assert!(unavailable > 0 && reset == 0, "{responses:?}");
                // In turn, so that they do not all retry at the same time.
                let even = unavailable.div_ceil(3) + 1;
                let counts = responses.by_retry_after;
                assert!(counts.iter().all(|count| *count <= even), "{responses:?}");
            }
            "reset" => assert!(reset > 0 && unavailable == 0, "{responses:?}"),
            _ => assert_eq!((unavailable, reset), (0, 0)),
        }
        assert!(
            responses.served > 0,
            "{way}: accepted connections are served"
        );
        assert!(
            counter(&status, "accept_syn_dropped") > 0,
            "{way}: the accept queue was never full"
        );
        assert_eq!(rejected > 0, way != "off", "{way}");
        let counted = status["total"]["counters"]["http_requests"]["503"].as_object();
        assert_eq!(counted.is_some(), way == "503", "{way}");
        drop(clients);
        if way == "off" {
            leave_unanswered(&server);
        }
        recovers(&server);
    }
}

/// After the overload all clients are served again, and none is rejected.
fn recovers(server: &Server) {
    server.wait_for("the end of the overload", |server| {
        let status = server.status();
        let at_rest = |name| counter(&status, name) == 0;
        at_rest("early_reject_active") && at_rest("accept_admission_limited") && is_served(server)
    });
    let before = counter(&server.status(), "connections_rejected_overload");
    for _ in 0..20 {
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    }
    let after = counter(&server.status(), "connections_rejected_overload");
    assert_eq!(after, before);
}

#[test]
fn syn_filter_remembers_dropped_clients_with_the_privilege() {
    let test = "syn_filter_remembers_dropped_clients_with_the_privilege";
    if !may_open_sockets(test) {
        return;
    }
    if let Err(error) = headway_os::syn_filter::SynFilter::new() {
        return skip(test, &format!("no eBPF here: {error}"));
    }
    let unprivileged = fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled");
    let can_drop = without_bpf(Command::new("true"))
        .status()
        .is_ok_and(|status| status.success());
    if !can_drop || unprivileged.is_ok_and(|text| text.trim() == "0") {
        return skip(
            test,
            "no process can drop the privilege (setpriv, kernel.unprivileged_bpf_disabled)",
        );
    }
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let arguments = ["--workers", "1", "--accept-batch", "auto"];
    let with = Server::start(program(), root.path(), &arguments);
    let without = Server::start(without_bpf(program()), root.path(), &arguments);
    for (server, stateful) in [(with, 1), (without, 0)] {
        // The worker publishes its statistics with the first loop iteration.
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
        assert_eq!(
            counter(&server.status(), "accept_syn_filter_stateful"),
            stateful
        );
        // Either way a part of the clients is admitted under overload, and all are afterwards. On a
        // busy machine one overload may be too short for that.
        let changes = || counter(&server.status(), "accept_admission_changes");
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.extend(overload(&server));
            if changes() > 0 {
                break;
            }
        }
        assert!(changes() > 0, "{stateful}");
        drop(clients);
        server.wait_for("the end of the overload", |server| {
            counter(&server.status(), "accept_admission_limited") == 0 && is_served(server)
        });
    }
}

#[test]
fn accept_batch_is_smaller_when_requests_are_read_in_a_later_iteration() {
    // No client has connected yet. The batch is an iteration of 60 ms, since each wait of an idle
    // server is long, divided by 50 us for accepting a client and for each of its events.
    for (arguments, clients) in [
        (&[][..], 1024),
        (&["--eager-read=off"], 600),
        (&["--eager-read=off", "--eager-write=off"], 400),
    ] {
        let root = root();
        let arguments = [&["--workers", "1"], arguments].concat();
        let server = Server::start(program(), root.path(), &arguments);
        server.wait_for(
            "an accept batch by the estimated cost of clients",
            |server| {
                // The cost of the iteration itself is subtracted.
                (clients * 9 / 10..=clients)
                    .contains(&counter(&server.status(), "accept_batch_size"))
            },
        );
    }
}

#[test]
fn status_is_reported_while_eagerly_served_clients_never_end() {
    let test = "status_is_reported_while_eagerly_served_clients_never_end";
    if !may_open_sockets(test) {
        return;
    }
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    // Each connection closes after its response, so that with `cm` more are accepted.
    let last = b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let requests = [&REQUEST.repeat(REQUESTS - 1)[..], last].concat();
    for preset in ["eager", "cm"] {
        let arguments = ["--workers", "1", "--preset", preset];
        let server = Server::start(program(), root.path(), &arguments);
        // On a very busy machine the worker may get less time than intended.
        let updated = (0..5).any(|_| is_status_updated_under_load(&server, &requests));
        assert!(
            updated,
            "{preset}: the status page shows no requests while it serves"
        );
    }
}

/// Whether the status page counts requests while clients connect and send `requests` without a
/// pause.
fn is_status_updated_under_load(server: &Server, requests: &[u8]) -> bool {
    let is_over = AtomicBool::new(false);
    let before = counter(&server.status(), "requests_received");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if counter(&server.status(), "requests_received") > before {
                    // An answer that comes after the end proves nothing.
                    return !is_over.load(Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            false
        });
        let over = Stop(&is_over);
        let _clients = overload_until(server, requests, || reader.is_finished());
        drop(over);
        reader.join().unwrap()
    })
}
