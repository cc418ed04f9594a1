//! The registered file descriptors by number.
//!
//! File descriptors are small and dense (the kernel assigns the lowest free one), so a vector is
//! better than a map. It grows to the highest number seen and never shrinks; 24 bytes per file
//! descriptor are little compared with a connection. The errors for misuse are here, too, so that
//! they are the same for every mechanism.

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

    /// The entry of a registered file descriptor; `NotFound` for any other.
    pub fn known(&mut self, fd: RawFd) -> io::Result<&mut T> {
        self.get_mut(fd).ok_or_else(|| not_found(fd))
    }

    /// Fails with `AlreadyExists` if the file descriptor is registered.
    pub fn check_unknown(&self, fd: RawFd) -> io::Result<()> {
        match self.get(fd) {
            None => Ok(()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("file descriptor {fd} is already registered for events"),
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

    /// Removes the entry; `NotFound` if there is none.
    pub fn remove(&mut self, fd: RawFd) -> io::Result<T> {
        self.entries
            .get_mut(index(fd))
            .and_then(Option::take)
            .ok_or_else(|| not_found(fd))
    }
}

/// The index of a file descriptor. A borrowed one is never negative.
pub(crate) fn index(fd: RawFd) -> usize {
    debug_assert!(fd >= 0);
    fd as usize
}

fn not_found(fd: RawFd) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("file descriptor {fd} is not registered for events"),
    )
}
