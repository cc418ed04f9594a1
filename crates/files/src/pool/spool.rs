//! Bytes that are to wait on a disk: a helper writes them there.
//!
//! The loop never writes to a file, since that may wait for the disk, for a journal, or because too
//! much is waiting to be written already. What it wants kept it puts into memory of its own that
//! can be passed on (a memfd), and a helper appends that to a file without a name.

use super::jobs::{JobKey, Waiter};
use super::{Full, Pool};
use crate::file::{Meta, OpenFile};
use rustix::fd::OwnedFd;
use std::rc::Rc;

impl Pool {
    /// Write all of `piece` into `file` at `offset`, for `waiter`; without a file into a new one in
    /// `directory`, which has no name and is gone with its last descriptor. The outcome is the
    /// file.
    ///
    /// Writing at an offset can be done again when a helper dies on it.
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit_spool(
        &mut self,
        directory: &[u8],
        file: Option<&Rc<OpenFile>>,
        piece: OwnedFd,
        offset: u64,
        waiter: Waiter,
    ) -> Result<(), Full> {
        self.spools += 1;
        let key = JobKey::Spool {
            number: self.spools,
            offset,
            directory: directory.into(),
        };
        self.enqueue(key.clone(), file, Some(waiter))?;
        self.jobs.attach(&key, piece);
        Ok(())
    }

    /// The file that a helper has made for what is spooled. Its last descriptor frees its blocks,
    /// so that is a helper's to close.
    pub(super) fn spooled(deferred: &crate::DeferredCloses, descriptor: OwnedFd) -> Rc<OpenFile> {
        let meta = Meta {
            size: 0,
            modified: (0, 0),
            changed: (0, 0),
            device: 0,
            inode: 0,
        };
        Rc::new(OpenFile::new(descriptor, meta).with_deferred_close(deferred))
    }
}
