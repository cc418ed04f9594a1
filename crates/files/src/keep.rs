//! The small files that stay in memory, whatever else the page cache needs room for.
//!
//! What it does: maps files that are offered and locks their pages, within a bound. Locking may
//! wait for the disk, so whoever serves does it in a thread of its own ([`Keeper`]: the open-file
//! service, which offers what somebody had to wait for) or has a process for it ([`process`]: all
//! workers of the web server, which offer what comes into their memory). They are pages of the page
//! cache, so that every process that reads the file finds them, by its own rights; and a mapped
//! file's name stays known to the kernel, too. What it refuses: to be waited for (what does not fit
//! into its queue is not kept this time), files beyond [`FILE_BYTES_MAX`], to take more than half
//! of what the page cache could have, and to know who uses what it keeps: nobody asks for what is
//! in memory.
//!
//! Why: the page cache gives up what was used longest ago, whatever its size. One file of a
//! megabyte pushes out two hundred that were read with as many movements of a disk's head; to read
//! it again takes a few.
//!
//! Sources: mlock(2), `Documentation/mm/unevictable-lru.rst`; what is kept, [`choice`].

mod choice;
mod process;

pub use process::{KeeperSocket, keeper_main, told_by_keeper};

use crate::file::{Meta, OpenFile};
use crate::filesystem::TMPFS_MAGIC;
use choice::Choice;
use headway_os::mapping::{Mapping, lockable_bytes};
use headway_os::residency::page_bytes;
use rustix::fd::OwnedFd;
use rustix::fs::fstatfs;
use rustix::io::fcntl_dupfd_cloexec;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Larger files are not kept: here reading a disk begins to take as long as finding the place.
const FILE_BYTES_MAX: u64 = 128 * 1024;

/// Of the memory that files could have, one part in so many is for those that are kept: the others
/// pass through the rest.
const SHARE: u64 = 2;

/// How much memory there is is looked at so often. What is locked the kernel cannot take for a
/// process that needs it, and ends one.
const LOOK: Duration = Duration::from_millis(500);

/// So often those go that have been deleted or replaced: nobody asks for them, and they hold their
/// space on the disk.
const SWEEP: Duration = Duration::from_secs(30);

/// Files on their way to the thread at most, each with a descriptor.
const OFFERS_MAX: usize = 64;

/// Each file kept is a mapping, and a process may have so many (`vm.max_map_count`); half of them
/// are for everything else.
const MAPPINGS_FILE: &str = "/proc/sys/vm/max_map_count";
const MAPPINGS_MAX: usize = 65_530;

/// How much may be kept.
#[derive(Clone, Copy, Debug)]
pub struct KeepLimits {
    /// Bytes at most, in whole pages; 0: nothing is kept.
    pub bytes_max: u64,
    /// The memory that could be had for something else now, what is kept left out, if that can be
    /// found out; called by a thread that may wait. Half of that and of what is kept together is
    /// kept at most.
    pub available: fn() -> Option<u64>,
}

/// What is kept, and what became of the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepStatistics {
    /// Gauge: files kept.
    pub files: u64,
    /// Gauge: their bytes, in whole pages.
    pub bytes: u64,
    /// Gauge: bytes at most, as memory is now.
    pub bytes_max: u64,
    /// Files given up: for others, because memory has become short, or because they were deleted.
    pub let_go: u64,
    /// Files not kept: too many came at once, there was no room, they had left memory again, or the
    /// kernel refused.
    pub missed: u64,
}

/// The same, as the thread counts.
#[derive(Debug, Default)]
struct Kept {
    files: AtomicU64,
    bytes: AtomicU64,
    bytes_max: AtomicU64,
    let_go: AtomicU64,
    missed: AtomicU64,
}

/// Our end of the thread that keeps files.
#[derive(Debug)]
pub(crate) struct Keeper {
    offers: SyncSender<Offer>,
    kept: Arc<Kept>,
}

#[derive(Debug)]
struct Offer {
    file: OwnedFd,
    meta: Meta,
}

/// So much of `wanted` can be kept: what may be locked bounds it (`RLIMIT_MEMLOCK`).
pub fn keepable_bytes(wanted: u64) -> u64 {
    lockable_bytes().map_or(wanted, |most| wanted.min(most))
}

impl Keeper {
    /// Keep files from now on, until this is dropped. `None` where nothing can be kept.
    pub(crate) fn start(limits: KeepLimits) -> io::Result<Option<Keeper>> {
        let bytes_max = keepable_bytes(limits.bytes_max);
        if bytes_max == 0 {
            return Ok(None);
        }
        let (offers, mut queue) = sync_channel(OFFERS_MAX);
        let kept = Arc::new(Kept::default());
        let told = Arc::clone(&kept);
        let limits = KeepLimits {
            bytes_max,
            ..limits
        };
        let keep = move || {
            // Nobody is left to be told of an error: the queue ends as the service does.
            let _ = Keep::new(limits, told).run(&mut queue);
        };
        let thread = std::thread::Builder::new().name("keep".into());
        thread.spawn(keep).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("a thread to keep small files: {error}"),
            )
        })?;
        Ok(Some(Keeper { offers, kept }))
    }

    /// Somebody had to wait for this file, of which `read_in` bytes are in memory now. Never waits.
    pub(crate) fn offer(&self, file: &OpenFile, read_in: u64) {
        let meta = *file.meta();
        if meta.size == 0 || meta.size > read_in.min(FILE_BYTES_MAX) {
            return;
        }
        let sent = fcntl_dupfd_cloexec(file, 0)
            .is_ok_and(|file| self.offers.try_send(Offer { file, meta }).is_ok());
        if !sent {
            self.kept.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn statistics(&self) -> KeepStatistics {
        self.kept.now()
    }
}

impl Kept {
    fn now(&self) -> KeepStatistics {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        KeepStatistics {
            files: now(&self.files),
            bytes: now(&self.bytes),
            bytes_max: now(&self.bytes_max),
            let_go: now(&self.let_go),
            missed: now(&self.missed),
        }
    }
}

/// Where files to be kept come from.
trait Offers {
    /// The next one, within a time.
    fn next(&mut self, patience: Duration) -> io::Result<Offered>;
}

enum Offered {
    File(Offer),
    /// So many bytes are kept at most from now on.
    Bound(u64),
    Nothing,
    End,
}

impl Offers for Receiver<Offer> {
    fn next(&mut self, patience: Duration) -> io::Result<Offered> {
        Ok(match self.recv_timeout(patience) {
            Ok(offer) => Offered::File(offer),
            Err(RecvTimeoutError::Timeout) => Offered::Nothing,
            Err(RecvTimeoutError::Disconnected) => Offered::End,
        })
    }
}

/// Whoever keeps has this.
struct Keep {
    limits: KeepLimits,
    /// By device and inode.
    files: Choice<(u64, u64), Mapping>,
    kept: Arc<Kept>,
}

impl Keep {
    fn new(limits: KeepLimits, kept: Arc<Kept>) -> Keep {
        Keep {
            limits,
            files: Choice::new(0, mappings_max() / 2),
            kept,
        }
    }

    fn run(mut self, offers: &mut impl Offers) -> io::Result<()> {
        let (mut looked, mut swept): (Option<Instant>, _) = (None, Instant::now());
        loop {
            if looked.is_none_or(|at| at.elapsed() >= LOOK) {
                self.heed_memory();
                looked = Some(Instant::now());
            }
            if swept.elapsed() >= SWEEP {
                self.let_deleted_go();
                swept = Instant::now();
            }
            self.tell();
            // Whoever keeps nothing has nothing to look after.
            let patience = match self.files.len() {
                0 => Duration::MAX,
                _ => LOOK,
            };
            match offers.next(patience)? {
                Offered::File(offer) if self.keep(&offer).is_none() => {
                    self.kept.missed.fetch_add(1, Ordering::Relaxed);
                }
                Offered::File(_) | Offered::Nothing => {}
                Offered::Bound(bytes_max) => {
                    self.limits.bytes_max = keepable_bytes(bytes_max);
                    looked = None;
                }
                Offered::End => return Ok(()),
            }
        }
    }

    /// Others may need memory now that was there before. Where nobody can tell, what is kept is
    /// enough.
    fn heed_memory(&mut self) {
        let bytes = self.files.bytes();
        let bytes_max = match (self.limits.available)() {
            Some(available) => available.saturating_add(bytes) / SHARE,
            None => bytes,
        };
        let bytes_max = bytes_max.min(self.limits.bytes_max);
        self.kept.bytes_max.store(bytes_max, Ordering::Relaxed);
        let gone = self.files.bound(bytes_max);
        self.let_go(gone);
    }

    fn keep(&mut self, offer: &Offer) -> Option<()> {
        let key = (offer.meta.device, offer.meta.inode);
        let length = offer.meta.size as usize;
        let bytes = offer.meta.size.next_multiple_of(page_bytes());
        // What is in memory already is not to be taken for a file that a disk would have to be read
        // for.
        if fstatfs(&offer.file).is_ok_and(|system| system.f_type == TMPFS_MAGIC) {
            return None;
        }
        // It may be kept already, and have lost pages as it was rewritten.
        let mapping = match self.files.remove(&key) {
            Some(mapping) if mapping.length() == length => mapping,
            _ => Mapping::new(&offer.file, 0, length).ok()?,
        };
        // What has gone again, or was cut, is not waited for here: there are others to be kept, and
        // memory to be looked after.
        if !mapping.is_resident(0..length).ok()? {
            return None;
        }
        let gone = self.files.make_room(bytes)?;
        self.let_go(gone);
        if mapping.hold().is_err() {
            // It is in memory, so this is a limit that nobody has told us of (a user namespace's
            // root has the right and may not use it).
            self.limits.bytes_max = self.files.bytes();
            return None;
        }
        self.files.insert(key, bytes, mapping);
        Some(())
    }

    /// The kernel says so of mappings, and needs no descriptor for it (proc_pid_maps(5)). A file
    /// with such a name goes with them.
    fn let_deleted_go(&mut self) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let deleted: HashSet<usize> = maps
            .lines()
            .filter(|line| line.ends_with(" (deleted)"))
            .filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok())
            .collect();
        let gone = self
            .files
            .part(|mapping| deleted.contains(&mapping.address()));
        self.let_go(gone);
    }

    fn let_go(&self, gone: Vec<Mapping>) {
        self.kept
            .let_go
            .fetch_add(gone.len() as u64, Ordering::Relaxed);
    }

    fn tell(&self) {
        let files = self.files.len() as u64;
        self.kept.files.store(files, Ordering::Relaxed);
        self.kept.bytes.store(self.files.bytes(), Ordering::Relaxed);
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

    fn keep() -> Keep {
        let limits = KeepLimits {
            bytes_max: 1 << 20,
            available: || Some(1 << 40),
        };
        Keep {
            limits,
            files: Choice::new(limits.bytes_max, 100),
            kept: Arc::default(),
        }
    }

    fn offer(path: &Path) -> Offer {
        let file: OwnedFd = fs::File::open(path).unwrap().into();
        let meta = headway_os::open::status(&file).unwrap().into();
        Offer { file, meta }
    }

    /// In the build's own folder: what lies in memory alone is not kept.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
    }

    #[test]
    fn deleted_and_replaced_files_go_when_they_are_looked_for() {
        let (folder, mut keep) = (folder(), keep());
        let path = |name: &str| folder.path().join(name);
        for name in ["stays", "deleted", "replaced"] {
            fs::write(path(name), name).unwrap();
            let kept = keep.keep(&offer(&path(name)));
            assert!(
                kept.is_some(),
                "{name} is in memory, and a page may be locked"
            );
        }
        fs::remove_file(path("deleted")).unwrap();
        fs::write(path("new"), "new").unwrap();
        fs::rename(path("new"), path("replaced")).unwrap();
        assert_eq!(keep.files.len(), 3);
        keep.let_deleted_go();
        assert_eq!(keep.files.len(), 1);
        let stays = offer(&path("stays")).meta;
        assert!(keep.files.remove(&(stays.device, stays.inode)).is_some());
    }

    #[test]
    fn nobody_has_to_go_for_a_file_that_was_cut_meanwhile() {
        let (folder, mut keep) = (folder(), keep());
        let path = folder.path().join("file");
        fs::write(&path, [7; 10_000]).unwrap();
        let offered = offer(&path);
        fs::write(&path, [7; 100]).unwrap();
        assert!(keep.keep(&offered).is_none());
        assert_eq!(keep.limits.bytes_max, 1 << 20, "no limit was met");
        assert!(keep.keep(&offer(&path)).is_some());
        assert_eq!(keep.files.bytes(), page_bytes());
    }
}
