//! Finds the file behind a path: the file cache, then a non-blocking probe, then a helper.
//!
//! A file cache entry younger than `revalidate_ms` is used as it is; an older one is compared with
//! the directory by calls that cannot block. A path that is not cached is probed with
//! `RESOLVE_CACHED`. Only if the kernel would have to wait is a helper asked, so a hit never queues
//! behind a miss.
//!
//! A check would block on a remote file system. Requests for a busy entry do not wait for it: a
//! helper checks, and the entry is used meanwhile ([`Found::refresh`]), for `stale_ms` at most.
//!
//! A research server may have no probe: then a helper looks up every path that is not cached or is
//! due for revalidation. It passes the open file, or touches the path so that the loop can open it
//! again ([`Lookup::reopen`]). Reopening may block, and exists to show that.
//!
//! Without `caching`, also for research, every request looks up its path again in the same way, and the result is
//! dropped afterwards.
//!
//! Sources: 2006 paper, section 3.3 and 5; openat2(2) on `RESOLVE_CACHED`.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod virtual_hosts;

use std::rc::Rc;

use headway_files::{
    AbsentSiblings, Answer, DeferredCloses, Failure, FileCache, FoundFile, KnownFile, LoopResolver,
    Probe, Revalidation, RootId, RootVersions, Roots,
};
use headway_metrics::Counters;
use headway_metrics::calls::{Call, Tracer};
use headway_request::{CachedResponses, Entry};

pub use virtual_hosts::VirtualHosts;

/// The maximum age of an entry that should be current, where there is no probe.
const UNPROBED_AGE_MS: u64 = 1000;

/// Opens on the loop what a helper has touched.
pub type Reopen = fn(LoopResolver<'_>, RootId, &[u8]) -> Answer;

/// The worker's file cache, and the non-blocking probes behind it.
pub struct Lookup {
    roots: Rc<Roots>,
    /// The versions of the roots that `names` knows.
    versions: RootVersions,
    names: FileCache<CachedResponses>,
    deferred_closes: DeferredCloses,
    /// Set if lookups are made without a probe.
    unprobed: Option<Reopen>,
    ages: Ages,
    /// Precompressed files that were found and not used.
    unusable_siblings: u64,
    /// If false, nothing is cached and each request makes its own lookup.
    caching: bool,
}

/// How old an entry may be.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    /// Until then an entry is used unchecked.
    pub revalidate_ms: u64,
    /// How much longer a busy entry is used while a check waits for the file system.
    pub stale_ms: u64,
}

/// What is known of a path without waiting.
pub struct Found {
    /// The entry.
    pub entry: Rc<Entry>,
    /// It was not checked in time: a helper is to look the path up again.
    pub refresh: bool,
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

impl Lookup {
    /// An empty cache over `roots`.
    pub fn new(
        roots: Rc<Roots>,
        names: FileCache<CachedResponses>,
        deferred_closes: DeferredCloses,
        unprobed: Option<Reopen>,
        ages: Ages,
        caching: bool,
    ) -> Self {
        Self {
            roots,
            versions: RootVersions::default(),
            names,
            deferred_closes,
            unprobed,
            ages,
            unusable_siblings: 0,
            caching,
        }
    }

    /// Looks up `path` without blocking. Returns `None` if a helper must look it up.
    pub fn find(&mut self, root: RootId, path: &[u8], context: LookupContext<'_>) -> Option<Found> {
        self.find_within(self.ages, root, path, context)
    }

    /// Whether the cache has an entry of `path`, however old.
    pub fn is_known(&self, root: RootId, path: &[u8]) -> bool {
        self.names.contains(root, path)
    }

    /// As [`Lookup::find`], and always checks with the kernel. Without a probe that would need a
    /// helper each time, so there an entry may be up to a second old.
    pub fn find_now(
        &mut self,
        root: RootId,
        path: &[u8],
        context: LookupContext<'_>,
    ) -> Option<Rc<Entry>> {
        let ages = Ages {
            revalidate_ms: match self.unprobed {
                None => 0,
                Some(_) => self.ages.revalidate_ms.min(UNPROBED_AGE_MS),
            },
            stale_ms: 0,
        };
        let found = self.find_within(ages, root, path, context)?;
        Some(found.entry)
    }

    /// Looks up `path`; accepts an entry that is not too old.
    fn find_within(
        &mut self,
        ages: Ages,
        root: RootId,
        path: &[u8],
        context: LookupContext<'_>,
    ) -> Option<Found> {
        if self.roots.is_due(root, context.now_ms, ages.revalidate_ms) {
            self.follow_root(root, &context);
        }
        if self.versions.has_changed(&self.roots, root) {
            self.names.remove_root(root);
        }
        if let Some(entry) = self.names.get(root, path) {
            let last_used_ms = entry.used_ms.replace(context.now_ms);
            if context.now_ms < entry.checked_ms.get() + ages.revalidate_ms {
                context.counters.file_cache_hits += 1;
                return Some(current(entry));
            }
            context.counters.file_cache_revalidations += 1;
            if self.unprobed.is_some() {
                return None;
            }
            let is_busy = context.now_ms < last_used_ms + ages.revalidate_ms;
            let may_be_stale = is_busy && ages.allow_stale(entry, context.now_ms);
            // What is known of the last root says nothing about the next one.
            if self.roots.awaits_helper(root) {
                return may_be_stale.then(|| stale(entry, context.counters));
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
                    return Some(current(entry));
                }
                Revalidation::Changed => {
                    context.counters.file_cache_stale += 1;
                    self.names.remove(root, path);
                }
                Revalidation::WouldBlock => {
                    context.counters.lookup_probes_would_block += 1;
                    return may_be_stale.then(|| stale(entry, context.counters));
                }
            }
        }
        context.counters.file_cache_misses += 1;
        if self.unprobed.is_some() || self.roots.awaits_helper(root) {
            return None;
        }
        let entry = self.probe(root, path, context)?;
        Some(current(&entry))
    }

    /// Whether another directory than that of this version is the root now. A release may be deleted as soon
    /// as another one has taken its place: what is missing in it has to be looked up again. `None` if a
    /// helper has to find out; the next lookup waits for it.
    pub fn has_root_moved(
        &self,
        root: RootId,
        version: u32,
        context: &LookupContext<'_>,
    ) -> Option<bool> {
        if self.roots.is_due(root, context.now_ms, 0) {
            self.follow_root(root, context);
        }
        match self.roots.awaits_helper(root) {
            true => None,
            false => Some(version != self.roots.version(root)),
        }
    }

    fn follow_root(&self, root: RootId, context: &LookupContext<'_>) {
        context.tracer.call(Call::ResolveRoot, || {
            self.roots
                .follow(root, context.now_ms, &self.deferred_closes);
        });
    }

    fn resolver(&self) -> LoopResolver<'_> {
        LoopResolver {
            roots: &self.roots,
            deferred: &self.deferred_closes,
        }
    }

    fn probe(
        &mut self,
        root: RootId,
        path: &[u8],
        context: LookupContext<'_>,
    ) -> Option<Rc<Entry>> {
        let probe = context
            .tracer
            .call(Call::Resolve, || self.resolver().resolve_cached(root, path));
        match probe {
            Probe::Answered(answer) => {
                context.counters.lookup_probes_resolved += 1;
                Some(self.insert(root, path, answer, context.now_ms))
            }
            Probe::WouldBlock => {
                context.counters.lookup_probes_would_block += 1;
                None
            }
        }
    }

    /// Looks up and opens a path that a helper has touched. May block: on directory entries that
    /// were evicted again, and on a lock that another process holds in the same directories.
    pub fn reopen(&mut self, root: RootId, path: &[u8], context: LookupContext<'_>) -> Rc<Entry> {
        context.counters.file_cache_repeated_lookups += 1;
        let resolver = self.resolver();
        let answer = match self.unprobed {
            Some(open) => context
                .tracer
                .call(Call::Reopen, || open(resolver, root, path)),
            None => Answer::Failed(Failure::GivenUp),
        };
        let version = self.roots.version(root);
        self.store((root, version), path, answer, context.now_ms)
    }

    /// Stores what a helper found, unless it was asked about an earlier `version` of the root. An answer
    /// that only confirms the cached one keeps the entry and its cached responses, unless they are gone
    /// and the file is closed. So does a file system that fails, as long as the entry may be stale.
    pub fn store(
        &mut self,
        (root, version): (RootId, u32),
        path: &[u8],
        answer: Answer,
        now_ms: u64,
    ) -> Rc<Entry> {
        if version != self.roots.version(root) {
            let entry = self.insert(root, path, answer, now_ms);
            entry.root_version.set(version);
            self.names.remove(root, path);
            return entry;
        }
        if let Some(entry) = self.names.get(root, path)
            && entry.is_whole()
        {
            if is_confirmed(&entry.answer, &answer) {
                entry.confirm(AbsentSiblings::Probe, now_ms);
                return entry.clone();
            }
            if !answer.cacheable() && self.ages.allow_stale(entry, now_ms) {
                return entry.clone();
            }
        }
        self.insert(root, path, answer, now_ms)
    }

    /// Makes the entry of a path; without caching only the current requests see it.
    fn insert(&mut self, root: RootId, path: &[u8], answer: Answer, now_ms: u64) -> Rc<Entry> {
        if let Answer::File(found) = &answer {
            self.unusable_siblings += u64::from(found.unusable);
        }
        let entry = self.names.insert(root, path, answer, now_ms);
        entry.root_version.set(self.roots.version(root));
        if !self.caching {
            self.names.remove(root, path);
        }
        entry
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

    /// Forgets some of the cached files that have been deleted or replaced, so that a helper closes
    /// them and their disk space becomes free. Looks at up to `count` entries, and returns whether
    /// all of them have been looked at. Does not block.
    pub fn forget_deleted(&mut self, count: usize, tracer: &Tracer) -> bool {
        self.names.forget_deleted(count, |file| {
            // A file without a status is looked at again next time.
            tracer
                .call(Call::Status, || file.is_deleted())
                .unwrap_or(false)
        })
    }

    /// Whether cached files are open.
    pub fn has_open_files(&self) -> bool {
        self.names.descriptors() > 0
    }

    /// Sets the cache gauges of a snapshot.
    pub fn gauges(&self, counters: &mut Counters) {
        counters.precompressed_ignored = self.unusable_siblings;
        counters.root_switches = self.roots.switches();
        counters.root_lookup_failures = self.roots.failures();
        counters.file_cache_entries = self.names.len() as u64;
        counters.file_cache_descriptors = self.names.descriptors() as u64;
        counters.file_cache_evictions = self.names.evictions();
        counters.open_files_closed_early = self.names.closed();
    }
}

impl Ages {
    /// Whether an entry may be used although it could not be checked. What was absent may not: 404
    /// would say of a file which has come meanwhile that it is not there.
    fn allow_stale(self, entry: &Entry, now_ms: u64) -> bool {
        if matches!(entry.answer, Answer::Failed(_)) {
            return false;
        }
        now_ms < entry.checked_ms.get() + self.revalidate_ms + self.stale_ms && self.stale_ms > 0
    }
}

fn stale(entry: &Rc<Entry>, counters: &mut Counters) -> Found {
    counters.file_cache_stale_hits += 1;
    Found {
        entry: entry.clone(),
        refresh: true,
    }
}

fn current(entry: &Rc<Entry>) -> Found {
    Found {
        entry: entry.clone(),
        refresh: false,
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

#[cfg(test)]
mod tests;
