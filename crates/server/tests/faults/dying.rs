//! Tests of helpers that die: their jobs are retried, and no response is wrong.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::tools::*;
use crate::support::{Served, TIMEOUT, config};

/// Files that clients request.
const FILES: usize = 8;

#[test]
fn job_is_retried_when_its_helper_dies() {
    let root = root();
    fs::create_dir(root.path().join("d")).unwrap();
    fs::write(root.path().join("d").join("here.txt"), "").unwrap();
    for events in mechanisms() {
        let more = format!("listing = true\n{events}");
        let mut served = Served::start_holding_helpers(config(root.path(), &more));
        let mut client = served.connect();
        send_request(&mut client, "/d/");
        for death in 1..=3 {
            served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
            assert_eq!(served.kill_helpers(), 1, "{events}");
            served.wait_for("the death", |now| now.counters.helper_deaths == death);
        }
        served.release_helpers();
        let response = read_response(&mut client);
        assert_eq!(response.status, 200, "{events}");
        assert!(
            String::from_utf8(response.body)
                .unwrap()
                .contains("here.txt")
        );
        assert_eq!(
            served.snapshot().counters.helper_jobs_retried,
            3,
            "{events}"
        );
    }
}

#[test]
fn only_the_request_that_kills_helpers_fails() {
    let root = root();
    for name in ["deadly", "good"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    let mut served = Served::start_holding_helpers(config(root.path(), "listing = true"));
    let mut client = served.connect();
    send_request(&mut client, "/deadly/");
    for death in 1..=16 {
        served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
        served.kill_helpers();
        served.wait_for("the death", |now| now.counters.helper_deaths == death);
    }
    let response = read_response(&mut client);
    assert_eq!(response.status, 503, "the helpers' fault, not the disk's");
    assert!(response.field("Retry-After").is_some(), "{}", response.head);
    let counters = served.snapshot().counters;
    assert_eq!((counters.helper_jobs_abandoned, counters.io_errors), (1, 0));
    served.release_helpers();
    assert_eq!(served.get("/good/").status, 200);
    assert_eq!(
        served.get("/deadly/").status,
        200,
        "the failure is not remembered"
    );
}

#[test]
fn connection_slots_are_freed_when_clients_disconnect_while_a_helper_hangs() {
    let root = root();
    for name in ["hung", "left", "wanted"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    for events in mechanisms() {
        let bounds = "listing = true\nindex = []\nprecompressed = false\n\
                      helpers-max = 1\nhelper-queue-max = 1";
        let config = config(root.path(), &format!("{bounds}\n{events}"));
        let mut served = Served::start_holding_helpers(config);
        let mut hung = served.connect();
        send_request(&mut hung, "/hung/");
        served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
        for _ in 0..20 {
            // One client shares the helper's job with others, one waits in the queue.
            for path in ["/hung/", "/left/"] {
                let mut leaving = served.connect();
                send_request(&mut leaving, path);
                served.wait_for("the wait", |now| now.counters.connections_open == 2);
                reset(leaving);
                served.wait_for("the departure", |now| {
                    now.counters.connections_open == 1 && now.counters.helper_queue_length == 0
                });
            }
        }
        let mut wanted = served.connect();
        send_request(&mut wanted, "/wanted/");
        served.wait_for("a queued job", |now| now.counters.helper_queue_length == 1);
        served.release_helpers();
        for client in [&mut hung, &mut wanted] {
            assert_eq!(read_response(client).status, 200, "{events}");
        }
        // No job was repeated without need.
        assert_eq!(served.snapshot().counters.helper_jobs_done, 2, "{events}");
    }
}

fn size_of(number: usize) -> usize {
    [700, 40_000, 300_000, 2_000_000][number % 4]
}

/// Stops the clients even if the test fails; otherwise it would wait for them forever.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Downloads the files repeatedly, each time not resident, until stopped.
fn download(address: SocketAddr, root: &Path, stop: &AtomicBool, responses: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        for number in 0..FILES {
            make_cold(&root.join(number.to_string()));
            let mut client = TcpStream::connect(address).unwrap();
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
            send_request(&mut client, &format!("/{number}"));
            let response = read_response(&mut client);
            assert_eq!(response.status, 200, "{number}");
            assert!(response.body == contents(0, size_of(number)), "{number}");
            responses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn responses_are_correct_when_helpers_are_killed_under_load() {
    let root = root();
    for number in 0..FILES {
        let path = root.path().join(number.to_string());
        fs::write(path, contents(0, size_of(number))).unwrap();
    }
    for events in mechanisms() {
        // A small cache, so that most files must be read again.
        let more = format!(
            "response-cache-max = '64KiB'\nchunk-cache-max = '2MiB'\nrevalidate = '0ms'\n{events}"
        );
        let mut served = Served::start(config(root.path(), &more));
        let address = served.address;
        let (stop, responses) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for _ in 0..4 {
                scope.spawn(|| download(address, root.path(), &stop, &responses));
            }
            while served.snapshot().counters.helper_deaths < 20 {
                let before = responses.load(Ordering::Relaxed);
                served.kill_helpers();
                served.wait_for("service after the kill", |_| {
                    // Enough jobs that the same one is not killed repeatedly.
                    responses.load(Ordering::Relaxed) > before + 8
                });
            }
        });
        let counters = served.snapshot().counters;
        assert_eq!(
            counters.http_requests.get(200),
            counters.http_requests.total(),
            "{events}"
        );
        assert_eq!(
            (counters.responses_aborted, counters.io_errors),
            (0, 0),
            "{events}"
        );
    }
}
