//! What a worker asks of its helpers, but for errands and spilling.

use super::jobs::{Asked, Key, Piece};
use super::{Full, Pool, Waiter};
use crate::file::{Meta, OpenFile};
use crate::protocol::{FETCH_BYTES_MAX, Want};
use crate::root::RootId;
use std::rc::Rc;

impl Pool {
    /// Resolve `path` in a helper for `waiter`.
    ///
    /// # Errors
    /// [`Full`].
    pub fn resolve(&mut self, root: RootId, path: &[u8], waiter: Waiter) -> Result<(), Full> {
        self.resolve_for(root, path, self.limits.want, waiter)
    }

    /// The same for somebody who wants something else of it than the others do.
    ///
    /// # Errors
    /// [`Full`].
    pub fn resolve_for(
        &mut self,
        root: RootId,
        path: &[u8],
        want: Want,
        waiter: Waiter,
    ) -> Result<(), Full> {
        self.statistics.resolves += 1;
        self.ask(Key::Resolve(root, path.into(), want), None, Some(waiter))
    }

    /// Read `length` bytes from `offset` into memory for `waiter`; ahead of need with `None`.
    ///
    /// # Errors
    /// [`Full`]; a prefetch refused is no harm.
    pub fn read_in(
        &mut self,
        file: &Rc<OpenFile>,
        offset: u64,
        length: u64,
        waiter: Option<Waiter>,
    ) -> Result<(), Full> {
        match waiter {
            Some(_) => self.statistics.reads_in += 1,
            None => self.statistics.prefetches += 1,
        }
        self.ask(Key::ReadIn(piece(file, offset, length)), Some(file), waiter)
    }

    /// Copy at most 16 MiB of a file into a memfd: for file systems whose cached pages cannot be
    /// read without waiting, and for windows that memory pressure takes away again before they can
    /// be sent.
    ///
    /// # Errors
    /// [`Full`].
    pub fn read(
        &mut self,
        file: &Rc<OpenFile>,
        offset: u64,
        length: u64,
        waiter: Waiter,
    ) -> Result<(), Full> {
        self.statistics.reads += 1;
        self.ask(
            Key::Read(piece(file, offset, length)),
            Some(file),
            Some(waiter),
        )
    }

    /// Whether [`Pool::fetch`] is the way to have so many bytes of a file that is not in memory.
    /// The kernel's workers read in and fetch nothing, and a larger file has no place in an answer.
    pub fn fetches(&self, length: u64) -> bool {
        self.ring.is_none() && length <= FETCH_BYTES_MAX as u64
    }

    /// Have a helper say what a small file of `length` bytes holds: one job and one answer, where
    /// reading in would leave the loop to read.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Panics
    /// Beyond [`FETCH_BYTES_MAX`]; see [`Pool::fetches`].
    pub fn fetch(&mut self, file: &Rc<OpenFile>, length: u64, waiter: Waiter) -> Result<(), Full> {
        assert!(length <= FETCH_BYTES_MAX as u64, "too much to fetch");
        self.statistics.fetches += 1;
        self.ask(Key::Fetch(piece(file, 0, length)), Some(file), Some(waiter))
    }

    /// Make a listing page of the directory `path` for `waiter`. If a page of it is `known` and
    /// still right, that one is the outcome, and no second one takes memory.
    ///
    /// # Errors
    /// [`Full`].
    pub fn list(
        &mut self,
        root: RootId,
        path: &[u8],
        known: Option<&Rc<OpenFile>>,
        waiter: Waiter,
    ) -> Result<(), Full> {
        self.statistics.lists += 1;
        self.ask(Key::List(root, path.into()), known, Some(waiter))
    }

    /// `waiter` waits no longer for what it asked for last: its client has gone, or has been
    /// answered otherwise. A job that no helper has begun and nobody else waits for is dropped.
    pub fn leave(&mut self, waiter: u64) {
        self.jobs.leave(waiter);
        self.gauges();
    }

    pub(super) fn ask(
        &mut self,
        key: Key,
        file: Option<&Rc<OpenFile>>,
        waiter: Option<Waiter>,
    ) -> Result<(), Full> {
        let queued = self.jobs.queued();
        let asked = self.jobs.ask(key, file, waiter, self.limits.queue_max);
        if let Asked::Queued | Asked::Displaced = asked {
            self.statistics.queue_found.record(queued as u64);
        }
        match asked {
            Asked::Queued => {}
            Asked::Displaced => self.statistics.prefetches_dropped += 1,
            Asked::Joined => self.statistics.coalesced += 1,
            Asked::Full => self.statistics.full += 1,
        }
        self.gauges();
        if asked == Asked::Full {
            Err(Full)
        } else {
            Ok(())
        }
    }
}

fn piece(file: &OpenFile, offset: u64, length: u64) -> Piece {
    let Meta {
        device,
        inode,
        modified,
        ..
    } = *file.meta();
    Piece {
        device,
        inode,
        modified,
        offset,
        length,
    }
}
