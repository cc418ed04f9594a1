//! Which pages of a file are in memory, and reading only those.
//!
//! What it does: three probes of the page cache, none of which waits for the disk when used as
//! [`CachedPages`] and the function notes say. What it refuses: bringing anything in. Deciding
//! which probe to use is the caller's (`files::Residency`).
//!
//! Sources: Linux `mm/filemap.c` (cachestat, since 6.5), preadv2(2) `RWF_NOWAIT` (since 4.14),
//! mincore(2).

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, Result, preadv2};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;

/// `cachestat` has one number on every architecture; libc does not name it everywhere yet.
const SYS_CACHESTAT: libc::c_long = 451;

/// What `cachestat` counts, in pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct CachedPages {
    /// Pages in the cache. A page that another process is still reading in counts already.
    pub cached: u64,
    /// Of the cached pages, those that are dirty.
    pub dirty: u64,
    /// Of the cached pages, those that are being written.
    pub writeback: u64,
    /// Pages that were in the cache and have been evicted.
    pub evicted: u64,
    /// Of the evicted pages, those evicted so recently that it hints at memory pressure.
    pub recently_evicted: u64,
}

#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// The size of a page of memory in bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Count the cached pages of `length` bytes from `offset`. Never waits: it walks the cache's index
/// under RCU.
///
/// # Errors
/// `ENOSYS` before Linux 6.5; `EPERM` when the file is another user's and not writable (newer
/// kernels tell only those who could change the file); `EOPNOTSUPP` on hugetlbfs.
pub fn cachestat(descriptor: impl AsFd, offset: u64, length: u64) -> Result<CachedPages> {
    if length == 0 {
        // The kernel takes 0 for "to the end of the file"; here it means no byte.
        return Ok(CachedPages::default());
    }
    let range = Range { offset, length };
    let mut pages = CachedPages::default();
    // SAFETY: the descriptor is borrowed for the call, and both structures have the kernel's layout
    // (four-byte flags follow as 0) and live until it returns.
    let answer = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            descriptor.as_fd().as_raw_fd(),
            &raw const range,
            &raw mut pages,
            0_u32,
        )
    };
    match answer {
        0 => Ok(pages),
        _ => Err(last_errno()),
    }
}

/// Read at `offset` what is in memory, into `buffer`; `None` if the first byte is not. Fewer bytes
/// than asked for may be the end of the file or the end of what is in memory.
///
/// Caveat: on a page that is *not cached*, the kernel starts to read it in before it answers, and
/// starting can itself wait for metadata. Use [`cachestat`] first where it is available.
///
/// # Errors
/// `EOPNOTSUPP` where the file system does not promise (tmpfs, FUSE, network file systems); `EIO`.
pub fn read_nowait(descriptor: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<Option<usize>> {
    loop {
        let mut part = [IoSliceMut::new(buffer)];
        match preadv2(&descriptor, &mut part, offset, ReadWriteFlags::NOWAIT) {
            Ok(length) => return Ok(Some(length)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}

/// Count the pages of `length` bytes from `offset` that are in memory and up to date. `offset` must
/// be a multiple of the page size. Never waits for the disk, but changes the address space twice.
///
/// Caveat: for a file that the caller neither owns nor may write, Linux 5.2 and newer say that
/// everything is resident. Rely on the answer only where [`cachestat`] was not refused, or
/// [`mincore_is_accurate`].
///
/// # Errors
/// As mmap(2) and mincore(2).
pub fn mincore(descriptor: impl AsFd, offset: u64, length: u64) -> Result<u64> {
    let Ok(bytes) = usize::try_from(length) else {
        return Err(Errno::OVERFLOW);
    };
    if bytes == 0 {
        return Ok(0);
    }
    let mut pages = vec![0_u8; bytes.div_ceil(rustix::param::page_size())];
    // SAFETY: the kernel chooses the address, so no existing mapping is touched, and the new one is
    // only inspected, never dereferenced: a file truncated meanwhile cannot raise SIGBUS.
    let mapping = unsafe {
        mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ,
            MapFlags::SHARED,
            descriptor,
            offset,
        )
    }?;
    // SAFETY: the range is the mapping just made, and the vector has a byte for each of its pages.
    let answer = unsafe { libc::mincore(mapping.cast::<c_void>(), bytes, pages.as_mut_ptr()) };
    // Taken before the next call can overwrite errno.
    let counted = if answer == 0 {
        Ok(())
    } else {
        Err(last_errno())
    };
    // SAFETY: nothing refers to the mapping any more.
    unsafe { munmap(mapping, bytes) }?;
    counted?;
    Ok(pages.iter().filter(|page| **page & 1 == 1).count() as u64)
}

/// Whether the kernel answers [`mincore`] correctly for this caller and this file of `size` bytes.
/// A page far beyond its end cannot be in memory. A kernel that reports it as resident does so for
/// every page.
///
/// # Errors
/// As [`mincore`].
pub fn mincore_is_accurate(descriptor: impl AsFd, size: u64) -> Result<bool> {
    // Further than the largest folio that could reach over the end.
    const BEYOND_BYTES: u64 = 1 << 30;
    let offset = size.next_multiple_of(page_bytes()) + BEYOND_BYTES;
    Ok(mincore(descriptor, offset, page_bytes())? == 0)
}

pub(crate) fn last_errno() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn probes_agree_when_a_file_has_just_been_written() {
        let name = format!("headway-residency-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut file = std::fs::File::options();
        let mut file = file
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let pages = 10_000_u64.div_ceil(page_bytes());
        match cachestat(&file, 0, 10_000) {
            Ok(counted) => assert_eq!(counted.cached, pages),
            Err(errno) => assert_eq!(errno, Errno::NOSYS),
        }
        assert_eq!(mincore(&file, 0, 10_000).unwrap(), pages);
        let mut byte = [0];
        match read_nowait(&file, &mut byte, 9_999) {
            Ok(read) => assert_eq!((read, byte), (Some(1), [7])),
            Err(errno) => assert_eq!(errno, Errno::OPNOTSUPP),
        }
    }

    #[test]
    fn mincore_is_reliable_when_the_file_is_our_own() {
        let path = std::env::temp_dir().join(format!("headway-own-{}", std::process::id()));
        std::fs::write(&path, [7; 10_000]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mincore_is_accurate(&file, 10_000), Ok(true));
        let others = std::fs::File::open("/proc/self/exe").unwrap();
        let size = others.metadata().unwrap().len();
        assert!(mincore_is_accurate(&others, size).is_ok());
    }

    #[test]
    fn nothing_is_counted_when_the_range_is_empty() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(cachestat(&file, 0, 0), Ok(CachedPages::default()));
        assert_eq!(mincore(&file, 0, 0), Ok(0));
    }
}
