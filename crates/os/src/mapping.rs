//! A piece of a file mapped into the address space, for the kernel to look at and to send from.
//!
//! What it does: maps, finds out which pages are in memory, brings them in, holds them there,
//! writes from the mapping to a socket. What it refuses: to let a caller read the bytes. The file
//! can be truncated at any moment, and touching a page beyond its new end raises `SIGBUS` in the
//! process that touches it. A system call that meets such a page fails with `EFAULT` instead, or
//! ends short, and that is a value the caller can act on. So the address never leaves this file
//! except into a system call; there is no slice to misuse, and nothing here dereferences it.
//!
//! Sources: mmap(2), mincore(2), writev(2); `mm/memory.c` on `VM_FAULT_SIGBUS` met in kernel mode,
//! and on `vma_has_recency`.

use std::ffi::c_void;
use std::io::IoSlice;
use std::ops::Range;

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::residency::last_errno;

/// Pieces of memory that one [`Mapping::write_behind`] takes in front of the mapped bytes.
pub const MEMORY_PIECES_MAX: usize = 31;

/// Pages asked about with one mincore(2), or touched with one pwritev(2).
const PAGES_PER_CALL: usize = 256;

/// How many bytes this thread may have held in memory in its process; `None`: as many as there are.
/// The root of a user namespace has the capability and may not use it: there the limit shows only
/// when it is met.
pub fn lockable_bytes() -> Option<u64> {
    let any = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    getrlimit(Resource::Memlock).current.filter(|_| !any)
}

/// A read-only, shared mapping of a piece of a file; unmapped when dropped.
///
/// A mapping keeps the file's inode alive: unmapping the last reference to an unlinked file frees
/// its blocks, which may wait for the disk.
#[derive(Debug)]
pub struct Mapping {
    address: *mut c_void,
    length: usize,
}

impl Mapping {
    /// Map `length` bytes from `offset`, a multiple of the page size. Brings nothing in.
    ///
    /// # Errors
    /// As mmap(2): `ENODEV` where the file system has no mappings, `ENOMEM` beyond
    /// `vm.max_map_count`, `EINVAL` for a length of 0.
    pub fn new(file: impl AsFd, offset: u64, length: usize) -> Result<Mapping> {
        // SAFETY: the kernel chooses the address, so no existing mapping is touched, and what is
        // mapped is never dereferenced, so neither truncation nor a writer can make this process
        // misbehave.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                offset,
            )
        }?;
        Ok(Mapping { address, length })
    }

    /// Length of the mapping in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// All pages that hold bytes of `range` are in memory. Never waits, and says nothing about the
    /// next moment.
    ///
    /// Caveat: see [`crate::residency::mincore`] on files of others. Pages behind the end of a
    /// truncated file may still count, as part of a large folio.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not within the mapping; others as mincore(2).
    pub fn is_resident(&self, range: Range<usize>) -> Result<bool> {
        self.check(&range)?;
        let page = rustix::param::page_size();
        let mut at = range.start - range.start % page;
        while at < range.end {
            let mut pages = [0_u8; PAGES_PER_CALL];
            let length = (range.end - at).min(PAGES_PER_CALL * page);
            // SAFETY: the range lies in the mapping, begins at a page, and has no more pages than
            // the array has bytes.
            let answer = unsafe { libc::mincore(self.at(at), length, pages.as_mut_ptr()) };
            if answer != 0 {
                return Err(last_errno());
            }
            let wanted = &pages[..length.div_ceil(page)];
            if wanted.iter().any(|page| page & 1 == 0) {
                return Ok(false);
            }
            at += length;
        }
        Ok(true)
    }

    /// Write `memory`, and behind it `range` of the mapping, with one writev(2). The count may end
    /// short because the socket is full or because the file does not reach so far any more.
    ///
    /// Pages that are not resident make it wait for the disk: ask [`Mapping::is_resident`] first.
    /// A process that does not ignore `SIGPIPE` gets it when the other side has closed.
    ///
    /// # Errors
    /// `EFAULT` when nothing could be written because the file has been truncated before `range`,
    /// or the disk failed; `EINVAL` for a range that is not within the mapping or more than
    /// [`MEMORY_PIECES_MAX`] pieces; others as writev(2).
    pub fn write_behind(
        &self,
        socket: impl AsFd,
        memory: &[IoSlice<'_>],
        range: Range<usize>,
    ) -> Result<usize> {
        self.check(&range)?;
        let mut parts = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; MEMORY_PIECES_MAX + 1];
        let iovecs = parts.get_mut(..=memory.len()).ok_or(Errno::INVAL)?;
        for (iovec, piece) in iovecs.iter_mut().zip(memory) {
            iovec.iov_base = piece.as_ptr().cast_mut().cast();
            iovec.iov_len = piece.len();
        }
        iovecs[memory.len()] = libc::iovec {
            iov_base: self.at(range.start),
            iov_len: range.len(),
        };
        // SAFETY: every part but the last is a borrowed slice, the last lies in the mapping; the
        // kernel reads them and nothing else, and both live until it returns.
        let written = unsafe {
            libc::writev(
                socket.as_fd().as_raw_fd(),
                iovecs.as_ptr(),
                iovecs.len() as libc::c_int,
            )
        };
        usize::try_from(written).map_err(|_| last_errno())
    }

    /// Brings every page of `range` in and waits for it, which a read does as well; but a read
    /// counts as a use of the page, so that the kernel keeps what was read in for one client as if
    /// two had wanted it. Looked at through a mapping that is said to be used at random, a page
    /// counts as unused. That also turns reading ahead off: have it begun before (`posix_fadvise`,
    /// `POSIX_FADV_WILLNEED`), or each page is read by itself.
    ///
    /// The kernel copies one byte of each page into `sink`, a file in memory. How many bytes of
    /// `range` are in; fewer than all where the file ends, or cannot be read: reading there tells
    /// which.
    ///
    /// A hole of a file in memory (tmpfs) gets a page by this, which reading would not do.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not within the mapping; others as madvise(2) and pwritev(2),
    /// but for `EFAULT`.
    pub fn bring_in(&self, range: Range<usize>, sink: impl AsFd) -> Result<usize> {
        self.check(&range)?;
        // SAFETY: the range is that of the mapping, and the advice changes no contents.
        unsafe { madvise(self.address, self.length, Advice::Random) }?;
        let page = rustix::param::page_size();
        let mut at = range.start - range.start % page;
        while at < range.end {
            let mut bytes = [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 1,
            }; PAGES_PER_CALL];
            let pages = (range.end - at).div_ceil(page).min(PAGES_PER_CALL);
            for (position, byte) in bytes[..pages].iter_mut().enumerate() {
                byte.iov_base = self.at(at + position * page);
            }
            // SAFETY: every part is one byte that lies in the mapping, which lives until the kernel
            // returns; it reads them and nothing else.
            let copied = unsafe {
                libc::pwritev(
                    sink.as_fd().as_raw_fd(),
                    bytes.as_ptr(),
                    pages as libc::c_int,
                    0,
                )
            };
            let copied = match usize::try_from(copied) {
                Ok(copied) => copied,
                Err(_) if last_errno() == Errno::FAULT => 0,
                Err(_) if last_errno() == Errno::INTR => continue,
                Err(_) => return Err(last_errno()),
            };
            at += copied * page;
            if copied < pages {
                break;
            }
        }
        Ok(at.min(range.end).saturating_sub(range.start))
    }

    /// Brings all pages in and holds them in memory as long as the mapping lives, whatever else
    /// memory is needed for. The pages are those of the page cache, so every reader of the file
    /// finds them. May wait for the disk.
    ///
    /// Pages that a file loses later, and others of a large folio with them, are held no more, also
    /// when it has gained them again: hold it again.
    ///
    /// # Errors
    /// As mlock(2): `ENOMEM` or `EPERM` beyond `RLIMIT_MEMLOCK` without CAP_IPC_LOCK; `ENOMEM`
    /// where the file has been cut or a page cannot be had, and the others may be held then, until
    /// the mapping is dropped.
    pub fn hold(&self) -> Result<()> {
        // SAFETY: the range is that of the mapping, which lives; nothing is dereferenced.
        unsafe { mlock(self.address, self.length) }
    }

    /// Where the mapping begins: a name for it, as in `/proc/self/maps`, and nothing to be used as
    /// a pointer.
    pub fn address(&self) -> usize {
        self.address.addr()
    }

    fn check(&self, range: &Range<usize>) -> Result<()> {
        match range.start <= range.end && range.end <= self.length {
            true => Ok(()),
            false => Err(Errno::INVAL),
        }
    }

    /// The address of a byte, to be given to the kernel.
    fn at(&self, offset: usize) -> *mut c_void {
        self.address.wrapping_byte_add(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the address and length are those mmap gave and nothing refers to the mapping any
        // more. It can fail only for a range that was never mapped.
        let _ = unsafe { munmap(self.address, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn file(length: usize) -> File {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        file.write_all(&content).unwrap();
        file
    }

    #[test]
    fn memory_and_mapped_bytes_arrive_in_order_when_written_with_one_call() {
        let file = file(10_000);
        let mapping = Mapping::new(&file, 0, 10_000).unwrap();
        assert_eq!(mapping.is_resident(0..10_000), Ok(true));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let memory = [IoSlice::new(b"head"), IoSlice::new(b"er")];
        let written = mapping.write_behind(&ours, &memory, 5000..10_000);
        assert_eq!(written, Ok(5006));
        drop(ours);
        let mut arrived = Vec::new();
        theirs.read_to_end(&mut arrived).unwrap();
        assert!(arrived.starts_with(b"header"));
        assert_eq!(arrived[6], (5000 % 251) as u8);
        assert_eq!(arrived.len(), 5006);
    }

    #[test]
    fn truncation_is_an_error_or_a_short_count_and_no_signal() {
        let page = rustix::param::page_size();
        let file = file(4 * page);
        let mapping = Mapping::new(&file, 0, 4 * page).unwrap();
        file.set_len(page as u64).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let beyond = mapping.write_behind(&ours, &[], 2 * page..3 * page);
        assert_eq!(beyond, Err(Errno::FAULT));
        let over = mapping.write_behind(&ours, &[IoSlice::new(b"head")], 0..4 * page);
        assert!(
            matches!(over, Err(Errno::FAULT)) || over.is_ok_and(|count| count <= 4 + page),
            "{over:?}"
        );
    }

    #[test]
    fn nothing_is_done_when_the_range_is_not_within_the_mapping() {
        let file = file(100);
        let mapping = Mapping::new(&file, 0, 100).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        for range in [0..101, 101..102, 50..40] {
            assert_eq!(mapping.is_resident(range.clone()), Err(Errno::INVAL));
            let written = mapping.write_behind(&ours, &[], range);
            assert_eq!(written, Err(Errno::INVAL));
        }
        assert_eq!(mapping.is_resident(7..7), Ok(true));
        let many = vec![IoSlice::new(b"x"); MEMORY_PIECES_MAX + 1];
        assert_eq!(mapping.write_behind(&ours, &many, 0..1), Err(Errno::INVAL));
    }

    #[test]
    fn pages_are_read_up_to_the_end_when_the_file_was_truncated() {
        let page = rustix::param::page_size();
        let sink = tempfile::tempfile().unwrap();
        let pages = PAGES_PER_CALL + 3;
        let file = file(pages * page);
        let mapping = Mapping::new(&file, 0, pages * page).unwrap();
        assert_eq!(
            mapping.bring_in(0..pages * page - 7, &sink),
            Ok(pages * page - 7)
        );
        assert_eq!(
            mapping.bring_in(page - 5..page + 5, &sink),
            Ok(10),
            "across an edge"
        );
        file.set_len(2 * page as u64).unwrap();
        assert_eq!(mapping.bring_in(0..4 * page, &sink), Ok(2 * page));
        assert_eq!(mapping.bring_in(3 * page..4 * page, &sink), Ok(0));
        assert_eq!(
            mapping.bring_in(0..pages * page + 1, &sink),
            Err(Errno::INVAL)
        );
    }

    #[test]
    fn pages_stay_locked_until_the_file_is_truncated_or_the_mapping_dropped() {
        let page = rustix::param::page_size();
        let file = file(4 * page);
        let mapping = Mapping::new(&file, 0, 4 * page).unwrap();
        let held = || {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let from = format!("{:x}-", mapping.address());
            let (_, after) = maps.split_once(&from).expect("it is mapped");
            let locked = after.lines().find_map(|line| line.strip_prefix("Locked:"));
            let kilobytes = locked.unwrap().trim().split(' ').next();
            kilobytes.unwrap().parse::<usize>().unwrap() * 1024
        };
        assert_eq!(held(), 0);
        mapping.hold().unwrap();
        assert_eq!(held(), 4 * page);
        file.set_len(page as u64).unwrap();
        assert!(held() <= page);
        assert_eq!(
            mapping.hold(),
            Err(Errno::NOMEM),
            "there is no more to hold"
        );
    }

    #[test]
    fn mapping_is_gone_when_dropped() {
        let count = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines()
                .filter(|line| line.contains("headway-mapping-gone"))
                .count()
        };
        let path =
            std::env::temp_dir().join(format!("headway-mapping-gone-{}", std::process::id()));
        std::fs::write(&path, [1; 100]).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mapping = Mapping::new(&file, 0, 100).unwrap();
        assert_eq!(count(), 1);
        drop(mapping);
        assert_eq!(count(), 0);
    }
}
