//! Clients that attack: others are served meanwhile, and nothing is left of them.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use headway_test_support::WAIT_MAX;
use headway_test_support::http2::get;
use headway_test_support::http2::*;

use super::client::*;
use crate::site::*;

/// How long an attack goes on that the server need not end.
const HARMLESS: Duration = Duration::from_millis(500);
/// Memory that the worker may have more of afterwards: its allocator keeps some.
const GROWTH_BYTES_MAX: u64 = 20 << 20;

const LARGE: usize = 4 << 20;

fn site() -> Site {
    let site = Site::new();
    fs::write(site.path("root/large"), contents(LARGE)).unwrap();
    site.program("echo", "printf 'Content-Type: a/b\\n\\n'; cat");
    site
}

/// Sends `frames` again and again until the server ends the connection, or the time is over. Whether
/// the server has ended it.
fn attack(
    socket: &mut TcpStream,
    begin: &[u8],
    most: Duration,
    mut frames: impl FnMut(u32) -> Vec<u8>,
) -> bool {
    let begun = Instant::now();
    socket.set_nonblocking(true).unwrap();
    let (mut waiting, mut round) = (begin.to_vec(), 0);
    let mut received = vec![0; 64 << 10];
    while begun.elapsed() < most {
        if waiting.is_empty() {
            waiting = frames(round);
            round += 1;
        }
        match socket.write(&waiting) {
            Ok(count) => drop(waiting.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return true,
        }
        match socket.read(&mut received) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return true,
        }
    }
    false
}

/// Attacks beside an ordinary client, and checks that nothing is left of it.
fn withstand(what: &str, begin: &[u8], frames: impl FnMut(u32) -> Vec<u8> + Send) {
    let site = site();
    let server = site.serve("");
    let mut other = Client::connect(&server);
    assert!(other.get("/large").received == contents(LARGE));
    let before = resident_bytes(&server);
    let begin = [&hello(&[])[..], begin].concat();
    let mut socket = server.connect();
    std::thread::scope(|scope| {
        let attacking = scope.spawn(|| attack(&mut socket, &begin, WAIT_MAX, frames));
        let mut served = 0;
        while !attacking.is_finished() || served < 10 {
            assert_eq!(other.get("/file.txt").text(), "a file\n");
            served += 1;
        }
        let ended = attacking.join().unwrap();
        println!("{what}: {served} others served");
        assert!(ended, "{what}: it goes on");
    });
    drop(socket);
    assert!(other.get("/large").received == contents(LARGE));
    wait_until_all_have_ended(&server);
    server.wait_for("the end of programs", |server| {
        counter(server, "cgi_processes") == 0
    });
    let after = resident_bytes(&server);
    assert!(
        after < before + GROWTH_BYTES_MAX,
        "{what}: {before} bytes, then {after}"
    );
    is_well(&server);
}

fn post() -> Vec<u8> {
    let block = request_block("POST", "/cgi-bin/echo");
    frame(HEADERS, END_HEADERS, 1, &block)
}

#[test]
fn rapid_reset_ends_the_connection() {
    let request = |path: &'static str| {
        move |round: u32| {
            let streams = (0..50).map(|number| 2 * (50 * round + number) + 1);
            let frames = streams.map(|stream| [get(stream, path), reset(stream)].concat());
            frames.collect::<Vec<_>>().concat()
        }
    };
    withstand("rapid reset", &[], request("/large"));
    withstand("rapid reset of programs", &[], request("/cgi-bin/echo"));
}

#[test]
fn rapid_reset_of_begun_requests_ends_the_connection() {
    // The request is answered or begun when its reset comes.
    let half = |round: u32| match round % 2 {
        0 => get(round + 1, "/large"),
        _ => {
            std::thread::sleep(Duration::from_micros(200));
            reset(round)
        }
    };
    withstand("slow reset", &[], half);
}

#[test]
fn floods_of_control_frames_end_the_connection() {
    for (what, repeated) in [
        ("SETTINGS", settings(&[(INITIAL_WINDOW_SIZE, 65_535)])),
        ("PING", frame(PING, 0, 0, &[0; 8])),
        ("WINDOW_UPDATE", window_update(0, 1)),
        ("PRIORITY", frame(PRIORITY, 0, 5, &[0, 0, 0, 3, 7])),
        ("unknown frames", frame(0x42, 0, 0, b"")),
    ] {
        let repeated = repeated.repeat(500);
        withstand(what, &[], |_| repeated.clone());
    }
}

#[test]
fn endless_headers_end_the_connection() {
    let open = frame(HEADERS, 0, 1, &request_block("GET", "/"));
    let empty = frame(CONTINUATION, 0, 1, b"").repeat(100);
    withstand("empty CONTINUATION", &open, |_| empty.clone());
    let long = frame(CONTINUATION, 0, 1, &block(&[("a", "b".repeat(16_000))]));
    withstand("long CONTINUATION", &open, |_| long.clone());
    let mut bomb = request_block("GET", "/");
    bomb.extend(kept(b"a", "b".repeat(4000).as_bytes()));
    bomb.extend([KEPT_AGAIN; 12_000]);
    let bomb = |round: u32| frame(HEADERS, END_HEADERS | END_STREAM, 2 * round + 1, &bomb);
    withstand("HPACK bomb", &[], bomb);
}

#[test]
fn long_header_lists_are_answered_and_cost_no_memory() {
    let long = [
        request_block("GET", "/"),
        block(&[("a", "b".repeat(16_280))]),
    ]
    .concat();
    let long = |round: u32| {
        std::thread::sleep(Duration::from_millis(1));
        frame(HEADERS, END_HEADERS | END_STREAM, 2 * round + 1, &long)
    };
    let site = site();
    let server = site.serve("");
    let before = resident_bytes(&server);
    let mut socket = server.connect();
    attack(&mut socket, &hello(&[]), HARMLESS, long);
    drop(socket);
    assert_eq!(get_file(&server), "a file\n");
    assert!(resident_bytes(&server) < before + GROWTH_BYTES_MAX);
    is_well(&server);
}

fn get_file(server: &Server) -> String {
    Client::connect(server).get("/file.txt").text()
}

#[test]
fn floods_of_empty_and_tiny_data_end_the_connection() {
    for (what, data) in [
        ("empty DATA", frame(DATA, 0, 1, b"")),
        ("padded DATA", frame(DATA, 8, 1, &[99; 100])),
        ("tiny DATA", frame(DATA, 0, 1, b"x")),
    ] {
        let data = data.repeat(300);
        withstand(what, &post(), |_| data.clone());
    }
}

#[test]
fn windows_of_one_byte_end_the_connection_or_are_harmless() {
    let site = site();
    let server = site.serve("");
    let before = resident_bytes(&server);
    let mut socket = server.connect();
    let begin = [hello(&[(INITIAL_WINDOW_SIZE, 0)]), get(1, "/large")].concat();
    let updates = window_update(1, 1).repeat(100);
    attack(&mut socket, &begin, HARMLESS, |_| updates.clone());
    assert_eq!(get_file(&server), "a file\n");
    drop(socket);
    wait_until_all_have_ended(&server);
    assert!(resident_bytes(&server) < before + GROWTH_BYTES_MAX);
    is_well(&server);
}

#[test]
fn large_responses_to_clients_without_a_window_cost_no_memory() {
    let site = site();
    let server = site.serve("");
    assert!(Client::connect(&server).get("/large").received == contents(LARGE));
    let before = resident_bytes(&server);
    let mut sockets: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
    for socket in &mut sockets {
        let mut bytes = hello(&[(INITIAL_WINDOW_SIZE, 0)]);
        for stream in 0..100 {
            bytes.extend(get(2 * stream + 1, "/large"));
        }
        send(socket, &bytes);
    }
    server.wait_for("the requests", |server| {
        counter(server, "http2_streams") >= 1001
    });
    assert_eq!(get_file(&server), "a file\n");
    let during = resident_bytes(&server);
    assert!(
        during < before + GROWTH_BYTES_MAX,
        "{before} bytes, then {during}"
    );
    // With all windows open and nothing read, only a part of it may wait.
    for socket in &mut sockets {
        send(
            socket,
            [
                settings(&[(INITIAL_WINDOW_SIZE, 1 << 30)]),
                window_update(0, 1 << 30),
            ]
            .concat(),
        );
    }
    for _ in 0..20 {
        assert_eq!(get_file(&server), "a file\n");
    }
    let during = resident_bytes(&server);
    assert!(
        during < before + GROWTH_BYTES_MAX,
        "{before} bytes, then {during}"
    );
    drop(sockets);
    wait_until_all_have_ended(&server);
    is_well(&server);
}
