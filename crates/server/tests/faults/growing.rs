//! Tests of files that are appended to or touched while they are sent, and of rewrites that look like
//! that.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::tools::*;
use crate::support::{Served, config};

fn append(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::options().append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

fn touch(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(7))
        .unwrap();
}

/// Writes into a file without changing its size.
fn write_at(path: &Path, bytes: &[u8], offset: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// The body that a client gets of a file which `change` changes after the header has come.
fn body_after(more: &str, change: impl FnOnce(&Path)) -> (Vec<u8>, Vec<u8>, Served) {
    let root = root();
    let path = root.path().join("large");
    let old = contents(0, large());
    fs::write(&path, &old).unwrap();
    let served = Served::start(config(root.path(), more));
    let mut client = tiny_client(&served);
    send_request(&mut client, "/large");
    assert_eq!(read_head(&mut client).status, 200);
    change(&path);
    let body = read_to_close(&mut client, old.len());
    (body, old, served)
}

#[test]
fn body_is_complete_when_the_file_is_appended_to_while_sent() {
    for events in mechanisms() {
        let (body, old, mut served) = body_after(events, |path| append(path, b"more"));
        assert!(body == old, "{events}: {} bytes", body.len());
        let counters = served.snapshot().counters;
        assert_eq!(counters.responses_aborted, 0, "{events}");
        // One comparison is enough, since the file does not change a second time.
        assert_eq!(counters.helper_jobs_copy, 1, "{events}");
    }
}

#[test]
fn body_is_complete_when_the_file_is_touched_while_sent() {
    let (body, old, mut served) = body_after("", touch);
    assert!(body == old, "{} bytes", body.len());
    assert_eq!(served.snapshot().counters.responses_aborted, 0);
}

#[test]
fn body_is_complete_when_the_file_is_appended_to_all_the_time() {
    let root = root();
    let path = root.path().join("large");
    let old = contents(0, large());
    fs::write(&path, &old).unwrap();
    let served = Served::start(config(root.path(), "revalidate = '0ms'"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                append(&path, &[b'+'; 100]);
                // Without a pause the file would have grown large.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut bodies = Vec::new();
        for _ in 0..5 {
            let mut client = tiny_client(&served);
            send_request(&mut client, "/large");
            let head = read_head(&mut client);
            let length: usize = head.field("Content-Length").unwrap().parse().unwrap();
            bodies.push((length, read_to_close(&mut client, length)));
        }
        is_over.store(true, Ordering::Relaxed);
        for (length, body) in bodies {
            assert_eq!(body.len(), length);
            assert!(body.starts_with(&old) && body[old.len()..].iter().all(|byte| *byte == b'+'));
        }
    });
}

#[test]
fn range_is_complete_when_the_file_is_appended_to_while_sent() {
    let root = root();
    let path = root.path().join("large");
    let old = contents(0, large());
    fs::write(&path, &old).unwrap();
    let served = Served::start(config(root.path(), ""));
    let mut client = tiny_client(&served);
    let request = "GET /large HTTP/1.1\r\nHost: test\r\nRange: bytes=300001-\r\n\r\n";
    client.write_all(request.as_bytes()).unwrap();
    assert_eq!(read_head(&mut client).status, 206);
    append(&path, b"more");
    let rest = &old[300_001..];
    assert!(read_to_close(&mut client, rest.len()) == rest);
}

#[test]
fn next_range_has_no_other_bytes_when_the_file_is_touched_before_it() {
    let root = root();
    let path = root.path().join("large");
    let old = contents(0, 4 << 20);
    fs::write(&path, &old).unwrap();
    make_cold(&path);
    // Names that the kernel knows need no helper.
    for sibling in ["large.gz", "large.br", "large.zst"] {
        assert!(fs::metadata(root.path().join(sibling)).is_err());
    }
    let file = fs::File::open(&path).unwrap();
    // The chunk of the first range.
    file.read_exact_at(&mut vec![0; 256 * 1024], 0).unwrap();
    let mut served = Served::start_holding_helpers(config(root.path(), ""));
    let mut client = served.connect();
    let range = "Range: bytes=0-99999,3000000-3099999";
    let request = format!("GET /large HTTP/1.1\r\nHost: test\r\n{range}\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    // The first range has been sent, and the helper reads for the second.
    let head = read_head(&mut client);
    assert_eq!(head.status, 206);
    served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
    touch(&path);
    served.release_helpers();
    let length: usize = head.field("Content-Length").unwrap().parse().unwrap();
    let body = read_to_close(&mut client, length);
    let second = b"bytes 3000000-3099999/4194304\r\n\r\n";
    let found = body.windows(second.len()).position(|some| some == second);
    let rest = found.map_or(&[][..], |at| &body[at + second.len()..]);
    let right = &old[3_000_000..3_100_000];
    let count = rest.len().min(right.len());
    assert!(rest[..count] == right[..count], "other bytes of the file");
    assert!(body.len() < length, "two ranges cannot be compared");
}

/// Changes a file.
type Rewrite = fn(&Path);

/// Each of them leaves the file at least as long as it was.
#[test]
fn connection_closes_early_when_what_was_sent_is_written_again_and_the_file_grows() {
    let rewrites: [(&str, Rewrite); 4] = [
        ("in place, longer", |path| {
            write_at(path, &contents(1, large() + 1000), 0);
        }),
        ("truncated first, longer", |path| {
            fs::write(path, contents(1, large() + 1000)).unwrap();
        }),
        ("one byte of the header, then appended to", |path| {
            write_at(path, b"#", 17);
            append(path, b"more");
        }),
        ("one byte, touched", |path| {
            write_at(path, b"#", 1000);
            touch(path);
        }),
    ];
    for (name, rewrite) in rewrites {
        let (body, old, mut served) = body_after("", rewrite);
        assert!(body.len() < old.len(), "{name}: the body must be short");
        assert!(old.starts_with(&body), "{name}: no byte of another version");
        let counters = served.snapshot().counters;
        assert_eq!(
            (counters.chunks_changed, counters.responses_aborted),
            (1, 1),
            "{name}"
        );
    }
}

#[test]
fn connection_closes_early_when_a_file_is_rewritten_after_an_accepted_append() {
    let root = root();
    let path = root.path().join("large");
    let old = contents(0, large());
    fs::write(&path, &old).unwrap();
    let mut served = Served::start(config(root.path(), ""));
    let mut client = tiny_client(&served);
    send_request(&mut client, "/large");
    read_head(&mut client);
    append(&path, b"more");
    let mut body = Vec::new();
    while served.snapshot().counters.helper_jobs_copy == 0 {
        body.extend(read_to_close(&mut client, 100_000));
    }
    write_at(&path, b"#", 17);
    body.extend(read_to_close(&mut client, old.len()));
    assert!(body.len() < old.len(), "the body must be short");
    assert_eq!(served.snapshot().counters.responses_aborted, 1);
}

#[test]
fn new_version_is_sent_when_the_file_changes_before_the_first_byte() {
    let root = root();
    let path = root.path().join("large");
    let (old, new) = (contents(0, 300_000), contents(1, 400_000));
    for events in mechanisms() {
        fs::write(&path, &old).unwrap();
        make_cold(&path);
        let more = format!("precompressed = false\nfile-cache-entries = 10\n{events}");
        let mut served = Served::start_holding_helpers(config(root.path(), &more));
        let mut client = served.connect();
        send_request(&mut client, "/large");
        served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
        fs::write(&path, &new).unwrap();
        served.release_helpers();
        let response = read_response(&mut client);
        assert_eq!(response.status, 200, "{events}");
        assert!(response.body == new, "{events}");
    }
}
