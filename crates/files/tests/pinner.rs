//! The process that pins small files for all workers: submissions, pinned files and statistics.

use crate::common;
use common::{directory, open, put, turn_to_lock_memory};
use headway_files::{
    PinStatistics, PinnerSocket, pinnable_bytes, pinner_main, receive_pinner_statistics,
};
use headway_os::fd_passing::{Wait, pair, receive_with_descriptors, send_with_descriptors};
use headway_os::residency::{mincore, page_bytes};
use headway_test_support::skip;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, fadvise};
use rustix::io::IoSlice;
use std::fs::File;
use std::path::Path;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

const LIMIT_BYTES: u64 = 1 << 20;

/// The inodes that were offered.
fn submitted(pinner: &OwnedFd) -> Vec<u64> {
    let (mut inodes, mut message) = (Vec::new(), [0; 16]);
    while let Some(received) =
        receive_with_descriptors(pinner, &mut message, 1, Wait::Never).unwrap()
    {
        assert_eq!(message[..received.length], LIMIT_BYTES.to_le_bytes());
        let [file] = &received.descriptors[..] else {
            panic!("{received:?}")
        };
        inodes.push(headway_os::open::status(file).unwrap().inode);
    }
    inodes
}

#[test]
fn small_files_are_submitted_until_the_socket_is_full_or_the_pinner_ends() {
    let tree = directory();
    for (name, bytes) in [
        ("small", 1),
        ("limit", 128 << 10),
        ("large", (128 << 10) + 1),
        ("empty", 0),
    ] {
        put(tree.path(), name, &vec![7; bytes]);
    }
    let (ours, pinner) = pair().unwrap();
    let socket = PinnerSocket::new(ours, LIMIT_BYTES);
    let file = |name: &str| open(tree.path(), name);
    let taken = ["small", "large", "limit", "empty"].map(|name| socket.submit(&file(name)));
    assert_eq!(taken, [true, false, true, false]);
    let expected = ["small", "limit"].map(|name| file(name).meta().inode);
    assert_eq!(submitted(&pinner), expected);
    let small = file("small");
    let count = (0..100_000).take_while(|_| socket.submit(&small)).count();
    assert!((1..100_000).contains(&count), "{count}");
    assert_eq!(submitted(&pinner).len(), count);
    assert!(socket.submit(&small), "there is room again");
    drop(pinner);
    assert!(!socket.submit(&small));
}

/// A pinner in a thread, as a process has it.
struct RunningPinner {
    helpers: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<std::io::Result<()>>>,
    /// The last field, so that the memory is unlocked before the next test's turn.
    _turn: MutexGuard<'static, ()>,
}

impl RunningPinner {
    fn new() -> RunningPinner {
        let turn = turn_to_lock_memory();
        let (helpers, socket) = pair().unwrap();
        let thread = std::thread::spawn(move || pinner_main(socket, || Some(1 << 40)));
        RunningPinner {
            helpers: Some(helpers),
            thread: Some(thread),
            _turn: turn,
        }
    }

    fn socket(&self) -> &OwnedFd {
        self.helpers.as_ref().unwrap()
    }

    fn offer(&self, path: &Path, bound: u64) {
        let file = File::open(path).unwrap();
        let (message, files) = (bound.to_le_bytes(), [file.as_fd()]);
        let parts = [IoSlice::new(&message)];
        send_with_descriptors(self.socket(), &parts, &files, Wait::Block).unwrap();
    }

    /// Waits until the statistics meet a condition and returns them.
    fn until(&self, is: impl Fn(&PinStatistics) -> bool) -> PinStatistics {
        let begun = Instant::now();
        loop {
            match receive_pinner_statistics(self.socket()).unwrap() {
                Some(kept) if is(&kept) => return kept,
                last => assert!(begun.elapsed() < Duration::from_secs(20), "{last:?}"),
            }
            let timeout = Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            let mut watched = [PollFd::new(self.socket(), PollFlags::IN)];
            poll(&mut watched, Some(&timeout)).unwrap();
        }
    }
}

impl Drop for RunningPinner {
    fn drop(&mut self) {
        self.helpers = None;
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

fn resident(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    mincore(&file, 0, file.metadata().unwrap().len()).unwrap()
}

#[test]
fn submitted_file_stays_in_memory_within_the_limit_until_the_pinner_ends() {
    const TEST: &str = "submitted_file_stays_in_memory_within_the_limit_until_the_pinner_ends";
    let tree = directory();
    let path = |name: &str| tree.path().join(name);
    for name in ["first", "second", "never"] {
        put(tree.path(), name, &[7; 10_000]);
        File::open(path(name)).unwrap().sync_all().unwrap();
    }
    let whole = 10_000_u64.next_multiple_of(page_bytes());
    if resident(&path("never")) > 0 || pinnable_bytes(LIMIT_BYTES) < LIMIT_BYTES {
        return skip(TEST, "files do not leave memory here, or may not be locked");
    }
    put(tree.path(), "first", &[8; 10_000]);
    put(tree.path(), "second", &[8; 10_000]);
    let pinner = RunningPinner::new();
    assert_eq!(pinner.until(|_| true), PinStatistics::default());
    pinner.offer(&path("first"), LIMIT_BYTES);
    let kept = pinner.until(|kept| kept.files == 1);
    assert_eq!(
        (kept.bytes, kept.bytes_max, kept.rejected),
        (whole, LIMIT_BYTES, 0)
    );
    assert_eq!(resident(&path("first")), whole / page_bytes());
    // A smaller limit comes with the next submission, and there is room for one file.
    pinner.offer(&path("second"), whole);
    let kept = pinner.until(|kept| kept.evicted == 1);
    assert_eq!((kept.files, kept.bytes_max), (1, whole));
    File::open(path("first")).unwrap().sync_all().unwrap();
    assert_eq!(resident(&path("first")), 0);
    assert_eq!(resident(&path("second")), whole / page_bytes());
    drop(pinner);
    File::open(path("second")).unwrap().sync_all().unwrap();
    assert_eq!(resident(&path("second")), 0);
}
