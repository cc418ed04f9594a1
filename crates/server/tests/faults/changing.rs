//! Tests of files that are replaced, rewritten, truncated, deleted or created while they are
//! served.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

use headway_files::protocol::{MESSAGE_BYTES_MAX, Reply, Request, decode_request, encode_reply};
use headway_os::fd_passing::{Wait, receive_with_descriptors, send_with_descriptors};
use rustix::io::IoSlice;

use super::tools::*;
use crate::support::{Served, TIMEOUT, config};

/// A client that has read the header of a large file and stopped.
fn begin(served: &Served, path: &str) -> TcpStream {
    let mut client = tiny_client(served);
    send_request(&mut client, path);
    assert_eq!(read_head(&mut client).status, 200);
    client
}

fn replace(path: &Path, contents: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, contents).unwrap();
    fs::rename(new, path).unwrap();
}

/// Writes over a file without truncating it first, as a database or `dd conv=notrunc` does.
fn rewrite(path: &Path, contents: &[u8]) {
    let mut file = fs::File::options().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(contents).unwrap();
}

#[test]
fn old_version_is_sent_completely_when_the_file_is_replaced_or_deleted_meanwhile() {
    let root = root();
    let path = root.path().join("large");
    let (old, new) = (contents(0, large()), contents(1, large()));
    for events in mechanisms() {
        fs::write(&path, &old).unwrap();
        let mut served = Served::start(config(
            root.path(),
            &format!("revalidate = '0ms'\n{events}"),
        ));
        let mut first = begin(&served, "/large");
        replace(&path, &new);
        let mut second = begin(&served, "/large");
        fs::remove_file(&path).unwrap();
        assert_eq!(served.get("/large").status, 404, "{events}");
        assert!(
            read_to_close(&mut second, new.len()) == new,
            "{events}: the second version"
        );
        assert!(
            read_to_close(&mut first, old.len()) == old,
            "{events}: the first version"
        );
        assert_eq!(served.snapshot().counters.responses_aborted, 0, "{events}");
    }
}

#[test]
fn connection_closes_early_when_the_file_is_rewritten_while_sent() {
    let root = root();
    let path = root.path().join("large");
    let (old, new) = (contents(0, large()), contents(1, large()));
    for (events, send) in mechanisms()
        .into_iter()
        .flat_map(|events| [(events, "copy"), (events, "sendfile"), (events, "auto")])
    {
        fs::write(&path, &old).unwrap();
        let mut served = Served::start(config(root.path(), &format!("{events}\nsend = {send:?}")));
        let mut client = begin(&served, "/large");
        rewrite(&path, &new);
        let body = read_to_close(&mut client, usize::MAX);
        assert!(
            body.len() < old.len(),
            "{events} {send}: the client must see that its body is short"
        );
        // Data in the socket may be of either version: sendfile passes the file's pages without a
        // copy.
        let mut either = body.iter().zip(old.iter().zip(&new));
        assert!(
            either.all(|(byte, (old, new))| byte == old || send != "copy" && byte == new),
            "{events} {send}"
        );
        let counters = served.snapshot().counters;
        assert_eq!(
            (counters.chunks_changed, counters.responses_aborted),
            (1, 1),
            "{events} {send}"
        );
        assert!(
            served.get("/large").body == new,
            "{events} {send}: the next client gets the new version"
        );
    }
}

/// The file is small enough for the socket to hold the rest of it, so that it is not checked again.
#[test]
fn body_is_one_version_or_short_when_the_file_is_rewritten_after_the_last_chunk() {
    let root = root();
    let path = root.path().join("file");
    for size in [200_000, 300_000, 700_000, 1_500_000] {
        let (old, new) = (contents(0, size), contents(1, size));
        fs::write(&path, &old).unwrap();
        let served = Served::start(config(root.path(), "revalidate = '0ms'"));
        let mut client = begin(&served, "/file");
        let mut body = read_to_close(&mut client, 10_000);
        rewrite(&path, &new);
        client.shutdown(Shutdown::Write).unwrap();
        body.extend(read_to_close(&mut client, size));
        assert!(
            old.starts_with(&body),
            "{size}: not a byte of the second version"
        );
        assert!(served.get("/file").body == new, "{size}");
    }
}

#[test]
fn connection_closes_early_when_the_file_is_truncated_while_sent() {
    let root = root();
    let path = root.path().join("large");
    let old = contents(0, large());
    for length in [0, 100, 300_000] {
        fs::write(&path, &old).unwrap();
        let mut served = Served::start(config(root.path(), "revalidate = '0ms'"));
        let mut client = begin(&served, "/large");
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(length)
            .unwrap();
        let body = read_to_close(&mut client, usize::MAX);
        assert!(
            body.len() < old.len(),
            "{length}: the client must see that its body is short"
        );
        // The kernel fills the rest of the last page with zeros, even while a socket holds it.
        let mut either = body.iter().zip(&old);
        assert!(
            either.all(|(byte, old)| byte == old || *byte == 0),
            "{length}"
        );
        assert_eq!(served.snapshot().counters.chunks_changed, 1, "{length}");
        let next = served.get("/large");
        assert_eq!((next.status, next.body.len() as u64), (200, length));
        assert!(old.starts_with(&next.body));
    }
}

#[test]
fn new_version_is_served_when_a_file_changes_before_the_helper_reads_it() {
    let root = root();
    let path = root.path().join("file");
    let (old, new) = (contents(0, 10_000), contents(1, 20_000));
    // The same length, longer, shorter.
    for new in [&new[..10_000], &new[..], &new[..5_000]] {
        for events in mechanisms() {
            fs::write(&path, &old).unwrap();
            make_cold(&path);
            let more = format!("precompressed = false\n{events}");
            let mut served = Served::start_holding_helpers(config(root.path(), &more));
            let mut client = served.connect();
            send_request(&mut client, "/file");
            served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
            fs::write(&path, new).unwrap();
            served.release_helpers();
            let response = read_response(&mut client);
            assert_eq!(response.status, 200, "{events} {}", new.len());
            assert!(response.body == new, "{events} {}", new.len());
            let counters = served.snapshot().counters;
            assert_eq!((counters.helper_jobs_fetch, counters.io_errors), (1, 0));
        }
    }
}

/// The file content that a worker has requested from this helper: its job and the file.
fn fetched_by(helper: &OwnedFd) -> (u64, OwnedFd) {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let received = receive_with_descriptors(helper, &mut message, 1, Wait::Block).unwrap();
        let received = received.expect("a message");
        if let Request::Fetch { job, .. } = decode_request(&message[..received.length]).unwrap() {
            return (job, received.descriptors.into_iter().next().unwrap());
        }
    }
}

#[test]
fn old_content_is_not_served_when_the_file_changes_after_the_helper_read_it() {
    let root = root();
    let path = root.path().join("file");
    let (old, new) = (contents(0, 10_000), contents(1, 10_000));
    for events in mechanisms() {
        fs::write(&path, &old).unwrap();
        make_cold(&path);
        let more = format!("precompressed = false\nhelpers-max = 1\n{events}");
        let mut served = Served::start_holding_helpers(config(root.path(), &more));
        let mut client = served.connect();
        send_request(&mut client, "/file");
        served.wait_for("a busy helper", |now| now.counters.helpers_busy == 1);
        let helper = served.take_helper();
        let (job, _file) = fetched_by(&helper);
        // The helper has read the old content; other files fill the cache before it answers.
        rewrite(&path, &new);
        let mut answer = Vec::new();
        let content = Ok(old.clone().into());
        encode_reply(&Reply::Fetched { job, content }, &mut answer);
        send_with_descriptors(&helper, &[IoSlice::new(&answer)], &[], Wait::Block).unwrap();
        for turn in 0..2 {
            let response = match turn {
                0 => read_response(&mut client),
                _ => served.get("/file"),
            };
            assert_eq!(response.status, 200, "{events}");
            assert!(
                response.body == new,
                "{events}: the old contents, turn {turn}"
            );
        }
    }
}

#[test]
fn request_returns_503_when_a_file_is_always_shorter_than_its_size() {
    let test = "request_returns_503_when_a_file_is_always_shorter_than_its_size";
    let (directory, name) = (Path::new("/sys/kernel"), "uevent_seqnum");
    let size = fs::metadata(directory.join(name)).map_or(0, |found| found.len());
    let read = fs::read(directory.join(name)).map_or(0, |bytes| bytes.len() as u64);
    if size <= read {
        return skip(
            test,
            "there is no /sys whose files claim to be longer than they are",
        );
    }
    let mut served = Served::start(config(directory, "precompressed = false"));
    assert_eq!(served.get("/uevent_seqnum").status, 503);
    let jobs = served.snapshot().counters.helper_jobs_done;
    assert!(jobs < 20, "{jobs}");
}

#[test]
fn edited_file_is_served_at_once_when_revalidate_is_zero() {
    let root = root();
    for size in [10, 200_000] {
        let served = Served::start(config(root.path(), "revalidate = '0ms'"));
        let path = root.path().join("edited");
        let mut client = served.connect();
        for version in 0..30 {
            let now = contents(version % 2, size + usize::from(version % 3));
            match version % 5 {
                0 => replace(&path, &now),
                1 => {
                    fs::remove_file(&path).unwrap();
                    send_request(&mut client, "/edited");
                    assert_eq!(read_response(&mut client).status, 404);
                    fs::write(&path, &now).unwrap();
                }
                // Truncate and write, as editors and compilers do.
                _ => fs::write(&path, &now).unwrap(),
            }
            send_request(&mut client, "/edited");
            let response = read_response(&mut client);
            assert!(
                response.status == 200 && response.body == now,
                "{size}: version {version}"
            );
        }
    }
}

#[test]
fn change_is_served_when_the_cache_entry_is_due_for_revalidation() {
    let root = root();
    let path = root.path().join("a");
    fs::write(&path, "old").unwrap();
    let served = Served::start(config(root.path(), "revalidate = '50ms'"));
    assert_eq!(served.get("/a").body, b"old");
    fs::write(&path, "new").unwrap();
    until(|| served.get("/a").body == b"new");
    assert_eq!(served.get("/a").body, b"new", "and stays");
    fs::remove_file(&path).unwrap();
    until(|| served.get("/a").status == 404);
    fs::write(&path, "again").unwrap();
    until(|| served.get("/a").body == b"again");
}

/// Waits for a change that may become visible late because of the cache's maximum age.
fn until(mut come: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !come() {
        assert!(begun.elapsed() < TIMEOUT, "the change is not seen");
    }
}

#[test]
fn path_is_looked_up_again_when_a_file_becomes_a_directory_and_back() {
    let root = root();
    let path = root.path().join("thing");
    let served = Served::start(config(root.path(), "revalidate = '0ms'"));
    for round in 0..3 {
        fs::write(&path, "a file").unwrap();
        assert_eq!(served.get("/thing").body, b"a file", "{round}");
        assert_eq!(served.get("/thing/").status, 404, "{round}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(served.get("/thing").status, 301, "{round}");
        assert_eq!(
            served.get("/thing/").status,
            403,
            "{round}: no index, no listing"
        );
        fs::write(path.join("index.html"), "an index").unwrap();
        assert_eq!(served.get("/thing/").body, b"an index", "{round}");
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(served.get("/thing/").status, 404, "{round}");
    }
}

#[test]
fn whole_tree_switches_at_once_when_a_symbolic_link_changes() {
    let root = root();
    for version in ["v1", "v2"] {
        fs::create_dir(root.path().join(version)).unwrap();
        fs::write(root.path().join(version).join("a"), version).unwrap();
    }
    let served = Served::start(config(root.path(), "revalidate = '0ms'"));
    for version in ["v1", "v2", "v1", "v2"] {
        symlink(version, root.path().join("turning")).unwrap();
        fs::rename(root.path().join("turning"), root.path().join("now")).unwrap();
        assert_eq!(served.get("/now/a").body, version.as_bytes());
    }
}

#[test]
fn request_returns_403_when_the_file_becomes_a_special_file() {
    let root = root();
    let path = root.path().join("a");
    fs::write(&path, "hello").unwrap();
    let served = Served::start(config(root.path(), "revalidate = '0ms'"));
    assert_eq!(served.get("/a").status, 200);
    fs::remove_file(&path).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert_eq!(served.get("/a").status, 403);
    fs::remove_file(&path).unwrap();
    symlink("/etc/hostname", &path).unwrap();
    let escaped = served.get("/a").status;
    assert!(escaped == 403 || escaped == 404, "{escaped}");
}
