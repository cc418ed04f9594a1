//! Small files that a client had to wait for are pinned, within limits.

use super::running::*;
use crate::common::turn_to_lock_memory;
use headway_files::service::wire::Answered;
use headway_files::{PinLimits, PinStatistics, pinnable_bytes};
use headway_os::residency::{mincore, page_bytes};
use headway_test_support::skip;
use headway_test_support::wait_until;
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

const SMALL: usize = 10_000;
const LIMIT_BYTES: u64 = 4 << 20;

/// In this order: the service ends before the next test's turn.
struct Keeping {
    running: RunningService,
    _turn: MutexGuard<'static, ()>,
}

/// A service that keeps files.
fn keeping(available: fn() -> Option<u64>) -> Keeping {
    let turn = turn_to_lock_memory();
    // The thread of the last test's service ends a moment after that.
    wait_until("something else is locked", || locked_kilobytes() == 0);
    let mut running = RunningService::without_helpers(|config| {
        config.pin = PinLimits {
            bytes_max: LIMIT_BYTES,
            available,
        };
    });
    running.give_helpers();
    Keeping {
        running,
        _turn: turn,
    }
}

fn plenty() -> Option<u64> {
    Some(1 << 40)
}

/// A file that is on the disk alone; `None` where the file system keeps files in memory, or nothing
/// may be locked.
fn cold(running: &RunningService, name: &str, bytes: usize) -> Option<PathBuf> {
    let path = running.put(name, &vec![7; bytes]);
    File::open(&path).unwrap().sync_all().unwrap();
    forget(&path);
    (resident(&path) == 0 && pinnable_bytes(LIMIT_BYTES) == LIMIT_BYTES).then_some(path)
}

/// Have the kernel give up what it will of the file's pages.
fn forget(path: &Path) {
    fadvise(File::open(path).unwrap(), 0, None, Advice::DontNeed).unwrap();
}

fn resident(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    mincore(&file, 0, length).unwrap()
}

fn statistics(running: &RunningService) -> PinStatistics {
    running.remote().statistics().unwrap().pinned
}

fn until(running: &RunningService, is: impl Fn(PinStatistics) -> bool) -> PinStatistics {
    wait_until("not pinned as expected", || is(statistics(running)));
    statistics(running)
}

fn locked_kilobytes() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kilobytes = line.unwrap().trim().split(' ').next();
    kilobytes.unwrap().parse().unwrap()
}

/// Needs: a file system whose pages leave memory, and RLIMIT_MEMLOCK of 4 MiB
#[test]
fn small_file_stays_in_memory_when_a_client_had_to_wait_for_it() {
    const TEST: &str = "small_file_stays_in_memory_when_a_client_had_to_wait_for_it";
    let Keeping { running, _turn } = &keeping(plenty);
    let (Some(small), Some(large), Some(unasked)) = (
        cold(running, "small", SMALL),
        cold(running, "large", 1 << 20),
        cold(running, "unasked", SMALL),
    ) else {
        return skip(TEST, "files do not leave memory here, or may not be locked");
    };
    let mut client = running.client();
    for path in [&large, &small] {
        assert_eq!(client.answer(path), Answered::Done);
    }
    let whole = (SMALL as u64).next_multiple_of(page_bytes());
    let pinned = until(running, |pinned| pinned.files > 0);
    assert_eq!((pinned.files, pinned.bytes, pinned.rejected), (1, whole, 0));
    assert_eq!(locked_kilobytes(), whole / 1024);
    for path in [&small, &large, &unasked] {
        forget(path);
    }
    assert_eq!(resident(&small), whole / page_bytes());
    assert_eq!((resident(&large), resident(&unasked)), (0, 0));
}

/// Needs: a file system whose pages leave memory, and RLIMIT_MEMLOCK of 4 MiB
#[test]
fn lowest_priority_is_evicted_when_more_is_requested_than_may_be_pinned() {
    const TEST: &str = "lowest_priority_is_evicted_when_more_is_requested_than_may_be_pinned";
    // Half of this and of the pinned bytes is pinned: it comes near to four files of ten pages,
    // from two of them on.
    let Keeping { running, _turn } = &keeping(|| Some(200_000));
    let mut client = running.client();
    let mut request = |name: String, bytes| {
        let path = cold(running, &name, bytes)?;
        let before = statistics(running);
        assert_eq!(client.answer(&path), Answered::Done);
        let happened = |pinned: PinStatistics| pinned.files + pinned.evicted + pinned.rejected;
        until(running, |now| happened(now) > happened(before));
        Some(path)
    };
    let Some(little) = request("little".into(), 1000) else {
        return skip(TEST, "files do not leave memory here, or may not be locked");
    };
    let paths: Vec<_> = (0..12)
        .map(|at| request(format!("file{at}"), 40_000).expect("the first one was cold"))
        .collect();
    let pinned = until(running, |pinned| pinned.bytes <= 200_000);
    assert!(pinned.evicted >= 8 && pinned.files >= 3, "{pinned:?}");
    paths.iter().for_each(|path| forget(path));
    forget(&little);
    assert_eq!(resident(&paths[0]), 0, "the oldest of the larger ones");
    assert!(resident(&little) > 0, "a fortieth of the size");
}

static AVAILABLE: AtomicU64 = AtomicU64::new(1 << 40);

/// Needs: a file system whose pages leave memory, and RLIMIT_MEMLOCK of 4 MiB
#[test]
fn all_files_are_unpinned_when_memory_is_short() {
    const TEST: &str = "all_files_are_unpinned_when_memory_is_short";
    let Keeping { running, _turn } = &keeping(|| Some(AVAILABLE.load(Ordering::Relaxed)));
    let mut client = running.client();
    for at in 0..5 {
        let Some(path) = cold(running, &format!("file{at}"), SMALL) else {
            return skip(TEST, "files do not leave memory here, or may not be locked");
        };
        client.answer(&path);
    }
    until(running, |pinned| pinned.files == 5);
    AVAILABLE.store(0, Ordering::Relaxed);
    let pinned = until(running, |pinned| pinned.files == 0);
    assert_eq!((pinned.bytes, pinned.evicted), (0, 5));
    assert_eq!(locked_kilobytes(), 0);
}

/// Needs: a file system whose pages leave memory, and RLIMIT_MEMLOCK of 4 MiB
#[test]
fn file_is_pinned_in_its_new_length_when_it_was_rewritten() {
    const TEST: &str = "file_is_pinned_in_its_new_length_when_it_was_rewritten";
    let Keeping { running, _turn } = &keeping(plenty);
    let mut client = running.client();
    let Some(path) = cold(running, "file", 50_000) else {
        return skip(TEST, "files do not leave memory here, or may not be locked");
    };
    client.answer(&path);
    until(running, |pinned| pinned.files == 1);
    // Its pages are truncated while they are mapped and locked, which must not cause a fault.
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(100)
        .unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(90_000)
        .unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    forget(&path);
    assert_eq!(client.answer(&path), Answered::Done);
    let whole = 90_000_u64.next_multiple_of(page_bytes());
    let pinned = until(running, |pinned| pinned.bytes == whole);
    assert_eq!((pinned.files, pinned.evicted), (1, 0));
    assert_eq!(locked_kilobytes(), whole / 1024);
}

/// Needs: a file system whose pages leave memory, and RLIMIT_MEMLOCK of 4 MiB
#[test]
fn limit_does_not_rise_when_the_available_memory_is_unknown() {
    const TEST: &str = "limit_does_not_rise_when_the_available_memory_is_unknown";
    let Keeping { running, _turn } = &keeping(|| None);
    let mut client = running.client();
    let Some(path) = cold(running, "file", SMALL) else {
        return skip(TEST, "files do not leave memory here, or may not be locked");
    };
    client.answer(&path);
    let pinned = until(running, |pinned| pinned.rejected == 1);
    assert_eq!((pinned.files, pinned.bytes_max), (0, 0));
}
