//! Counters in shared memory, which several processes read and write.
//!
//! Each counter has a cache line of its own, so that writing one does not slow down reading
//! another. No operation blocks. The file behind the memory is sealed, and a file without a seal is
//! not mapped: if it could be truncated, an access would raise `SIGBUS`.
//!
//! Sources: memfd_create(2), fcntl(2) on seals, mmap(2).

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A counter, padded to a whole number of cache lines on every current machine.
#[repr(C, align(128))]
struct PaddedCounter(AtomicU32);

const COUNTER_BYTES: usize = size_of::<PaddedCounter>();

/// Largest number of counters.
const COUNTERS_MAX: usize = 1 << 16;

/// Shared counters, as mapped by one process.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use headway_os::shared_counters::SharedCounters;
///
/// let ours = SharedCounters::new(2)?;
/// let theirs = SharedCounters::open(rustix::io::fcntl_dupfd_cloexec(&ours, 0)?)?;
/// ours.get(1).unwrap().store(7, Ordering::Relaxed);
/// assert_eq!(theirs.get(1).unwrap().load(Ordering::Relaxed), 7);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Debug)]
pub struct SharedCounters {
    address: NonNull<PaddedCounter>,
    count: usize,
    file: OwnedFd,
}

// SAFETY: it points to shared memory that is only accessed atomically; the address stays valid
// until it is dropped.
unsafe impl Send for SharedCounters {}
// SAFETY: as above.
unsafe impl Sync for SharedCounters {}

impl SharedCounters {
    /// New counters, all 0.
    ///
    /// # Errors
    /// `EINVAL` for no counters or more than 65,536; others as memfd_create(2) and mmap(2).
    pub fn new(count: usize) -> Result<SharedCounters> {
        if !(1..=COUNTERS_MAX).contains(&count) {
            return Err(Errno::INVAL);
        }
        let file = memfd_create(
            c"headway-counters",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&file, (count * COUNTER_BYTES) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        SharedCounters::open(file)
    }

    /// Counters that another process has created.
    ///
    /// # Errors
    /// `EINVAL` for any other file; others as mmap(2).
    pub fn open(file: OwnedFd) -> Result<SharedCounters> {
        let bytes = usize::try_from(fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        let count = bytes / COUNTER_BYTES;
        let is_sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !is_sealed || bytes % COUNTER_BYTES != 0 || !(1..=COUNTERS_MAX).contains(&count) {
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
        Ok(SharedCounters {
            address,
            count,
            file,
        })
    }

    /// All counters.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &AtomicU32> {
        // SAFETY: the mapping holds this many counters, begins at a page, and lives as long as this
        // borrow. Any bytes are valid atomics, and all processes access them as such.
        let counters = unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.count) };
        counters.iter().map(|counter| &counter.0)
    }

    /// One counter; `None` beyond the last.
    pub fn get(&self, index: usize) -> Option<&AtomicU32> {
        self.all().nth(index)
    }
}

impl AsFd for SharedCounters {
    /// The file descriptor to pass to another process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        // SAFETY: mmap returned this address for this length, and nothing refers to the mapping any
        // more. It fails only for a range that was never mapped.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.count * COUNTER_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn counters_are_shared_when_several_processes_map_them() {
        let ours = SharedCounters::new(3).unwrap();
        let theirs =
            SharedCounters::open(rustix::io::fcntl_dupfd_cloexec(&ours, 0).unwrap()).unwrap();
        for (index, counter) in ours.all().enumerate() {
            counter.store(index as u32 + 7, Relaxed);
        }
        let seen: Vec<u32> = theirs.all().map(|counter| counter.load(Relaxed)).collect();
        assert_eq!(seen, [7, 8, 9]);
        theirs.get(2).unwrap().store(1, Relaxed);
        drop(theirs);
        assert_eq!(ours.get(2).unwrap().load(Relaxed), 1);
        assert!(ours.get(3).is_none());
    }

    #[test]
    fn file_that_could_be_truncated_is_not_mapped() {
        assert_eq!(SharedCounters::new(0).unwrap_err(), Errno::INVAL);
        assert_eq!(
            SharedCounters::new(COUNTERS_MAX + 1).unwrap_err(),
            Errno::INVAL
        );
        let memfd = || memfd_create(c"", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let unsealed = memfd();
        ftruncate(&unsealed, COUNTER_BYTES as u64).unwrap();
        assert_eq!(SharedCounters::open(unsealed).unwrap_err(), Errno::INVAL);
        for bytes in [0, COUNTER_BYTES as u64 + 1] {
            let odd = memfd();
            ftruncate(&odd, bytes).unwrap();
            fcntl_add_seals(&odd, SealFlags::SHRINK).unwrap();
            assert_eq!(
                SharedCounters::open(odd).unwrap_err(),
                Errno::INVAL,
                "{bytes}"
            );
        }
        let plain = tempfile::tempfile().unwrap();
        assert!(SharedCounters::open(plain.into()).is_err());
        let counters = SharedCounters::new(1).unwrap();
        assert!(ftruncate(&counters, 0).is_err(), "it cannot be truncated");
    }
}
