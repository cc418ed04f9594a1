//! Files in memory for all workers, by a process that may be killed, as the workers may.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_base::random::{Draw, SplitMix64};
use headway_test_support::server::{Server, kill};
use rustix::process::Signal;
use serde_json::Value;

use crate::clients::*;

const BYTES: usize = 300_000;

/// The memory that helpers have filled and this process has open: inode and bytes, in whole pages.
fn bodies_with_bytes(pid: i32) -> BTreeSet<(u64, u64)> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let open = open.flatten().map(|entry| entry.path());
    let is_body = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:headway "))
    };
    let found = open
        .filter(is_body)
        .filter_map(|path| fs::metadata(path).ok());
    found
        .map(|body| (body.ino(), body.len().next_multiple_of(4096)))
        .collect()
}

fn bodies(pid: i32) -> BTreeSet<u64> {
    let bodies = bodies_with_bytes(pid).into_iter();
    bodies.map(|(inode, _)| inode).collect()
}

/// The bodies that each worker and the store process have.
fn all_bodies(server: &Server) -> Vec<BTreeSet<u64>> {
    let mut pids = server.children("serve-worker");
    pids.extend(server.children("serve-store"));
    pids.into_iter().map(bodies).collect()
}

/// A file which says that it was written some time ago.
fn put(path: &Path, contents: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, contents).unwrap();
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    fs::File::options()
        .write(true)
        .open(&new)
        .unwrap()
        .set_modified(before)
        .unwrap();
    fs::rename(new, path).unwrap();
}

/// Until the second of the last change is over: before, a file is not shared.
fn wait_for_the_next_second() {
    std::thread::sleep(std::time::Duration::from_millis(1_100));
}

/// Starts a server of one file, of which both workers and the store process have one body.
fn serve_shared(root: &Path) -> Server {
    put(&root.join("file"), &contents(0, BYTES));
    wait_for_the_next_second();
    let server = Server::start(program(), root, &["--revalidate", "0ms"]);
    request_until_shared(&server, "/file", &contents(0, BYTES));
    server
}

fn stored(status: &Value, name: &str) -> u64 {
    status["master"]["stored"][name].as_u64().unwrap_or(0)
}

/// Requests the file until both workers and the store process have the same body of it.
fn request_until_shared(server: &Server, path: &str, expected: &[u8]) {
    server.wait_for("one body for all", |server| {
        for _ in 0..8 {
            assert!(get(&server.address, path) == (200, expected.to_vec()));
        }
        let all = all_bodies(server);
        all.len() == 3 && all[0].len() == 1 && all.iter().all(|one| *one == all[0])
    });
}

#[test]
fn two_workers_send_from_one_memfd_which_was_copied_once() {
    let root = root();
    let file = root.path().join("file");
    let server = serve_shared(root.path());
    // Until now both workers may have sent the file itself.
    assert!(get(&server.address, "/file") == (200, contents(0, BYTES)));
    server.wait_for("a report", |server| stored(&server.status(), "shared") == 1);
    let status = server.status();
    assert_eq!(counter(&status, "helper_jobs_copy"), 1);
    assert_eq!(counter(&status, "content_store_insertions"), 2);
    assert!(counter(&status, "content_store_hits") > 0);
    assert_eq!(stored(&status, "files"), 1);
    let page = headway_test_support::server::get(&server.status, "/status").2;
    assert!(page.contains("Content store"));
    // Another version: the old one goes when no worker serves it any more.
    let old = all_bodies(&server);
    put(&file, &contents(1, BYTES + 1));
    request_until_shared(&server, "/file", &contents(1, BYTES + 1));
    assert_ne!(all_bodies(&server), old);
    server.stop();
}

/// A worker offers its copy to the store process, and uses it before the answer.
#[test]
fn body_is_inserted_once_when_it_is_used_before_the_store_process_accepts_it() {
    const FILES: usize = 100;
    let root = root();
    for file in 0..FILES {
        put(&root.path().join(file.to_string()), &contents(file, BYTES));
    }
    wait_for_the_next_second();
    let server = Server::start(program(), root.path(), &[]);
    for file in 0..FILES {
        let client = RefCell::new(server.connect());
        let has_body = |server: &Server| {
            (0..8).for_each(|_| {
                let client = &mut *client.borrow_mut();
                send_get(client, &format!("/{file}"));
                assert!(read_response(client) == (200, contents(file, BYTES)));
            });
            all_bodies(server).iter().map(BTreeSet::len).max() > Some(file)
        };
        server.wait_for("a body", has_body);
    }
    let status = server.status();
    let copies = counter(&status, "helper_jobs_copy");
    assert_eq!(copies, FILES as u64);
    assert_eq!(counter(&status, "content_store_insertions"), copies);
    server.stop();
}

/// At first for the worker alone, and once more for all, when its second is over.
#[test]
fn file_is_copied_twice_at_most_when_it_is_used_all_the_time_since_it_was_written() {
    let root = root();
    let file = root.path().join("file");
    let server = Server::start(program(), root.path(), &["--workers", "1"]);
    put(&file, &contents(0, BYTES));
    let client = RefCell::new(server.connect());
    server.wait_for("a body for all", |server| {
        let mut client = client.borrow_mut();
        for _ in 0..20 {
            send_get(&mut client, "/file");
            assert!(read_response(&mut client) == (200, contents(0, BYTES)));
        }
        stored(&server.status(), "files") == 1
    });
    let copies = counter(&server.status(), "helper_jobs_copy");
    assert!(copies <= 2, "{copies}");
    server.stop();
}

#[test]
fn other_contents_are_sent_when_inode_size_and_modification_time_are_the_same() {
    let root = root();
    let file = root.path().join("file");
    let server = serve_shared(root.path());
    let before = fs::metadata(&file).unwrap();
    fs::write(&file, contents(1, BYTES)).unwrap();
    let written = fs::File::options().write(true).open(&file).unwrap();
    written.set_modified(before.modified().unwrap()).unwrap();
    let after = fs::metadata(&file).unwrap();
    assert_eq!((before.ino(), before.len()), (after.ino(), after.len()));
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    wait_for_the_next_second();
    // One worker alone sees the change at first, while the other one has the old body.
    let mut client = server.connect();
    for _ in 0..50 {
        send_get(&mut client, "/file");
        assert!(read_response(&mut client) == (200, contents(1, BYTES)));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    request_until_shared(&server, "/file", &contents(1, BYTES));
    server.stop();
}

#[test]
fn workers_keep_what_they_have_when_the_store_process_is_killed() {
    let root = root();
    let server = serve_shared(root.path());
    let before = all_bodies(&server);
    for death in 1..=2 {
        let store = server.children("serve-store");
        kill(store[0]);
        for _ in 0..20 {
            assert!(get(&server.address, "/file") == (200, contents(0, BYTES)));
        }
        server.wait_for("another store process", |server| {
            let now = server.children("serve-store");
            now.len() == 1 && now != store
        });
        server.wait_for("what the workers have", |server| {
            all_bodies(server) == before
        });
        assert_eq!(server.status()["master"]["store_deaths"], death);
    }
    assert_eq!(counter(&server.status(), "helper_jobs_copy"), 1);
    // Another file is shared as before.
    put(&root.path().join("file"), &contents(1, BYTES + 1));
    request_until_shared(&server, "/file", &contents(1, BYTES + 1));
    server.stop();
}

#[test]
fn new_workers_send_what_is_stored_when_the_configuration_is_read_again() {
    let root = root();
    let server = serve_shared(root.path());
    let before = all_bodies(&server);
    let (workers, store) = (
        server.children("serve-worker"),
        server.children("serve-store"),
    );
    server.signal(Signal::HUP);
    server.wait_for("new workers alone", |server| {
        let now = server.children("serve-worker");
        now.len() == 2 && !now.iter().any(|pid| workers.contains(pid))
    });
    request_until_shared(&server, "/file", &contents(0, BYTES));
    let hits = counter(&server.status(), "content_store_hits");
    assert!(get(&server.address, "/file") == (200, contents(0, BYTES)));
    let status = server.status();
    assert_eq!(counter(&status, "content_store_hits"), hits + 1);
    assert_eq!(counter(&status, "helper_jobs_copy"), 1);
    assert_eq!(all_bodies(&server), before);
    assert_eq!(server.children("serve-store"), store);
    server.stop();
}

/// Requests a random file again and again. Each complete body is one version of it.
fn request_all_the_time(address: &str, seed: u64, done: &AtomicBool) {
    let mut random = SplitMix64(seed);
    let mut received = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let file = random.below(6) as usize;
        received.clear();
        // A worker that is killed takes its connections with it.
        let request = format!("GET /{file} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        let exchanged = TcpStream::connect(address).and_then(|mut stream| {
            stream.write_all(request.as_bytes())?;
            stream.read_to_end(&mut received)
        });
        let Some(head) = received.windows(4).position(|end| end == b"\r\n\r\n") else {
            continue;
        };
        let body = &received[head + 4..];
        let head = String::from_utf8_lossy(&received[..head]);
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        if exchanged.is_err() || length != Some(&body.len().to_string()) {
            continue;
        }
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let version = body.len() - size(file, 0);
        assert!(
            body == contents(file + version, size(file, version)),
            "{file} {version}"
        );
    }
}

/// The length says which version it is.
fn size(file: usize, version: usize) -> usize {
    40_000 + 100_000 * file + version
}

#[test]
fn nothing_torn_is_sent_and_nothing_is_left_when_workers_are_killed() {
    const KILLS: usize = 10;
    const SEED: u64 = 34;
    let root = root();
    let path = |file: usize| root.path().join(file.to_string());
    (0..6).for_each(|file| put(&path(file), &contents(file, size(file, 0))));
    let options = ["--revalidate", "0ms", "--content-store-max", "5MiB"];
    let server = Server::start(program(), root.path(), &options);
    let done = AtomicBool::new(false);
    let mut random = SplitMix64(SEED);
    std::thread::scope(|scope| {
        let _stop = Stop(&done);
        for seed in 0..3 {
            let (address, done) = (&server.address, &done);
            scope.spawn(move || request_all_the_time(address, seed, done));
        }
        for kill_number in 1..=KILLS {
            for _ in 0..random.below(20) {
                let file = random.index(6);
                let version = random.index(1000);
                put(&path(file), &contents(file + version, size(file, version)));
                std::thread::sleep(std::time::Duration::from_micros(random.below(5_000)));
            }
            let workers = server.children("serve-worker");
            kill(workers[random.index(workers.len())]);
            server.wait_for("another worker", |server| {
                server.status()["master"]["worker_deaths"] == kill_number
                    && server.children("serve-worker").len() == 2
            });
        }
    });
    // No body is left that the index does not know.
    (0..6).for_each(|file| put(&path(file), &contents(file, size(file, 0))));
    server.wait_for("every body to be one of the index", |server| {
        for file in 0..6 {
            assert!(
                get(&server.address, &format!("/{file}")) == (200, contents(file, size(file, 0)))
            );
        }
        let all = all_bodies(server);
        let index = &all[2];
        let in_index = bodies_with_bytes(server.children("serve-store")[0]);
        let bytes: u64 = in_index.iter().map(|(_, bytes)| bytes).sum();
        let status = server.status();
        // Nothing counts that a killed worker had.
        stored(&status, "files") == index.len() as u64
            && stored(&status, "bytes") == bytes
            && all[..2].iter().all(|worker| worker.is_subset(index))
    });
    server.stop();
}
