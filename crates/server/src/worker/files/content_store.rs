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

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use headway_config::{Config, EtagSource, STORED_FILE_BYTES_MIN};
use headway_connection::Connection;
use headway_files::{
    Answer, COPY_BYTES_MAX, FileKey, FoundFile, FromStore, FromStoreSocket, Meta, OpenFile,
    stored_body,
};
use headway_http::etag::Etag;
use headway_os::residency::page_bytes;
use headway_request::{CachedResponse, Charge, Entry, Piece, Request, StoredBody, Variant};
use headway_respond::{CachedBody, Representation, ResponseCache, variant_file};
use headway_send::SendProgress;
use rustix::fd::{AsFd, OwnedFd};

use super::StaticFiles;
use super::shared_store::{Place, SharedStore};
use super::small_file::count_hit;
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

/// After a refusal this many candidates are not asked for: most would be refused as well, and each
/// question takes two calls.
const UNASKED_AFTER_REFUSAL: u32 = 7;

/// The stored files, and those that are being copied.
pub(super) struct ContentStore {
    /// The responses of bodies that only this worker has.
    pub cache: ResponseCache,
    /// The bodies that all workers share.
    pub shared: SharedStore,
    /// The bytes of the shared bodies that this worker has.
    shared_bytes: Rc<Cell<u64>>,
    /// What a body takes of the store at least, so that the descriptors suffice.
    charge_min: u64,
    /// Larger files are not stored; 0 stores none.
    file_bytes_max: u64,
    /// The same, in the store of all workers.
    shared_file_bytes_max: u64,
    copies: VecDeque<PendingCopy>,
    /// Candidates since one was admitted to the full store.
    declined: u32,
    /// Candidates that are not asked for.
    unasked: u32,
}

/// A file by device, inode and modification time: what a helper's copy is of.
type FileVersion = (u64, u64, (i64, u32));

/// A file that is to be stored.
struct PendingCopy {
    place: Place,
    key: FileKey,
    state: CopyState,
    requested_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyState {
    /// The store process was asked for it.
    Asked,
    /// A helper copies it, to offer it to the store process.
    CopiedForAll,
    /// A helper copies it for this worker alone.
    Copied,
}

impl ContentStore {
    pub(super) fn new(config: &Config) -> ContentStore {
        let bytes_max = config.content_store_bytes_per_worker();
        let descriptors = config.content_store_descriptors() as u64;
        let file_bytes_max = |bytes_max: u64| match descriptors {
            0 => 0,
            _ => COPY_BYTES_MAX.min(bytes_max / FILE_DIVISOR),
        };
        ContentStore {
            cache: ResponseCache::new(bytes_max),
            shared: SharedStore::default(),
            shared_bytes: Rc::default(),
            charge_min: bytes_max.checked_div(descriptors).unwrap_or(0),
            file_bytes_max: file_bytes_max(bytes_max),
            shared_file_bytes_max: file_bytes_max(config.content_store_max_bytes),
            copies: VecDeque::new(),
            declined: 0,
            unasked: 0,
        }
    }

    /// Whether files of this size belong here.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        let most = match self.shared.is_attached() {
            true => self.shared_file_bytes_max,
            false => self.file_bytes_max,
        };
        bytes > STORED_FILE_BYTES_MIN && bytes <= most
    }

    /// Whether a copy of this file is for all workers. A file of this second may be written again without a
    /// change of its times: others may have the later contents.
    fn is_for_all(&self, context: &LoopContext, meta: &Meta) -> bool {
        self.shared.is_attached() && context.is_over(meta.modified.0.max(meta.changed.0))
    }

    /// The bytes of the bodies that this worker has.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.used_bytes().get() + self.shared_bytes.get()
    }

    /// What the response of a body is charged to.
    pub(super) fn total(&self, body: &StoredBody) -> &Rc<Cell<u64>> {
        match body.is_for_all {
            true => &self.shared_bytes,
            false => self.cache.used_bytes(),
        }
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
            copy.place.variant == variant && copy.place.entry.as_ptr() == Rc::as_ptr(entry)
        };
        self.copies.iter().any(is_same)
    }

    /// Forgets copies that have been dropped. Returns whether there is room for another one.
    fn has_helper(&mut self, now_ms: u64) -> bool {
        self.copies
            .retain(|copy| now_ms < copy.requested_ms + COPY_TIMEOUT_MS);
        self.copies.len() < COPIES_MAX
    }

    fn wait_for(&mut self, place: Place, key: FileKey, state: CopyState, now_ms: u64) {
        self.copies.push_back(PendingCopy {
            place,
            key,
            state,
            requested_ms: now_ms,
        });
    }

    /// Stores the response of a body with its entry.
    pub(super) fn insert(
        &mut self,
        entry: &Rc<Entry>,
        variant: Variant,
        response: &Rc<CachedResponse>,
    ) {
        match &response.stored {
            // The store process evicts it.
            Some(stored) if stored.is_for_all => {
                *entry.prepared.responses[variant].borrow_mut() = Some(response.clone());
            }
            _ => self.cache.insert(entry, variant, response),
        }
    }

    /// Another store process does not answer what the last one was asked.
    pub(super) fn forget_questions(&mut self) {
        self.copies.retain(|copy| copy.state != CopyState::Asked);
    }

    fn take_pending(&mut self, is_it: impl Fn(&PendingCopy) -> bool) -> Option<PendingCopy> {
        let at = self.copies.iter().position(is_it)?;
        self.copies.remove(at)
    }

    fn body(&self, file: &Rc<OpenFile>, is_for_all: bool) -> Rc<StoredBody> {
        let pages_bytes = file.meta().size.next_multiple_of(page_bytes());
        let (total, bytes) = match is_for_all {
            true => (&self.shared_bytes, pages_bytes),
            false => (self.cache.used_bytes(), pages_bytes.max(self.charge_min)),
        };
        Rc::new(StoredBody::new(
            file.clone(),
            Charge::new(total, bytes),
            is_for_all,
        ))
    }
}

impl PendingCopy {
    fn is_of(&self, file: FileVersion) -> bool {
        let FileKey {
            device,
            inode,
            modified_s,
            modified_ns,
            ..
        } = self.key;
        self.state != CopyState::Asked && file == (device, inode, (modified_s, modified_ns))
    }
}

impl StaticFiles {
    /// Counts the use of a cached response. Returns whether its body should be shared with other workers.
    pub(super) fn count_use(
        &mut self,
        context: &mut LoopContext,
        entry: &Entry,
        variant: Variant,
    ) -> bool {
        let response = entry.prepared.responses[variant].borrow();
        let Some(response) = &*response else {
            return false;
        };
        count_hit(context, response);
        let stored = response.stored.as_ref();
        stored.is_some_and(|stored| self.store.shared.note_use(stored, context.now_ms))
    }

    /// Has a body that only this worker has replaced by one that all workers share.
    pub(super) fn share(
        &mut self,
        context: &mut LoopContext,
        request: &Request,
        entry: &Rc<Entry>,
        found: &FoundFile,
        variant: Variant,
    ) {
        let hosts = context.hosts();
        let host = hosts.get(request.virtual_host);
        let settled = context.is_settled(entry, variant_file(found, variant));
        let representation = Representation::new(found, variant, host, request.path(), settled);
        // Before, it would be copied for this worker alone, which has it.
        let may_share = settled && self.store.is_for_all(context, representation.file.meta());
        if may_share && let Some(file) = representation.file.open() {
            self.request_copy(context, entry, &representation, &file, true);
        }
    }

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
        if !store.has_helper(context.now_ms) {
            return;
        }
        let place = Place {
            entry: Rc::downgrade(entry),
            variant,
            root: representation.root,
            path: representation.path.into(),
        };
        let key = FileKey::from(meta);
        if store.is_for_all(context, meta) {
            return self.request_shared(context, place, key, always);
        }
        if size > store.file_bytes_max || !(always || store.admits(size)) {
            return;
        }
        // A full queue has more urgent work. A later request asks again.
        if context.pool.submit_copy_ahead(file).is_ok() {
            store.wait_for(place, key, CopyState::Copied, context.now_ms);
        }
    }

    fn request_shared(
        &mut self,
        context: &mut LoopContext,
        place: Place,
        key: FileKey,
        always: bool,
    ) {
        if let Some(body) = self.store.shared.body(&key) {
            return self.place(context, place, key, &body);
        }
        if !always && self.store.unasked > 0 {
            self.store.unasked -= 1;
        } else if self.store.shared.want(&context.tracer, key, always) {
            let store = &mut self.store;
            store.wait_for(place, key, CopyState::Asked, context.now_ms);
        }
    }

    /// Handles the messages of the store process.
    pub(in crate::worker) fn on_store(&mut self, context: &mut LoopContext) {
        loop {
            match self.store.shared.receive(&context.tracer) {
                FromStoreSocket::Message(message, file) => self.answered(context, message, file),
                FromStoreSocket::WouldBlock => return,
                FromStoreSocket::End => {
                    self.store.forget_questions();
                    if let Some(socket) = self.store.shared.detach() {
                        let _ = context.events.remove(socket.as_fd());
                    }
                    return;
                }
            }
        }
    }

    fn answered(&mut self, context: &mut LoopContext, message: FromStore, file: Option<OwnedFd>) {
        let store = &mut self.store;
        match message {
            FromStore::Given { key, number } => self.given(context, key, number, file),
            FromStore::Copy { key } => self.copy_for_all(context, key),
            FromStore::Refused { key } => {
                store.unasked = UNASKED_AFTER_REFUSAL;
                store.take_pending(|copy| copy.key == key && copy.state == CopyState::Asked);
                store.shared.refused(&key);
            }
            FromStore::Accepted { key, number } => store.shared.accepted(key, number),
            FromStore::Evict { number } => {
                let has = store.shared.evict(number);
                context.counters.content_store_evictions += u64::from(has);
            }
        }
    }

    /// Another worker has copied the file.
    fn given(
        &mut self,
        context: &mut LoopContext,
        key: FileKey,
        number: u64,
        memfd: Option<OwnedFd>,
    ) {
        let store = &mut self.store;
        let mut places: Vec<Place> = Vec::new();
        while let Some(pending) =
            store.take_pending(|copy| copy.key == key && copy.state == CopyState::Asked)
        {
            places.push(pending.place);
        }
        let closes = context.pool.deferred_closes();
        let file = memfd.and_then(|memfd| stored_body(memfd, &key, &closes));
        if store.shared.has(&key, number) {
            return;
        }
        let Some(file) = file else {
            return store.shared.return_body(number);
        };
        places.extend(store.shared.take_places(&key));
        let body = store.body(&Rc::new(file), true);
        body.shared.replace(Some(store.shared.shared(number)));
        for place in places {
            self.place(context, place, key, &body);
        }
    }

    /// The store process has not got the file, and room for it.
    fn copy_for_all(&mut self, context: &mut LoopContext, key: FileKey) {
        let is_asked = |copy: &PendingCopy| copy.key == key && copy.state == CopyState::Asked;
        let pending = self.store.take_pending(is_asked);
        let file = pending.as_ref().and_then(|pending| {
            let entry = pending.place.entry.upgrade()?;
            let Answer::File(found) = &entry.answer else {
                return None;
            };
            variant_file(found, pending.place.variant).open()
        });
        match (pending, file) {
            (Some(pending), Some(file)) if context.pool.submit_copy_ahead(&file).is_ok() => {
                let (store, state) = (&mut self.store, CopyState::CopiedForAll);
                store.wait_for(pending.place, key, state, context.now_ms);
            }
            _ => self.store.shared.decline(&context.tracer, key),
        }
    }

    /// Stores a response of a shared body at this place, if the file there still is the one of the body.
    fn place(
        &mut self,
        context: &mut LoopContext,
        place: Place,
        key: FileKey,
        body: &Rc<StoredBody>,
    ) {
        let Some(entry) = place.entry.upgrade() else {
            return;
        };
        let Answer::File(found) = &entry.answer else {
            return;
        };
        let (hosts, variant) = (context.hosts(), place.variant);
        let file = variant_file(found, variant);
        if FileKey::from(file.meta()) != key || !entry.is_cached() {
            return;
        }
        let settled = context.is_settled(&entry, file);
        let host = hosts.get(place.root);
        let representation = Representation::new(found, variant, host, &place.path, settled);
        if self
            .store_body(context, &entry, &representation, body)
            .is_some()
        {
            self.store.shared.add(key, body, place);
        }
    }

    /// Stores a helper's copy of this file, if it was made for the store.
    pub(in crate::worker) fn keep_copy(
        &mut self,
        context: &mut LoopContext,
        file: FileVersion,
        copy: &Rc<OpenFile>,
    ) {
        let Some(pending) = self.store.take_pending(|copy| copy.is_of(file)) else {
            return;
        };
        let (is_for_all, key) = (pending.state == CopyState::CopiedForAll, pending.key);
        let is_kept = self.keep(context, pending, copy);
        match (is_for_all, is_kept) {
            (true, true) => self.store.shared.offer(&context.tracer, key),
            (true, false) => self.store.shared.decline(&context.tracer, key),
            (false, _) => {}
        }
    }

    fn keep(
        &mut self,
        context: &mut LoopContext,
        pending: PendingCopy,
        copy: &Rc<OpenFile>,
    ) -> bool {
        let Some(entry) = pending.place.entry.upgrade() else {
            return false;
        };
        let Answer::File(found) = &entry.answer else {
            return false;
        };
        let Some(original) = variant_file(found, pending.place.variant).open() else {
            return false;
        };
        // The comparison must come after the copy: only then is it of the version that was opened.
        if copy.meta().size != original.meta().size || context.is_unchanged(&original) != Ok(true) {
            return false;
        }
        let is_for_all = pending.state == CopyState::CopiedForAll;
        let body = self.store.body(copy, is_for_all);
        if is_for_all {
            self.place(context, pending.place, pending.key, &body);
            return self.store.shared.body(&pending.key).is_some();
        }
        let (hosts, variant) = (context.hosts(), pending.place.variant);
        let settled = context.is_settled(&entry, variant_file(found, variant));
        let (host, path) = (hosts.get(pending.place.root), &pending.place.path);
        let representation = Representation::new(found, variant, host, path, settled);
        self.store_body(context, &entry, &representation, &body)
            .is_some()
    }

    /// Stores a copy of the file's version, which has been compared, for this worker alone.
    pub(super) fn store_copy(
        &mut self,
        context: &mut LoopContext,
        entry: &Rc<Entry>,
        representation: &Representation<'_>,
        copy: &Rc<OpenFile>,
    ) {
        let body = self.store.body(copy, false);
        self.store_body(context, entry, representation, &body);
    }

    /// Stores the response of a body.
    fn store_body(
        &mut self,
        context: &mut LoopContext,
        entry: &Rc<Entry>,
        representation: &Representation<'_>,
        body: &Rc<StoredBody>,
    ) -> Option<()> {
        let checksum = match StaticFiles::has_checksum(context, body.file.meta().size) {
            true => Some(self.checksum(context, representation, &body.file)?),
            false => None,
        };
        let cached = CachedBody::Stored(body, checksum);
        let response = self.build_cached(context, representation, &cached);
        context.counters.content_store_insertions += 1;
        self.store.insert(entry, representation.variant, &response);
        Some(())
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

/// Sends a header, and behind it the body from the content store.
pub(super) fn send_stored(
    context: &mut LoopContext,
    connection: &mut Connection,
    response: &Rc<CachedResponse>,
) -> SendProgress {
    let size = response
        .stored
        .as_ref()
        .map_or(0, |stored| stored.file.meta().size);
    let outgoing = &mut connection.outgoing;
    outgoing.sent_bytes = 0;
    let head = response.start..response.body_at;
    outgoing.push(Piece::Cached(response.clone(), head));
    outgoing.push(response.piece(0..size));
    match context.config.research.eager_write {
        true => context.transmit_in_round(connection),
        false => SendProgress::SocketFull,
    }
}
