//! More clients than can be served, for longer than a burst lasts, and what they are told.
//!
//! No machine is too fast for this: the worker is stopped most of the time, and each client asks
//! for much at once, so that the queue is never empty when it looks.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clients::*;
use crate::serving::{Server, WITHOUT_BPF};

/// Clients that come first.
const CROWD: usize = 400;
/// More than a worker takes in the time that it is given between two stops.
const AGAIN: usize = 60;
/// What a client asks for.
const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n";
/// Requests that a client has sent before it is taken: as many as a turn answers.
const REQUESTS: usize = 64;
/// As long as the worker is stopped, and as long as it runs.
const STOPPED: Duration = Duration::from_millis(60);
const RUNNING: Duration = Duration::from_millis(2);
/// Stops in a row: together they are longer than a second.
const CYCLES: usize = 25;
/// Sockets that are open at once at most.
const SOCKETS_MAX: usize = CROWD + CYCLES * AGAIN;

/// A client on its way: the kernel goes on knocking when the queue is full. If it is not, all
/// requests are sent.
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

/// What clients have been told, as far as they have.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    served: usize,
    unavailable: usize,
    reset: usize,
    /// How many were told to come again in 1, 2 and 3 s.
    again: [usize; 3],
}

/// Which of the times to come again at a response says.
fn again(response: &str) -> usize {
    let says = |seconds: &usize| response.contains(&format!("\r\nRetry-After: {seconds}\r\n"));
    let seconds = (1..=3).find(says);
    seconds.unwrap_or_else(|| panic!("{response}")) - 1
}

fn told(clients: &[OwnedFd]) -> Told {
    let mut told = Told::default();
    for client in clients {
        let mut buffer = [0; 1024];
        match rustix::net::recv(client, &mut buffer, RecvFlags::empty()) {
            Ok((length, _)) if length > 0 => {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if text.starts_with("HTTP/1.1 200 ") {
                    told.served += 1;
                    continue;
                }
                assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
                assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
                told.unavailable += 1;
                told.again[again(&text)] += 1;
            }
            Err(Errno::CONNRESET) => told.reset += 1,
            _ => {}
        }
    }
    told
}

/// Keeps the queue of the only worker full for longer than a burst lasts.
fn overload(server: &Server) -> Vec<OwnedFd> {
    overload_until(server, &REQUEST.repeat(REQUESTS), || false)
}

/// The same with other requests of each client, and perhaps for less long.
fn overload_until(server: &Server, requests: &[u8], is_enough: impl Fn() -> bool) -> Vec<OwnedFd> {
    let address = server.address.parse().unwrap();
    let worker = server.children("serve-worker");
    let mut clients = Vec::new();
    for cycle in 0..CYCLES {
        if is_enough() {
            break;
        }
        let stopped = Stopped::stop(worker.clone());
        let wanted = if cycle == 0 { CROWD } else { AGAIN };
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

/// What a client would read next, and leaves there: nothing yet is `AGAIN`.
fn look(client: &OwnedFd) -> Result<usize, Errno> {
    rustix::net::recv(client, &mut [0; 1], RecvFlags::PEEK).map(|(length, _)| length)
}

/// Clients that have had nothing so far.
fn silent(clients: Vec<(usize, OwnedFd)>) -> Vec<OwnedFd> {
    let clients = clients.into_iter().map(|(_, client)| client);
    clients
        .filter(|client| look(client) == Err(Errno::AGAIN))
        .collect()
}

/// How many clients that had nothing have been answered, and how many closed without a word.
fn answered_and_left(clients: &[OwnedFd]) -> (usize, usize) {
    let looks: Vec<_> = clients.iter().map(look).collect();
    let answered = looks.iter().filter(|look| **look == Ok(1));
    let left = |look: &&Result<usize, Errno>| matches!(look, Ok(0) | Err(Errno::CONNRESET));
    (answered.count(), looks.iter().filter(left).count())
}

/// Asks once more; whether there is a connection for it.
fn asks_once_more(client: &OwnedFd) -> bool {
    rustix::net::send(client, REQUEST, SendFlags::NOSIGNAL).is_ok()
}

/// Clients wait for longer than a second while more connect than can be served. Those that have
/// closed their sending side count as gone and get no response; they still read, so that the test
/// sees it. The others get a response.
fn leave_unanswered(server: &Server) {
    for _ in 0..3 {
        let clients = overload(server);
        let stopped = Stopped::stop(server.children("serve-worker"));
        // A client without a connection has nothing to wait for.
        let connected = clients.into_iter().filter(asks_once_more).enumerate();
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
            let (_, gone) = answered_and_left(&impatient);
            let (answered, left) = answered_and_left(&patient);
            if counted && gone > 0 && answered > left {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    panic!("clients that had gone were answered, or others were not");
}

/// Whether one more client is, who may as well be turned away, or reset in mid-word.
fn is_served(server: &Server) -> bool {
    let Ok(mut client) = TcpStream::connect(&server.address) else {
        return false;
    };
    let request = b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let mut response = Vec::new();
    let asked = client.write_all(request);
    let read = asked.and_then(|()| client.read_to_end(&mut response));
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
    let server = Server::start_in(root.path(), &arguments);
    let read = |client: &mut TcpStream| {
        let mut response = vec![0; 4096];
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let count = client.read(&mut response).expect("a response");
        String::from_utf8_lossy(&response[..count]).into_owned()
    };
    let ask = || {
        let mut client = TcpStream::connect(&server.address).unwrap();
        client.write_all(REQUEST).unwrap();
        client
    };
    let mut staying: Vec<_> = (0..places).map(|_| ask()).collect();
    for client in &mut staying {
        assert!(read(client).starts_with("HTTP/1.1 200"));
    }
    for _ in 0..3 {
        let told = read(&mut ask());
        assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    }
    assert_eq!(
        counter(&server.status(), "connections_rejected_overload"),
        3
    );
    // One goes, and the next one has his place.
    staying.pop();
    server.wait_for("room for another", |_| {
        read(&mut ask()).starts_with("HTTP/1.1 200")
    });
}

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
        let server = Server::start_in(root.path(), &arguments);
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
        let told = told(&clients);
        match way {
            "503" => {
                assert!(told.unavailable > 0 && told.reset == 0, "{told:?}");
                // In turn: they are not to come back together.
                let even = told.unavailable.div_ceil(3) + 1;
                assert!(told.again.iter().all(|again| *again <= even), "{told:?}");
            }
            "reset" => assert!(told.reset > 0 && told.unavailable == 0, "{told:?}"),
            _ => assert_eq!((told.unavailable, told.reset), (0, 0)),
        }
        assert!(told.served > 0, "{way}: those who were taken are served");
        assert!(
            counter(&status, "accept_syn_dropped") > 0,
            "{way}: there was no room for all"
        );
        assert_eq!(rejected > 0, way != "off", "{way}");
        let counted = status["total"]["counters"]["http_requests"]["503"].as_object();
        assert_eq!(counted.is_some(), way == "503", "{way}");
        drop(clients);
        if way == "off" {
            leave_unanswered(&server);
        }
        // The crowd has gone: everybody is served again, and nobody is turned away any more.
        server.wait_for("the end of it", |server| {
            let status = server.status();
            let at_rest = |name| counter(&status, name) == 0;
            at_rest("early_reject_active")
                && at_rest("accept_admission_limited")
                && is_served(server)
        });
        let before = counter(&server.status(), "connections_rejected_overload");
        for _ in 0..20 {
            assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
        }
        assert_eq!(
            counter(&server.status(), "connections_rejected_overload"),
            before,
            "{way}"
        );
    }
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
    let everybody = fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled");
    let may_give_up = Command::new("setpriv")
        .args([WITHOUT_BPF, "true"])
        .status()
        .is_ok_and(|status| status.success());
    if !may_give_up || everybody.is_ok_and(|text| text.trim() == "0") {
        return skip(
            test,
            "nothing here can be without the right (setpriv, kernel.unprivileged_bpf_disabled)",
        );
    }
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let arguments = ["--workers", "1", "--accept-batch", "auto"];
    let with = Server::start_in(root.path(), &arguments);
    let without = Server::start_without_bpf(root.path(), &arguments);
    for (server, remembering) in [(with, 1), (without, 0)] {
        // Its figures are told with the first turn.
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
        assert_eq!(
            counter(&server.status(), "accept_syn_filter_stateful"),
            remembering
        );
        // Either way a part is admitted under overload, and all again after it.
        let crowd = overload(&server);
        assert!(
            counter(&server.status(), "accept_admission_changes") > 0,
            "{remembering}"
        );
        drop(crowd);
        server.wait_for("the end of it", |server| {
            counter(&server.status(), "accept_admission_limited") == 0 && is_served(server)
        });
    }
}

#[test]
fn accept_batch_is_smaller_when_requests_are_read_in_a_later_iteration() {
    // Nobody has come yet: a turn of 60 ms, since each wait of an idle server is long, by 50 us for
    // taking a client and for each of its events.
    for (arguments, clients) in [
        (&[][..], 1024),
        (&["--eager-read=off"], 600),
        (&["--eager-read=off", "--eager-write=off"], 400),
    ] {
        let root = root();
        let arguments = [&["--workers", "1"], arguments].concat();
        let server = Server::start_in(root.path(), &arguments);
        server.wait_for("a round by what clients are thought to cost", |server| {
            // What the turn itself has cost is taken off.
            (clients * 9 / 10..=clients).contains(&counter(&server.status(), "accept_batch_size"))
        });
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
    // Each goes when it is served, so that with `cm` the next ones are taken for it.
    let last = b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let requests = [&REQUEST.repeat(REQUESTS - 1)[..], last].concat();
    for preset in ["eager", "cm"] {
        let arguments = ["--workers", "1", "--preset", preset];
        let server = Server::start_in(root.path(), &arguments);
        // A machine that is very busy itself may have given the worker less time than was meant.
        let told = (0..5).any(|_| is_told_meanwhile(&server, &requests));
        assert!(told, "{preset}: what it has served is told while it serves");
    }
}

/// Whether the status page tells of requests while clients with these come without end.
fn is_told_meanwhile(server: &Server, requests: &[u8]) -> bool {
    let is_over = AtomicBool::new(false);
    let before = counter(&server.status(), "requests_received");
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
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
        let _clients = overload_until(server, requests, || looking.is_finished());
        drop(over);
        looking.join().unwrap()
    })
}
