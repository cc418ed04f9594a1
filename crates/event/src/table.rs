//! What is known about each registered descriptor, by descriptor number.
//!
//! Descriptor numbers are small and dense (the kernel hands out the lowest free one), so a vector
//! beats a map. It grows to the highest number seen and never shrinks: 24 bytes a descriptor are
//! less than any connection costs. Here also lives the one answer to misuse, the same for every
//! mechanism.

use std::io;
use std::os::fd::RawFd;

#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Vec<Option<T>>,
}

impl<T> Table<T> {
    pub const fn new() -> Table<T> {
        Table {
            entries: Vec::new(),
        }
    }

    pub fn get(&self, fd: RawFd) -> Option<&T> {
        self.entries.get(index(fd))?.as_ref()
    }

    pub fn get_mut(&mut self, fd: RawFd) -> Option<&mut T> {
        self.entries.get_mut(index(fd))?.as_mut()
    }

    /// The entry of a registered descriptor; `NotFound` for any other.
    pub fn known(&mut self, fd: RawFd) -> io::Result<&mut T> {
        self.get_mut(fd).ok_or_else(|| not_found(fd))
    }

    /// Fails with `AlreadyExists` when the descriptor is registered.
    pub fn check_unknown(&self, fd: RawFd) -> io::Result<()> {
        match self.get(fd) {
            None => Ok(()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("descriptor {fd} is registered for events already"),
            )),
        }
    }

    pub fn insert(&mut self, fd: RawFd, value: T) {
        let index = index(fd);
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index] = Some(value);
    }

    /// Takes the entry out; `NotFound` when there is none.
    pub fn remove(&mut self, fd: RawFd) -> io::Result<T> {
        self.entries
            .get_mut(index(fd))
            .and_then(Option::take)
            .ok_or_else(|| not_found(fd))
    }
}

/// A borrowed descriptor is never negative.
pub(crate) fn index(fd: RawFd) -> usize {
    debug_assert!(fd >= 0);
    fd as usize
}

fn not_found(fd: RawFd) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("descriptor {fd} is not registered for events"),
    )
}
