//! Numbers in shared memory, which several processes read and write.
//!
//! They are in lines of whole cache lines, so that writing one line does not slow down reading
//! another. No operation blocks. The file behind the memory is sealed, and a file without a seal is
//! not mapped: if it could be truncated, an access would raise `SIGBUS`.
//!
//! Sources: memfd_create(2), fcntl(2) on seals, mmap(2).

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A line: a whole number of cache lines on every current machine.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct SharedLine {
    /// The numbers. All processes access them atomically.
    pub words: [AtomicU64; WORDS_PER_LINE],
}

/// Numbers in a line.
pub const WORDS_PER_LINE: usize = 16;

const LINE_BYTES: usize = size_of::<SharedLine>();

/// Largest number of lines.
const LINES_MAX: usize = 1 << 24;

/// Shared lines, as mapped by one process.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use headway_os::shared_lines::SharedLines;
///
/// let ours = SharedLines::new(2)?;
/// let theirs = SharedLines::open(rustix::io::fcntl_dupfd_cloexec(&ours, 0)?)?;
/// ours.lines()[1].words[0].store(7, Ordering::Relaxed);
/// assert_eq!(theirs.lines()[1].words[0].load(Ordering::Relaxed), 7);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Debug)]
pub struct SharedLines {
    address: NonNull<SharedLine>,
    count: usize,
    file: OwnedFd,
}

// SAFETY: it points to shared memory that is only accessed atomically; the address stays valid
// until it is dropped.
unsafe impl Send for SharedLines {}
// SAFETY: as above.
unsafe impl Sync for SharedLines {}

impl SharedLines {
    /// New lines, all 0.
    ///
    /// # Errors
    /// `EINVAL` for no lines or more than 16,777,216; others as memfd_create(2) and mmap(2).
    pub fn new(count: usize) -> Result<SharedLines> {
        if !(1..=LINES_MAX).contains(&count) {
            return Err(Errno::INVAL);
        }
        let file = memfd_create(
            c"headway-shared",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&file, (count * LINE_BYTES) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        SharedLines::open(file)
    }

    /// Lines that another process has created.
    ///
    /// # Errors
    /// `EINVAL` for any other file; others as mmap(2).
    pub fn open(file: OwnedFd) -> Result<SharedLines> {
        let bytes = usize::try_from(fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        let count = bytes / LINE_BYTES;
        let is_sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !is_sealed || bytes % LINE_BYTES != 0 || !(1..=LINES_MAX).contains(&count) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the kernel chooses the address, so no existing mapping is touched. The file has
        // this length and keeps it, since it is sealed.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let address = NonNull::new(address.cast()).ok_or(Errno::NOMEM)?;
        Ok(SharedLines {
            address,
            count,
            file,
        })
    }

    /// All lines.
    pub fn lines(&self) -> &[SharedLine] {
        // SAFETY: the mapping holds this many lines, begins at a page, and lives as long as this
        // borrow. Any bytes are valid atomics, and all processes access them as such.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.count) }
    }
}

impl AsFd for SharedLines {
    /// The file descriptor to pass to another process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedLines {
    fn drop(&mut self) {
        // SAFETY: mmap returned this address for this length, and nothing refers to the mapping any
        // more. It fails only for a range that was never mapped.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.count * LINE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn lines_are_shared_when_several_processes_map_them() {
        let ours = SharedLines::new(3).unwrap();
        let theirs = SharedLines::open(rustix::io::fcntl_dupfd_cloexec(&ours, 0).unwrap()).unwrap();
        for (index, line) in ours.lines().iter().enumerate() {
            line.words[index].store(index as u64 + 7, Relaxed);
        }
        let lines = theirs.lines().iter().enumerate();
        let seen: Vec<u64> = lines
            .map(|(index, line)| line.words[index].load(Relaxed))
            .collect();
        assert_eq!(seen, [7, 8, 9]);
        theirs.lines()[2].words[15].store(1, Relaxed);
        drop(theirs);
        assert_eq!(ours.lines()[2].words[15].load(Relaxed), 1);
        assert_eq!(ours.lines().len(), 3);
    }

    #[test]
    fn file_that_could_be_truncated_is_not_mapped() {
        assert_eq!(SharedLines::new(0).unwrap_err(), Errno::INVAL);
        assert_eq!(SharedLines::new(LINES_MAX + 1).unwrap_err(), Errno::INVAL);
        let memfd = || memfd_create(c"", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let unsealed = memfd();
        ftruncate(&unsealed, LINE_BYTES as u64).unwrap();
        assert_eq!(SharedLines::open(unsealed).unwrap_err(), Errno::INVAL);
        for bytes in [0, LINE_BYTES as u64 + 1] {
            let odd = memfd();
            ftruncate(&odd, bytes).unwrap();
            fcntl_add_seals(&odd, SealFlags::SHRINK).unwrap();
            assert_eq!(SharedLines::open(odd).unwrap_err(), Errno::INVAL, "{bytes}");
        }
        let plain = tempfile::tempfile().unwrap();
        assert!(SharedLines::open(plain.into()).is_err());
        let lines = SharedLines::new(1).unwrap();
        assert!(ftruncate(&lines, 0).is_err(), "it cannot be truncated");
    }
}
