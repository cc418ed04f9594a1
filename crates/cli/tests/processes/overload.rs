//! More clients than can be served, for longer than a burst lasts, and what they are told.
//!
//! No machine is too fast for this: the worker is stopped most of the time, and each client asks for much at once, so that the
//! queue is never empty when it looks.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clients::*;
use crate::serving::Server;

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

/// A client on its way: the kernel goes on knocking when the queue is full. If it is not, all requests are sent.
fn knock(address: SocketAddr) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let connected = rustix::net::connect(&socket, &address);
    assert!(
        matches!(connected, Ok(()) | Err(Errno::INPROGRESS)),
        "{connected:?}"
    );
    let requests = REQUEST.repeat(REQUESTS);
    let _ = rustix::net::send(&socket, &requests, SendFlags::NOSIGNAL);
    socket
}

/// What clients have been told, as far as they have.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    served: usize,
    unavailable: usize,
    reset: usize,
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
                assert!(text.contains("\r\nRetry-After: 1\r\n"), "{text}");
                assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
                told.unavailable += 1;
            }
            Err(Errno::CONNRESET) => told.reset += 1,
            _ => {}
        }
    }
    told
}

/// Keeps the queue of the only worker full for longer than a burst lasts.
fn overload(server: &Server) -> Vec<OwnedFd> {
    let address = server.address.parse().unwrap();
    let worker = server.children("serve-worker");
    let mut clients = Vec::new();
    for cycle in 0..CYCLES {
        let stopped = Stopped::stop(worker.clone());
        let wanted = if cycle == 0 { CROWD } else { AGAIN };
        clients.extend((0..wanted).map(|_| knock(address)));
        std::thread::sleep(STOPPED);
        drop(stopped);
        let begun = Instant::now();
        while begun.elapsed() < RUNNING {
            std::thread::yield_now();
        }
    }
    clients
}

/// Clients that have had nothing so far.
fn silent(clients: Vec<OwnedFd>) -> Vec<OwnedFd> {
    let nothing = |client: &OwnedFd| {
        let received = rustix::net::recv(client, &mut [0; 1], RecvFlags::PEEK);
        received.is_err_and(|error| error == Errno::AGAIN)
    };
    clients.into_iter().filter(nothing).collect()
}

/// Whether a client that had nothing has been closed without a word.
fn is_closed_unanswered(client: &OwnedFd) -> bool {
    let received = rustix::net::recv(client, &mut [0; 1], RecvFlags::PEEK);
    matches!(received, Ok((0, _)) | Err(Errno::CONNRESET))
}

/// Asks once more, and ends the client's side; whether there was a connection for it.
fn asks_no_more(client: &OwnedFd) -> bool {
    let asked = rustix::net::send(client, REQUEST, SendFlags::NOSIGNAL);
    asked.is_ok() && rustix::net::shutdown(client, Shutdown::Write).is_ok()
}

/// Clients that wait for longer than a second while more come than can be served, and have closed their side: they are taken for
/// ones that have gone, and nobody answers them. These still listen, so that they see it.
fn leave_unanswered(server: &Server) {
    for _ in 0..3 {
        let clients = overload(server);
        let stopped = Stopped::stop(server.children("serve-worker"));
        // Whoever has found no room yet is not connected, and has nothing to wait for.
        let clients: Vec<OwnedFd> = clients.into_iter().filter(asks_no_more).collect();
        std::thread::sleep(Duration::from_millis(1_200));
        let silent = silent(clients);
        drop(stopped);
        // The queue is half full under overload, but chance may have emptied it just then.
        for _ in 0..50 {
            let counted = counter(&server.status(), "first_requests_left") > 0;
            if counted && silent.iter().any(is_closed_unanswered) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    panic!("whoever had gone was answered");
}

/// Whether one more client is, who may as well be turned away, or reset in mid-word.
fn is_served(server: &Server) -> bool {
    let Ok(mut client) = TcpStream::connect(&server.address) else {
        return false;
    };
    let request = b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let mut reply = Vec::new();
    let asked = client.write_all(request);
    let read = asked.and_then(|()| client.read_to_end(&mut reply));
    read.is_ok() && reply.starts_with(b"HTTP/1.1 200 ")
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
fn surplus_is_told_at_once_when_early_rejection_is_asked_for() {
    if !may_open_sockets("surplus_is_told_at_once_when_early_rejection_is_asked_for") {
        return;
    }
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for way in ["503", "reset", "off"] {
        let arguments = [
            "--workers",
            "1",
            "--accept-count",
            "auto",
            "--no-defer-accept",
            "--early-reject",
            way,
        ];
        let server = Server::start_in(root.path(), &arguments);
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
        assert_eq!(counter(&server.status(), "early_rejected"), 0, "{way}");
        let mut clients = overload(&server);
        let mut status = server.status();
        // A machine that is very busy itself may have given the worker more time than was meant.
        for _ in 0..5 {
            if way == "off" || counter(&status, "early_rejected") > 0 {
                break;
            }
            clients.clear();
            clients = overload(&server);
            status = server.status();
        }
        let rejected = counter(&status, "early_rejected");
        let told = told(&clients);
        match way {
            "503" => assert!(told.unavailable > 0 && told.reset == 0, "{told:?}"),
            "reset" => assert!(told.reset > 0 && told.unavailable == 0, "{told:?}"),
            _ => assert_eq!((told.unavailable, told.reset), (0, 0)),
        }
        assert!(told.served > 0, "{way}: those who were taken are served");
        assert!(
            counter(&status, "accept_unheard") > 0,
            "{way}: there was no room for all"
        );
        assert_eq!(rejected > 0, way != "off", "{way}");
        let counted = status["total"]["counters"]["responses"]["503"].as_u64();
        assert_eq!(counted.is_some(), way == "503", "{way}");
        drop(clients);
        if way == "off" {
            leave_unanswered(&server);
        }
        // The crowd has gone: everybody is served again, and nobody is turned away any more.
        server.wait_for("the end of it", |server| {
            let status = server.status();
            let at_rest = |name| counter(&status, name) == 0;
            at_rest("early_rejecting") && at_rest("accept_limiting") && is_served(server)
        });
        let before = counter(&server.status(), "early_rejected");
        for _ in 0..20 {
            assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
        }
        assert_eq!(counter(&server.status(), "early_rejected"), before, "{way}");
    }
}
