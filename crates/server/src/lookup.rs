//! Finds the file behind a path: the file cache, then a non-blocking probe, then a helper.
//!
//! A file cache entry younger than `revalidate_ms` is used as it is; an older one is compared with
//! the directory by calls that cannot block. A path that is not cached is probed with
//! `RESOLVE_CACHED`. Only if the kernel would have to wait is a helper asked, so a hit never queues
//! behind a miss.
//!
//! This is [`Opening::Probe`]. The papers' presets have no probe: a helper looks up every path that
//! is not cached or is due for revalidation. It passes the open file, or touches the path so that
//! the loop can open it again ([`Lookup::reopen`]). Reopening may block, and exists to show that.
//!
//! With `caching = false` every request looks up its path again in the same way, and the result is
//! dropped afterwards.
//!
//! Sources: 2006 paper, section 3.3 and 5; openat2(2) on `RESOLVE_CACHED`.

mod listing_cache;
mod virtual_hosts;

use std::rc::Rc;

use headway_files::{
    AbsentSiblings, Answer, DeferredCloses, Failure, FileCache, FoundFile, KnownFile, LoopResolver,
    OpenFile, Probe, Revalidation, RootId, Roots,
};

use crate::calls::{Call, Tracer};
use crate::config::Opening;
use crate::request::{CachedResponses, Counters, Entry};

use listing_cache::ListingCache;
pub use virtual_hosts::VirtualHosts;

/// The maximum age of an entry that should be current, for presets that cannot probe.
const UNPROBED_AGE_MS: u64 = 1000;

/// The result of a lookup that did not block.
pub enum LookupResult {
    /// The entry of the path.
    Known(Rc<Entry>),
    /// A helper must look up the path.
    NeedsHelper,
}

/// The worker's file cache and listing cache, and the non-blocking probes behind them.
pub struct Lookup {
    roots: Rc<Roots>,
    names: FileCache<CachedResponses>,
    listings: ListingCache,
    deferred_closes: DeferredCloses,
    opening: Opening,
    revalidate_ms: u64,
    /// If false, nothing is cached and each request makes its own lookup.
    caching: bool,
}

/// What a lookup needs of the loop.
pub struct LookupContext<'a> {
    /// The time of this iteration.
    pub now_ms: u64,
    /// Records the system calls.
    pub tracer: &'a Tracer,
    /// Counts hits and misses.
    pub counters: &'a mut Counters,
}

/// The result of looking up a directory listing.
pub enum ListingLookup {
    /// The current listing.
    Known(Rc<OpenFile>),
    /// A helper must render the listing, or confirm the one that is passed along.
    NeedsHelper(Option<Rc<OpenFile>>),
}

impl Lookup {
    /// An empty cache over `roots`.
    pub fn new(
        roots: Rc<Roots>,
        names: FileCache<CachedResponses>,
        deferred_closes: DeferredCloses,
        opening: Opening,
        revalidate_ms: u64,
        caching: bool,
    ) -> Self {
        Self {
            roots,
            names,
            listings: ListingCache::default(),
            deferred_closes,
            opening,
            revalidate_ms,
            caching,
        }
    }

    /// Looks up `path`.
    pub fn find(&mut self, root: RootId, path: &[u8], context: LookupContext<'_>) -> LookupResult {
        self.find_within(self.revalidate_ms, root, path, context)
    }

    /// Looks up `path` and always checks with the kernel. Presets without a probe would need a
    /// helper each time, so there an entry may be up to a second old.
    pub fn find_now(
        &mut self,
        root: RootId,
        path: &[u8],
        context: LookupContext<'_>,
    ) -> LookupResult {
        match self.opening {
            Opening::Probe => self.find_within(0, root, path, context),
            Opening::Touch | Opening::Pass => {
                let age_ms = self.revalidate_ms.min(UNPROBED_AGE_MS);
                self.find_within(age_ms, root, path, context)
            }
        }
    }

    /// Looks up `path`; accepts an entry that was checked less than `age_ms` ago.
    fn find_within(
        &mut self,
        age_ms: u64,
        root: RootId,
        path: &[u8],
        context: LookupContext<'_>,
    ) -> LookupResult {
        if let Some(entry) = self.names.get(root, path) {
            if context.now_ms < entry.checked_ms.get() + age_ms {
                context.counters.file_cache_hits += 1;
                return LookupResult::Known(entry.clone());
            }
            context.counters.file_cache_revalidations += 1;
            if self.opening != Opening::Probe {
                return LookupResult::NeedsHelper;
            }
            let absent = entry.absent(context.now_ms);
            let verdict = context.tracer.call(Call::Resolve, || {
                let resolver = LoopResolver {
                    roots: &self.roots,
                    deferred: &self.deferred_closes,
                };
                resolver.revalidate_cached(root, path, &entry.answer, absent)
            });
            match verdict {
                Revalidation::Same => {
                    entry.confirm(absent, context.now_ms);
                    context.counters.file_cache_hits += 1;
                    return LookupResult::Known(entry.clone());
                }
                Revalidation::Changed => {
                    context.counters.file_cache_stale += 1;
                    self.names.remove(root, path);
                }
                Revalidation::WouldBlock => {
                    context.counters.lookup_probes_would_block += 1;
                    return LookupResult::NeedsHelper;
                }
            }
        }
        context.counters.file_cache_misses += 1;
        if self.opening != Opening::Probe {
            return LookupResult::NeedsHelper;
        }
        self.probe(root, path, context)
    }

    fn resolver(&self) -> LoopResolver<'_> {
        LoopResolver {
            roots: &self.roots,
            deferred: &self.deferred_closes,
        }
    }

    fn probe(&mut self, root: RootId, path: &[u8], context: LookupContext<'_>) -> LookupResult {
        let probe = context
            .tracer
            .call(Call::Resolve, || self.resolver().resolve_cached(root, path));
        match probe {
            Probe::Answered(answer) => {
                context.counters.lookup_probes_resolved += 1;
                LookupResult::Known(self.insert(root, path, answer, context.now_ms))
            }
            Probe::WouldBlock => {
                context.counters.lookup_probes_would_block += 1;
                LookupResult::NeedsHelper
            }
        }
    }

    /// Looks up and opens a path that a helper has touched. May block: on directory entries that
    /// were evicted again, and on a lock that another process holds in the same directories.
    pub fn reopen(&mut self, root: RootId, path: &[u8], context: LookupContext<'_>) -> Rc<Entry> {
        context.counters.file_cache_repeated_lookups += 1;
        let answer = context
            .tracer
            .call(Call::Reopen, || self.resolver().resolve_on_loop(root, path));
        self.insert_resolved(root, path, answer, context.now_ms)
    }

    /// Stores what a helper found. An answer that only confirms the cached one keeps the entry and
    /// its cached responses, unless they are gone and the file is closed.
    pub fn insert_resolved(
        &mut self,
        root: RootId,
        path: &[u8],
        answer: Answer,
        now_ms: u64,
    ) -> Rc<Entry> {
        if let Some(entry) = self.names.get(root, path)
            && is_confirmed(&entry.answer, &answer)
            && entry.is_whole()
        {
            entry.confirm(AbsentSiblings::Probe, now_ms);
            return entry.clone();
        }
        self.insert(root, path, answer, now_ms)
    }

    /// Makes the entry of a path; without caching only the current requests see it.
    fn insert(&mut self, root: RootId, path: &[u8], answer: Answer, now_ms: u64) -> Rc<Entry> {
        let entry = self.names.insert(root, path, answer, now_ms);
        if !self.caching {
            self.names.remove(root, path);
        }
        entry
    }

    /// Looks up the listing of the directory `path`.
    pub fn find_listing(&self, root: RootId, path: &[u8], now_ms: u64) -> ListingLookup {
        if !self.caching {
            return ListingLookup::NeedsHelper(None);
        }
        match self.listings.find(root, path) {
            Some((page, checked_ms)) if now_ms < checked_ms + self.revalidate_ms => {
                ListingLookup::Known(page)
            }
            other => ListingLookup::NeedsHelper(other.map(|(page, _)| page)),
        }
    }

    /// Stores the listing that a helper has rendered, or passes on why there is none. Fails if all
    /// listings together would take too much memory.
    pub fn insert_listing(
        &mut self,
        root: RootId,
        path: &[u8],
        page: Result<Rc<OpenFile>, Failure>,
        now_ms: u64,
    ) -> Result<Rc<OpenFile>, Failure> {
        self.listings.insert(root, path, page?, now_ms)
    }

    /// Removes a path from the file cache, so that the next request looks it up again.
    pub fn invalidate(&mut self, root: RootId, path: &[u8]) {
        self.names.remove(root, path);
    }

    /// Closes at least `count` cached files that are not in use. Does nothing if as many
    /// descriptors are already waiting for a helper to close them.
    pub fn free_descriptors(&mut self, count: usize) {
        if self.deferred_closes.len() < count {
            self.names.evict_descriptors(count);
        }
    }

    /// Sets the cache gauges of a snapshot.
    pub fn gauges(&self, counters: &mut Counters) {
        counters.file_cache_entries = self.names.len() as u64;
        counters.file_cache_descriptors = self.names.descriptors() as u64;
        counters.file_cache_evictions = self.names.evictions();
        counters.open_files_closed_early = self.names.closed();
        counters.listing_cache_entries = self.listings.count();
    }
}

/// Whether a helper's answer is the same as the cached one.
fn is_confirmed(known: &Answer, found: &Answer) -> bool {
    match (known, found) {
        (Answer::File(known), Answer::File(found)) => is_same_file(known, found),
        (Answer::Redirect, Answer::Redirect) | (Answer::Directory, Answer::Directory) => true,
        (Answer::Failed(known), Answer::Failed(found)) => known == found,
        _ => false,
    }
}

fn is_same_file(known: &FoundFile, found: &FoundFile) -> bool {
    fn meta(file: &Option<KnownFile>) -> Option<&headway_files::Meta> {
        file.as_ref().map(KnownFile::meta)
    }
    known.file.meta() == found.file.meta()
        && known.index == found.index
        && known
            .siblings
            .iter()
            .map(meta)
            .eq(found.siblings.iter().map(meta))
}
