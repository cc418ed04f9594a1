//! File descriptors reserved for the established connections.
//!
//! To answer a request the worker opens files and looks up paths, which takes file descriptors. If
//! new connections could take the last one, every client would be let in and none served. So the
//! reserve holds some while accepting goes on, and releases them at a shortage, whether a new
//! connection or a lookup meets it. Accepting then pauses until the reserve can be opened again.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Enough for a lookup, and for the files of a few answers from helpers (up to four each).
const RESERVED_DESCRIPTORS: usize = 16;

/// The reserved file descriptors. Clones share them: the acceptor opens the reserve, and a lookup
/// that meets a shortage releases it.
#[derive(Clone, Default)]
pub struct Reserve(Rc<RefCell<Vec<OwnedFd>>>);

impl Reserve {
    /// Opens what is missing after a shortage. An error says that the shortage lasts.
    pub fn open(&self) -> Result<(), Errno> {
        let mut descriptors = self.0.borrow_mut();
        while descriptors.len() < RESERVED_DESCRIPTORS {
            // An eventfd is the cheapest file descriptor, and closing it never blocks.
            descriptors.push(eventfd(0, EventfdFlags::CLOEXEC)?);
        }
        Ok(())
    }

    /// Closes the file descriptors so that others can be opened; `false` if there were none.
    pub fn release(&self) -> bool {
        let mut descriptors = self.0.borrow_mut();
        let had_some = !descriptors.is_empty();
        descriptors.clear();
        had_some
    }
}
