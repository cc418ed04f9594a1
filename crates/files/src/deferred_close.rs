//! Descriptors that are closed in a helper instead of on the loop.
//!
//! Closing the last reference to an unlinked file frees its blocks, which waits for the disk, and
//! close(2) on a network file system may wait for its server. So the loop puts descriptors on this
//! list, and [`crate::Pool`] sends them to a helper in batches.

use rustix::fd::OwnedFd;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Limit of pending closes. Beyond it the loop closes descriptors itself and counts them: a short
/// wait is better than running out of descriptors.
pub(crate) const PENDING_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Shared {
    pending: RefCell<VecDeque<OwnedFd>>,
    closed_here: Cell<u64>,
}

/// A list of descriptors to be closed by a helper. Clones share the one list.
///
/// # Example
/// ```
/// use headway_files::DeferredCloses;
///
/// let list = DeferredCloses::new();
/// let file = std::fs::File::open("/dev/null")?;
/// list.push(file.into());
/// // It is still open; `Pool::flush` sends it to a helper.
/// assert_eq!(list.len(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DeferredCloses {
    shared: Rc<Shared>,
}

impl DeferredCloses {
    /// An empty list of its own; a pool's list comes from [`crate::Pool::deferred_closes`].
    pub fn new() -> DeferredCloses {
        DeferredCloses::default()
    }

    /// Hand over a descriptor. With 4096 waiting already it is closed here and now, and counted.
    pub fn push(&self, descriptor: OwnedFd) {
        let mut pending = self.shared.pending.borrow_mut();
        if pending.len() < PENDING_MAX {
            pending.push_back(descriptor);
        } else {
            self.shared
                .closed_here
                .set(self.shared.closed_here.get() + 1);
        }
    }

    /// How many descriptors wait to be closed.
    pub fn len(&self) -> usize {
        self.shared.pending.borrow().len()
    }

    /// Nothing waits to be closed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many were closed on the spot because the list was full.
    pub fn closed_here(&self) -> u64 {
        self.shared.closed_here.get()
    }

    /// Take up to `count` descriptors, the oldest first.
    pub(crate) fn take(&self, count: usize) -> Vec<OwnedFd> {
        let mut pending = self.shared.pending.borrow_mut();
        let count = count.min(pending.len());
        pending.drain(..count).collect()
    }

    /// Puts descriptors back that could not be sent, in their original position.
    pub(crate) fn put_back(&self, descriptors: Vec<OwnedFd>) {
        let mut pending = self.shared.pending.borrow_mut();
        for descriptor in descriptors.into_iter().rev() {
            pending.push_front(descriptor);
        }
    }
}
