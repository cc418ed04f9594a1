//! The handler of files: from the path of a request to the response, without blocking.
//!
//! In the order of a request: `find_target` looks for the handler that answers, for the router;
//! `static_file` goes from the path to the last byte; `small_file` gets the content of a small file;
//! `content_store` has larger ones copied into memory that is sent without a copy; `shared_store` is what
//! the worker has of the store that all workers share.

mod content_store;
pub(super) mod find_target;
mod shared_store;
pub(super) mod small_file;
pub(super) mod static_file;

use headway_config::{Config, ErrorLevel};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use headway_event::{Interest, Token};
use headway_files::{Answer, RootId, StoreSocket};
use headway_lookup::Lookup;
use headway_metrics::Counters;
use headway_request::{Entry, Request};
use headway_respond::ResponseCache;

use crate::worker::context::LoopContext;
use crate::worker::tokens::STORE;
use content_store::ContentStore;

/// How many cached files are closed when descriptors run out: as many as one message to a helper
/// takes, enough for the reserve and a few connections. While the shortage lasts, each pause closes
/// more.
const FILES_EVICTED_PER_PAUSE: usize = 64;

/// How often cached files are searched for deleted ones, which occupy the disk while they are open.
/// Without requests the time doubles with each search, up to the second value.
const DELETED_SEARCH_MS: u64 = 5_000;
const DELETED_SEARCH_IDLE_MS: u64 = 60_000;
/// How many of them are looked at in one iteration, and the time to the next part of a search. A look
/// takes half a microsecond.
const DELETED_SEARCH_BATCH: usize = 256;
const DELETED_SEARCH_PAUSE_MS: u64 = 50;

/// The caches of files and of their responses.
pub(super) struct StaticFiles {
    pub lookup: Lookup,
    /// When the search for deleted files goes on.
    deleted_search_ms: u64,
    search_interval: SearchInterval,
    response_cache: ResponseCache,
    store: ContentStore,
    /// The buffer into which small files are read before their response is built.
    body: Vec<u8>,
}

impl StaticFiles {
    pub(super) fn new(config: &Config, lookup: Lookup) -> Self {
        Self {
            lookup,
            deleted_search_ms: u64::MAX,
            search_interval: SearchInterval::default(),
            response_cache: ResponseCache::new(config.response_cache_max_bytes),
            store: ContentStore::new(config),
            body: Vec::new(),
        }
    }

    /// What is known of a path without waiting. What was not checked in time is looked up again by a
    /// helper meanwhile.
    pub(super) fn find(
        &mut self,
        context: &mut LoopContext,
        root: RootId,
        path: &[u8],
    ) -> Option<Rc<Entry>> {
        self.search_interval.is_used = true;
        let found = self.lookup.find(root, path, context.lookup_context())?;
        if found.refresh {
            // If the queue is full, the next request asks again.
            let _ = context.pool.submit_refresh(root, path);
        }
        Some(found.entry)
    }

    /// Takes the socket to a store process that has started.
    pub(super) fn attach_store(&mut self, context: &mut LoopContext, socket: OwnedFd) {
        let watched = context
            .events
            .add(socket.as_fd(), Token::new(STORE, 0, 0), Interest::READ);
        if let Err(error) = watched {
            return context.notice(
                ErrorLevel::Error,
                format!("cannot watch the store process: {error}"),
            );
        }
        self.store.forget_questions();
        if let Some(last) = self.store.shared.attach(StoreSocket::new(socket)) {
            let _ = context.events.remove(last.as_fd());
        }
    }

    /// Searches for cached files that have been deleted, and sends the store process what is due.
    /// Runs once per iteration.
    pub(super) fn maintain(&mut self, context: &LoopContext) {
        let now_ms = context.now_ms;
        if self.search_interval.ends_idle() {
            self.deleted_search_ms = self.deleted_search_ms.min(now_ms + DELETED_SEARCH_MS);
        }
        self.store.shared.maintain(&context.tracer, now_ms);
        if !self.lookup.has_open_files() {
            self.deleted_search_ms = u64::MAX;
        } else if self.deleted_search_ms == u64::MAX {
            self.deleted_search_ms = now_ms + DELETED_SEARCH_MS;
        } else if now_ms >= self.deleted_search_ms {
            let tracer = &context.tracer;
            let pause_ms = match self.lookup.forget_deleted(DELETED_SEARCH_BATCH, tracer) {
                true => self.search_interval.next_ms(),
                false => DELETED_SEARCH_PAUSE_MS,
            };
            self.deleted_search_ms = now_ms + pause_ms;
        }
    }

    /// When [`StaticFiles::maintain`] has something to do.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let search = (self.deleted_search_ms < u64::MAX).then_some(self.deleted_search_ms);
        search.into_iter().chain(self.store.shared.next_ms()).min()
    }

    /// Sets the gauges of a snapshot.
    pub(super) fn gauges(&self, counters: &mut Counters) {
        self.lookup.gauges(counters);
        counters.response_cache_bytes = self.response_cache.used_bytes().get();
        counters.response_cache_evictions = self.response_cache.evictions();
        counters.content_store_bytes = self.store.bytes();
        counters.content_store_evictions += self.store.cache.evictions();
    }

    /// Whether the root is another directory now than in this version. Where a helper has to find out, the
    /// request is tried again, and its next lookup waits for the helper. If that is in the same version,
    /// the root had not moved.
    pub(super) fn has_root_moved(
        &self,
        context: &mut LoopContext,
        request: &Request,
        root: RootId,
        version: u32,
    ) -> bool {
        let context = context.lookup_context();
        let moved = self.lookup.has_root_moved(root, version, &context);
        moved.unwrap_or_else(|| request.awaited_root.replace(Some(version)) != Some(version))
    }

    /// Whether a path has to be looked up again, because it was missing in a directory that is no longer the
    /// root.
    fn is_outdated(
        &self,
        context: &mut LoopContext,
        request: &Request,
        root: RootId,
        entry: &Entry,
    ) -> bool {
        !matches!(entry.answer, Answer::File(_))
            && self.has_root_moved(context, request, root, entry.root_version.get())
    }

    /// A lookup failed because no descriptor was free. Returns `true` if closing the reserve
    /// descriptors makes another attempt worthwhile.
    pub(super) fn release_reserve(&mut self, context: &mut LoopContext) -> bool {
        let freed = context.reserve.release();
        if freed {
            context.descriptors_short = true;
            self.evict();
        }
        freed
    }

    /// Closes some cached files, because descriptors have run out.
    pub(super) fn evict(&mut self) {
        self.lookup.free_descriptors(FILES_EVICTED_PER_PAUSE);
    }
}

/// The time between two searches for deleted files.
struct SearchInterval {
    ms: u64,
    /// Whether there were requests since the last search.
    is_used: bool,
}

impl Default for SearchInterval {
    fn default() -> Self {
        Self {
            ms: DELETED_SEARCH_MS,
            is_used: false,
        }
    }
}

impl SearchInterval {
    /// Whether there are requests again, so that the next search is due earlier.
    fn ends_idle(&mut self) -> bool {
        let ends = self.is_used && self.ms > DELETED_SEARCH_MS;
        if ends {
            self.ms = DELETED_SEARCH_MS;
        }
        ends
    }

    /// The time from this search to the next one.
    fn next_ms(&mut self) -> u64 {
        self.ms = match std::mem::take(&mut self.is_used) {
            true => DELETED_SEARCH_MS,
            false => (2 * self.ms).min(DELETED_SEARCH_IDLE_MS),
        };
        self.ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_become_rare_without_requests_and_frequent_with_the_next_one() {
        let mut interval = SearchInterval {
            is_used: true,
            ..SearchInterval::default()
        };
        assert_eq!(interval.next_ms(), 5_000);
        let idle = [(); 5].map(|()| interval.next_ms());
        assert_eq!(idle, [10_000, 20_000, 40_000, 60_000, 60_000]);
        assert!(!interval.ends_idle());
        interval.is_used = true;
        assert!(interval.ends_idle() && !interval.ends_idle());
        assert_eq!(interval.next_ms(), 5_000);
    }
}
