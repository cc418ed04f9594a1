//! Bytes that are to wait on a disk: a helper writes them there.
//!
//! The loop never writes to a file, since that may wait for the disk, for a journal, or because too
//! much is waiting to be written already. What it wants kept it puts into memory that can be passed
//! on (a memfd), and a helper appends that to a file without a name. The memory is used again
//! soon afterwards: to get and clear new pages takes four times as long as to fill them. Memory that has
//! lain idle is not, since it may have been swapped out.

use super::jobs::{JobKey, Waiter};
use super::{Full, Pool};
use crate::file::{Meta, OpenFile};
use crate::helper::bytes::write_all_at;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::io;
use std::rc::Rc;

/// Memory for longer pieces is not kept.
const KEPT_BYTES_MAX: u64 = 512 * 1024;
/// For how long it may be used again.
const KEPT_MS: u64 = 1000;

/// Bytes to be spooled, in memory that a helper can read.
#[derive(Debug)]
pub struct SpoolPiece {
    memory: OwnedFd,
    bytes: u64,
}

/// Memory that no helper reads any more.
#[derive(Debug)]
pub(super) struct KeptPiece {
    memory: OwnedFd,
    since_ms: u64,
}

impl AsFd for SpoolPiece {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Pool {
    /// Copies bytes for [`Pool::submit_spool`]. It does not wait. The clock is that of [`Pool::flush`].
    ///
    /// # Errors
    /// When memory or descriptors are short, as memfd_create(2) and write(2).
    pub fn spool_piece(&mut self, bytes: &[u8], now_ms: u64) -> io::Result<SpoolPiece> {
        let memory = match self.pieces.pop() {
            Some(kept) if now_ms < kept.since_ms + KEPT_MS => kept.memory,
            last => {
                // The others have lain idle for longer.
                let old = last.into_iter().chain(self.pieces.drain(..));
                old.for_each(|kept| self.deferred.push(kept.memory));
                memfd_create(c"headway-body", MemfdFlags::CLOEXEC)?
            }
        };
        write_all_at(&memory, bytes, 0)?;
        let bytes = bytes.len() as u64;
        Ok(SpoolPiece { memory, bytes })
    }

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
        piece: SpoolPiece,
        offset: u64,
        waiter: Waiter,
    ) -> Result<(), Full> {
        self.spools += 1;
        let key = JobKey::Spool {
            number: self.spools,
            offset,
            length: piece.bytes,
            directory: directory.into(),
        };
        self.enqueue(key.clone(), file, Some(waiter))?;
        self.jobs.attach(&key, piece);
        Ok(())
    }

    /// No helper reads this memory any more: it may be used again. No more is kept than helpers can
    /// write at once.
    pub(super) fn keep_piece(&mut self, piece: SpoolPiece, since_ms: u64) {
        if piece.bytes <= KEPT_BYTES_MAX && self.pieces.len() < self.slots.len() {
            let memory = piece.memory;
            self.pieces.push(KeptPiece { memory, since_ms });
        }
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
