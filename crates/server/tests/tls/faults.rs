//! What fails or waits: the handshake process dies or stops, clients stall or speak something else.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use headway_test_support::{is_running, wait_until};
use rustix::process::Signal;
use rustls::version::{TLS12, TLS13};

use super::tools::*;
use crate::site::*;

const PROCESS: &str = "serve-handshakes";

fn text(stream: &mut impl Read) -> String {
    String::from_utf8_lossy(&rest(stream).0).into_owned()
}

#[test]
fn established_connections_go_on_when_the_handshake_process_dies() {
    let secured = Secured::start("");
    let mut established = VERSIONS.map(|version| secured.connect(version));
    for stream in &mut established {
        ask(stream, "/file.txt");
    }
    let before = secured.process(PROCESS);
    let mut begun = VERSIONS.map(|version| secured.connect(version));
    for stream in &mut begun {
        begin(stream);
        stream.sock.read_exact(&mut [0]).unwrap();
    }
    // What it has said so far belongs to no handshake yet.
    let mut half = secured.connect_tcp();
    let hello = hello(&secured);
    send(&mut half, &hello[..100]);
    signal(before, Signal::KILL);
    for stream in &mut begun {
        rest(&mut stream.sock);
    }
    for stream in &mut established {
        assert_eq!(ask(stream, "/file.txt").text(), "a file\n");
    }
    // It waits for the next process.
    assert_eq!(secured.get("/file.txt").text(), "a file\n");
    send(&mut half, &hello[100..]);
    half.read_exact(&mut [0]).unwrap();
    assert_ne!(secured.process(PROCESS), before);
    assert_eq!(secured.counter("tls_handshakes_failed"), 2);
    let master = secured.server.status()["master"].clone();
    assert_eq!(master["handshake_process_deaths"], 1, "{master}");
    is_well_over_tls(&secured);
    drop((established, half));
    let printed = secured.server.stop();
    assert!(
        printed.contains("handshake process of worker 0 ended"),
        "{printed}"
    );
}

#[test]
fn handshakes_time_out_while_the_handshake_process_is_stopped() {
    let secured = Secured::start("tls-handshake-timeout = \"300ms\"");
    let mut established = secured.connect(&TLS13);
    ask(&mut established, "/file.txt");
    let process = secured.process(PROCESS);
    signal(process, Signal::STOP);
    for version in VERSIONS {
        let mut stream = secured.connect(version);
        begin(&mut stream);
        assert_eq!(rest(&mut stream.sock), (Vec::new(), true));
        assert_eq!(ask(&mut established, "/file.txt").text(), "a file\n");
    }
    assert_eq!(secured.counter("timeouts_handshake"), 2);
    signal(process, Signal::CONT);
    let restarted = secured.connect(&TLS12);
    drop(restarted);
    is_well_over_tls(&secured);
    assert_eq!(secured.process(PROCESS), process);
}

/// More than a process gets at a time.
const CROWD: usize = 300;

#[test]
fn crowd_is_served_when_a_stopped_handshake_process_goes_on() {
    let secured = Secured::start("");
    let process = secured.process(PROCESS);
    signal(process, Signal::STOP);
    let version = |at| VERSIONS[at % 2];
    let mut crowd: Vec<_> = (0..CROWD).map(|at| secured.connect(version(at))).collect();
    crowd.iter_mut().for_each(begin);
    // Some give up while they wait.
    for at in (0..CROWD).rev().step_by(10) {
        crowd.remove(at);
    }
    secured.server.wait_for("the crowd", |_| {
        secured.counter("connections_accepted") == CROWD as u64
    });
    assert_eq!(secured.counter("tls_handshakes_full"), 0);
    signal(process, Signal::CONT);
    for stream in &mut crowd {
        assert_eq!(ask(stream, "/file.txt").text(), "a file\n");
    }
    assert_eq!(secured.counter("timeouts_handshake"), 0);
    is_well_over_tls(&secured);
}

/// More than may wait in the worker.
const LARGE_CROWD: u64 = 450;

#[test]
fn clients_wait_in_the_kernel_while_too_many_wait_for_the_handshake_process() {
    // Listeners that are watched again are reported in another way by each of these.
    for events in ["epoll", "epoll-edge", "poll"] {
        let settings = format!("tls-handshake-timeout = \"5m\"\nevents = \"{events}\"");
        has_a_large_crowd(&Secured::start(&settings));
    }
}

fn has_a_large_crowd(secured: &Secured) {
    let mut established = secured.connect(&TLS13);
    ask(&mut established, "/file.txt");
    let process = secured.process(PROCESS);
    signal(process, Signal::STOP);
    let mut crowd: Vec<_> = (0..LARGE_CROWD)
        .map(|at| {
            let mut stream = secured.connect(VERSIONS[at as usize % 2]);
            begin(&mut stream);
            stream
        })
        .collect();
    let server = &secured.server;
    server.wait_for("the pause", |_| secured.counter("tls_accept_pauses") > 0);
    let waiting = || secured.counter("tls_handshakes_waiting");
    assert!((256..300).contains(&waiting()), "{}", waiting());
    let accepted = secured.counter("connections_accepted");
    assert!((321..370).contains(&accepted), "{accepted}");
    // Others do not notice.
    for _ in 0..10 {
        assert_eq!(ask(&mut established, "/file.txt").text(), "a file\n");
        let mut plain = server.connect();
        send(&mut plain, request("/file.txt"));
        assert_eq!(receive(&mut plain).unwrap().status, 200);
    }
    assert!(waiting() >= 256);
    signal(process, Signal::CONT);
    for stream in &mut crowd {
        assert_eq!(ask(stream, "/file.txt").text(), "a file\n");
    }
    assert_eq!(secured.counter("tls_handshakes_full"), 1 + LARGE_CROWD);
    assert_eq!(waiting(), 0);
    is_well_over_tls(secured);
}

/// Lets a process run for 2 ms of each 40 ms, until it is dropped.
struct Slowed {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    fn new(process: i32) -> Slowed {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                signal(process, Signal::STOP);
                std::thread::sleep(Duration::from_millis(38));
                signal(process, Signal::CONT);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Slowed {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Clients of the crowd which are served while the process is slow.
const SERVED_LATE: usize = 30;

#[test]
fn slow_handshake_process_delays_only_handshakes() {
    let secured = Secured::start("tls-handshake-timeout = \"5m\"");
    let mut established = VERSIONS.map(|version| secured.connect(version));
    for stream in &mut established {
        ask(stream, "/file.txt");
    }
    let process = secured.process(PROCESS);
    let slowed = Slowed::new(process);
    let version = |at| VERSIONS[at as usize % 2];
    let mut crowd: Vec<_> = (0..LARGE_CROWD)
        .map(|at| secured.connect(version(at)))
        .collect();
    crowd.iter_mut().for_each(begin);
    let waiting = || secured.counter("tls_handshakes_waiting");
    let done = || secured.counter("tls_handshakes_full") + secured.counter("timeouts_handshake");
    for stream in &mut crowd[..SERVED_LATE] {
        // The queue has its limit, and established connections do not wait in it.
        assert!(waiting() < 300, "{}", waiting());
        for stream in &mut established {
            assert_eq!(ask(stream, "/file.txt").text(), "a file\n");
        }
        assert_eq!(ask(stream, "/file.txt").text(), "a file\n");
    }
    let served = SERVED_LATE as u64 + 2;
    assert!(
        (served..LARGE_CROWD).contains(&done()),
        "{} are done",
        done()
    );
    drop(slowed);
    for stream in &mut crowd[SERVED_LATE..] {
        assert_eq!(ask(stream, "/file.txt").text(), "a file\n");
    }
    assert_eq!(secured.counter("tls_handshakes_full"), 2 + LARGE_CROWD);
    assert_eq!(secured.counter("timeouts_handshake"), 0);
    assert_eq!(secured.process(PROCESS), process);
    is_well_over_tls(&secured);
}

#[test]
fn crowd_is_served_when_the_handshake_process_dies_while_it_waits() {
    let secured = Secured::start("");
    let process = secured.process(PROCESS);
    signal(process, Signal::STOP);
    let mut crowd: Vec<_> = (0..CROWD).map(|_| secured.connect(&TLS13)).collect();
    crowd.iter_mut().for_each(begin);
    secured.server.wait_for("the crowd", |_| {
        secured.counter("connections_accepted") == CROWD as u64
    });
    signal(process, Signal::KILL);
    // Those whose records it had are lost.
    let mut served = 0;
    for stream in &mut crowd {
        stream.write_all(request("/file.txt").as_bytes()).ok();
        let response = receive(stream);
        served += usize::from(response.is_ok_and(|response| response.status == 200));
    }
    assert_eq!(served, CROWD - 64);
    assert_eq!(secured.counter("tls_handshakes_failed"), 64);
    is_well_over_tls(&secured);
}

#[test]
fn worker_that_dies_during_handshakes_is_replaced_with_its_handshake_process() {
    let secured = Secured::start("");
    let (worker, process) = (secured.process("serve-worker"), secured.process(PROCESS));
    signal(process, Signal::STOP);
    let mut begun: Vec<_> = (0..10).map(|_| secured.connect(&TLS13)).collect();
    begun.iter_mut().for_each(begin);
    secured.server.wait_for("the handshakes", |_| {
        secured.counter("connections_accepted") == 10
    });
    signal(worker, Signal::KILL);
    for stream in &mut begun {
        rest(&mut stream.sock);
    }
    // It waits for the next worker.
    assert_eq!(secured.get("/file.txt").text(), "a file\n");
    signal(process, Signal::CONT);
    wait_until("the process ends", || !is_running(process));
    assert_eq!(secured.get("/file.txt").text(), "a file\n");
    assert_eq!(secured.server.children(PROCESS).len(), 1);
    let printed = secured.server.stop();
    assert!(!printed.contains("handshake process"), "{printed}");
}

#[test]
fn stalled_handshake_is_closed_and_counted() {
    for handshakes in ["process", "inline"] {
        let secured = Secured::start(&format!(
            "tls-handshake-timeout = \"300ms\"\ntls-handshakes = \"{handshakes}\""
        ));
        let hello = hello(&secured);
        let lengths = [0, 1, 5, hello.len() / 2, hello.len()];
        let mut stalled = lengths.map(|sent| {
            let mut stream = secured.connect_tcp();
            send(&mut stream, &hello[..sent]);
            stream
        });
        for (sent, stream) in lengths.iter().zip(&mut stalled) {
            let (answer, _) = rest(stream);
            assert_eq!(answer.is_empty(), *sent < hello.len(), "{sent}");
        }
        assert_eq!(secured.counter("timeouts_handshake"), 5);
        let metrics = headway_test_support::server::get(&secured.server.status, "/metrics").2;
        assert!(
            metrics.contains("headway_timeouts_total{stage=\"handshake\"} 5\n"),
            "{metrics}"
        );
        is_well_over_tls(&secured);
    }
}

#[test]
fn nothing_is_left_of_hellos_that_are_cut_at_any_byte() {
    for handshakes in ["process", "inline"] {
        let secured = Secured::start(&format!("tls-handshakes = \"{handshakes}\""));
        let hello = hello(&secured);
        let before = secured.counter("connections_accepted");
        for sent in 0..=hello.len() {
            send(&mut secured.connect_tcp(), &hello[..sent]);
        }
        let count = hello.len() as u64 + 1;
        secured.server.wait_for("the ends of all", |_| {
            secured.counter("connections_accepted") == before + count
                && ["connections_open", "tls_handshakes_waiting"]
                    .iter()
                    .all(|gauge| secured.counter(gauge) == 0)
        });
        assert_eq!(secured.counter("timeouts_handshake"), 0);
        is_well_over_tls(&secured);
    }
}

#[test]
fn handshake_byte_by_byte_succeeds() {
    for handshakes in ["process", "inline"] {
        let secured = Secured::start(&format!("tls-handshakes = \"{handshakes}\""));
        for version in VERSIONS {
            let mut stream = secured.connect(version);
            while stream.conn.is_handshaking() {
                let mut bytes = Vec::new();
                while stream.conn.wants_write() {
                    stream.conn.write_tls(&mut bytes).unwrap();
                }
                for byte in bytes {
                    send(&mut stream.sock, [byte]);
                }
                if stream.conn.is_handshaking() {
                    stream.conn.read_tls(&mut stream.sock).unwrap();
                    stream.conn.process_new_packets().unwrap();
                }
            }
            assert_eq!(ask(&mut stream, "/file.txt").text(), "a file\n");
        }
        is_well_over_tls(&secured);
    }
}

#[test]
fn http_in_the_clear_is_answered_400_where_tls_is_spoken() {
    for handshakes in ["process", "inline"] {
        let secured = Secured::start(&format!("tls-handshakes = \"{handshakes}\""));
        let mut stream = secured.connect_tcp();
        send(&mut stream, request("/file.txt"));
        assert_eq!(receive(&mut stream).unwrap().status, 400);
        assert_eq!(rest(&mut stream), (Vec::new(), true));
        let hello = hello(&secured);
        // Other protocols, and what is no record behind one that is.
        let mut behind = hello.clone();
        behind.extend(b"GET / HTTP/1.1\r\n\r\n");
        let long = [&[22, 3, 1, 0x48, 1][..], &[0; 40]].concat();
        for garbage in [b"\0\0\0\0\x16", b"get /", &long[..], &[0x80, 0x2e, 1, 3, 1]] {
            let mut stream = secured.connect_tcp();
            send(&mut stream, garbage);
            assert_eq!(rest(&mut stream).0, b"", "{garbage:?}");
        }
        let mut stream = secured.connect_tcp();
        send(&mut stream, behind);
        // It lingers, and a loop that turned for it without work would do so thousands of times.
        let failed = || secured.counter("tls_handshakes_failed");
        wait_until("the failure", || failed() >= 1);
        let before = turns(&secured.server);
        std::thread::sleep(Duration::from_millis(200));
        let count = turns(&secured.server) - before;
        assert!(count < 200, "{count} turns");
        assert!(!text(&mut stream).contains("HTTP/1.1"));
        is_well_over_tls(&secured);
    }
}

/// A hello with so much padding (RFC 7685) that the message has this length, in records.
fn padded_hello(secured: &Secured, length: usize) -> Vec<u8> {
    let mut message = hello(secured).split_off(5);
    let added = length - message.len();
    // The list of extensions is last: its length follows suites and compression.
    let at = 38 + 1 + usize::from(message[38]);
    let suites = usize::from(u16::from_be_bytes([message[at], message[at + 1]]));
    let at = at + 2 + suites;
    let at = at + 1 + usize::from(message[at]);
    let extensions = usize::from(u16::from_be_bytes([message[at], message[at + 1]])) + added;
    message[at..at + 2].copy_from_slice(&(extensions as u16).to_be_bytes());
    let padding = ((added - 4) as u16).to_be_bytes();
    message.extend([0, 21, padding[0], padding[1]]);
    message.resize(length, 0);
    let body = ((length - 4) as u32).to_be_bytes();
    message[1..4].copy_from_slice(&body[1..]);
    let mut records = Vec::new();
    for part in message.chunks(1 << 14) {
        let length = (part.len() as u16).to_be_bytes();
        records.extend([22, 3, 1, length[0], length[1]]);
        records.extend(part);
    }
    records
}

#[test]
fn hello_of_64_kilobytes_is_answered_and_a_longer_one_refused() {
    for handshakes in ["process", "inline"] {
        let secured = Secured::start(&format!("tls-handshakes = \"{handshakes}\""));
        for (length, answer) in [(65_000, 22), (65_535 + 4, 21)] {
            let mut stream = secured.connect_tcp();
            send(&mut stream, padded_hello(&secured, length));
            let mut first = [0];
            stream.read_exact(&mut first).unwrap();
            assert_eq!(first[0], answer, "{length}");
        }
        let mut longer = padded_hello(&secured, 65_000);
        longer[6] = 1;
        let mut stream = secured.connect_tcp();
        send(&mut stream, longer);
        let mut alert = [0; 7];
        stream.read_exact(&mut alert).unwrap();
        assert_eq!((alert[0], alert[5]), (21, 2));
        assert_eq!(secured.counter("tls_failed_bad_message"), 2);
        is_well_over_tls(&secured);
    }
}

#[test]
fn tls_is_answered_400_where_http_is_spoken_in_the_clear() {
    let secured = Secured::start("");
    let mut stream = secured.server.connect();
    send(&mut stream, hello(&secured));
    assert_eq!(receive(&mut stream).unwrap().status, 400);
    is_well_over_tls(&secured);
}
