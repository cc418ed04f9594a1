//! Whether a chunk of a file is in memory, so that sending it does not block.
//!
//! What it does: chooses the best probe of the kernel, uses it, and reads resident data. What it
//! refuses: to read anything into memory; a helper does that ([`crate::Pool::submit_read_in`]).
//!
//! The result is valid only at that moment: under memory pressure a page can be evicted between the
//! probe and the send. Chunks are small for that reason, and the loop's trace counts the remaining
//! blocks.
//!
//! Sources: the papers' `SF_NODISKIO` and mincore tests (2006 paper §3), `headway_os::residency`.

use crate::file::{Nowait, OpenFile};
use headway_os::residency::{cachestat, mincore, mincore_is_accurate, page_bytes};
use rustix::fs::fcntl_get_seals;
use rustix::io::{Errno, pread};
use std::cell::Cell;
use std::io;

/// The unit in which files are checked, read in and sent: an aligned piece of this many bytes.
pub const CHUNK_BYTES: u64 = 256 * 1024;

/// What a helper reads in at a time of a file that is sent whole, unless there is less of it. Each
/// job costs a disk that seeks one seek, with other jobs' in between; in 1 MiB that is a small part
/// of the time for the transfer.
pub const PREFETCH_BYTES: u64 = 4 * CHUNK_BYTES;

/// Which probe answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeKind {
    /// `cachestat`: counts the cached pages of a range in one call, then one byte is read without
    /// waiting to see that the last page is up to date.
    Cachestat,
    /// `preadv2(RWF_NOWAIT)` of one byte a page.
    Nowait,
    /// mmap and mincore. Truthful only for files this user owns or may write; see
    /// `headway_os::residency::mincore_is_accurate`.
    Mincore,
}

/// The residency probe, chosen once at start. See [`read_nowait`] for an example.
#[derive(Clone, Debug)]
pub struct Residency {
    kind: Cell<ProbeKind>,
}

impl Residency {
    /// Choose the best probe this kernel has.
    pub fn detect() -> Residency {
        let kind = match std::fs::File::open("/proc/self/exe") {
            // EPERM is an answer of the call: it exists. Other files may be our own.
            Ok(file) => match cachestat(&file, 0, 1) {
                Err(Errno::NOSYS) => ProbeKind::Nowait,
                _ => ProbeKind::Cachestat,
            },
            Err(_) => ProbeKind::Nowait,
        };
        Residency::with(kind)
    }

    /// A probe of this kind, whatever the kernel has; for tests and comparisons.
    pub fn with(kind: ProbeKind) -> Residency {
        Residency {
            kind: Cell::new(kind),
        }
    }

    /// The probe's name, for the status page.
    pub fn name(&self) -> &'static str {
        match self.kind.get() {
            ProbeKind::Cachestat => "cachestat",
            ProbeKind::Nowait => "preadv2(RWF_NOWAIT)",
            ProbeKind::Mincore => "mincore",
        }
    }

    /// Whether all of `length` bytes from `offset`, as far as the file goes, are in memory and up
    /// to date.
    ///
    /// Not promised: that a chunk just read into memory is found resident. Memory pressure may
    /// evict it at once, and a hole of a tmpfs file never has pages. After a few attempts have it
    /// copied as well.
    ///
    /// # Errors
    /// `EOPNOTSUPP` (`io::ErrorKind::Unsupported`) if the file system may block even for cached
    /// pages (NFS, FUSE), or keeps them where no probe sees them (another user's files on an
    /// overlay): have a helper copy the contents ([`crate::Pool::submit_copy`]). Others as the call
    /// of the probe.
    pub fn resident(&self, file: &OpenFile, offset: u64, length: u64) -> io::Result<bool> {
        let end = offset.saturating_add(length).min(file.meta().size);
        if offset >= end {
            return Ok(true);
        }
        // Whole pages, since the cache holds nothing smaller.
        let start = offset - offset % page_bytes();
        match (nowait(file)?, self.kind.get()) {
            (Nowait::Memfd, _) => Ok(true),
            (Nowait::Refuses, _) => Err(Errno::OPNOTSUPP.into()),
            (Nowait::InMemory | Nowait::Layered, _) | (_, ProbeKind::Mincore) => {
                by_mincore(file, start, end)
            }
            (_, ProbeKind::Cachestat) => self.by_cachestat(file, start, end),
            (_, ProbeKind::Nowait) => by_nowait(file, start, end),
        }
    }

    /// Whether all of `length` bytes from `offset`, as far as the file goes, are in memory or on
    /// their way there, as far as one call can tell. It is cheaper than [`Residency::resident`],
    /// for a caller that continues with [`Residency::read`], which settles what is still on its
    /// way. Without such a call the result is yes. It avoids reading pages that are certainly
    /// missing, which the kernel would start to read from disk.
    ///
    /// # Errors
    /// As [`Residency::resident`].
    pub fn cached(&self, file: &OpenFile, offset: u64, length: u64) -> io::Result<bool> {
        let end = offset.saturating_add(length).min(file.meta().size);
        if offset >= end || nowait(file)? == Nowait::Memfd {
            return Ok(true);
        }
        let start = offset - offset % page_bytes();
        match (nowait(file)?, self.kind.get()) {
            (Nowait::Refuses, _) => Err(Errno::OPNOTSUPP.into()),
            (Nowait::Answers, ProbeKind::Cachestat) => match cachestat(file, start, end - start) {
                Ok(counted) => Ok(counted.cached >= (end - start).div_ceil(page_bytes())),
                Err(Errno::PERM | Errno::OPNOTSUPP) => Ok(true),
                Err(Errno::NOSYS) => {
                    self.kind.set(ProbeKind::Nowait);
                    Ok(true)
                }
                Err(errno) => Err(errno.into()),
            },
            (Nowait::Layered, _) => by_mincore(file, start, end),
            _ => Ok(true),
        }
    }

    /// Reads what is in memory at `offset` into `buffer`, like [`read_nowait`], but also from an
    /// overlay, whose files refuse `RWF_NOWAIT`: there the pages are probed first. Like
    /// [`Residency::resident`] that is valid only at that moment; a page evicted before the read
    /// makes it block.
    ///
    /// # Errors
    /// As [`Residency::resident`]; `EIO`.
    pub fn read(
        &self,
        file: &OpenFile,
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<Option<usize>> {
        match nowait(file)? {
            Nowait::Layered if in_memory_resident(file, offset, buffer.len())? => {
                Ok(Some(pread(file, buffer, offset)?))
            }
            Nowait::Layered => Ok(None),
            _ => read_nowait(file, buffer, offset),
        }
    }

    /// Like [`Residency::resident`], but only with calls that start no I/O. `None` if the kernel
    /// has none for this user and file (before Linux 6.5; another user's files from 6.13 on). Other
    /// probes make the kernel read what is missing, which blocks while the disk's queue is full.
    ///
    /// # Errors
    /// As [`Residency::resident`].
    pub fn resident_untouched(
        &self,
        file: &OpenFile,
        offset: u64,
        length: u64,
    ) -> io::Result<Option<bool>> {
        let end = offset.saturating_add(length).min(file.meta().size);
        let start = offset - offset % page_bytes();
        match (nowait(file)?, self.kind.get()) {
            (Nowait::Answers | Nowait::Unknown, ProbeKind::Cachestat) if offset < end => {
                self.counted(file, start, end)
            }
            (Nowait::Answers | Nowait::Unknown, ProbeKind::Nowait) if offset < end => Ok(None),
            _ => self.resident(file, offset, length).map(Some),
        }
    }

    fn by_cachestat(&self, file: &OpenFile, start: u64, end: u64) -> io::Result<bool> {
        match self.counted(file, start, end)? {
            Some(resident) => Ok(resident),
            None => by_nowait(file, start, end),
        }
    }

    /// `None`: this kernel does not count these pages, or not for this user.
    fn counted(&self, file: &OpenFile, start: u64, end: u64) -> io::Result<Option<bool>> {
        let pages = (end - start).div_ceil(page_bytes());
        match cachestat(file, start, end - start) {
            Ok(counted) if counted.cached < pages => Ok(Some(false)),
            // A page that another process is still reading in is cached but not up to date, and
            // sending it would wait. Pages arrive in order, so the last one speaks for all.
            Ok(_) => nowait_byte(file, end - 1).map(Some),
            Err(Errno::PERM | Errno::OPNOTSUPP) => Ok(None),
            Err(Errno::NOSYS) => {
                self.kind.set(ProbeKind::Nowait);
                Ok(None)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Probes every page, the last one first: a helper brings it into memory last.
fn by_nowait(file: &OpenFile, start: u64, end: u64) -> io::Result<bool> {
    if !nowait_byte(file, end - 1)? {
        return Ok(false);
    }
    let mut offset = start;
    while offset < end {
        if !nowait_byte(file, offset)? {
            return Ok(false);
        }
        offset += page_bytes();
    }
    Ok(true)
}

fn by_mincore(file: &OpenFile, start: u64, end: u64) -> io::Result<bool> {
    let counted = mincore(file, start, end - start)?;
    Ok(counted == (end - start).div_ceil(page_bytes()))
}

/// Is the page of `offset` up to date in memory?
fn nowait_byte(file: &OpenFile, offset: u64) -> io::Result<bool> {
    // No byte there is no reason to wait: the file has shrunk.
    Ok(headway_os::residency::read_nowait(file, &mut [0; 1], offset)?.is_some())
}

/// How the file system handles `RWF_NOWAIT`, probed once per file: a read far beyond the end finds
/// no page to wait for, but reaches the check of the flag.
fn nowait(file: &OpenFile) -> io::Result<Nowait> {
    if file.nowait() == Nowait::Unknown {
        const BEYOND: u64 = i64::MAX as u64 - 1;
        let known = match headway_os::residency::read_nowait(file, &mut [0; 1], BEYOND) {
            Ok(_) => Nowait::Answers,
            // Only files of a tmpfs can have seals. statfs would be more direct, but asks the
            // server of a network file system.
            Err(Errno::OPNOTSUPP) if fcntl_get_seals(file).is_ok() => Nowait::InMemory,
            // The pages belong to the layer's own file: `cachestat` counts none of them, `mincore`
            // all.
            Err(Errno::OPNOTSUPP)
                if file.is_on_overlay() && mincore_is_accurate(file, file.meta().size)? =>
            {
                Nowait::Layered
            }
            Err(Errno::OPNOTSUPP) => Nowait::Refuses,
            Err(errno) => return Err(errno.into()),
        };
        file.set_nowait(known);
    }
    Ok(file.nowait())
}

/// Reads what is in memory at `offset` into `buffer`; `None` if that would block. Fewer bytes than
/// requested may be the end of the file or of the resident data; 0 is the end of the file (or an
/// empty buffer).
///
/// If a page is not cached, the kernel starts to read it before it answers, so call
/// [`Residency::resident`] first.
///
/// ```
/// use headway_files::{Meta, OpenFile, Residency, read_nowait};
///
/// let file = std::fs::File::open("/proc/self/exe")?;
/// let size = file.metadata()?.len();
/// let meta = Meta { size, modified: (0, 0), changed: (0, 0), device: 0, inode: 0 };
/// let file = OpenFile::new(file.into(), meta);
/// let mut beginning = [0; 4];
/// // A program that runs has its beginning in memory, but the kernel may take it back at any time.
/// if Residency::detect().resident(&file, 0, 4).unwrap_or(false) {
///     if let Some(4) = read_nowait(&file, &mut beginning, 0)? {
///         assert_eq!(beginning, *b"\x7fELF");
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// `EOPNOTSUPP` as for [`Residency::resident`]; `EIO`.
pub fn read_nowait(file: &OpenFile, buffer: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
    if buffer.is_empty() {
        return Ok(Some(0));
    }
    match nowait(file)? {
        Nowait::Refuses | Nowait::Layered => Err(Errno::OPNOTSUPP.into()),
        Nowait::InMemory if !in_memory_resident(file, offset, buffer.len())? => Ok(None),
        Nowait::InMemory | Nowait::Memfd => Ok(Some(pread(file, buffer, offset)?)),
        Nowait::Unknown | Nowait::Answers => {
            Ok(headway_os::residency::read_nowait(file, buffer, offset)?)
        }
    }
}

/// tmpfs does not support `RWF_NOWAIT`; its pages are in memory unless they were swapped out. Nor
/// does an overlay, whose pages `mincore` finds.
fn in_memory_resident(file: &OpenFile, offset: u64, length: usize) -> io::Result<bool> {
    let end = offset.saturating_add(length as u64).min(file.meta().size);
    if offset >= end {
        return Ok(true);
    }
    by_mincore(file, offset - offset % page_bytes(), end)
}

/// The chunk that holds `offset`: its start and its length in a file of `size` bytes.
///
/// ```
/// use headway_files::{CHUNK_BYTES, chunk_of};
///
/// let size = CHUNK_BYTES + 10;
/// assert_eq!(chunk_of(CHUNK_BYTES - 1, size), (0, CHUNK_BYTES));
/// assert_eq!(chunk_of(CHUNK_BYTES + 9, size), (CHUNK_BYTES, 10));
/// ```
pub fn chunk_of(offset: u64, size: u64) -> (u64, u64) {
    let start = offset - offset % CHUNK_BYTES;
    (start, size.saturating_sub(start).min(CHUNK_BYTES))
}
