//! Submitting jobs to helpers, except custom jobs and spooling.

use super::jobs::{JobKey, Submitted, VersionedRange};
use super::shares::Origin;
use super::{Full, Pool, Waiter};
use crate::file::{Meta, OpenFile};
use crate::protocol::{FETCH_BYTES_MAX, OpenMode};
use crate::root::RootId;
use crate::sent_prefix::SentPrefix;
use std::rc::Rc;

/// A lookup beneath a root whose path a helper has to look up first.
#[derive(Debug)]
pub(super) struct HeldLookup {
    root: RootId,
    path: Box<[u8]>,
    want: OpenMode,
    waiter: Waiter,
}

impl Pool {
    /// Looks up `path` in a helper for `waiter`, in the pool's [`OpenMode`]: a worker's opens the file, and
    /// reads it if it is small.
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit_lookup(&mut self, root: RootId, path: &[u8], waiter: Waiter) -> Result<(), Full> {
        self.submit_lookup_for(root, path, self.limits.want, waiter)
    }

    /// Looks up `path` in a helper for `waiter`, with another [`OpenMode`] than the pool's.
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit_lookup_for(
        &mut self,
        root: RootId,
        path: &[u8],
        want: OpenMode,
        waiter: Waiter,
    ) -> Result<(), Full> {
        self.statistics.lookups += 1;
        if self.roots.awaits_helper(root) {
            return self.hold(HeldLookup {
                root,
                path: path.into(),
                want,
                waiter,
            });
        }
        let version = self.roots.version(root);
        let key = JobKey::Lookup(root, version, path.into(), want);
        self.enqueue(key, None, Some(waiter))
    }

    fn hold(&mut self, lookup: HeldLookup) -> Result<(), Full> {
        let waiting = self.jobs.queued() + self.held.len();
        if waiting >= self.limits.queue_max && !lookup.waiter.admitted {
            self.statistics.full += 1;
            return Err(Full);
        }
        self.held.push(lookup);
        self.gauges();
        Ok(())
    }

    /// The loop itself may have found a root for which lookups wait, before a helper has looked.
    pub(super) fn submit_found_roots(&mut self) {
        while let Some(root) = self.found_root() {
            self.submit_held(root);
        }
    }

    /// A root for which lookups wait, and no helper has to look it up any more.
    pub(super) fn found_root(&self) -> Option<RootId> {
        let mut waited_for = self.held.iter().map(|lookup| lookup.root);
        waited_for.find(|root| !self.roots.awaits_helper(*root))
    }

    /// The root of these lookups is known: they are jobs now, with the places that they had.
    pub(super) fn submit_held(&mut self, root: RootId) {
        let (ready, held) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|lookup| lookup.root == root);
        self.held = held;
        let ready: Vec<HeldLookup> = ready;
        let version = self.roots.version(root);
        for lookup in ready {
            let key = JobKey::Lookup(root, version, lookup.path, lookup.want);
            let waiter = Waiter {
                admitted: true,
                ..lookup.waiter
            };
            // An admitted request always finds a place.
            let _ = self.enqueue(key, None, Some(waiter));
        }
    }

    /// The pool's [`OpenMode`], as it is for a path of which nothing is known: on a remote root,
    /// siblings are left for the next lookup, which no request waits for.
    pub fn first_mode(&self, root: RootId) -> OpenMode {
        match self.limits.want {
            OpenMode::OpenAndRead if self.roots.is_remote(root) => OpenMode::OpenAndReadAlone,
            want => want,
        }
    }

    /// The pool's [`OpenMode`].
    pub fn mode(&self) -> OpenMode {
        self.limits.want
    }

    /// Looks up `path` again, without a waiter. All other jobs go first, and half of the helpers are left
    /// for them.
    ///
    /// # Errors
    /// [`Full`]; a later request may ask again.
    pub fn submit_refresh(&mut self, root: RootId, path: &[u8]) -> Result<(), Full> {
        self.statistics.refreshes += 1;
        let version = self.roots.version(root);
        let key = JobKey::Lookup(root, version, path.into(), self.limits.want);
        self.enqueue(key, None, None)
    }

    /// Read `length` bytes from `offset` into memory for `waiter`; ahead of need with `None`.
    ///
    /// # Errors
    /// [`Full`]; a prefetch refused is no harm.
    pub fn submit_read_in(
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
        self.enqueue(
            JobKey::ReadIn(piece(file, offset, length)),
            Some(file),
            waiter,
        )
    }

    /// Copies at most 16 MiB of a file into a memfd: for file systems whose cached pages cannot be
    /// read without blocking, and for chunks that memory pressure evicts again before they are
    /// sent.
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit_copy(
        &mut self,
        file: &Rc<OpenFile>,
        offset: u64,
        length: u64,
        waiter: Waiter,
    ) -> Result<(), Full> {
        self.statistics.copies += 1;
        self.enqueue(
            JobKey::Copy(piece(file, offset, length)),
            Some(file),
            Some(waiter),
        )
    }

    /// Copies a whole file of at most [`crate::COPY_BYTES_MAX`], for no request in particular.
    ///
    /// # Errors
    /// [`Full`]; a later request may ask again.
    pub fn submit_copy_ahead(&mut self, file: &Rc<OpenFile>) -> Result<(), Full> {
        self.statistics.copies += 1;
        let whole = piece(file, 0, file.meta().size);
        self.enqueue(JobKey::Copy(whole), Some(file), None)
    }

    /// Copies the next `length` bytes of a file that has changed, if the file still holds what a
    /// response has sent of it. The comparison reads all of that again.
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit_checked_copy(
        &mut self,
        file: &Rc<OpenFile>,
        sent: &mut SentPrefix,
        length: u64,
        waiter: Waiter,
    ) -> Result<(), Full> {
        self.statistics.copies += 1;
        self.checked_copies += 1;
        let (range, checksum) = sent.begin_check();
        let key = JobKey::CopyChecked {
            number: self.checked_copies,
            sent: range.start,
            checksum,
            next: piece(file, range.end, length),
        };
        self.enqueue(key, Some(file), Some(waiter))
    }

    /// Whether [`Pool::submit_fetch`] is the way to get this many bytes of a cold file. The kernel's
    /// workers fetch nothing, and a larger file does not fit into an answer.
    pub fn may_fetch(&self, length: u64) -> bool {
        self.ring.is_none() && length <= FETCH_BYTES_MAX as u64
    }

    /// Have a helper say what a small file of `length` bytes holds: one job and one answer, where
    /// reading in would leave the loop to read.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Panics
    /// Beyond [`FETCH_BYTES_MAX`]; see [`Pool::may_fetch`].
    pub fn submit_fetch(
        &mut self,
        file: &Rc<OpenFile>,
        length: u64,
        waiter: Waiter,
    ) -> Result<(), Full> {
        assert!(length <= FETCH_BYTES_MAX as u64, "too much to fetch");
        self.statistics.fetches += 1;
        self.enqueue(
            JobKey::Fetch(piece(file, 0, length)),
            Some(file),
            Some(waiter),
        )
    }

    /// Makes a listing page of the directory `path` for `waiter`. If a `known` page is still right,
    /// it is the outcome, and no second one takes memory.
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit_listing(
        &mut self,
        root: RootId,
        path: &[u8],
        known: Option<&Rc<OpenFile>>,
        waiter: Waiter,
    ) -> Result<(), Full> {
        self.statistics.listings += 1;
        let version = self.roots.version(root);
        let key = JobKey::List(root, version, path.into());
        self.enqueue(key, known, Some(waiter))
    }

    /// `waiter` does not wait any more: its client has disconnected, or was answered otherwise. A
    /// queued job without other waiters is dropped.
    pub fn leave(&mut self, waiter: u64) {
        self.jobs.leave(waiter);
        self.held.retain(|lookup| lookup.waiter.token != waiter);
        self.gauges();
    }

    pub(super) fn enqueue(
        &mut self,
        key: JobKey,
        file: Option<&Rc<OpenFile>>,
        waiter: Option<Waiter>,
    ) -> Result<(), Full> {
        let queued = self.jobs.queued();
        let origin = Origin::of(&key, &self.roots);
        let mut queue_max = self.limits.queue_max;
        // A queue full of jobs that must not start is no reason to reject those that may.
        if queued >= queue_max && self.may_exceed(&origin) {
            queue_max += queue_max.div_ceil(4);
        }
        let submitted = self.jobs.submit((key, origin), file, waiter, queue_max);
        if let Submitted::Queued | Submitted::Displaced = submitted {
            self.statistics.queue_found.record(queued as u64);
        }
        match submitted {
            Submitted::Queued => {}
            Submitted::Displaced => self.statistics.prefetches_dropped += 1,
            Submitted::Joined => self.statistics.coalesced += 1,
            Submitted::Full => self.statistics.full += 1,
        }
        self.gauges();
        if submitted == Submitted::Full {
            Err(Full)
        } else {
            Ok(())
        }
    }
}

fn piece(file: &OpenFile, offset: u64, length: u64) -> VersionedRange {
    let Meta {
        device,
        inode,
        modified,
        ..
    } = *file.meta();
    VersionedRange {
        device,
        inode,
        modified,
        offset,
        length,
    }
}
