//! Each probe says no before a file is read and yes after.

use crate::common;
use common::{directory, open, put};
use headway_files::{CHUNK_BYTES, OpenFile, ProbeKind, Residency, chunk_of, read_nowait};
use headway_test_support::{is_root, skip};
use rustix::fs::{Advice, fadvise, fsync};
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

const KINDS: [ProbeKind; 3] = [ProbeKind::Cachestat, ProbeKind::Nowait, ProbeKind::Mincore];

/// A file of which nothing is in memory, or `None` with a skip if this file system keeps it there.
fn cold(test: &str, tree: &tempfile::TempDir, bytes: usize) -> Option<Rc<OpenFile>> {
    put(tree.path(), "cold", &vec![5; bytes]);
    let file = open(tree.path(), "cold");
    fsync(file.as_ref()).unwrap();
    if let Err(error) = Residency::with(ProbeKind::Mincore).resident(&file, 0, 1) {
        skip(test, &format!("the file system answers no probe: {error}"));
        return None;
    }
    if !evict(&file) {
        skip(test, "the file system keeps files in memory");
        return None;
    }
    Some(file)
}

/// Runs a test in a thread of its own, and again if it fails: the kernel may take any page back, or
/// keep one, while it runs. A probe that is wrong is wrong each time.
fn repeat_if_disturbed(test: fn()) {
    for _ in 0..5 {
        if std::thread::spawn(test).join().is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    test();
}

/// Evicts every page; whether that worked. Pages under read cannot be evicted, so everything is
/// read to its end first. The kernel may also hold pages for other reasons for a while.
fn evict(file: &OpenFile) -> bool {
    let size = file.meta().size;
    let mincore = Residency::with(ProbeKind::Mincore);
    let is_cold = |offset| matches!(mincore.resident(file, offset, 1), Ok(false));
    for _ in 0..300 {
        warm(file, 0, size as usize);
        fadvise(file, 0, None, Advice::DontNeed).unwrap();
        if (0..size).step_by(4096).all(is_cold) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

fn warm(file: &OpenFile, offset: u64, length: usize) {
    let mut bytes = vec![0; length];
    assert_eq!(rustix::io::pread(file, &mut bytes, offset), Ok(length));
}

#[test]
fn chunk_counts_as_cached_until_a_page_is_known_to_be_missing() {
    repeat_if_disturbed(|| {
        const TEST: &str = "chunk_counts_as_cached_until_a_page_is_known_to_be_missing";
        let tree = directory();
        let Some(file) = cold(TEST, &tree, 2 * CHUNK_BYTES as usize) else {
            return;
        };
        // These probes make no call: the read that follows will show it.
        for kind in [ProbeKind::Nowait, ProbeKind::Mincore] {
            let probe = Residency::with(kind);
            assert!(probe.cached(&file, 0, CHUNK_BYTES).unwrap(), "{kind:?}");
        }
        let probe = Residency::detect();
        if probe.name() != Residency::with(ProbeKind::Cachestat).name() {
            return skip(TEST, "the kernel does not count pages");
        }
        let cached = |offset, length| probe.cached(&file, offset, length).unwrap();
        assert!(!cached(0, 1) && !cached(0, CHUNK_BYTES));
        warm(&file, 0, CHUNK_BYTES as usize);
        assert!(cached(0, CHUNK_BYTES) && cached(5000, 1));
        assert!(!cached(0, 2 * CHUNK_BYTES));
        assert!(
            cached(2 * CHUNK_BYTES, 1),
            "nothing is missing behind the end"
        );
    });
}

#[test]
fn chunk_is_resident_when_all_of_it_has_been_read() {
    repeat_if_disturbed(|| {
        let tree = directory();
        let bytes = 3 * CHUNK_BYTES as usize - 1000;
        let Some(file) = cold(
            "chunk_is_resident_when_all_of_it_has_been_read",
            &tree,
            bytes,
        ) else {
            return;
        };
        for kind in KINDS {
            let probe = Residency::with(kind);
            assert!(evict(&file), "pages stay in memory");
            let resident = |offset, length| probe.resident(&file, offset, length).unwrap();
            assert!(!resident(0, CHUNK_BYTES), "{}", probe.name());
            // A probe by reading starts to read what is missing, so each negative answer is probed
            // again.
            for (offset, length) in [(CHUNK_BYTES - 1, 2), (2 * CHUNK_BYTES, CHUNK_BYTES)] {
                assert!(evict(&file), "pages stay in memory");
                warm(&file, CHUNK_BYTES, CHUNK_BYTES as usize);
                assert!(resident(CHUNK_BYTES, CHUNK_BYTES), "{}", probe.name());
                assert!(resident(CHUNK_BYTES + 5000, 1), "{}", probe.name());
                assert!(!resident(offset, length), "{}: {offset}", probe.name());
            }
            warm(&file, 2 * CHUNK_BYTES, CHUNK_BYTES as usize - 1000);
            assert!(
                resident(2 * CHUNK_BYTES, CHUNK_BYTES),
                "{}: to the end",
                probe.name()
            );
            assert!(
                resident(3 * CHUNK_BYTES, CHUNK_BYTES),
                "{}: beyond the end",
                probe.name()
            );
        }
    });
}

#[test]
fn hole_is_noticed_when_only_a_middle_page_is_missing() {
    repeat_if_disturbed(|| {
        let tree = directory();
        let test = "hole_is_noticed_when_only_a_middle_page_is_missing";
        let Some(file) = cold(test, &tree, CHUNK_BYTES as usize) else {
            return;
        };
        for kind in KINDS {
            assert!(evict(&file), "pages stay in memory");
            warm(&file, 0, 64 * 1024);
            warm(&file, 128 * 1024, 128 * 1024);
            let probe = Residency::with(kind);
            assert!(
                !probe.resident(&file, 0, CHUNK_BYTES).unwrap(),
                "{}",
                probe.name()
            );
        }
    });
}

#[test]
fn cachestat_probe_does_not_read_a_cold_file() {
    repeat_if_disturbed(|| {
        let tree = directory();
        let test = "cachestat_probe_does_not_read_a_cold_file";
        let Some(file) = cold(test, &tree, CHUNK_BYTES as usize) else {
            return;
        };
        let probe = Residency::detect();
        if probe.name() != "cachestat" {
            return skip(test, "cachestat needs Linux 6.5");
        }
        for _ in 0..100 {
            assert!(!probe.resident(&file, 0, CHUNK_BYTES).unwrap());
        }
        assert!(
            !Residency::with(ProbeKind::Mincore)
                .resident(&file, 0, 4096)
                .unwrap()
        );
    });
}

#[test]
fn probe_without_reading_leaves_a_cold_file_cold() {
    repeat_if_disturbed(|| {
        let tree = directory();
        let test = "probe_without_reading_leaves_a_cold_file_cold";
        let Some(file) = cold(test, &tree, CHUNK_BYTES as usize) else {
            return;
        };
        // There the only way to ask is to read.
        let untold = Residency::with(ProbeKind::Nowait);
        let untouched =
            |probe: &Residency| probe.resident_untouched(&file, 0, CHUNK_BYTES).unwrap();
        let mincore = Residency::with(ProbeKind::Mincore);
        for _ in 0..100 {
            assert_eq!(untouched(&untold), None);
        }
        assert!(!mincore.resident(&file, 0, CHUNK_BYTES).unwrap());
        let counting = Residency::detect();
        let reports = counting.name() == "cachestat";
        assert_eq!(untouched(&counting), reports.then_some(false));
        assert!(!mincore.resident(&file, 0, 4096).unwrap());
        warm(&file, 0, CHUNK_BYTES as usize);
        assert_eq!(untouched(&counting), reports.then_some(true));
        assert_eq!(untouched(&untold), None);
    });
}

#[test]
fn read_gives_bytes_only_when_they_are_in_memory() {
    repeat_if_disturbed(|| {
        let tree = directory();
        let test = "read_gives_bytes_only_when_they_are_in_memory";
        let Some(file) = cold(test, &tree, 10_000) else {
            return;
        };
        let mut buffer = [0; 20_000];
        // The kernel starts to read what it does not have, so the cold answer can be had only once.
        assert_eq!(read_nowait(&file, &mut buffer, 0).unwrap(), None);
        warm(&file, 0, 10_000);
        assert_eq!(read_nowait(&file, &mut buffer, 4000).unwrap(), Some(6000));
        assert!(buffer[..6000].iter().all(|byte| *byte == 5));
        assert_eq!(read_nowait(&file, &mut buffer, 10_000).unwrap(), Some(0));
        assert_eq!(read_nowait(&file, &mut [], 0).unwrap(), Some(0));
    });
}

#[test]
fn file_in_tmpfs_is_resident_when_it_has_no_holes() {
    let test = "file_in_tmpfs_is_resident_when_it_has_no_holes";
    let Ok(tree) = tempfile::tempdir_in("/dev/shm") else {
        return skip(test, "there is no tmpfs at /dev/shm");
    };
    put(tree.path(), "a", &[5; 10_000]);
    let file = open(tree.path(), "a");
    for kind in KINDS {
        assert!(Residency::with(kind).resident(&file, 0, 10_000).unwrap());
    }
    assert_eq!(
        read_nowait(&file, &mut [0; 20_000], 1).unwrap(),
        Some(9_999)
    );
}

/// procfs stands for every file system that does not promise to answer from memory.
#[test]
fn copying_is_left_to_helpers_when_the_file_system_may_always_wait() {
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let tree = directory();
    put(tree.path(), "a", &[5; 10_000]);
    let file = OpenFile::new(file.into(), *open(tree.path(), "a").meta());
    for kind in KINDS {
        let error = Residency::with(kind).resident(&file, 0, 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let error = read_nowait(&file, &mut [0; 10], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// cachestat reports residency only to users that may write the file; a page-wise read reports it
/// to all.
#[test]
fn residency_is_exact_when_the_file_is_another_users() {
    repeat_if_disturbed(|| {
        let test = "residency_is_exact_when_the_file_is_another_users";
        if !is_root() {
            return skip(test, "becoming another user needs root");
        }
        let tree = directory();
        let Some(file) = cold(test, &tree, CHUNK_BYTES as usize) else {
            return;
        };
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let probe = Residency::detect();
        warm(&file, 0, CHUNK_BYTES as usize - 4096);
        assert!(!probe.resident(&file, 0, CHUNK_BYTES).unwrap());
        warm(&file, 0, CHUNK_BYTES as usize);
        assert!(probe.resident(&file, 0, CHUNK_BYTES).unwrap());
    });
}

#[test]
fn last_chunk_ends_with_the_file() {
    assert_eq!(chunk_of(0, 10), (0, 10));
    assert_eq!(chunk_of(CHUNK_BYTES - 1, 3 * CHUNK_BYTES), (0, CHUNK_BYTES));
    assert_eq!(
        chunk_of(2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 7),
        (2 * CHUNK_BYTES, 7)
    );
    assert_eq!(chunk_of(5 * CHUNK_BYTES, 7), (5 * CHUNK_BYTES, 0));
}
