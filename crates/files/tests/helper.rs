//! A pool and a real helper, end to end over a socket pair.

use crate::common;
use common::{ROOT, Served, answer_text, directory, open, put, resolved_with, roots, roots_with};
use headway_files::protocol::{CustomResult, OpenMode};
use headway_files::{
    Answer, CustomJob, DeferredCloses, Done, Failure, LoopResolver, OpenFile, Outcome, RawAnswer,
    Residency, Roots, Waiter, helper_main, read_nowait, resolve_blocking,
};
use headway_os::fd_passing::{Wait, pair, receive_with_descriptors, send_with_descriptors};
use rustix::io::{Errno, IoSlice};
use std::fs;
use std::os::unix::fs::symlink;
use std::rc::Rc;

fn resolved(done: &Done) -> &Answer {
    match &done.outcome {
        Outcome::LookedUp { answer, .. } => answer,
        other => panic!("{other:?}"),
    }
}

fn contents(file: &OpenFile) -> Vec<u8> {
    let mut bytes = vec![0; 17 << 20];
    let length = read_nowait(file, &mut bytes, 0)
        .unwrap()
        .expect("in memory");
    bytes.truncate(length);
    bytes
}

#[test]
fn open_file_arrives_when_a_helper_resolves_it() {
    let tree = directory();
    put(tree.path(), "d/index.html", b"<p>");
    put(tree.path(), "d/index.html.gz", b"zip");
    let roots = roots(tree.path(), &["index.html"], true);
    let mut served = Served::new(&roots);
    served
        .pool
        .submit_lookup(ROOT, b"d/", Waiter::new(42))
        .unwrap();
    let done = served.until_done(1);
    assert_eq!(done[0].waiters, [42]);
    let Answer::File(found) = resolved(&done[0]) else {
        panic!("{done:?}")
    };
    assert_eq!(found.index, Some(0));
    assert_eq!(contents(&found.file.open().unwrap()), b"<p>");
    assert_eq!(
        contents(&found.siblings[2].as_ref().unwrap().open().unwrap()),
        b"zip"
    );
    assert!(found.siblings[0].is_none() && found.siblings[1].is_none());
    assert!(found.file.open().unwrap().unchanged().unwrap());
}

#[test]
fn loop_resolves_the_same_after_a_helper_warmed_the_name() {
    let tree = directory();
    put(tree.path(), "d/index.html", b"<p>");
    let roots = roots(tree.path(), &["index.html"], true);
    let resolver = LoopResolver {
        roots: &roots,
        deferred: &DeferredCloses::new(),
    };
    for (name, start) in [("d/", "file"), ("d", "redirect"), ("none", "NotFound")] {
        match resolved_with(OpenMode::TouchOnly, &roots, name.as_bytes()) {
            Outcome::Touched { root, path } => {
                assert_eq!((root, &*path), (ROOT, name.as_bytes()));
                let answer = resolver.resolve_on_loop(root, &path);
                assert!(
                    answer_text(&answer).starts_with(start),
                    "{name}: {answer:?}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Needs: a file system that lets go of pages (not tmpfs)
#[test]
fn file_is_not_read_when_only_its_descriptor_is_requested() {
    let tree = directory();
    put(tree.path(), "a", &[7; 10_000]);
    let path = tree.path().join("a");
    let roots = roots(tree.path(), &[], false);
    let wants = [
        (OpenMode::Open, false),
        (OpenMode::OpenAndPrefetch(0), false),
        (OpenMode::OpenAndPrefetch(1), true),
        (OpenMode::OpenAndRead, true),
    ];
    for (want, resident) in wants {
        let file = fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if headway_os::residency::mincore(&file, 0, 10_000).unwrap() > 0 {
            return headway_test_support::skip(
                "file_is_not_read_when_only_its_descriptor_is_requested",
                "this file system does not let go of pages",
            );
        }
        let Outcome::LookedUp { answer, .. } = resolved_with(want, &roots, b"a") else {
            panic!("{want:?}")
        };
        assert!(answer_text(&answer).starts_with("file"), "{want:?}");
        let pages = headway_os::residency::mincore(&file, 0, 10_000).unwrap();
        assert_eq!(pages > 0, resident, "{want:?}");
    }
}

#[test]
fn failure_arrives_when_there_is_no_file() {
    let tree = directory();
    fs::create_dir(tree.path().join("d")).unwrap();
    symlink("/etc/passwd", tree.path().join("out")).unwrap();
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let long = vec![b'x'; 20_000];
    let paths: [(&[u8], &str); 5] = [
        (b"missing", "NotFound"),
        (b"out", "Forbidden"),
        (b"d", "redirect"),
        (b"d/", "directory"),
        (&long, "NameTooLong"),
    ];
    for (path, expected) in paths {
        served
            .pool
            .submit_lookup(ROOT, path, Waiter::new(1))
            .unwrap();
        let done = served.until_done(1);
        assert_eq!(answer_text(resolved(&done[0])), expected);
        let Outcome::LookedUp {
            path: resolved_path,
            ..
        } = &done[0].outcome
        else {
            unreachable!()
        };
        assert_eq!(&**resolved_path, path);
    }
}

#[test]
fn every_root_is_its_own_when_there_are_many() {
    let tree = directory();
    let configs: Vec<_> = (0..100)
        .map(|number| {
            put(tree.path(), &format!("{number}/name-{number}"), b"x");
            let directory = tree.path().join(number.to_string());
            let index = vec![format!("name-{number}")];
            headway_files::RootConfig {
                directory,
                index,
                siblings: false,
                dotfiles: false,
                symlinks: Default::default(),
                rules: Vec::new(),
            }
        })
        .collect();
    let roots = Rc::new(Roots::open(&configs).unwrap());
    let mut served = Served::new(&roots);
    for number in [0, 57, 99] {
        served
            .pool
            .submit_lookup(headway_files::RootId(number), b"", Waiter::new(1))
            .unwrap();
        let done = served.until_done(1);
        assert!(
            answer_text(resolved(&done[0])).starts_with("file"),
            "root {number}"
        );
    }
}

#[test]
fn chunk_is_resident_when_it_has_been_read_in() {
    let tree = directory();
    put(tree.path(), "big", &vec![7; 700_000]);
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let file = open(tree.path(), "big");
    let residency = Residency::detect();
    for (offset, length) in [(262_144, 262_144), (524_288, 262_144), (900_000, 10)] {
        served
            .pool
            .submit_read_in(&file, offset, length, Some(Waiter::new(9)))
            .unwrap();
        let done = served.until_done(1);
        let Outcome::ReadIn {
            offset: read_offset,
            inode,
            result,
            ..
        } = &done[0].outcome
        else {
            panic!("{done:?}")
        };
        assert_eq!(
            (*read_offset, *inode, *result),
            (offset, file.meta().inode, Ok(()))
        );
        match residency.resident(&file, offset, length) {
            Ok(resident) => assert!(resident, "{offset}"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Unsupported),
        }
    }
}

#[test]
fn error_arrives_when_the_disk_cannot_be_read() {
    // /proc/self/mem at 0 gives EIO, as a broken disk would.
    let mem = fs::File::open("/proc/self/mem").unwrap();
    let meta = *open(std::path::Path::new("/etc"), "passwd").meta();
    let file = Rc::new(OpenFile::new(mem.into(), meta));
    let tree = directory();
    let mut served = Served::new(&roots(tree.path(), &[], false));
    served
        .pool
        .submit_read_in(&file, 0, 10, Some(Waiter::new(1)))
        .unwrap();
    let done = served.until_done(1);
    assert!(
        matches!(
            done[0].outcome,
            Outcome::ReadIn {
                result: Err(Failure::Io),
                ..
            }
        ),
        "{done:?}"
    );
    served
        .pool
        .submit_copy(&file, 0, 10, Waiter::new(1))
        .unwrap();
    let done = served.until_done(1);
    assert!(
        matches!(
            done[0].outcome,
            Outcome::Copied {
                content: Err(Failure::Io),
                ..
            }
        ),
        "{done:?}"
    );
}

#[test]
fn contents_arrive_in_memory_when_they_are_copied() {
    let tree = directory();
    let bytes: Vec<u8> = (0..4_200_000_u32).flat_map(|i| i.to_le_bytes()).collect();
    put(tree.path(), "big", &bytes);
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let file = open(tree.path(), "big");
    for (offset, length, expected) in [
        (0, 262_144, &bytes[..262_144]),
        (16_700_000, 262_144, &bytes[16_700_000..]),
        (0, u64::MAX, &bytes[..16 << 20]),
        (20_000_000, 10, &[]),
    ] {
        served
            .pool
            .submit_copy(&file, offset, length, Waiter::new(1))
            .unwrap();
        let done = served.until_done(1);
        let Outcome::Copied {
            content: Ok(copy), ..
        } = &done[0].outcome
        else {
            panic!("{done:?}")
        };
        assert_eq!(copy.meta().size, expected.len() as u64);
        assert!(contents(copy) == expected, "{offset}");
        assert!(
            Residency::detect()
                .resident(copy, 0, copy.meta().size)
                .unwrap()
        );
        assert_eq!(
            rustix::io::write(copy.as_ref(), b"x"),
            Err(Errno::PERM),
            "it is sealed"
        );
    }
}

/// The page of a directory.
fn listed(served: &mut Served, path: &[u8], known: Option<&Rc<OpenFile>>) -> Rc<OpenFile> {
    served
        .pool
        .submit_listing(ROOT, path, known, Waiter::new(1))
        .unwrap();
    let done = served.until_done(1).remove(0);
    match done.outcome {
        Outcome::Listed {
            answer: Ok(page), ..
        } => page,
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_with_a_dot_are_listed_when_the_root_shows_them() {
    let tree = directory();
    for name in [".env", ".well-known/x", "d/.well-known/x", "d/.x", "d/y"] {
        put(tree.path(), name, b"123");
    }
    let lists = |dotfiles: bool, path: &[u8]| {
        let mut served = Served::new(&roots_with(tree.path(), &[], false, dotfiles));
        let page = contents(&listed(&mut served, path, None));
        let page = String::from_utf8(page).unwrap();
        let names = page.lines().map(|line| line.split(' ').nth(1).unwrap());
        names.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(lists(false, b""), [".well-known", "d"]);
    assert_eq!(lists(false, b"d/"), ["y"]);
    assert_eq!(lists(true, b""), [".well-known", "d", ".env"]);
    assert_eq!(lists(true, b"d/"), [".well-known", ".x", "y"]);
}

#[test]
fn listing_is_reused_when_its_content_is_unchanged() {
    let tree = directory();
    put(tree.path(), "a", b"1");
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let first = listed(&mut served, b"", None);
    let same = listed(&mut served, b"", Some(&first));
    assert!(Rc::ptr_eq(&first, &same));
    // The directory itself has not changed, only what it says of a file.
    put(tree.path(), "a", b"22");
    let other = listed(&mut served, b"", Some(&first));
    assert_eq!(contents(&first), b"File a 1\n");
    assert_eq!(contents(&other), b"File a 2\n");
}

#[test]
fn listing_shows_only_files_that_can_be_requested() {
    let tree = directory();
    for name in ["d/z", "d/a", "d/sub/x", "d/.hidden", "outside"] {
        put(tree.path(), name, b"123");
    }
    symlink("../outside", tree.path().join("d/inside-root")).unwrap();
    symlink("/etc/passwd", tree.path().join("d/out")).unwrap();
    symlink("nowhere", tree.path().join("d/dangling")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.path().join("d/fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let lines = String::from_utf8(contents(&listed(&mut served, b"d/", None))).unwrap();
    let names: Vec<_> = lines.lines().collect();
    assert!(names[0].starts_with("Directory sub"), "{lines}");
    assert_eq!(names[1..], ["File a 3", "File inside-root 3", "File z 3"]);
    for (path, failure) in [
        (&b"missing/"[..], Failure::NotFound),
        (b"outside", Failure::NotFound),
    ] {
        served
            .pool
            .submit_listing(ROOT, path, None, Waiter::new(1))
            .unwrap();
        let done = served.until_done(1);
        let Outcome::Listed { answer, .. } = &done[0].outcome else {
            panic!("{done:?}")
        };
        assert_eq!(answer.as_ref().unwrap_err(), &failure);
    }
}

/// The pipe shows when the last copy of its write end is closed, wherever that is.
#[test]
fn deferred_closes_are_done_by_a_helper() {
    let tree = directory();
    put(tree.path(), "a", b"x");
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let meta = *open(tree.path(), "a").meta();
    let deferred = served.pool.deferred_closes();
    let mut readers = Vec::new();
    for _ in 0..100 {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(OpenFile::new(writer, meta).with_deferred_close(&deferred));
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        readers.push(reader);
    }
    let open_ends = || {
        let read = |reader: &rustix::fd::OwnedFd| rustix::io::read(reader, &mut [0; 1]);
        readers
            .iter()
            .filter(|reader| read(reader) == Err(Errno::AGAIN))
            .count()
    };
    assert_eq!(
        (open_ends(), deferred.len()),
        (100, 100),
        "dropping must not close"
    );
    served.until_rested(0);
    assert_eq!((open_ends(), deferred.len()), (36, 36), "one batch is 64");
    served.until_rested(0);
    served.until_rested(10);
    served.until_rested(1000);
    assert_eq!((open_ends(), deferred.len()), (0, 0));
    assert_eq!(served.pool.statistics().deferred_closes, 100);
}

#[test]
fn file_is_closed_at_once_when_deferred_closes_are_off_or_full() {
    let tree = directory();
    put(tree.path(), "a", b"x");
    let meta = *open(tree.path(), "a").meta();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(OpenFile::new(writer, meta));
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
    let full = DeferredCloses::new();
    let null = || fs::File::open("/dev/null");
    if let Some(held) = (0..4096).map(|_| null().ok()).collect::<Option<Vec<_>>>() {
        held.into_iter().for_each(|file| full.push(file.into()));
        full.push(null().unwrap().into());
        assert_eq!((full.len(), full.closed_here()), (4096, 1));
    } else {
        headway_test_support::skip(
            "file_is_closed_at_once_when_deferred_closes_are_off_or_full",
            "the descriptor limit is below 4096",
        );
    }
}

#[test]
fn small_file_is_read_in_when_it_is_resolved() {
    let tree = directory();
    put(tree.path(), "small", &vec![1; 60_000]);
    let roots = roots(tree.path(), &[], false);
    let RawAnswer::File { file, .. } = resolve_blocking(&roots, ROOT, b"small") else {
        panic!()
    };
    rustix::fs::fsync(&file.descriptor).unwrap();
    rustix::fs::fadvise(&file.descriptor, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut served = Served::new(&roots);
    served
        .pool
        .submit_lookup(ROOT, b"small", Waiter::new(1))
        .unwrap();
    let done = served.until_done(1);
    let Answer::File(found) = resolved(&done[0]) else {
        panic!("{done:?}")
    };
    if let Ok(resident) = Residency::detect().resident(&found.file.open().unwrap(), 0, 60_000) {
        assert!(resident);
    }
}

#[test]
fn helper_ends_with_an_error_when_a_request_is_malformed() {
    for message in [
        &b"\xffnonsense"[..],
        b"\x01\xff\xff\x00\x00\x00\x00",
        b"\x04",
    ] {
        let (worker, socket) = pair().unwrap();
        send_with_descriptors(&worker, &[IoSlice::new(message)], &[], Wait::Never).unwrap();
        let ended = helper_main(socket, &|_| Vec::new()).unwrap_err();
        assert_eq!(ended.kind(), std::io::ErrorKind::InvalidData, "{message:?}");
        let end = receive_with_descriptors(&worker, &mut [0; 64], 0, Wait::Never)
            .unwrap()
            .unwrap();
        assert!(end.is_end());
    }
}

#[test]
fn body_parts_are_one_unnamed_file_when_they_are_spooled() {
    let tree = directory();
    let path = tree.path().as_os_str().as_encoded_bytes().to_vec();
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let (first, second) = (vec![1; 100_000], vec![2; 70_000]);
    let mut file: Option<Rc<OpenFile>> = None;
    let (mut offset, mut memory) = (0, Vec::new());
    for bytes in [&first, &second] {
        let waiter = Waiter::new(7);
        let pool = &mut served.pool;
        let piece = pool.spool_piece(bytes, 0).unwrap();
        memory.push(rustix::fs::fstat(&piece).unwrap().st_ino);
        pool.submit_spool(&path, file.as_ref(), piece, offset, waiter)
            .unwrap();
        let mut done = served.until_done(1);
        assert_eq!(done[0].waiters, [7]);
        let Outcome::Spooled { file: Ok(spooled) } = done.remove(0).outcome else {
            panic!("not spooled")
        };
        file = Some(spooled);
        offset += bytes.len() as u64;
    }
    // The second piece is shorter than what the memory had held.
    assert!(contents(&file.unwrap()) == [first, second].concat());
    assert_eq!(memory[0], memory[1], "memory is used again");
    let later = served.pool.spool_piece(b"x", 1_000_000).unwrap();
    let later = rustix::fs::fstat(&later).unwrap().st_ino;
    assert_ne!(later, memory[1], "memory that has lain idle is not");
    assert_eq!(
        fs::read_dir(tree.path()).unwrap().count(),
        0,
        "it has no name"
    );
}

#[test]
fn failure_is_reported_when_spooling_fails() {
    let tree = directory();
    let mut served = Served::new(&roots(tree.path(), &[], false));
    let waiter = Waiter::new(7);
    let piece = served.pool.spool_piece(b"x", 0).unwrap();
    served
        .pool
        .submit_spool(b"/nowhere/at/all", None, piece, 0, waiter)
        .unwrap();
    let done = served.until_done(1);
    assert!(
        matches!(
            done[0].outcome,
            Outcome::Spooled {
                file: Err(Failure::Io)
            }
        ),
        "{done:?}"
    );
    // /dev/full takes nothing.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let full = Rc::new(OpenFile::new(
        full.into(),
        *open(std::path::Path::new("/etc"), "passwd").meta(),
    ));
    let piece = served.pool.spool_piece(b"x", 0).unwrap();
    served
        .pool
        .submit_spool(b"/", Some(&full), piece, 0, waiter)
        .unwrap();
    let done = served.until_done(1);
    assert!(
        matches!(
            done[0].outcome,
            Outcome::Spooled {
                file: Err(Failure::Exhausted)
            }
        ),
        "{done:?}"
    );
}

#[test]
fn custom_job_returns_bytes_a_file_or_a_failure() {
    let tree = directory();
    let mut served = Served::new(&roots(tree.path(), &[], false));
    for length in [0, 1, 16, 17, 1000] {
        let payload = vec![b'x'; length];
        let pool = &mut served.pool;
        pool.submit_custom(CustomJob::Once, &payload, Waiter::new(3))
            .unwrap();
        let mut done = served.until_done(1);
        assert_eq!(done[0].waiters, [3]);
        let Outcome::Custom { answer } = done.remove(0).outcome else {
            panic!("no custom_job")
        };
        match (length, answer) {
            (0, Err(why)) => assert_eq!(why, Failure::Forbidden),
            (1..=16, Ok(CustomResult::Inline(payload))) => {
                assert_eq!(payload.len(), length * length)
            }
            (_, Ok(CustomResult::File(file))) => {
                assert!(length > 16 && file.is_memory());
                assert_eq!(contents(&file), vec![b'x'; length * length]);
            }
            other => panic!("{other:?}"),
        }
    }
}
