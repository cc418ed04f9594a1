//! Tests of the micro-servers of Brecht and Ostrowski: how each accepts connections, by its system
//! calls and counters.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use headway_server::metrics::Snapshot;

use super::tools::{read_response, read_to_close, root, send_request};
use crate::support::{Served, TIMEOUT, config};

/// The number of calls of a kind between two moments.
fn grown(before: &Snapshot, after: &Snapshot, call: &str) -> u64 {
    let of = |snapshot: &Snapshot| snapshot.trace.calls.get(call).copied().unwrap_or(0);
    of(after) - of(before)
}

/// One client with one request, from connect to close, for a file that is cached. Counts accept,
/// recvfrom, sendto and openat2 calls, and reads that found nothing.
fn one_client(preset: &str) -> [u64; 5] {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let text = format!("research.preset = '{preset}'\nprecompressed = false");
    let mut served = Served::start(config(root.path(), &text));
    assert_eq!(served.get("/a").body, b"hello");
    let before = served.wait_for("the end of the first", |now| {
        now.counters.connections_closed == 1
    });
    let mut client = served.connect();
    // The request must have arrived when the connection is accepted; otherwise eager reads would
    // fail at random.
    send_request(&mut client, "/a");
    assert_eq!(read_response(&mut client).body, b"hello", "{preset}");
    drop(client);
    let after = served.wait_for("the end of the second", |now| {
        now.counters.connections_closed == 2
    });
    let blocked = after.counters.receives_would_block - before.counters.receives_would_block;
    let calls = ["accept4", "recvfrom", "sendto", "openat2"];
    let calls = calls.map(|call| grown(&before, &after, call));
    [calls[0], calls[1], calls[2], calls[3], blocked]
}

#[test]
fn presets_without_eager_read_wait_for_a_readiness_event() {
    // Request and end of stream are two reads, and select reports both.
    assert_eq!(one_client("accept1"), [1, 2, 1, 1, 0]);
    assert_eq!(
        one_client("accept-inf"),
        [2, 2, 1, 1, 0],
        "until the accept queue is empty"
    );
    assert_eq!(one_client("accept25"), [2, 2, 1, 1, 0]);
    assert_eq!(one_client("accept25+cache"), [2, 2, 1, 0, 0]);
}

#[test]
fn response_waits_for_the_event_mechanism_when_it_is_not_written_eagerly() {
    const REQUESTS: u64 = 10;
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    // One registration for writing, then one for reading the next request.
    for (policy, changes) in [("true", 0), ("false", 2 * REQUESTS)] {
        let policy = format!("research.eager-write = {policy}");
        let mut served = Served::start(config(root.path(), &policy));
        let mut client = served.connect();
        let mut exchange = || {
            send_request(&mut client, "/a");
            assert_eq!(read_response(&mut client).body, b"hello");
        };
        exchange();
        let before = served.snapshot();
        (0..REQUESTS).for_each(|_| exchange());
        let after = served.snapshot();
        assert_eq!(grown(&before, &after, "epoll_ctl"), changes, "{policy}");
    }
}

/// The maximum number of reads, whether an eager read finds the request or comes too early.
#[test]
fn presets_with_eager_read_read_right_after_accept() {
    for (preset, full) in [
        ("eager", 0),
        ("eager+full", 1),
        ("eager+close", 0),
        ("cm", 1),
    ] {
        let [accepts, receives, sends, opens, blocked] = one_client(preset);
        assert!(blocked <= 1 + full, "{preset}: {blocked}");
        // Read until nothing is left: one read finds nothing, unless the end of the stream has
        // arrived.
        assert_eq!(receives, 2 + blocked, "{preset}");
        assert_eq!((sends, opens), (1, 1), "{preset}");
        let after_close = u64::from(preset.contains("close") || preset == "cm");
        assert_eq!(accepts, 2 + after_close, "{preset}");
    }
}

#[test]
fn full_read_reads_again_when_a_request_is_answered() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for (policy, reads) in [("research.full-read = true", 2), ("", 1)] {
        let mut served = Served::start(config(root.path(), policy));
        let mut client = served.connect();
        send_request(&mut client, "/a");
        assert_eq!(read_response(&mut client).body, b"hello");
        let before = served.snapshot();
        send_request(&mut client, "/a");
        assert_eq!(read_response(&mut client).body, b"hello");
        let after = served.snapshot();
        assert_eq!(grown(&before, &after, "recvfrom"), reads, "{policy}");
    }
}

#[test]
fn loop_blocks_at_one_of_the_requests_with_stall_every() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for (policy, stalls) in [("research.stall-every = 5", 4), ("", 0)] {
        let mut served = Served::start(config(root.path(), policy));
        let mut client = served.connect();
        let before = served.snapshot();
        for _ in 0..20 {
            send_request(&mut client, "/a");
            assert_eq!(read_response(&mut client).body, b"hello");
        }
        let after = served.snapshot();
        assert_eq!(
            grown(&before, &after, "clock_nanosleep"),
            stalls,
            "{policy}"
        );
        // A snapshot is taken before its own turn ends.
        let turns = after.counters.loop_turn_us.count();
        assert!(turns >= 20, "{turns}");
        if stalls > 0 {
            assert!(after.counters.loop_turn_us.max() >= 1_000);
            assert!(after.counters.loop_longest_client_us >= 1_000);
            let longest = after.counters.loop_longest_turn;
            assert_eq!(longest.turn_us, after.counters.loop_turn_us.max());
        }
    }
}

#[test]
fn eager_read_of_a_silent_client_would_block() {
    let root = root();
    for (preset, found_nothing) in [("accept25", 0), ("eager", 1)] {
        let text = format!("research.preset = '{preset}'");
        let mut served = Served::start(config(root.path(), &text));
        let client = served.connect();
        let after = served.wait_for("the client", |now| now.counters.connections_accepted == 1);
        assert_eq!(
            after.counters.receives_would_block, found_nothing,
            "{preset}"
        );
        drop(client);
    }
}

#[test]
fn connections_are_accepted_for_each_close_with_accept_on_close() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    // One slot: the next connection is accepted when it becomes free, by the close itself or at the
    // next wakeup.
    for (preset, rounds) in [("eager", 0), ("eager+close", 6), ("cm", 6)] {
        let text = format!("research.preset = '{preset}'\nmax-connections = 1");
        let mut served = Served::start(config(root.path(), &text));
        let clients: Vec<TcpStream> = (0..6)
            .map(|_| {
                let mut client = served.connect();
                client
                    .write_all(b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
                    .unwrap();
                client.set_read_timeout(Some(TIMEOUT)).unwrap();
                client
            })
            .collect();
        for mut client in clients {
            assert_eq!(read_response(&mut client).body, b"hello", "{preset}");
            assert_eq!(read_to_close(&mut client, 1), b"", "{preset}");
        }
        let counters = served
            .wait_for("all ends", |now| now.counters.connections_closed == 6)
            .counters;
        assert_eq!(counters.accept_batches_on_close, rounds, "{preset}");
        assert_eq!(counters.connections_at_accept.max(), 1, "{preset}");
        assert_eq!(counters.connections_at_accept.count(), 6, "{preset}");
        assert!(
            counters.accept_calls >= counters.connections_accepted,
            "{preset}"
        );
    }
}

/// The largest batch while each request takes at least a millisecond, with more clients in the queue
/// than 250 ms are enough for.
fn largest_batch(policy: &str) -> u64 {
    const CLIENTS: usize = 400;
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    headway_server::config::raise_descriptor_limit().expect("two descriptors a client");
    let text =
        format!("research.preset = 'eager'\nbacklog = 1024\nresearch.stall-every = 1\n{policy}");
    let (mut served, mut clients) =
        Served::start_late(config(root.path(), &text), &[], |address| {
            let ask = |_| {
                let mut client = TcpStream::connect(address).unwrap();
                client.set_read_timeout(Some(TIMEOUT)).unwrap();
                client
                    .write_all(b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
                    .unwrap();
                client
            };
            (0..CLIENTS).map(ask).collect::<Vec<TcpStream>>()
        });
    for client in &mut clients {
        assert_eq!(read_response(client).body, b"hello", "{policy}");
    }
    let all = served.wait_for("all ends", |now| {
        now.counters.connections_closed == CLIENTS as u64
    });
    all.counters.accept_batch_connections.max()
}

#[test]
fn unlimited_batch_ends_after_a_quarter_of_a_second_unless_original_limits_is_on() {
    assert!(largest_batch("") <= 251);
    assert_eq!(largest_batch("research.original-limits = true"), 400);
}

#[test]
fn long_batch_ends_at_the_connection_limit() {
    // Those before it are open, as their clients are silent.
    let root = root();
    let text = "research.preset = 'eager'\nmax-connections = 5\nresearch.original-limits = true";
    let (mut served, clients) = Served::start_late(config(root.path(), text), &[], |address| {
        let connect = |_| TcpStream::connect(address).unwrap();
        (0..8).map(connect).collect::<Vec<TcpStream>>()
    });
    let after = served.wait_for("the limit", |now| now.counters.connections_open == 5);
    assert_eq!(after.counters.accept_batch_connections.max(), 5);
    // Another client takes the place of none of them, however long they are silent.
    drop(clients);
    let after = served.wait_for("all ends", |now| now.counters.connections_closed == 8);
    assert_eq!(after.counters.connections_evicted_limit, 0);
}

#[test]
fn nothing_is_cached_when_caching_is_off() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    fs::write(root.path().join("large"), vec![b'x'; 300_000]).unwrap();
    let mut served = Served::start(config(root.path(), "research.caching = false"));
    for _ in 0..5 {
        assert_eq!(served.get("/a").body, b"hello");
        assert_eq!(served.get("/large").body.len(), 300_000);
        assert_eq!(served.get("/none").status, 404);
    }
    let counters = served
        .wait_for("all ends", |now| now.counters.connections_closed == 15)
        .counters;
    assert_eq!(
        (counters.file_cache_misses, counters.file_cache_hits),
        (15, 0)
    );
    assert_eq!(
        (counters.file_cache_entries, counters.file_cache_descriptors),
        (0, 0)
    );
    assert_eq!(
        (counters.response_cache_bytes, counters.response_cache_hits),
        (0, 0)
    );
}

#[test]
fn select_serves_more_than_1024_connections() {
    const CLIENTS: usize = 1200;
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    headway_server::config::raise_descriptor_limit().expect("two descriptors a client");
    let mut served = Served::start(config(
        root.path(),
        "research.preset = 'accept25'\ndefer-accept = false\nheader-timeout = '10m'",
    ));
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| served.connect()).collect();
    served.wait_for("all of them", |now| {
        now.counters.connections_open == CLIENTS as u64
    });
    for client in clients.iter_mut().rev() {
        send_request(client, "/a");
        assert_eq!(read_response(client).body, b"hello");
    }
}
