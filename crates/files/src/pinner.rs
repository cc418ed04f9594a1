//! Page-cache pinning: small files whose pages are locked in memory.
//!
//! What it does: maps small files and locks their pages with mlock(2), within a limit. Locking may
//! wait for the disk, so it runs in a thread of its own ([`Pinner`], in the open-file service) or
//! in the store process ([`crate::store`], for all workers of the web server). The pages belong to
//! the page cache, so every process that reads the file finds them, with its own access rights. The
//! kernel also keeps the name of a mapped file in its cache.
//!
//! What it refuses: to make its callers wait (a file that does not fit into the queue is not pinned
//! this time), files larger than [`FILE_BYTES_MAX`], to take more than half of the memory that the
//! page cache could use, and to know which processes use the files.
//!
//! Why: the page cache evicts the least recently used pages, whatever the size of their file. One
//! file of a megabyte evicts two hundred small ones. Reading those again takes two hundred seeks of
//! a disk; reading the large file again takes a few.
//!
//! Sources: mlock(2), `Documentation/mm/unevictable-lru.rst`; for the choice of files
//! [`headway_base::GreedyDualSize`].

mod limited_cache;

use crate::file::{Meta, OpenFile};
use crate::filesystem::TMPFS_MAGIC;
use headway_os::encoding;
use headway_os::mapping::{Mapping, lockable_bytes};
use headway_os::residency::page_bytes;
use limited_cache::LimitedCache;
use rustix::fd::OwnedFd;
use rustix::fs::fstatfs;
use rustix::io::fcntl_dupfd_cloexec;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Larger files are not pinned. From this size on, transferring the data takes about as long as the
/// seek.
const FILE_BYTES_MAX: u64 = 128 * 1024;

/// At most one part in this many of the memory available to the page cache is pinned.
const MEMORY_DIVISOR: u64 = 2;

/// Interval between checks of the available memory. The kernel cannot reclaim locked pages, so
/// pinning too much triggers the OOM killer.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Interval between checks for deleted and replaced files, which still occupy disk space while they
/// are pinned.
const DELETED_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Length of the queue to the thread. Each entry holds a descriptor.
const QUEUE_MAX: usize = 64;

/// Each pinned file is a mapping. The kernel limits the mappings of a process (`vm.max_map_count`);
/// half of them are left for everything else.
const MAPPINGS_FILE: &str = "/proc/sys/vm/max_map_count";
const MAPPINGS_MAX: usize = 65_530;

/// How much may be pinned.
#[derive(Clone, Copy, Debug)]
pub struct PinLimits {
    /// Limit in bytes, in whole pages; 0 turns pinning off.
    pub bytes_max: u64,
    /// Returns the memory that is available for other uses, without the pinned pages, or `None` if
    /// it is unknown. Called in a thread that may block. At most half of this memory and the pinned
    /// pages together is pinned.
    pub available: fn() -> Option<u64>,
}

/// Counters of the pinner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinStatistics {
    /// Gauge: pinned files.
    pub files: u64,
    /// Gauge: pinned bytes, in whole pages.
    pub bytes: u64,
    /// Gauge: the limit in bytes with the memory that is available now.
    pub bytes_max: u64,
    /// Files evicted: for other files, because memory became scarce, or because they were deleted.
    pub evicted: u64,
    /// Files not pinned: the queue or the limit was full, the file was no longer in memory, or the
    /// kernel refused.
    pub rejected: u64,
}

encoding! {
    struct PinStatistics { files, bytes, bytes_max, evicted, rejected }
}

/// [`PinStatistics`] as the thread updates them.
#[derive(Debug, Default)]
struct SharedStatistics {
    files: AtomicU64,
    bytes: AtomicU64,
    bytes_max: AtomicU64,
    evicted: AtomicU64,
    rejected: AtomicU64,
}

/// The handle of the thread that pins files.
#[derive(Debug)]
pub(crate) struct Pinner {
    queue: SyncSender<Candidate>,
    statistics: Arc<SharedStatistics>,
}

/// A file that may be pinned.
#[derive(Debug)]
pub(crate) struct Candidate {
    file: OwnedFd,
    meta: Meta,
}

/// Whether files of this size are pinned.
pub(crate) fn takes(bytes: u64) -> bool {
    (1..=FILE_BYTES_MAX).contains(&bytes)
}

/// How much of `wanted` can be pinned within `RLIMIT_MEMLOCK`.
///
/// # Example
/// ```
/// assert!(headway_files::pinnable_bytes(4096) <= 4096);
/// ```
pub fn pinnable_bytes(wanted: u64) -> u64 {
    lockable_bytes().map_or(wanted, |most| wanted.min(most))
}

impl Candidate {
    /// A file that a worker has sent.
    pub(crate) fn new(file: OwnedFd) -> Option<Candidate> {
        let meta: Meta = headway_os::open::status(&file).ok()?.into();
        takes(meta.size).then_some(Candidate { file, meta })
    }
}

impl Pinner {
    /// Starts the thread, which ends when the pinner is dropped. `None` if nothing can be pinned.
    pub(crate) fn start(limits: PinLimits) -> io::Result<Option<Pinner>> {
        let bytes_max = pinnable_bytes(limits.bytes_max);
        if bytes_max == 0 {
            return Ok(None);
        }
        let (queue, candidates) = sync_channel(QUEUE_MAX);
        let statistics = Arc::new(SharedStatistics::default());
        let shared = Arc::clone(&statistics);
        let limits = PinLimits {
            bytes_max,
            ..limits
        };
        let pin = move || PinnedFiles::with_statistics(limits, shared).run(&candidates);
        let thread = std::thread::Builder::new().name("pinner".into());
        thread.spawn(pin).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot start the thread that pins small files: {error}"),
            )
        })?;
        Ok(Some(Pinner { queue, statistics }))
    }

    /// Submits a file that a client had to wait for, of which `read_in` bytes are in memory now.
    /// Never blocks.
    pub(crate) fn submit(&self, file: &OpenFile, read_in: u64) {
        let meta = *file.meta();
        if !takes(meta.size) || meta.size > read_in {
            return;
        }
        let sent = fcntl_dupfd_cloexec(file, 0)
            .is_ok_and(|file| self.queue.try_send(Candidate { file, meta }).is_ok());
        if !sent {
            self.statistics.rejected.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn statistics(&self) -> PinStatistics {
        self.statistics.now()
    }
}

impl SharedStatistics {
    fn now(&self) -> PinStatistics {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PinStatistics {
            files: now(&self.files),
            bytes: now(&self.bytes),
            bytes_max: now(&self.bytes_max),
            evicted: now(&self.evicted),
            rejected: now(&self.rejected),
        }
    }
}

/// The pinned files, owned by the thread or process that pins.
pub(crate) struct PinnedFiles {
    limits: PinLimits,
    /// The pinned files by device and inode.
    files: LimitedCache<(u64, u64), Mapping>,
    statistics: Arc<SharedStatistics>,
    deleted_checked: Instant,
    /// The kernel has refused to lock more.
    limit_met: bool,
}

/// The limits of pinned files and of stored bodies, from the bytes of each and the highest limit of each.
/// Both together take at most half of the memory that is available to them, in proportion to these limits.
/// If that memory is unknown, neither grows.
pub(crate) fn memory_shares(
    available: Option<u64>,
    (pinned, pinned_max): (u64, u64),
    (stored, stored_max): (u64, u64),
) -> (u64, u64) {
    let Some(available) = available else {
        return (pinned.min(pinned_max), stored.min(stored_max));
    };
    let total = u128::from(available) + u128::from(pinned) + u128::from(stored);
    let total = total / u128::from(MEMORY_DIVISOR);
    let wanted = u128::from(pinned_max) + u128::from(stored_max);
    let share = |most: u64| match wanted > total {
        true => (total * u128::from(most) / wanted) as u64,
        false => most,
    };
    (share(pinned_max), share(stored_max))
}

impl PinnedFiles {
    pub(crate) fn new(limits: PinLimits) -> PinnedFiles {
        PinnedFiles::with_statistics(limits, Arc::default())
    }

    fn with_statistics(limits: PinLimits, statistics: Arc<SharedStatistics>) -> PinnedFiles {
        PinnedFiles {
            limits,
            files: LimitedCache::new(0, mappings_max() / 2),
            statistics,
            deleted_checked: Instant::now(),
            limit_met: false,
        }
    }

    /// Pins what comes until the other end of the queue is dropped.
    fn run(mut self, queue: &Receiver<Candidate>) {
        let mut memory_checked: Option<Instant> = None;
        loop {
            if memory_checked.is_none_or(|at| at.elapsed() >= MEMORY_CHECK_INTERVAL) {
                let pinned = (self.files.bytes(), self.limits.bytes_max);
                let (limit, _) = memory_shares((self.limits.available)(), pinned, (0, 0));
                self.set_limit(limit);
                memory_checked = Some(Instant::now());
            }
            self.evict_deleted_if_due();
            // With no pinned file there is nothing to check.
            let received = match self.is_empty() {
                true => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => queue.recv_timeout(MEMORY_CHECK_INTERVAL),
            };
            match received {
                Ok(candidate) => self.take(&candidate),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Pins a file, if it can be.
    pub(crate) fn take(&mut self, candidate: &Candidate) {
        if self.pin(candidate).is_none() {
            self.statistics.rejected.fetch_add(1, Ordering::Relaxed);
        }
        self.publish();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.len() == 0
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// The part of this number of bytes that may be locked.
    pub(crate) fn bytes_max(&mut self, wanted: u64) -> u64 {
        if !self.limit_met {
            self.limits.bytes_max = pinnable_bytes(wanted);
        }
        self.limits.bytes_max
    }

    pub(crate) fn statistics(&self) -> PinStatistics {
        self.statistics.now()
    }

    /// Changes the limit.
    pub(crate) fn set_limit(&mut self, bytes_max: u64) {
        let shown = &self.statistics.bytes_max;
        shown.store(bytes_max, Ordering::Relaxed);
        let evicted = self.files.set_limit(bytes_max);
        self.count_evicted(&evicted);
        self.publish();
    }

    /// Evicts deleted files from time to time.
    pub(crate) fn evict_deleted_if_due(&mut self) {
        if self.deleted_checked.elapsed() >= DELETED_CHECK_INTERVAL {
            self.deleted_checked = Instant::now();
            self.evict_deleted();
            self.publish();
        }
    }

    fn pin(&mut self, candidate: &Candidate) -> Option<()> {
        let key = (candidate.meta.device, candidate.meta.inode);
        let length = candidate.meta.size as usize;
        let bytes = candidate.meta.size.next_multiple_of(page_bytes());
        // A tmpfs has no disk, so pinning its files gains nothing.
        if fstatfs(&candidate.file).is_ok_and(|system| system.f_type == TMPFS_MAGIC) {
            return None;
        }
        // A file that is pinned already may have lost pages when it was rewritten.
        let mapping = match self.files.remove(&key) {
            Some(mapping) if mapping.length() == length => mapping,
            _ => Mapping::new(&candidate.file, 0, length).ok()?,
        };
        // A file that was evicted or truncated since is not read here: that could take long, and
        // other files and the memory check would wait.
        if !mapping.is_resident(0..length).ok()? {
            return None;
        }
        let evicted = self.files.make_room(bytes)?;
        self.count_evicted(&evicted);
        drop(evicted);
        if mapping.hold().is_err() {
            // The file is in memory, so the kernel has a limit that we did not know of: root in a
            // user namespace has the capability, but may not use it.
            (self.limits.bytes_max, self.limit_met) = (self.files.bytes(), true);
            return None;
        }
        self.files.insert(key, bytes, mapping);
        Some(())
    }

    /// Evicts deleted files. proc_pid_maps(5) marks their mappings, so no descriptor is needed. A
    /// file whose name ends like the mark is evicted too.
    fn evict_deleted(&mut self) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let deleted: HashSet<usize> = maps
            .lines()
            .filter(|line| line.ends_with(" (deleted)"))
            .filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok())
            .collect();
        let evicted = self
            .files
            .remove_where(|mapping| deleted.contains(&mapping.address()));
        self.count_evicted(&evicted);
    }

    fn count_evicted(&self, evicted: &[Mapping]) {
        let count = evicted.len() as u64;
        self.statistics.evicted.fetch_add(count, Ordering::Relaxed);
    }

    /// Updates the gauges.
    fn publish(&self) {
        let (files, bytes) = (self.files.len() as u64, self.files.bytes());
        self.statistics.files.store(files, Ordering::Relaxed);
        self.statistics.bytes.store(bytes, Ordering::Relaxed);
    }
}

fn mappings_max() -> usize {
    let text = std::fs::read_to_string(MAPPINGS_FILE).unwrap_or_default();
    text.trim().parse().unwrap_or(MAPPINGS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn pinned_files() -> PinnedFiles {
        let limits = PinLimits {
            bytes_max: 1 << 20,
            available: || Some(1 << 40),
        };
        PinnedFiles {
            files: LimitedCache::new(limits.bytes_max, 100),
            ..PinnedFiles::new(limits)
        }
    }

    fn candidate(path: &Path) -> Candidate {
        let file: OwnedFd = fs::File::open(path).unwrap().into();
        let meta = headway_os::open::status(&file).unwrap().into();
        Candidate { file, meta }
    }

    /// A folder in the source tree, since files on a tmpfs are not pinned.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
    }

    #[test]
    fn deleted_and_replaced_files_are_evicted_by_the_check() {
        let (folder, mut pinned) = (folder(), pinned_files());
        let path = |name: &str| folder.path().join(name);
        for name in ["stays", "deleted", "replaced"] {
            fs::write(path(name), name).unwrap();
            let done = pinned.pin(&candidate(&path(name)));
            assert!(
                done.is_some(),
                "{name} is in memory, and a page may be locked"
            );
        }
        fs::remove_file(path("deleted")).unwrap();
        fs::write(path("new"), "new").unwrap();
        fs::rename(path("new"), path("replaced")).unwrap();
        assert_eq!(pinned.files.len(), 3);
        pinned.evict_deleted();
        assert_eq!(pinned.files.len(), 1);
        let stays = candidate(&path("stays")).meta;
        assert!(pinned.files.remove(&(stays.device, stays.inode)).is_some());
    }

    #[test]
    fn pinned_and_stored_take_half_of_what_is_available_in_proportion() {
        let shares = |available, pinned, stored| memory_shares(available, pinned, stored);
        assert_eq!(shares(Some(1000), (0, 100), (0, 400)), (100, 400));
        assert_eq!(shares(Some(1000), (0, 1000), (0, 3000)), (125, 375));
        assert_eq!(shares(Some(0), (60, 100), (40, 100)), (25, 25));
        assert_eq!(
            shares(Some(u64::MAX), (7, u64::MAX), (9, 0)),
            ((1 << 63) + 7, 0)
        );
        assert_eq!(
            shares(None, (60, 100), (400, 100)),
            (60, 100),
            "neither grows"
        );
    }

    #[test]
    fn nothing_is_evicted_for_a_file_that_was_truncated_meanwhile() {
        let (folder, mut pinned) = (folder(), pinned_files());
        let path = folder.path().join("file");
        fs::write(&path, [7; 10_000]).unwrap();
        let stale = candidate(&path);
        fs::write(&path, [7; 100]).unwrap();
        assert!(pinned.pin(&stale).is_none());
        assert_eq!(pinned.limits.bytes_max, 1 << 20, "no limit was met");
        assert!(pinned.pin(&candidate(&path)).is_some());
        assert_eq!(pinned.files.bytes(), page_bytes());
    }
}
