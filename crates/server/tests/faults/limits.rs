//! Tests of limits that are reached: what waits, what is rejected, and that no response is lost.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;

use super::tools::*;
use crate::support::{Response, Served, config};

#[test]
fn connections_wait_in_the_backlog_when_the_connection_limit_is_reached() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in mechanisms() {
        let mut served = Served::start(config(
            root.path(),
            &format!("max-connections = 4\n{events}"),
        ));
        let mut inside: Vec<TcpStream> = (0..4).map(|_| served.connect()).collect();
        for client in &mut inside {
            // Requests that do not end: no connection is idle.
            client.write_all(b"GET /a HTTP/1.1\r\n").unwrap();
        }
        served.wait_for("the first", |now| now.counters.connections_open == 4);
        let mut outside: Vec<TcpStream> = (0..20).map(|_| served.connect()).collect();
        for client in &mut outside {
            send_request(client, "/a");
        }
        let full = served.snapshot().counters;
        assert_eq!(
            (full.connections_accepted, full.connections_open),
            (4, 4),
            "{events}"
        );
        let wakeups = full.accept_wakeups;
        for _ in 0..20 {
            served.snapshot();
        }
        let woken = served.snapshot().counters.accept_wakeups - wakeups;
        assert!(
            woken <= 1,
            "{events}: the loop rests while the queue waits, not {woken}"
        );
        drop(inside);
        // Each connection is accepted when the one before it closes.
        for client in outside {
            let mut client = client;
            assert_eq!(read_response(&mut client).body, b"hello", "{events}");
        }
        let counters = served.wait_for("the last to go", |now| now.counters.connections_open == 0);
        assert_eq!(
            counters.counters.connections_accepted, 24,
            "{events}: no connection is dropped"
        );
    }
}

#[test]
fn request_returns_503_when_the_helper_queue_is_full() {
    let root = root();
    for name in ["1", "2", "3"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    fs::write(root.path().join("warm"), "hello").unwrap();
    // Without index names to look up, the listing is the only job for a helper.
    let more =
        "listing = true\nindex = []\nprecompressed = false\nhelpers-max = 1\nhelper-queue-max = 1";
    let mut served = Served::start_holding_helpers(config(root.path(), more));
    let mut running = served.connect();
    send_request(&mut running, "/1/");
    served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
    let mut queued = served.connect();
    send_request(&mut queued, "/2/");
    served.wait_for("a queued job", |now| now.counters.helper_queue_length == 1);
    let refused = served.get("/3/");
    assert_eq!(refused.status, 503);
    assert!(refused.field("Retry-After").is_some(), "{}", refused.head);
    let mut joined = served.connect();
    send_request(&mut joined, "/2/");
    served.wait_for("a joined job", |now| {
        now.counters.helper_jobs_coalesced == 1
    });
    assert_eq!(
        served.get("/warm").body,
        b"hello",
        "what needs no helper is served"
    );
    served.release_helpers();
    for client in [&mut running, &mut queued, &mut joined] {
        assert_eq!(read_response(client).status, 200);
    }
    assert_eq!(
        served.get("/3/").status,
        200,
        "the refusal is not remembered"
    );
}

#[test]
fn started_response_is_finished_when_the_helper_queue_is_full() {
    let root = root();
    for name in ["1", "2"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    let expected = contents(0, large());
    let path = root.path().join("large");
    fs::write(&path, &expected).unwrap();
    let more =
        "listing = true\nindex = []\nprecompressed = false\nhelpers-max = 1\nhelper-queue-max = 1";
    let mut served = Served::start_holding_helpers(config(root.path(), more));
    let mut others = [served.connect(), served.connect()];
    send_request(&mut others[0], "/1/");
    served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
    send_request(&mut others[1], "/2/");
    served.wait_for("a full queue", |now| now.counters.helper_queue_length == 1);
    let mut client = tiny_client(&served);
    send_request(&mut client, "/large");
    assert_eq!(read_head(&mut client).status, 200);
    make_cold(&path);
    let mut received = vec![0; expected.len()];
    let reading = std::thread::spawn(move || client.read_exact(&mut received).map(|()| received));
    let waiting = served.wait_for("a window that waits", |now| {
        now.counters.helper_queue_length == 2
    });
    assert_eq!(waiting.counters.responses_aborted, 0);
    served.release_helpers();
    assert!(reading.join().unwrap().unwrap() == expected);
    for other in &mut others {
        assert_eq!(read_response(other).status, 200);
    }
}

/// The number of memfds of this size in this process, each counted once.
fn memfds_of(size: u64) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let memfds = open.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|to| to.starts_with("/memfd:headway (deleted)"))
    });
    let status = memfds.filter_map(|entry| fs::metadata(entry.path()).ok());
    let inodes: BTreeSet<u64> = status
        .filter(|status| status.len() == size)
        .map(|status| status.ino())
        .collect();
    inodes.len()
}

#[test]
fn listing_is_shared_when_many_slow_clients_receive_it() {
    let root = root();
    let directory = root.path().join("d");
    fs::create_dir(&directory).unwrap();
    for number in 0..500 {
        fs::write(directory.join(format!("{number:0>250}")), "").unwrap();
    }
    // With "0s" a helper revalidates the listing for each client; otherwise it is used as it is.
    for revalidate in ["0s", "60s"] {
        let more = format!("listing = true\nrevalidate = '{revalidate}'");
        let mut served = Served::start(config(root.path(), &more));
        let mut clients: Vec<TcpStream> = (0..12).map(|_| tiny_client(&served)).collect();
        let mut sizes = BTreeSet::new();
        for client in &mut clients {
            send_request(client, "/d/");
            let head = read_head(client);
            sizes.insert(head.field("Content-Length").unwrap().parse().unwrap());
        }
        let size: Vec<u64> = sizes.into_iter().collect();
        assert!(size.len() == 1 && size[0] > 250_000, "{size:?}");
        assert_eq!(memfds_of(size[0]), 1, "{revalidate}");
        assert_eq!(
            served.snapshot().counters.listing_cache_entries,
            1,
            "{revalidate}"
        );
        let mut bodies = clients.into_iter().map(|mut client| {
            let mut body = vec![0; size[0] as usize];
            client.read_exact(&mut body).unwrap();
            body
        });
        let first = bodies.next().unwrap();
        assert!(bodies.all(|body| body == first), "{revalidate}");
    }
}

#[test]
fn listing_is_current_when_the_directory_changes() {
    let root = root();
    fs::create_dir(root.path().join("d")).unwrap();
    fs::write(root.path().join("d/a"), "1").unwrap();
    let mut served = Served::start(config(root.path(), "listing = true\nrevalidate = '0s'"));
    let page = || String::from_utf8(served.get("/d/").body).unwrap();
    assert!(page().contains(">a</a><td>1<td>"), "{}", page());
    // A new file size does not change the directory.
    fs::write(root.path().join("d/a"), "22").unwrap();
    assert!(page().contains(">a</a><td>2<td>"), "{}", page());
    fs::write(root.path().join("d/b"), "").unwrap();
    assert!(page().contains(">b</a>"), "{}", page());
    assert_eq!(
        served.snapshot().counters.listing_cache_entries,
        3,
        "they are kept"
    );
}

#[test]
fn request_returns_503_when_no_helper_answers_before_the_timeout() {
    let root = root();
    fs::create_dir(root.path().join("d")).unwrap();
    let more = "listing = true\nsend-timeout = '300ms'";
    let mut served = Served::start_holding_helpers(config(root.path(), more));
    assert_eq!(served.get("/d/").status, 503);
    assert_eq!(served.snapshot().counters.timeouts_send, 1);
    served.release_helpers();
    assert_eq!(served.get("/d/").status, 200);
}

#[test]
fn response_is_503_when_no_helper_reads_its_first_chunk_in_time() {
    let root = root();
    let path = root.path().join("large");
    let expected = contents(0, large());
    fs::write(&path, &expected).unwrap();
    let mut served = Served::start_holding_helpers(config(root.path(), "send-timeout = '300ms'"));
    make_cold(&path);
    let response = served.get("/large");
    assert_eq!(response.status, 503, "{}", response.head);
    assert!(response.field("Retry-After").is_some(), "{}", response.head);
    let now = served.snapshot().counters;
    assert_eq!((now.timeouts_send, now.responses_aborted), (1, 0));
    served.release_helpers();
    assert!(served.get("/large").body == expected);
}

#[test]
fn cache_limits_are_kept_when_more_files_are_requested_than_fit() {
    let root = root();
    for number in 0..60 {
        fs::write(
            root.path().join(number.to_string()),
            contents(0, 5_000 + number),
        )
        .unwrap();
    }
    let large = contents(1, 200_000);
    fs::write(root.path().join("large"), &large).unwrap();
    let more = "file-cache-entries = 20\nfile-cache-descriptors = 16\nresponse-cache-max = '64KiB'\nsmall-file-max = '16KiB'";
    let mut served = Served::start(config(root.path(), more));
    let mut client = served.connect();
    for round in 0..3 {
        for number in 0..60 {
            send_request(&mut client, &format!("/{number}"));
            assert!(
                read_response(&mut client).body == contents(0, 5_000 + number),
                "{round}"
            );
        }
        send_request(&mut client, "/large");
        assert!(read_response(&mut client).body == large, "{round}");
    }
    let counters = served.snapshot().counters;
    assert!(
        counters.file_cache_entries <= 20,
        "{}",
        counters.file_cache_entries
    );
    assert!(
        counters.file_cache_descriptors <= 16,
        "{}",
        counters.file_cache_descriptors
    );
    assert!(
        counters.response_cache_bytes <= 64 << 10,
        "{}",
        counters.response_cache_bytes
    );
    assert!(counters.file_cache_evictions > 0);
}

#[test]
fn small_files_stay_cached_when_they_outnumber_descriptors() {
    const FILES: usize = 60;
    let root = root();
    let path = |number: usize| root.path().join(number.to_string());
    for number in 0..FILES {
        fs::write(path(number), contents(number as u8, 900 + number)).unwrap();
    }
    let mut served = Served::start(config(
        root.path(),
        "file-cache-descriptors = 16\nrevalidate = '0ms'",
    ));
    let mut client = served.connect();
    let mut ask_all = |served: &mut Served| {
        for number in 0..FILES {
            send_request(&mut client, &format!("/{number}"));
            let expected = fs::read(path(number)).unwrap();
            assert!(read_response(&mut client).body == expected, "{number}");
        }
        served.snapshot().counters
    };
    let first = ask_all(&mut served);
    let second = ask_all(&mut served);
    assert!(second.file_cache_descriptors <= 16);
    assert_eq!(
        (second.file_cache_entries, second.file_cache_evictions),
        (60, 0)
    );
    assert!(second.open_files_closed_early >= 44);
    assert_eq!(
        second.response_cache_insertions,
        first.response_cache_insertions
    );
    // The file is closed, and the change is still noticed.
    fs::write(path(0), "changed").unwrap();
    fs::remove_file(path(1)).unwrap();
    let closed = served.get("/0");
    assert_eq!((closed.status, &closed.body[..]), (200, &b"changed"[..]));
    assert_eq!(served.get("/1").status, 404);
    fs::write(path(1), "back").unwrap();
    ask_all(&mut served);
    // The metadata that the response of a closed file needs is in memory, too.
    let etag = served.get("/2").field("ETag").expect("a tag").to_owned();
    for (fields, status, bytes) in [
        (format!("If-None-Match: {etag}"), 304, 0..0),
        ("Range: bytes=10-19".to_owned(), 206, 10..20),
    ] {
        let request =
            format!("GET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n\r\n");
        let response = Response::parse(&served.exchange(request.as_bytes()));
        assert_eq!(response.status, status, "{fields}");
        assert!(response.body == contents(2, 902)[bytes], "{fields}");
    }
}

#[test]
fn small_file_is_reopened_when_its_cached_response_was_evicted() {
    let root = root();
    for number in 0..60 {
        fs::write(
            root.path().join(number.to_string()),
            contents(number as u8, 2_000),
        )
        .unwrap();
    }
    // Room for about thirty responses, and fewer descriptors.
    let bounds =
        "file-cache-descriptors = 16\nresponse-cache-max = '64KiB'\nsmall-file-max = '16KiB'";
    let mut served = Served::start(config(root.path(), bounds));
    let mut client = served.connect();
    for round in 0..3 {
        for number in (0..60).rev() {
            send_request(&mut client, &format!("/{number}"));
            let response = read_response(&mut client);
            assert!(
                (response.status, &response.body) == (200, &contents(number as u8, 2_000)),
                "{number} in round {round}"
            );
        }
    }
    let counters = served.snapshot().counters;
    assert!(counters.open_files_closed_early > 0 && counters.file_cache_descriptors <= 16);
    assert!(counters.response_cache_bytes <= 64 << 10);
}

#[test]
fn file_is_sent_completely_when_its_cache_entry_is_evicted_meanwhile() {
    let root = root();
    let expected = contents(0, large());
    fs::write(root.path().join("large"), &expected).unwrap();
    for number in 0..40 {
        fs::write(root.path().join(number.to_string()), "small").unwrap();
    }
    let mut served = Served::start(config(
        root.path(),
        "file-cache-entries = 4\nfile-cache-descriptors = 16",
    ));
    let mut slow = tiny_client(&served);
    send_request(&mut slow, "/large");
    assert_eq!(read_head(&mut slow).status, 200);
    for number in 0..40 {
        assert_eq!(served.get(&format!("/{number}")).status, 200);
    }
    assert!(served.snapshot().counters.file_cache_evictions > 30);
    assert!(read_to_close(&mut slow, expected.len()) == expected);
}

#[test]
fn other_clients_are_served_while_one_downloads_a_large_file() {
    let root = root();
    fs::write(root.path().join("large"), contents(0, large())).unwrap();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in mechanisms() {
        let served = Served::start(config(
            root.path(),
            &format!("write-quantum = '64KiB'\n{events}"),
        ));
        let address = served.address;
        let greedy = std::thread::spawn(move || {
            let mut client = TcpStream::connect(address).unwrap();
            send_request(&mut client, "/large");
            read_response(&mut client)
        });
        let responses: Vec<Response> = (0..50).map(|_| served.get("/a")).collect();
        assert!(
            responses.iter().all(|response| response.body == b"hello"),
            "{events}"
        );
        assert!(
            greedy.join().unwrap().body == contents(0, large()),
            "{events}"
        );
    }
}

#[test]
fn next_request_is_answered_when_a_large_file_took_many_iterations() {
    let root = root();
    for name in ["1", "2"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    let more = "write-quantum = '4KiB'\nlisting = true\nindex = []\nprecompressed = false\nhelpers-max = 1";
    // The position in the write quantum at which the file ends depends on its size.
    let odds = [0, 5_000, 9_000].into_iter().cycle();
    for (events, odd) in mechanisms().into_iter().zip(odds) {
        let large = contents(0, large() + odd);
        fs::write(root.path().join("large"), &large).unwrap();
        let config = config(root.path(), &format!("{more}\n{events}"));
        let mut served = Served::start_holding_helpers(config);
        // The client reads little at a time, so the socket is full now and then.
        let mut client = tiny_client(&served);
        for path in ["/large", "/1/", "/2/"] {
            send_request(&mut client, path);
        }
        assert!(read_response(&mut client).body == large, "{events}");
        let now = served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
        assert_eq!(
            now.counters.helper_jobs_coalesced, 0,
            "{events}: asked once"
        );
        served.release_helpers();
        for title in ["Index of /1/", "Index of /2/"] {
            let page = read_response(&mut client).body;
            let page = String::from_utf8(page).unwrap();
            assert!(page.contains(title), "{events}: {page}");
        }
    }
}

#[test]
fn hole_is_sent_as_zeros_when_its_pages_are_never_resident() {
    // Only tmpfs has no page for a hole; elsewhere this is an ordinary file.
    let root = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| root());
    let hole = |name, size| {
        let file = fs::File::create(root.path().join(name)).unwrap();
        file.set_len(size).unwrap();
    };
    hole("hole", 10_000);
    hole("larger", 3_000_000);
    let served = Served::start(config(root.path(), "small-file-max = '4MiB'"));
    assert_eq!(served.get("/hole").body, [0; 10_000]);
    assert!(served.get("/larger").body == vec![0; 3_000_000]);
}
