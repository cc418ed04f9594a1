//! What small files hold, in helpers' answers.

use crate::common;
use common::{ROOT, Served, answer_text, directory, limits, open, put, resolved_with, roots};
use headway_files::protocol::OpenMode;
use headway_files::{Failure, OpenFile, Outcome, PoolLimits, SentPrefix, Waiter, read_nowait};
use headway_os::fd_passing::pair;
use std::fs;
use std::rc::Rc;

fn fetched(served: &mut Served) -> Result<Rc<[u8]>, Failure> {
    match served.until_done(1).pop().unwrap().outcome {
        Outcome::Fetched { content, .. } => content,
        other => panic!("{other:?}"),
    }
}

#[test]
fn contents_come_with_the_file_when_they_are_few_and_nothing_else_may_be_wanted() {
    let tree = directory();
    put(tree.path(), "small", b"abc");
    put(tree.path(), "empty", b"");
    put(tree.path(), "large", &[7; 65_537]);
    put(tree.path(), "both", b"abc");
    put(tree.path(), "both.gz", b"zip");
    let roots = roots(tree.path(), &[], true);
    let content_of = |want, name: &str| match resolved_with(want, &roots, name.as_bytes()) {
        Outcome::LookedUp {
            answer, content, ..
        } => {
            assert_eq!(
                answer_text(&answer).starts_with("file"),
                name != "none",
                "{name}"
            );
            content
        }
        other => panic!("{other:?}"),
    };
    let expected: [(&str, Option<&[u8]>); 5] = [
        ("small", Some(b"abc")),
        ("empty", Some(b"")),
        ("large", None),
        ("both", None),
        ("none", None),
    ];
    for (name, content) in expected {
        let found = content_of(OpenMode::OpenAndRead, name);
        assert_eq!(found.as_deref(), content, "{name}");
        assert_eq!(
            content_of(OpenMode::OpenAndPrefetch(1 << 20), name),
            None,
            "{name}"
        );
    }
}

#[test]
fn contents_come_in_the_answer_when_a_small_file_is_fetched() {
    let tree = directory();
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let longest = 64 * 1024;
    // A long one, then short ones: nothing of it is left in their answers.
    for length in [longest, 0, 1, 40_000] {
        let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        put(tree.path(), &length.to_string(), &bytes);
        let file = open(tree.path(), &length.to_string());
        assert!(served.pool.may_fetch(length));
        served
            .pool
            .submit_fetch(&file, length, Waiter::new(1))
            .unwrap();
        assert!(*fetched(&mut served).unwrap() == *bytes, "{length}");
    }
    assert!(!served.pool.may_fetch(longest + 1));
}

#[test]
fn contents_are_shorter_when_the_file_was_cut_before_it_was_fetched() {
    let tree = directory();
    put(tree.path(), "f", &[7; 100]);
    let file = open(tree.path(), "f");
    put(tree.path(), "f", &[8; 40]);
    let mut served = Served::new(&roots(tree.path(), &[], false));
    served
        .pool
        .submit_fetch(&file, 100, Waiter::new(1))
        .unwrap();
    assert_eq!(*fetched(&mut served).unwrap(), [8; 40]);
}

#[test]
fn file_is_prefetched_when_its_contents_exceed_the_socket_buffer() {
    let tree = directory();
    put(tree.path(), "short", &[7; 1000]);
    put(tree.path(), "long", &[8; 60_000]);
    let (worker, socket) = pair().unwrap();
    // The kernel doubles it.
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 16 * 1024).unwrap();
    let limits = PoolLimits {
        want: OpenMode::OpenAndRead,
        ..limits()
    };
    let roots = roots(tree.path(), &[], false);
    let mut served = Served::over(worker, socket, limits, &roots);
    for (name, comes) in [("short", true), ("long", false)] {
        served
            .pool
            .submit_lookup(ROOT, name.as_bytes(), Waiter::new(1))
            .unwrap();
        let Outcome::LookedUp { content, .. } = served.until_done(1).pop().unwrap().outcome else {
            panic!("{name}")
        };
        assert_eq!(content.is_some(), comes, "{name}");
        let file = open(tree.path(), name);
        let length = file.meta().size;
        served
            .pool
            .submit_fetch(&file, length, Waiter::new(1))
            .unwrap();
        match served.until_done(1).pop().unwrap().outcome {
            Outcome::Fetched { content, .. } => assert!(comes && content.is_ok(), "{name}"),
            Outcome::ReadIn { result, .. } => assert!(!comes && result.is_ok(), "{name}"),
            other => panic!("{other:?}"),
        }
    }
    let statistics = served.pool.statistics();
    assert_eq!((statistics.fetches, statistics.contents), (2, 2));
}

#[test]
fn failure_is_reported_when_contents_cannot_be_read() {
    // /proc/self/mem at 0 gives EIO, as a broken disk would.
    let mem = fs::File::open("/proc/self/mem").unwrap();
    let meta = *open(std::path::Path::new("/etc"), "passwd").meta();
    let file = Rc::new(OpenFile::new(mem.into(), meta));
    let tree = directory();
    let mut served = Served::new(&roots(tree.path(), &[], false));
    served.pool.submit_fetch(&file, 10, Waiter::new(1)).unwrap();
    assert_eq!(fetched(&mut served), Err(Failure::Io));
}

/// Changes the contents of a file.
type Change = fn(&mut Vec<u8>);

#[test]
fn next_bytes_are_copied_only_if_the_file_holds_what_was_sent() {
    let tree = directory();
    let bytes: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let changes: [(&str, Change, bool); 5] = [
        ("nothing", |_| {}, true),
        ("an append", |file| file.extend(b"more"), true),
        ("a byte before the range", |file| file[99] ^= 1, true),
        ("a byte that was sent", |file| file[70_000] ^= 1, false),
        ("the end", |file| file.truncate(70_000), false),
    ];
    for (what, change, is_copied) in changes {
        put(tree.path(), "log", &bytes);
        let file = open(tree.path(), "log");
        let mut sent = SentPrefix::new(file.meta(), 100);
        sent.add(100, &bytes[100..60_000]);
        sent.add(60_000, &bytes[60_000..100_000]);
        let mut now = bytes.clone();
        change(&mut now);
        // Written into the same inode.
        fs::write(tree.path().join("log"), &now).unwrap();
        served
            .pool
            .submit_checked_copy(&file, &mut sent, 1000, Waiter::new(1))
            .unwrap();
        let done = served.until_done(1);
        match &done[0].outcome {
            Outcome::Copied {
                content: Ok(copy),
                offset,
                ..
            } => {
                let mut copied = [0; 2000];
                let length = read_nowait(copy, &mut copied, 0).unwrap();
                assert_eq!((*offset, length), (100_000, Some(1000)));
                assert!(copied[..1000] == bytes[100_000..101_000], "{what}");
                assert!(is_copied, "{what}");
            }
            Outcome::Copied { content, .. } => {
                assert_eq!(content.as_ref().unwrap_err(), &Failure::Changed, "{what}");
                assert!(!is_copied, "{what}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}
