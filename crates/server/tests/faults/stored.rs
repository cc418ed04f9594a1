//! Tests of the content store: what is in it, and files that change beside it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_files::protocol::{MESSAGE_BYTES_MAX, Reply, Request, decode_request, encode_reply};
use headway_os::fd_passing::{Wait, receive_with_descriptors, send_with_descriptors};
use rustix::io::IoSlice;

use super::tools::*;
use crate::support::{Response, Served, config};

/// Writes over a file without truncating it first.
fn rewrite(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::options().write(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

/// The entity tag, whether it is weak yet or not.
fn tag(response: &Response) -> &str {
    let tag = response.field("ETag").unwrap();
    tag.strip_prefix("W/").unwrap_or(tag)
}

/// Requests a file that is not in the store until it is.
fn store(served: &mut Served, path: &str) {
    let before = served.snapshot().counters.content_store_insertions;
    for _ in 0..2 {
        assert_eq!(served.get(path).status, 200, "{path}");
    }
    served.wait_for("a copy", |snapshot| {
        snapshot.counters.content_store_insertions > before
    });
}

#[test]
fn files_above_16_kib_come_from_the_store_after_the_second_request() {
    let root = root();
    let sizes = [16_384, 16_385, 50_000, 131_073, 1_000_003];
    for size in sizes {
        fs::write(root.path().join(size.to_string()), contents(0, size)).unwrap();
    }
    for events in mechanisms() {
        let mut served = Served::start(config(root.path(), events));
        let path = |size: usize| format!("/{size}");
        let first: Vec<_> = sizes.iter().map(|&size| served.get(&path(size))).collect();
        for &size in &sizes {
            served.get(&path(size));
        }
        served.wait_for("copies", |now| now.counters.content_store_insertions == 4);
        let hits = served.snapshot().counters.content_store_hits;
        for (&size, first) in sizes.iter().zip(&first) {
            let again = served.get(&path(size));
            assert!(again.body == contents(0, size), "{events} {size}");
            for field in ["Content-Length", "Content-Type"] {
                assert_eq!(again.field(field), first.field(field), "{events} {size}");
            }
            assert_eq!(tag(&again), tag(first), "{events} {size}");
        }
        let counters = served.snapshot().counters;
        assert_eq!(counters.content_store_hits - hits, 4, "{events}");
        let pages = |size: usize| size.next_multiple_of(4096) as u64;
        let least: u64 = sizes[1..].iter().map(|&size| pages(size)).sum();
        assert!(counters.content_store_bytes >= least, "{events}");
        assert_eq!(counters.chunks_changed, 0, "{events}");
    }
}

#[test]
fn conditions_and_ranges_are_answered_from_the_store() {
    let root = root();
    let body = contents(0, 300_000);
    fs::write(root.path().join("file"), &body).unwrap();
    let mut served = Served::start(config(root.path(), ""));
    store(&mut served, "/file");
    let etag = served.get("/file").field("ETag").unwrap().to_owned();
    let ask = |method: &str, fields: &str| {
        let text =
            format!("{method} /file HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{fields}\r\n");
        Response::parse(&served.exchange(text.as_bytes()))
    };
    let part = ask("GET", "Range: bytes=1000-99999\r\n");
    assert_eq!((part.status, &part.body[..]), (206, &body[1000..100_000]));
    let parts = ask("GET", "Range: bytes=0-0,299000-\r\n");
    assert_eq!(parts.status, 206);
    let last = &body[299_000..];
    assert!(parts.body.windows(1000).any(|bytes| bytes == last));
    let known = ask("GET", &format!("If-None-Match: {etag}\r\n"));
    assert_eq!((known.status, known.body.len()), (304, 0));
    let head = ask("HEAD", "");
    assert_eq!(head.field("Content-Length"), Some("300000"));
    assert_eq!(head.body.len(), 0);
    let counters = served.snapshot().counters;
    assert_eq!(
        counters.content_store_hits, 5,
        "and one by its first request"
    );
}

#[test]
fn stored_body_is_sent_completely_when_its_file_is_rewritten_meanwhile() {
    let root = root();
    let path = root.path().join("file");
    let (old, new) = (contents(0, 14 << 20), contents(1, 14 << 20));
    fs::write(&path, &old).unwrap();
    let mut served = Served::start(config(
        root.path(),
        "revalidate = '0ms'\ncontent-store-max = '256MiB'",
    ));
    store(&mut served, "/file");
    let mut client = tiny_client(&served);
    send_request(&mut client, "/file");
    assert_eq!(read_head(&mut client).status, 200);
    rewrite(&path, &new);
    assert!(served.get("/file").body == new, "another client");
    store(&mut served, "/file");
    assert!(read_to_close(&mut client, old.len()) == old);
    let counters = served.snapshot().counters;
    assert_eq!(
        (counters.responses_aborted, counters.chunks_changed),
        (0, 0)
    );
}

#[test]
fn copy_is_not_stored_when_the_file_was_rewritten_before_it_was_made() {
    let root = root();
    let path = root.path().join("file");
    fs::write(&path, contents(0, 50_000)).unwrap();
    let lines = "revalidate = '1h'\nhelpers = 1\nprecompressed = false";
    let mut served = Served::start_holding_helpers(config(root.path(), lines));
    let old = served.get("/file");
    assert!(old.body == contents(0, 50_000), "it is resident");
    served.wait_for("a job", |snapshot| snapshot.counters.helper_jobs_copy > 0);
    rewrite(&path, &contents(1, 50_000));
    served.release_helpers();
    let snapshot = served.wait_for("the copy", |snapshot| {
        snapshot.counters.helper_jobs_done > 0
    });
    assert_eq!(snapshot.counters.content_store_insertions, 0);
    store(&mut served, "/file");
    let new = served.get("/file");
    assert!(new.body == contents(1, 50_000));
    assert_ne!(tag(&new), tag(&old), "a header of its own");
}

#[test]
fn store_stays_within_its_limit_when_many_files_are_requested() {
    let root = root();
    let names: Vec<String> = (0..40).map(|number| format!("/{number}")).collect();
    for name in &names {
        fs::write(root.path().join(&name[1..]), contents(0, 100_000)).unwrap();
    }
    let lines = "content-store-max = '1MiB'";
    let mut served = Served::start(config(root.path(), lines));
    for name in &names {
        store(&mut served, name);
        let counters = served.snapshot().counters;
        assert!(counters.content_store_bytes <= 1 << 20, "{name}");
        assert!(served.get(name).body == contents(0, 100_000), "{name}");
    }
    let counters = served.snapshot().counters;
    assert!(counters.content_store_evictions >= 30);
    assert!(counters.content_store_bytes >= 900_000, "it is in use");
}

#[test]
fn nothing_is_stored_when_the_store_is_off_or_the_file_too_large_for_it() {
    let root = root();
    fs::write(root.path().join("file"), contents(0, 200_000)).unwrap();
    for size in ["0", "'1MiB'"] {
        let lines = format!("content-store-max = {size}\nhelpers = 1");
        let mut served = Served::start(config(root.path(), &lines));
        // A full store admits one candidate in 16.
        for _ in 0..40 {
            assert!(served.get("/file").body == contents(0, 200_000), "{size}");
        }
        let counters = served.snapshot().counters;
        assert_eq!(counters.helper_jobs_copy, 0, "{size}");
        assert_eq!(counters.content_store_bytes, 0, "{size}");
    }
}

/// The number of the copy job that a helper has been sent.
fn copy_job(helper: &OwnedFd) -> u64 {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let received = receive_with_descriptors(helper, &mut message, 1, Wait::Block).unwrap();
        let length = received.expect("a message").length;
        if let Request::Copy { job, .. } = decode_request(&message[..length]).unwrap() {
            return job;
        }
    }
}

/// Answers a copy job with these bytes.
fn answer_copy(helper: &OwnedFd, job: u64, bytes: &[u8]) {
    let copy = rustix::fs::memfd_create("copy", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::write(&copy, bytes), Ok(bytes.len()));
    let content = Ok(headway_os::open::status(&copy).unwrap().into());
    let mut answer = Vec::new();
    encode_reply(&Reply::Copy { job, content }, &mut answer);
    let parts = [IoSlice::new(&answer)];
    send_with_descriptors(helper, &parts, &[copy.as_fd()], Wait::Block).unwrap();
}

#[test]
fn copy_of_an_old_version_is_not_stored_when_it_comes_after_that_of_a_new_one() {
    let root = root();
    let path = root.path().join("file");
    let (old, new) = (contents(0, 50_000), contents(1, 50_000));
    fs::write(&path, &old).unwrap();
    let lines = "revalidate = '0ms'\nhelpers = 2\nprecompressed = false";
    let mut served = Served::start_holding_helpers(config(root.path(), lines));
    assert!(served.get("/file").body == old);
    rewrite(&path, &new);
    assert!(served.get("/file").body == new);
    served.wait_for("two jobs", |now| now.counters.helpers_busy == 2);
    let mut jobs: Vec<_> = (0..2)
        .map(|_| {
            let helper = served.take_helper();
            (copy_job(&helper), helper)
        })
        .collect();
    jobs.sort_by_key(|(job, _)| *job);
    for (done, (bytes, (job, helper))) in [&old, &new].into_iter().zip(&jobs).rev().enumerate() {
        answer_copy(helper, *job, bytes);
        served.wait_for("an answer", |now| {
            now.counters.helper_jobs_done > done as u64
        });
    }
    let stored = served.snapshot().counters;
    assert_eq!(stored.content_store_insertions, 1);
    assert!(served.get("/file").body == new);
    assert_eq!(served.snapshot().counters.content_store_hits, 1);
}

#[test]
fn stored_file_takes_one_write_and_one_sendfile_and_nothing_is_compared() {
    let root = root();
    fs::write(root.path().join("file"), contents(0, 140_000)).unwrap();
    let mut served = Served::start(config(root.path(), "revalidate = '1h'"));
    store(&mut served, "/file");
    let before = served.snapshot().trace.calls;
    assert!(served.get("/file").body == contents(0, 140_000));
    let after = served.snapshot().trace.calls;
    for (call, most) in [
        ("sendto", 1),
        ("sendfile", 1),
        ("statx", 0),
        ("cachestat", 0),
        ("preadv2", 0),
        ("openat2", 0),
    ] {
        let made =
            |calls: &std::collections::BTreeMap<String, u64>| calls.get(call).copied().unwrap_or(0);
        assert!(made(&after) - made(&before) <= most, "{call}");
    }
}

/// The response on a connection of its own.
fn fetch(address: SocketAddr, path: &str) -> Response {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    Response::parse(&response)
}

#[test]
fn every_body_is_one_version_while_the_file_is_replaced_all_the_time() {
    let root = root();
    let path = root.path().join("file");
    let size = |version: usize| 40_000 + 7 * version;
    let put = |version: usize| {
        let new = path.with_extension("new");
        fs::write(&new, contents((version % 2) as u8, size(version))).unwrap();
        fs::rename(new, &path).unwrap();
    };
    put(0);
    let mut served = Served::start(config(root.path(), "revalidate = '0ms'"));
    let address = served.address;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut seen = 0;
                while !done.load(Ordering::Relaxed) {
                    let body = fetch(address, "/file").body;
                    let version = (body.len() - size(0)) / 7;
                    assert!(
                        body == contents((version % 2) as u8, size(version)),
                        "{version}"
                    );
                    assert!(version >= seen, "{version} after {seen}");
                    seen = version;
                }
            });
        }
        for version in 1..300 {
            put(version);
            if version % 100 == 0 {
                let before = served.snapshot().counters.content_store_hits;
                served.wait_for("a stored version", |now| {
                    now.counters.content_store_hits > before
                });
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let counters = served.snapshot().counters;
    assert_eq!(counters.responses_aborted, 0);
    assert_eq!(served.get("/file").body.len(), size(299));
}
