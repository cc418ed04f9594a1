//! File descriptors reserved for the established connections.
//!
//! To answer a request the worker opens files and looks up paths, which takes file descriptors. If
//! new connections could take the last one, every client would be let in and none served. So the
//! reserve holds some while accepting goes on, and releases them at a shortage, whether a new
//! connection or a lookup meets it. Accepting then pauses until the reserve can be opened again.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Enough for a lookup, and for the files of a few answers from helpers (up to four each).
const RESERVED_DESCRIPTORS: usize = 16;

/// The reserved file descriptors.
#[derive(Default)]
pub struct Reserve(Vec<OwnedFd>);

impl Reserve {
    /// Opens what is missing after a shortage. An error says that the shortage lasts.
    pub fn open(&mut self) -> Result<(), Errno> {
        while self.0.len() < RESERVED_DESCRIPTORS {
            // An eventfd is the cheapest file descriptor, and closing it never blocks.
            self.0.push(eventfd(0, EventfdFlags::CLOEXEC)?);
        }
        Ok(())
    }

    /// Closes the file descriptors so that others can be opened; `false` if there were none.
    pub fn release(&mut self) -> bool {
        let had_some = !self.0.is_empty();
        self.0.clear();
        had_some
    }
}
