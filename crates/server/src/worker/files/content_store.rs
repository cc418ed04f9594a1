//! The content store: files in sealed memfds, which the kernel sends without a copy.
//!
//! What it does: has a helper copy a file, compares the file with its entry after that, and keeps the
//! copy with the header of its plain response. A stored body is one version of one file and cannot
//! change. It is sent by `sendfile`, which reads no disk for it ([`headway_send`]).
//!
//! What it refuses: small files, which leave in one call with their header from the response cache; to
//! make a request wait; to copy for a working set that does not fit, except now and then.
//!
//! A memfd per file makes the kernel the allocator. A dropped body is freed when no socket refers to its
//! pages any more, and a process that dies leaves nothing behind.
//!
//! Sources: memfd_create(2), fcntl(2) on seals; for the choice of files [`headway_base::GreedyDualSize`].

use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use headway_config::{Config, EtagSource, STORED_FILE_BYTES_MIN};
use headway_files::{Answer, COPY_BYTES_MAX, OpenFile, RootId};
use headway_http::etag::Etag;
use headway_metrics::calls::Call;
use headway_os::residency::page_bytes;
use headway_request::{CachedResponse, Charge, Entry, StoredBody, Variant};
use headway_respond::{CachedBody, Representation, ResponseCache, variant_file};

use super::StaticFiles;
use crate::worker::context::LoopContext;

/// Copies under way. More would take the helpers from requests that wait.
const COPIES_MAX: usize = 16;
/// A copy that has not come by then was dropped from a full queue.
const COPY_TIMEOUT_MS: u64 = 5_000;
/// No file takes more than one part in this many of the store.
const FILE_DIVISOR: u64 = 8;
/// When the store is full, one candidate in this many is copied. Each evicts others, so without a limit
/// a working set that is larger than the store would be copied again and again.
const ADMISSION_DIVISOR: u32 = 16;

/// The stored files, and those that are being copied.
pub(super) struct ContentStore {
    /// Their responses.
    pub cache: ResponseCache,
    /// What a body takes of the store at least, so that the descriptors suffice.
    charge_min: u64,
    /// Larger files are not stored; 0 stores none.
    file_bytes_max: u64,
    copies: VecDeque<PendingCopy>,
    /// Candidates since one was admitted to the full store.
    declined: u32,
}

/// A file by device, inode and modification time: what a helper's copy is of.
type FileVersion = (u64, u64, (i64, u32));

/// A file that a helper is copying.
struct PendingCopy {
    entry: Weak<Entry>,
    variant: Variant,
    root: RootId,
    path: Box<[u8]>,
    file: FileVersion,
    requested_ms: u64,
}

impl ContentStore {
    pub(super) fn new(config: &Config) -> ContentStore {
        let bytes_max = config.content_store_bytes_per_worker();
        let descriptors = config.content_store_descriptors() as u64;
        ContentStore {
            cache: ResponseCache::new(bytes_max),
            charge_min: bytes_max.checked_div(descriptors).unwrap_or(0),
            file_bytes_max: match descriptors {
                0 => 0,
                _ => COPY_BYTES_MAX.min(bytes_max / FILE_DIVISOR),
            },
            copies: VecDeque::new(),
            declined: 0,
        }
    }

    /// Whether files of this size belong here.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        bytes > STORED_FILE_BYTES_MIN && bytes <= self.file_bytes_max
    }

    /// Whether a file that does not have to be stored should be.
    fn admits(&mut self, bytes: u64) -> bool {
        if self.cache.has_room(bytes) {
            return true;
        }
        self.declined = (self.declined + 1) % ADMISSION_DIVISOR;
        self.declined == 0
    }

    fn is_pending(&self, entry: &Rc<Entry>, variant: Variant) -> bool {
        let is_same = |copy: &PendingCopy| {
            copy.variant == variant && copy.entry.as_ptr() == Rc::as_ptr(entry)
        };
        self.copies.iter().any(is_same)
    }

    /// Forgets copies that have been dropped. Returns whether there is room for another one.
    fn has_helper(&mut self, now_ms: u64) -> bool {
        self.copies
            .retain(|copy| now_ms < copy.requested_ms + COPY_TIMEOUT_MS);
        self.copies.len() < COPIES_MAX
    }

    fn take_pending(&mut self, file: FileVersion) -> Option<PendingCopy> {
        let at = self.copies.iter().position(|copy| copy.file == file)?;
        self.copies.remove(at)
    }

    fn body(&self, file: &Rc<OpenFile>) -> Rc<StoredBody> {
        let pages_bytes = file.meta().size.next_multiple_of(page_bytes());
        Rc::new(StoredBody {
            file: file.clone(),
            charge: Charge::new(self.cache.used_bytes(), pages_bytes.max(self.charge_min)),
        })
    }
}

impl StaticFiles {
    /// Has a helper copy a file into the store, if its entry stays and nothing speaks against it. `always`:
    /// also when the store is full.
    pub(super) fn request_copy(
        &mut self,
        context: &mut LoopContext,
        entry: &Rc<Entry>,
        representation: &Representation<'_>,
        file: &Rc<OpenFile>,
        always: bool,
    ) {
        let (variant, meta) = (representation.variant, file.meta());
        let size = meta.size;
        let store = &mut self.store;
        if !entry.is_cached() || !store.takes(size) || store.is_pending(entry, variant) {
            return;
        }
        if !store.has_helper(context.now_ms) || !(always || store.admits(size)) {
            return;
        }
        // A full queue has more urgent work. A later request asks again.
        if context.pool.submit_copy_ahead(file).is_err() {
            return;
        }
        store.copies.push_back(PendingCopy {
            entry: Rc::downgrade(entry),
            variant,
            root: representation.root,
            path: representation.path.into(),
            file: (meta.device, meta.inode, meta.modified),
            requested_ms: context.now_ms,
        });
    }

    /// Stores a helper's copy of this file, if it was made for the store.
    pub(in crate::worker) fn keep_copy(
        &mut self,
        context: &mut LoopContext,
        file: FileVersion,
        copy: &Rc<OpenFile>,
    ) {
        let Some(pending) = self.store.take_pending(file) else {
            return;
        };
        let Some(entry) = pending.entry.upgrade() else {
            return;
        };
        let Answer::File(found) = &entry.answer else {
            return;
        };
        let (hosts, variant) = (context.hosts(), pending.variant);
        let settled = context.is_settled(&entry, variant_file(found, variant));
        let host = hosts.get(pending.root);
        let representation = Representation::new(found, variant, host, &pending.path, settled);
        let Some(original) = representation.file.open() else {
            return;
        };
        // The comparison must come after the copy: only then is it of the version that was opened.
        if copy.meta().size != original.meta().size || context.is_unchanged(&original) != Ok(true) {
            return;
        }
        self.store_copy(context, &entry, &representation, copy);
    }

    /// Stores a copy of the file's version, which has been compared.
    pub(super) fn store_copy(
        &mut self,
        context: &mut LoopContext,
        entry: &Rc<Entry>,
        representation: &Representation<'_>,
        copy: &Rc<OpenFile>,
    ) -> Option<Rc<CachedResponse>> {
        let checksum = match StaticFiles::has_checksum(context, copy.meta().size) {
            true => Some(self.checksum(context, representation, copy)?),
            false => None,
        };
        context.tracer.call(Call::Mmap, || copy.hold());
        let stored = self.store.body(copy);
        let body = CachedBody::Stored(&stored, checksum);
        let response = self.build_cached(context, representation, &body);
        context.counters.content_store_insertions += 1;
        self.store
            .cache
            .insert(entry, representation.variant, &response);
        Some(response)
    }

    /// Whether the tag of a file of this size is a checksum: that of a small file may be.
    pub(super) fn has_checksum(context: &LoopContext, bytes: u64) -> bool {
        context.config.etag == EtagSource::Content && bytes <= context.config.small_file_max_bytes
    }

    fn checksum(
        &mut self,
        context: &LoopContext,
        representation: &Representation<'_>,
        copy: &Rc<OpenFile>,
    ) -> Option<Etag> {
        let size = copy.meta().size as usize;
        let mut body = std::mem::take(&mut self.body);
        body.resize(body.len().max(size), 0);
        let read = StaticFiles::read_all(context, copy, &mut body[..size]);
        let plain = StaticFiles::plain_context(context);
        let tag = representation.checksum_tag(&plain, &body[..size]);
        self.body = body;
        read.ok().and(tag)
    }
}
