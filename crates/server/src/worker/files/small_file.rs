//! Gets the response of a small file: from the response cache, or by a read that cannot block. A
//! file that is not in the page cache is left to a helper.

use std::io::ErrorKind;
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;

use headway_connection::{Connection, LookupFor, Phase};
use headway_files::{Failure, Full, OpenFile};
use headway_metrics::calls::Call;
use headway_request::{CachedResponse, Entry, LoadedContent, Request, Variant};
use headway_respond::{CachedBody, Representation, ResponseContext};

use super::StaticFiles;
use crate::worker::context::LoopContext;
use crate::worker::handler::Step;
use crate::worker::sending::{HELPER_REQUESTS_MAX, READ_INS_MAX};

/// Why a small file could not be read without blocking.
pub(in crate::worker) enum CacheMiss {
    NotResident,
    ResidencyUnknown,
    /// The file differs from its file cache entry, or was closed and its cached response is gone.
    /// It must be looked up again.
    Changed,
    /// By the disk, or for want of memory.
    Unreadable(Failure),
}

impl From<&std::io::Error> for CacheMiss {
    fn from(error: &std::io::Error) -> CacheMiss {
        match error.kind() {
            ErrorKind::Unsupported => CacheMiss::ResidencyUnknown,
            _ => CacheMiss::Unreadable(Failure::of_read(error)),
        }
    }
}

impl From<Failure> for CacheMiss {
    fn from(failure: Failure) -> CacheMiss {
        CacheMiss::Unreadable(failure)
    }
}

/// Counts a response that need not be built.
pub(super) fn count_hit(context: &mut LoopContext, content: &CachedResponse) {
    match content.stored.is_some() {
        true => context.counters.content_store_hits += 1,
        false => context.counters.response_cache_hits += 1,
    }
}

impl StaticFiles {
    /// The response of a small file, from the cache or read without blocking.
    pub(in crate::worker) fn small_file(
        &mut self,
        context: &mut LoopContext,
        entry: &Rc<Entry>,
        representation: &Representation<'_>,
        loaded: Option<&LoadedContent>,
    ) -> Result<Rc<CachedResponse>, CacheMiss> {
        if let Some(content) = self.cached_response(context, entry, representation) {
            return Ok(content);
        }
        let file = representation.file.open().ok_or(CacheMiss::Changed)?;
        let content = match loaded {
            Some(LoadedContent::Bytes(bytes)) => {
                StaticFiles::expect_unchanged(context, bytes.len() as u64, &file)?;
                self.build_cached(context, representation, &CachedBody::Inline(bytes))
            }
            _ => {
                let size = file.meta().size as usize;
                // The buffer only grows, so that bytes are not cleared before a read overwrites
                // them.
                let mut body = std::mem::take(&mut self.body);
                if body.len() < size {
                    body.resize(size, 0);
                }
                let read = StaticFiles::read_small_file(context, loaded, &file, &mut body[..size]);
                let content = read.map(|()| {
                    let body = CachedBody::Inline(&body[..size]);
                    self.build_cached(context, representation, &body)
                });
                self.body = body;
                content?
            }
        };
        context.counters.response_cache_misses += 1;
        // What a scan asks for once must not evict what is in use.
        if !entry.is_cached() {
            return Ok(content);
        }
        self.offer_for_pinning(context, entry, &file);
        if self.store.takes(file.meta().size) {
            match loaded {
                Some(LoadedContent::File(copy)) if !self.store.shared.is_attached() => {
                    self.store_copy(context, entry, representation, copy);
                }
                _ => self.request_copy(context, entry, representation, &file, true),
            }
        } else {
            context.counters.response_cache_insertions += 1;
            self.response_cache
                .insert(entry, representation.variant, &content);
        }
        Ok(content)
    }

    /// The response of a file from the response cache or the content store.
    pub(super) fn cached_response(
        &mut self,
        context: &mut LoopContext,
        entry: &Rc<Entry>,
        representation: &Representation<'_>,
    ) -> Option<Rc<CachedResponse>> {
        let variant = representation.variant;
        let content = entry.prepared.responses[variant].borrow().clone()?;
        count_hit(context, &content);
        if !content.is_unsettled() || !representation.settled {
            return Some(content);
        }
        // Its date and tag can be trusted now. A checksum is the same.
        let size = representation.file.meta().size;
        let is_checksum = StaticFiles::has_checksum(context, size);
        let body = match &content.stored {
            Some(stored) => CachedBody::Stored(stored, is_checksum.then_some(content.etag)),
            None => CachedBody::Inline(&content.bytes[content.body_at..]),
        };
        let rebuilt = self.build_cached(context, representation, &body);
        match content.stored.is_some() {
            true => self.store.insert(entry, variant, &rebuilt),
            false => self.response_cache.insert(entry, variant, &rebuilt),
        }
        Some(rebuilt)
    }

    /// Offers a file that this worker has cached for pinning, which serves all workers.
    fn offer_for_pinning(&self, context: &LoopContext, entry: &Entry, file: &OpenFile) {
        let offered = &entry.prepared.pin_requested;
        if context.config.pin_max_bytes > 0 && !offered.get() {
            offered.set(self.store.shared.pin(&context.tracer, file));
        }
    }

    pub(super) fn build_cached(
        &self,
        context: &LoopContext,
        representation: &Representation<'_>,
        body: &CachedBody<'_>,
    ) -> Rc<CachedResponse> {
        let plain = StaticFiles::plain_context(context);
        let total = match body {
            CachedBody::Inline(_) => self.response_cache.used_bytes(),
            CachedBody::Stored(stored, _) => self.store.total(stored),
        };
        let response = headway_respond::build_cached(&plain, representation, body, total);
        Rc::new(response)
    }

    /// The context of a response that serves all requests.
    pub(super) fn plain_context(context: &LoopContext) -> ResponseContext<'_> {
        ResponseContext {
            keep_alive: true,
            ..ResponseContext::without_request(&context.response_settings, &context.date, false)
        }
    }

    /// Fails unless `length` is still the size of `file`. A rewrite since the read shows in the
    /// size or the modification time.
    fn expect_unchanged(
        context: &LoopContext,
        length: u64,
        file: &OpenFile,
    ) -> Result<(), CacheMiss> {
        match length == file.meta().size && context.is_unchanged(file)? {
            true => Ok(()),
            false => Err(CacheMiss::Changed),
        }
    }

    /// Reads all of `file`, or of a helper's copy, into `body`, which has its size.
    pub(in crate::worker) fn read_small_file(
        context: &LoopContext,
        loaded: Option<&LoadedContent>,
        file: &OpenFile,
        body: &mut [u8],
    ) -> Result<(), CacheMiss> {
        if loaded.is_some_and(|loaded| loaded.length() != file.meta().size) {
            return Err(CacheMiss::Changed);
        }
        match loaded {
            Some(LoadedContent::Bytes(bytes)) => body.copy_from_slice(bytes),
            Some(LoadedContent::File(copy)) => StaticFiles::read_all(context, copy, body)?,
            None => StaticFiles::read_all(context, file, body)?,
        }
        StaticFiles::expect_unchanged(context, body.len() as u64, file)
    }

    /// Fills `body` from `source`.
    pub(in crate::worker) fn read_all(
        context: &LoopContext,
        source: &OpenFile,
        body: &mut [u8],
    ) -> Result<(), CacheMiss> {
        StaticFiles::expect_resident(context, source)?;
        let mut at = 0;
        while at < body.len() {
            let read = context.tracer.call(Call::ReadNowait, || {
                headway_files::read_nowait(source, &mut body[at..], at as u64)
            });
            match read {
                Ok(Some(0)) => return Err(CacheMiss::Changed),
                Ok(Some(count)) => at += count,
                Ok(None) => return Err(CacheMiss::NotResident),
                Err(error) => return Err(CacheMiss::from(&error)),
            }
        }
        Ok(())
    }

    /// Fails if a page of `source` is certainly not cached. A non-blocking read would also find
    /// that out, but it starts to read the page in first, which can block when the disk's queue is
    /// full.
    fn expect_resident(context: &LoopContext, source: &OpenFile) -> Result<(), CacheMiss> {
        let size = source.meta().size;
        let cached = context.tracer.call(Call::Residency, || {
            context.residency.cached(source, 0, size)
        });
        match cached {
            Ok(true) => Ok(()),
            Ok(false) => Err(CacheMiss::NotResident),
            Err(error) => Err(CacheMiss::from(&error)),
        }
    }

    /// Has a helper load the small file of a request. The request goes on if the file has changed or
    /// was closed.
    pub(super) fn load(
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        entry: &Rc<Entry>,
        file: Option<Rc<OpenFile>>,
        miss: &CacheMiss,
    ) -> Step {
        let file = match (miss, file) {
            (CacheMiss::Changed, _) | (_, None) => return Continue(request),
            (CacheMiss::Unreadable(failure), _) => {
                return Break(context.send_failure(connection, request, *failure));
            }
            (_, Some(file)) => file,
        };
        let submitted =
            StaticFiles::submit_load(context, connection, &mut request, entry, &file, miss);
        Break(match submitted {
            Ok(()) => context.wait_for_helper(connection, request, |request| {
                Phase::AwaitContent(request, entry.clone(), LookupFor::File)
            }),
            Err(_) => context.send_overloaded(connection, request),
        })
    }

    /// Submits the job that reads a file that is not resident or whose residency is unknown. Returns `Full`
    /// also when too many attempts have failed. The file may be offered for pinning again
    /// afterwards.
    pub(in crate::worker) fn submit_load(
        context: &mut LoopContext,
        connection: &Connection,
        request: &mut Request,
        entry: &Entry,
        file: &Rc<OpenFile>,
        miss: &CacheMiss,
    ) -> Result<(), Full> {
        entry.prepared.pin_requested.set(false);
        let size = file.meta().size;
        let waiter = connection.waiter(request);
        let jobs = request.count_helper_request(0);
        match miss {
            _ if jobs <= READ_INS_MAX && context.pool.may_fetch(size) => {
                context.pool.submit_fetch(file, size, waiter)
            }
            CacheMiss::NotResident if jobs <= READ_INS_MAX => {
                context.pool.submit_read_in(file, 0, size, Some(waiter))
            }
            // A hole in a tmpfs file never becomes resident, so a helper must copy it.
            _ if jobs <= HELPER_REQUESTS_MAX => context.pool.submit_copy(file, 0, size, waiter),
            _ => Err(Full),
        }
    }
}

/// Whether the cached response was built before the file was settled.
pub(super) fn is_unsettled(entry: &Entry, variant: Variant) -> bool {
    let cached = entry.prepared.responses[variant].borrow();
    cached.as_ref().is_some_and(|cached| cached.is_unsettled())
}
