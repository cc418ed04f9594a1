//! Numbers that processes keep for one another to see, in memory that they share.
//!
//! What it does: a number for each place, each in a cache line of its own, so that writing one does
//! not slow down who reads another. Nobody waits for anybody. What it refuses: memory that could be
//! taken back (touching it would be `SIGBUS`); the file behind it is sealed, and one that is not is
//! not mapped.
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

/// A place: as long as a cache line, or a whole number of them, on every machine of today.
#[repr(C, align(128))]
struct Place(AtomicU32);

const PLACE_BYTES: usize = size_of::<Place>();

/// Places that a board may have at most.
const PLACES_MAX: usize = 1 << 16;

/// A board, as one process sees it.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use headway_os::board::Board;
///
/// let ours = Board::new(2)?;
/// let theirs = Board::open(rustix::io::fcntl_dupfd_cloexec(&ours, 0)?)?;
/// ours.place(1).unwrap().store(7, Ordering::Relaxed);
/// assert_eq!(theirs.place(1).unwrap().load(Ordering::Relaxed), 7);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Debug)]
pub struct Board {
    address: NonNull<Place>,
    places: usize,
    file: OwnedFd,
}

// SAFETY: what it points to is shared by its nature and consists of atomics; the address stays
// until it is dropped.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// A new one, all of it 0.
    ///
    /// # Errors
    /// `EINVAL` for no places or more than 65,536; others as memfd_create(2) and mmap(2).
    pub fn new(places: usize) -> Result<Board> {
        if !(1..=PLACES_MAX).contains(&places) {
            return Err(Errno::INVAL);
        }
        let file = memfd_create(
            c"headway-board",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&file, (places * PLACE_BYTES) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Board::open(file)
    }

    /// The one that another process has made.
    ///
    /// # Errors
    /// `EINVAL` for what is none; others as mmap(2).
    pub fn open(file: OwnedFd) -> Result<Board> {
        let bytes = usize::try_from(fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        let places = bytes / PLACE_BYTES;
        let is_sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !is_sealed || bytes % PLACE_BYTES != 0 || !(1..=PLACES_MAX).contains(&places) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the kernel chooses the address, so no existing mapping is touched. The file is as
        // long and stays so, since it is sealed.
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
        Ok(Board {
            address,
            places,
            file,
        })
    }

    /// The numbers, by place.
    pub fn places(&self) -> impl ExactSizeIterator<Item = &AtomicU32> {
        // SAFETY: the mapping holds so many places, begins at a page, and lives as long as this
        // borrow. Any bytes are atomics, and all processes touch them as such.
        let places = unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.places) };
        places.iter().map(|place| &place.0)
    }

    /// The number of a place; `None` beyond the last.
    pub fn place(&self, index: usize) -> Option<&AtomicU32> {
        self.places().nth(index)
    }
}

impl AsFd for Board {
    /// To be given to another process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: the address and length are those mmap gave, and nothing refers to the mapping any
        // more. It can fail only for a range that was never mapped.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.places * PLACE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn numbers_are_seen_by_all_who_have_the_board() {
        let ours = Board::new(3).unwrap();
        let theirs = Board::open(rustix::io::fcntl_dupfd_cloexec(&ours, 0).unwrap()).unwrap();
        for (index, place) in ours.places().enumerate() {
            place.store(index as u32 + 7, Relaxed);
        }
        let seen: Vec<u32> = theirs.places().map(|place| place.load(Relaxed)).collect();
        assert_eq!(seen, [7, 8, 9]);
        theirs.place(2).unwrap().store(1, Relaxed);
        drop(theirs);
        assert_eq!(ours.place(2).unwrap().load(Relaxed), 1);
        assert!(ours.place(3).is_none());
    }

    #[test]
    fn what_could_be_taken_back_is_no_board() {
        assert_eq!(Board::new(0).unwrap_err(), Errno::INVAL);
        assert_eq!(Board::new(PLACES_MAX + 1).unwrap_err(), Errno::INVAL);
        let memfd = || memfd_create(c"", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let unsealed = memfd();
        ftruncate(&unsealed, PLACE_BYTES as u64).unwrap();
        assert_eq!(Board::open(unsealed).unwrap_err(), Errno::INVAL);
        for bytes in [0, PLACE_BYTES as u64 + 1] {
            let odd = memfd();
            ftruncate(&odd, bytes).unwrap();
            fcntl_add_seals(&odd, SealFlags::SHRINK).unwrap();
            assert_eq!(Board::open(odd).unwrap_err(), Errno::INVAL, "{bytes}");
        }
        let plain = tempfile::tempfile().unwrap();
        assert!(Board::open(plain.into()).is_err());
        let board = Board::new(1).unwrap();
        assert!(ftruncate(&board, 0).is_err(), "it cannot be made shorter");
    }
}
