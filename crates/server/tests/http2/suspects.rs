//! Clients that send much without effect: others go before them, and their connections end in a way that costs little.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;

use headway_test_support::http2::get;
use headway_test_support::http2::*;
use headway_test_support::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use super::client::*;
use crate::site::*;

const ENHANCE_YOUR_CALM: u32 = 11;
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

/// Enough to be a suspect for.
fn some_pings() -> Vec<u8> {
    frame(PING, 0, 0, &[0; 8]).repeat(200)
}

/// A server with a log, which accepts all clients of these tests at a time.
fn logging() -> (Site, Server, PathBuf) {
    let site = Site::new();
    let log = site.path("access.log");
    let server = site.serve_configured(&format!("log = {log:?}\naccept-batch = 100"));
    (site, server, log)
}

/// A client which has been answered.
fn answered(mut socket: TcpStream) -> TcpStream {
    send(&mut socket, [hello(&[]), get(1, "/file.txt")].concat());
    finish(&mut socket);
    socket
}

/// Receives the rest of a response.
fn finish(socket: &mut TcpStream) {
    while !Frame::read(socket).unwrap().is_last() {}
}

/// Has the worker find all at once that happens meanwhile.
fn while_it_is_stopped<T>(server: &Server, happen: impl FnOnce() -> T) -> T {
    let worker = server.children("serve-worker")[0];
    let wait_for_state = |state: &str| {
        wait_until("the state of the worker", || {
            let stat = std::fs::read_to_string(format!("/proc/{worker}/stat"));
            stat.unwrap().contains(&format!(") {state} "))
        });
    };
    let worker = Pid::from_raw(worker).unwrap();
    // It waits for events.
    wait_for_state("S");
    kill_process(worker, Signal::STOP).unwrap();
    wait_for_state("T");
    let result = happen();
    kill_process(worker, Signal::CONT).unwrap();
    result
}

/// The queries of the requests that have one, in the order in which they were answered.
fn queries(server: &Server, log: &std::path::Path, count: usize) -> Vec<String> {
    let lines = log_lines(server, log, count);
    let query = |line: &String| Some(line.split_once('?')?.1.split_once(' ')?.0.to_owned());
    lines.iter().filter_map(query).collect()
}

/// Floods the server with pings, until it says that this is enough.
fn flood(mut socket: TcpStream) -> TcpStream {
    send(&mut socket, [hello(&[]), some_pings().repeat(6)].concat());
    let end = std::iter::from_fn(|| Frame::read(&mut socket)).find(|frame| frame.kind == GOAWAY);
    assert_eq!(end.expect("an error").error(), ENHANCE_YOUR_CALM);
    socket
}

#[test]
fn suspects_have_their_turns_behind_others() {
    let (_site, server, log) = logging();
    let mut suspects: Vec<TcpStream> = (0..20).map(|_| answered(server.connect())).collect();
    for suspect in &mut suspects {
        send(suspect, some_pings());
        // All of them were processed.
        for _ in 0..200 {
            while Frame::read(suspect).unwrap().kind != PING {}
        }
    }
    let mut other = answered(server.connect());
    while_it_is_stopped(&server, || {
        for suspect in &mut suspects {
            send(suspect, get(3, "/file.txt?suspect"));
        }
        send(&mut other, get(3, "/file.txt?other"));
    });
    finish(&mut other);
    suspects.iter_mut().for_each(finish);
    let queries = queries(&server, &log, 42);
    assert_eq!((queries.len(), queries[0].as_str()), (21, "other"));
    is_well(&server);
}

#[test]
fn few_suspects_have_their_turns_between_two_waits_for_events() {
    let (_site, server, _) = logging();
    let mut suspects: Vec<TcpStream> = (0..200).map(|_| answered(server.connect())).collect();
    let are_answered = |suspects: &mut Vec<TcpStream>| {
        for suspect in suspects {
            for _ in 0..200 {
                while Frame::read(suspect).unwrap().kind != PING {}
            }
        }
    };
    let send_to_all = |suspects: &mut Vec<TcpStream>| {
        let sent = suspects
            .iter_mut()
            .map(|suspect| send(suspect, some_pings()));
        sent.for_each(drop);
    };
    send_to_all(&mut suspects);
    are_answered(&mut suspects);
    let before = turns(&server);
    // All have input at the same moment.
    while_it_is_stopped(&server, || send_to_all(&mut suspects));
    are_answered(&mut suspects);
    let count = turns(&server) - before;
    println!("{count} turns");
    // Without a limit it would be one for each part of what a suspect has sent.
    assert!(count >= 20, "{count}");
    is_well(&server);
}

#[test]
fn new_connections_of_an_address_have_their_turns_behind_others_after_a_flood() {
    let (_site, server, log) = logging();
    // Otherwise a helper would look up the file first.
    answered(server.connect());
    let flooder = flood(server.connect());
    assert_eq!(counter(&server, "http2_connections_flooded"), 1);
    let request = |query: &str| [hello(&[]), get(1, &format!("/file.txt?{query}"))].concat();
    let (mut same, mut other) = while_it_is_stopped(&server, || {
        let mut same: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
        for socket in &mut same {
            send(socket, request("same"));
        }
        let mut other = connect_from(OTHER, &server);
        send(&mut other, request("other"));
        (same, other)
    });
    finish(&mut other);
    // They are served all the same.
    same.iter_mut().for_each(finish);
    let queries = queries(&server, &log, 22);
    assert_eq!((queries.len(), queries[0].as_str()), (21, "other"));
    drop(flooder);
    is_well(&server);
}

#[test]
fn client_that_has_flooded_learns_its_error_and_then_nothing() {
    let (_site, server, _) = logging();
    // It is closed later, which a busy machine may already have come to.
    let is_held = (0..5).any(|_| {
        let mut flooder = flood(server.connect());
        answered(server.connect());
        flooder.set_nonblocking(true).unwrap();
        let read = flooder.read(&mut [0; 100]);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    });
    assert!(is_held);
    let mut flooder = flood(server.connect());
    // In the end it closes.
    assert!(!matches!(flooder.read(&mut [0; 100]), Ok(1..)));
    is_well(&server);
}

#[test]
fn few_connections_stay_open_after_floods() {
    let site = Site::new();
    let server = site.serve_configured("max-connections = 80");
    let flooders: Vec<TcpStream> = (0..40).map(|_| flood(server.connect())).collect();
    let accepted = counter(&server, "connections_accepted");
    let open = accepted - counter(&server, "connections_closed");
    assert!(open <= 10, "{open}");
    assert_eq!(counter(&server, "http2_connections_flooded"), 40);
    drop(flooders);
    is_well(&server);
}
