//! The store process: stored bodies, pinned files, limits, and workers that end.

use crate::common;
use common::{directory, open, put, turn_to_lock_memory};
use headway_files::{
    DeferredCloses, FileKey, FromStore, FromStoreSocket, StoreLimits, StoreSocket, StoreStatistics,
    ToStore, join_store, pinnable_bytes, receive_store_statistics, store_main, stored_body,
};
use headway_os::fd_passing::pair;
use headway_os::residency::{mincore, page_bytes};
use headway_test_support::skip;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Advice, MemfdFlags, SealFlags, fadvise, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::path::Path;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

const LIMIT_BYTES: u64 = 1 << 20;
const TIMEOUT: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

/// A store process in a thread.
struct Store {
    master: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<std::io::Result<()>>>,
    /// The last field, so that the memory is unlocked before the next test's turn.
    _turn: MutexGuard<'static, ()>,
}

impl Store {
    fn new() -> Store {
        let turn = turn_to_lock_memory();
        let (master, socket) = pair().unwrap();
        let thread = std::thread::spawn(move || store_main(socket, || Some(1 << 40)));
        Store {
            master: Some(master),
            thread: Some(thread),
            _turn: turn,
        }
    }

    fn master(&self) -> &OwnedFd {
        self.master.as_ref().unwrap()
    }

    fn join(&self, limits: StoreLimits) -> Worker {
        let (ours, theirs) = pair().unwrap();
        join_store(self.master(), theirs.as_fd(), limits).unwrap();
        Worker(StoreSocket::new(ours))
    }

    fn worker(&self) -> Worker {
        self.join(StoreLimits {
            store_bytes_max: LIMIT_BYTES,
            files_max: 100,
            pin_bytes_max: 0,
        })
    }

    /// Waits until the statistics meet a condition and returns them.
    fn until(&self, is: impl Fn(&StoreStatistics) -> bool) -> StoreStatistics {
        let begun = Instant::now();
        loop {
            match receive_store_statistics(self.master()).unwrap() {
                Some(now) if is(&now) => return now,
                last => assert!(begun.elapsed() < Duration::from_secs(20), "{last:?}"),
            }
            wait(self.master().as_fd());
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.master = None;
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

fn wait(socket: BorrowedFd<'_>) {
    let mut watched = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    poll(&mut watched, Some(&TIMEOUT)).unwrap();
}

struct Worker(StoreSocket);

impl Worker {
    fn send(&self, message: &ToStore, file: Option<&OwnedFd>) {
        assert!(self.0.send(message, file.map(AsFd::as_fd)));
    }

    fn receive(&self) -> (FromStore, Option<OwnedFd>) {
        loop {
            match self.0.receive() {
                FromStoreSocket::Message(message, file) => return (message, file),
                FromStoreSocket::WouldBlock => wait(self.0.as_fd()),
                FromStoreSocket::End => panic!("the store has ended"),
            }
        }
    }

    fn want(&self, key: FileKey) -> (FromStore, Option<OwnedFd>) {
        self.send(&ToStore::Want { key, always: false }, None);
        self.receive()
    }

    /// Has a copy of this file stored.
    fn store(&self, key: FileKey) -> (u64, OwnedFd) {
        assert_eq!(self.want(key).0, FromStore::Copy { key });
        let copy = copy(key, true);
        self.send(&ToStore::Offer { key }, Some(&copy));
        match self.receive().0 {
            FromStore::Accepted { key: of, number } if of == key => (number, copy),
            other => panic!("{other:?}"),
        }
    }

    fn returned(&self, number: u64) {
        let numbers = vec![number];
        self.send(&ToStore::Returned { numbers }, None);
    }
}

fn key(inode: u64, size: u64) -> FileKey {
    FileKey {
        device: 1,
        inode,
        size,
        changed_s: 1,
        changed_ns: 0,
        modified_s: 1,
        modified_ns: 2,
    }
}

fn copy(key: FileKey, is_sealed: bool) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let copy = memfd_create("copy", flags).unwrap();
    let bytes = vec![key.inode as u8; key.size as usize];
    assert_eq!(rustix::io::write(&copy, &bytes), Ok(bytes.len()));
    if is_sealed {
        let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&copy, all).unwrap();
    }
    copy
}

fn inode(file: &OwnedFd) -> u64 {
    headway_os::open::status(file).unwrap().inode
}

#[test]
fn second_worker_gets_the_memory_that_the_first_one_offered() {
    let store = Store::new();
    let (one, other) = (store.worker(), store.worker());
    let key = key(7, 50_000);
    let (number, copy) = one.store(key);
    let (answer, file) = other.want(key);
    assert_eq!(answer, FromStore::Given { key, number });
    let file = file.unwrap();
    assert_eq!(inode(&file), inode(&copy));
    let closes = DeferredCloses::new();
    let body = stored_body(file, &key, &closes).unwrap();
    assert!(body.is_memory());
    // A worker that has copied it as well gets the first one's.
    other.send(&ToStore::Offer { key }, Some(&self::copy(key, true)));
    let (answer, file) = other.receive();
    assert_eq!(answer, FromStore::Given { key, number });
    assert_eq!(inode(&file.unwrap()), inode(&copy));
    let now = store.until(|now| now.shared == 2);
    assert_eq!(
        (now.files, now.bytes),
        (1, 50_000_u64.next_multiple_of(page_bytes()))
    );
    // It outlives the worker that made it, and not the last one that has it.
    drop((one, copy));
    let third = store.worker();
    assert_eq!(third.want(key).0, FromStore::Given { key, number });
    other.returned(number);
    assert_eq!(third.want(key).0, FromStore::Given { key, number });
    third.returned(number);
    assert_eq!(
        store.until(|now| now.files == 0 && now.shared == 4).bytes,
        0
    );
}

#[test]
fn copy_that_can_change_or_is_of_another_length_is_not_taken() {
    let store = Store::new();
    let worker = store.worker();
    let key = key(7, 50_000);
    let longer = FileKey {
        size: 50_001,
        ..key
    };
    for (offered, made, is_sealed) in [(key, key, false), (longer, key, true)] {
        let memfd = copy(made, is_sealed);
        worker.send(&ToStore::Offer { key: offered }, Some(&memfd));
        assert_eq!(worker.receive().0, FromStore::Refused { key: offered });
        let closes = DeferredCloses::new();
        assert!(
            stored_body(memfd, &offered, &closes).is_none(),
            "nor does a worker"
        );
        assert_eq!(closes.len(), 1, "a helper closes it");
    }
    worker.send(&ToStore::Offer { key }, None);
    assert_eq!(worker.receive().0, FromStore::Refused { key });
    let file = File::open("/proc/self/exe").unwrap().into();
    worker.send(&ToStore::Offer { key }, Some(&file));
    assert_eq!(worker.receive().0, FromStore::Refused { key });
    let now = store.until(|now| now.rejected == 4);
    assert_eq!((now.files, now.bytes), (0, 0));
}

#[test]
fn evicted_body_takes_memory_until_every_worker_has_returned_it() {
    let store = Store::new();
    let (one, other) = (store.worker(), store.worker());
    // Eight of them fill the store.
    let keys: Vec<FileKey> = (0..9).map(|inode| key(inode, LIMIT_BYTES / 8)).collect();
    let numbers: Vec<u64> = keys[..8].iter().map(|key| one.store(*key).0).collect();
    // Two were used, so the third is evicted.
    assert!(matches!(other.want(keys[1]).0, FromStore::Given { .. }));
    assert!(matches!(other.want(keys[0]).0, FromStore::Given { .. }));
    one.send(
        &ToStore::Want {
            key: keys[8],
            always: true,
        },
        None,
    );
    assert_eq!(one.receive().0, FromStore::Evict { number: numbers[2] });
    assert_eq!(one.receive().0, FromStore::Copy { key: keys[8] });
    one.send(&ToStore::Offer { key: keys[8] }, Some(&copy(keys[8], true)));
    assert_eq!(
        one.receive().0,
        FromStore::Refused { key: keys[8] },
        "it is still being sent"
    );
    one.returned(numbers[2]);
    one.send(&ToStore::Offer { key: keys[8] }, Some(&copy(keys[8], true)));
    assert!(matches!(one.receive().0, FromStore::Accepted { .. }));
    let now = store.until(|now| now.evicted == 1 && now.rejected == 1);
    assert_eq!((now.files, now.bytes), (8, LIMIT_BYTES));
}

#[test]
fn nothing_is_left_of_workers_that_end_at_any_time() {
    let store = Store::new();
    for round in 0..200_u64 {
        let worker = store.worker();
        let key = key(round % 5, 20_000 + round);
        worker.send(&ToStore::Want { key, always: true }, None);
        if round % 3 > 0 {
            worker.send(&ToStore::Offer { key }, Some(&copy(key, true)));
        }
        if round % 3 == 2 {
            worker.receive();
        }
    }
    // What they offered is there for others, and goes with the last one that has it.
    let last = store.join(StoreLimits::default());
    store.until(|now| now.evicted > 0 && now.files == 0 && now.bytes == 0);
    drop(last);
}

#[test]
fn small_files_are_submitted_until_the_socket_is_full_or_the_store_ends() {
    let tree = directory();
    for (name, bytes) in [
        ("small", 1),
        ("limit", 128 << 10),
        ("large", (128 << 10) + 1),
        ("empty", 0),
    ] {
        put(tree.path(), name, &vec![7; bytes]);
    }
    let (ours, store) = pair().unwrap();
    let socket = StoreSocket::new(ours);
    let file = |name: &str| open(tree.path(), name);
    let taken = ["small", "large", "limit", "empty"].map(|name| socket.pin(&file(name)));
    assert_eq!(taken, [true, false, true, false]);
    let small = file("small");
    let count = (0..100_000).take_while(|_| socket.pin(&small)).count();
    assert!((1..100_000).contains(&count), "{count}");
    drop(store);
    assert!(!socket.pin(&small));
    assert!(matches!(socket.receive(), FromStoreSocket::End));
}

fn resident(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    mincore(&file, 0, file.metadata().unwrap().len()).unwrap()
}

#[test]
fn submitted_file_stays_in_memory_within_the_limit_until_the_store_ends() {
    const TEST: &str = "submitted_file_stays_in_memory_within_the_limit_until_the_store_ends";
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
    let store = Store::new();
    assert_eq!(store.until(|_| true), StoreStatistics::default());
    let limits = |pin_bytes_max| StoreLimits {
        pin_bytes_max,
        ..StoreLimits::default()
    };
    let worker = store.join(limits(LIMIT_BYTES));
    let offer = |name: &str| {
        let file = File::open(path(name)).unwrap().into();
        worker.send(&ToStore::Pin, Some(&file));
    };
    offer("first");
    let kept = store.until(|now| now.pinned.files == 1).pinned;
    assert_eq!(
        (kept.bytes, kept.bytes_max, kept.rejected),
        (whole, LIMIT_BYTES, 0)
    );
    assert_eq!(resident(&path("first")), whole / page_bytes());
    // With a smaller limit there is room for one file.
    let _other = store.join(limits(whole));
    store.until(|now| now.pinned.bytes_max == whole);
    offer("second");
    let kept = store.until(|now| now.pinned.evicted == 1).pinned;
    assert_eq!((kept.files, kept.bytes_max), (1, whole));
    File::open(path("first")).unwrap().sync_all().unwrap();
    assert_eq!(resident(&path("first")), 0);
    assert_eq!(resident(&path("second")), whole / page_bytes());
    drop(store);
    File::open(path("second")).unwrap().sync_all().unwrap();
    assert_eq!(resident(&path("second")), 0);
}
