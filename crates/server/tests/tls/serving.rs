//! Responses and bodies over TLS: whole, in order, and the same with all event mechanisms.

use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::thread;

use headway_event::{Events, Mechanism};
use headway_test_support::{skip, tiny_client, wait_until};
use rustls::version::TLS13;

use super::tools::*;
use crate::site::*;

const LARGE: usize = 10 << 20;
const MIDDLE: usize = 3 << 20;

/// A site with larger files.
fn site() -> Site {
    let site = Site::new();
    fs::write(site.path("root/large"), contents(LARGE)).unwrap();
    fs::write(site.path("root/middle"), contents(MIDDLE)).unwrap();
    fs::write(site.path("root/some"), contents(300_000)).unwrap();
    site
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn files_arrive_whole_with_every_event_mechanism_and_version() {
    for (at, events) in ["epoll", "epoll-edge", "poll", "select", "io_uring"]
        .iter()
        .enumerate()
    {
        if *events == "io_uring" && !has_io_uring() {
            continue;
        }
        for (workers, handshakes) in [(1 + at % 2, "process"), (2 - at % 2, "inline")] {
            let settings = format!("events = \"{events}\"\ntls-handshakes = \"{handshakes}\"");
            let secured = Secured::start_with(site(), workers, &settings);
            for version in VERSIONS {
                println!("{events} {handshakes} {version:?}");
                talk(&mut secured.connect(version));
            }
            is_well_over_tls(&secured);
        }
    }
}

#[test]
fn encryption_and_sending_are_stages_of_a_turn() {
    let secured = Secured::start_with(site(), 1, "");
    let longest = || {
        ["crypto", "send", "client"]
            .map(|stage| secured.counter(&format!("loop_longest_{stage}_us")))
    };
    let mut stream = secured.connect(&TLS13);
    ask(&mut stream, "/file.txt");
    let [crypto, sending, client] = longest();
    assert_eq!((crypto, sending), (0, 0), "{client}");
    assert!(ask(&mut stream, "/large").body == contents(LARGE));
    let [crypto, sending, _] = longest();
    assert!(crypto > 0 && sending > 0, "{crypto} {sending}");
    let metrics = headway_test_support::server::get(&secured.server.status, "/metrics").2;
    assert!(
        metrics.contains("headway_loop_stage_longest_seconds{stage=\"crypto\"} 0.0"),
        "{metrics}"
    );
    is_well_over_tls(&secured);
}

fn has_io_uring() -> bool {
    let tried = Events::new(Mechanism::IoUring);
    if let Err(error) = &tried {
        let test = "files_arrive_whole_with_every_event_mechanism_and_version";
        skip(test, &error.to_string());
    }
    tried.is_ok()
}

/// Many requests on one connection.
fn talk(stream: &mut TlsStream) {
    assert_eq!(ask(stream, "/file.txt").text(), "a file\n");
    assert!(ask(stream, "/some").body == contents(300_000));
    assert!(ask(stream, "/middle").body == contents(MIDDLE));
    send(stream, "HEAD /some HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = receive_head(stream).unwrap();
    assert_eq!(head.field("Content-Length"), Some("300000"));
    let range = "GET /some HTTP/1.1\r\nHost: test\r\nRange: bytes=1000-99999\r\n\r\n";
    send(stream, range);
    let part = receive(stream).unwrap();
    assert_eq!(part.status, 206);
    assert!(part.body == contents(300_000)[1000..100_000]);
    // All in one record, and in more bytes than one read takes.
    send(stream, request("/some").repeat(20));
    for _ in 0..20 {
        assert!(receive(stream).unwrap().body == contents(300_000));
    }
    send(stream, request("/file.txt").repeat(2000));
    for _ in 0..2000 {
        assert_eq!(receive(stream).unwrap().text(), "a file\n");
    }
    send(
        stream,
        "GET /file.txt HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(receive(stream).unwrap().text(), "a file\n");
    assert_eq!(rest(stream), (Vec::new(), true));
}

/// A client that leaves with the server what it does not read.
fn slow_client(secured: &Secured) -> TlsStream {
    let config = Arc::new(secured.certified.clients(&TLS13));
    speak(tiny_client(secured.address()), config)
}

#[test]
fn slow_readers_get_whole_files_and_a_marked_end() {
    for events in ["epoll", "epoll-edge", "select"] {
        let secured = Secured::start_with(site(), 1, &format!("events = \"{events}\""));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut stream = slow_client(&secured);
                    send(
                        &mut stream,
                        "GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    );
                    // So the server fills all buffers between, and waits.
                    wait_until("the server has begun", || {
                        secured.counter("sent_bytes") > 100_000
                    });
                    let response = receive(&mut stream).unwrap();
                    assert!(response.body == contents(LARGE));
                    assert_eq!(rest(&mut stream), (Vec::new(), true));
                });
            }
        });
        is_well_over_tls(&secured);
    }
}

#[test]
fn file_that_changes_while_it_is_sent_arrives_in_one_version_or_cut() {
    // Longer than all buffers between.
    let size = crate::faults::tools::large();
    let version = |version| crate::faults::tools::contents(version, size);
    for is_rewritten in [true, false] {
        let site = Site::new();
        let path = site.path("root/changing");
        fs::write(&path, version(0)).unwrap();
        let secured = Secured::start_with(site, 1, "");
        let mut stream = slow_client(&secured);
        send(&mut stream, request("/changing"));
        let mut body = receive_head(&mut stream).unwrap().body;
        match is_rewritten {
            true => fs::write(&path, version(1)).unwrap(),
            false => {
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.set_len(size as u64 / 2).unwrap();
            }
        }
        let read = stream.read_to_end(&mut body);
        assert!(body.len() < size, "the file was not changed in time");
        assert!(body == version(0)[..body.len()]);
        assert!(read.is_err(), "the end is marked");
        assert_eq!(secured.counter("chunks_changed"), 1);
        is_well_over_tls(&secured);
    }
}
