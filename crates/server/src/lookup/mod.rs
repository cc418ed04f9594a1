//! URL → name → what is known about it.
//!
//! The name cache answers first; an answer older than `revalidate_ms` is compared with the
//! directory by calls that cannot wait. A name that is not cached is probed with `RESOLVE_CACHED`.
//! Only when the kernel says that it would have to wait is a helper asked: a hit never queues
//! behind a miss.
//!
//! That is the way of [`Opening::Probe`]. The ways of the papers have no probe: what the name cache
//! does not know, or has believed for long enough, is a helper's. It passes the open file, or
//! touches the name for the loop to look again ([`Lookup::reopen`]), which may wait, and is there
//! to show it.
//!
//! Without caching every request looks for itself, by the same way, and what it finds is gone with
//! it.
//!
//! Sources: 2006 paper, section 3.3 and 5; openat2(2) on `RESOLVE_CACHED`.

mod hosts;
mod pages;

use std::rc::Rc;

use headway_debox::{Call, Tracer};
use headway_files::{
    Absent, Answer, Failure, FoundFile, KnownFile, Names, OpenFile, Probe, RetireList,
    Revalidation, RootId, Roots,
};

use crate::config::Opening;
use crate::request::{Counters, Entry, Prepared};

pub use hosts::Hosts;
use pages::Pages;

/// Where a name cannot be probed, how old an answer may be that should be the present one.
const UNPROBED_AGE_MS: u64 = 1000;

/// What is known about a name at once.
pub enum Found {
    /// This.
    Entry(Rc<Entry>),
    /// Only a helper can tell.
    AskHelper,
}

/// The names this worker knows, and the means to learn more without waiting.
pub struct Lookup {
    roots: Rc<Roots>,
    names: Names<Prepared>,
    pages: Pages,
    retire: RetireList,
    opening: Opening,
    revalidate_ms: u64,
    /// Nothing is kept otherwise: each request looks for itself.
    caching: bool,
}

/// What is known about a directory's page at once.
pub enum FoundPage {
    /// This.
    Page(Rc<OpenFile>),
    /// Only a helper can tell; it may find that this one is still right.
    AskHelper(Option<Rc<OpenFile>>),
}

impl Lookup {
    /// An empty cache over `roots`.
    pub fn new(
        roots: Rc<Roots>,
        names: Names<Prepared>,
        retire: RetireList,
        opening: Opening,
        revalidate_ms: u64,
        caching: bool,
    ) -> Self {
        Self {
            roots,
            names,
            pages: Pages::default(),
            retire,
            opening,
            revalidate_ms,
            caching,
        }
    }

    /// What does `path` name?
    pub fn find(
        &mut self,
        root: RootId,
        path: &[u8],
        now_ms: u64,
        tracer: &Tracer,
        counters: &mut Counters,
    ) -> Found {
        self.find_within(self.revalidate_ms, (root, path), now_ms, tracer, counters)
    }

    /// What does `path` name now? The kernel is asked, however lately it was asked before. Without
    /// probes a helper would be asked each time, so there the answer may be a second old.
    pub fn find_now(
        &mut self,
        root: RootId,
        path: &[u8],
        now_ms: u64,
        tracer: &Tracer,
        counters: &mut Counters,
    ) -> Found {
        match self.opening {
            Opening::Probe => self.find_within(0, (root, path), now_ms, tracer, counters),
            Opening::Touch | Opening::Pass => {
                let age_ms = self.revalidate_ms.min(UNPROBED_AGE_MS);
                self.find_within(age_ms, (root, path), now_ms, tracer, counters)
            }
        }
    }

    /// The same with an answer that was checked less than `age_ms` ago.
    fn find_within(
        &mut self,
        age_ms: u64,
        (root, path): (RootId, &[u8]),
        now_ms: u64,
        tracer: &Tracer,
        counters: &mut Counters,
    ) -> Found {
        if let Some(entry) = self.names.get(root, path) {
            if now_ms < entry.checked_ms.get() + age_ms {
                counters.names_hit += 1;
                return Found::Entry(entry.clone());
            }
            counters.names_revalidated += 1;
            if self.opening != Opening::Probe {
                return Found::AskHelper;
            }
            let absent = entry.absent(now_ms);
            let verdict = tracer.call(Call::Resolve, || {
                let (roots, retire) = (&self.roots, &self.retire);
                headway_files::revalidate_cached(roots, root, path, &entry.answer, absent, retire)
            });
            match verdict {
                Revalidation::Same => {
                    entry.confirm(absent, now_ms);
                    counters.names_hit += 1;
                    return Found::Entry(entry.clone());
                }
                Revalidation::Changed => {
                    counters.names_changed += 1;
                    self.names.remove(root, path);
                }
                Revalidation::WouldBlock => {
                    counters.probes_would_block += 1;
                    return Found::AskHelper;
                }
            }
        }
        counters.names_missed += 1;
        if self.opening != Opening::Probe {
            return Found::AskHelper;
        }
        self.probe(root, path, now_ms, tracer, counters)
    }

    fn probe(
        &mut self,
        root: RootId,
        path: &[u8],
        now_ms: u64,
        tracer: &Tracer,
        counters: &mut Counters,
    ) -> Found {
        let probe = tracer.call(Call::Resolve, || {
            headway_files::resolve_cached(&self.roots, root, path, &self.retire)
        });
        match probe {
            Probe::Answered(answer) => {
                counters.probes_resolved += 1;
                Found::Entry(self.remember(root, path, answer, now_ms))
            }
            Probe::WouldBlock => {
                counters.probes_would_block += 1;
                Found::AskHelper
            }
        }
    }

    /// Looks up and opens a name that a helper has touched. May wait: for what memory pressure has
    /// taken again, and for a lock that another process holds in the same directories.
    pub fn reopen(
        &mut self,
        root: RootId,
        path: &[u8],
        now_ms: u64,
        tracer: &Tracer,
        counters: &mut Counters,
    ) -> Rc<Entry> {
        counters.names_reopened += 1;
        let answer = tracer.call(Call::Reopen, || {
            headway_files::resolve_here(&self.roots, root, path, &self.retire)
        });
        self.learn(root, path, answer, now_ms)
    }

    /// Remembers what a helper found. An answer that only confirms the cached one keeps the
    /// contents that were loaded for it, unless those have gone and the file is closed.
    pub fn learn(&mut self, root: RootId, path: &[u8], answer: Answer, now_ms: u64) -> Rc<Entry> {
        if let Some(entry) = self.names.get(root, path)
            && is_confirmed(&entry.answer, &answer)
            && entry.is_whole()
        {
            entry.confirm(Absent::Sought, now_ms);
            return entry.clone();
        }
        self.remember(root, path, answer, now_ms)
    }

    /// An entry for those who ask now; without caching for nobody else.
    fn remember(&mut self, root: RootId, path: &[u8], answer: Answer, now_ms: u64) -> Rc<Entry> {
        let entry = self.names.insert(root, path, answer, now_ms);
        if !self.caching {
            self.names.remove(root, path);
        }
        entry
    }

    /// What is the page of the directory `path`?
    pub fn find_page(&self, root: RootId, path: &[u8], now_ms: u64) -> FoundPage {
        if !self.caching {
            return FoundPage::AskHelper(None);
        }
        match self.pages.find(root, path) {
            Some((page, checked_ms)) if now_ms < checked_ms + self.revalidate_ms => {
                FoundPage::Page(page)
            }
            other => FoundPage::AskHelper(other.map(|(page, _)| page)),
        }
    }

    /// Remembers the page that a helper has made, or why there is none. A page beyond the memory
    /// that all of them may take is refused.
    pub fn learn_page(
        &mut self,
        root: RootId,
        path: &[u8],
        page: Result<Rc<OpenFile>, Failure>,
        now_ms: u64,
    ) -> Result<Rc<OpenFile>, Failure> {
        self.pages.learn(root, path, page?, now_ms)
    }

    /// Forgets a name, so that the next request looks again.
    pub fn forget(&mut self, root: RootId, path: &[u8]) {
        self.names.remove(root, path);
    }

    /// Gives up descriptors of cached files that nobody uses, `count` or a few more, if as many are
    /// not on their way to be closed already: no helper may have had time for them.
    pub fn shed(&mut self, count: usize) {
        if self.retire.len() < count {
            self.names.shed(count);
        }
    }

    /// The cache's gauges for a snapshot.
    pub fn gauges(&self, counters: &mut Counters) {
        counters.names_cached = self.names.len() as u64;
        counters.descriptors_cached = self.names.descriptors() as u64;
        counters.names_evicted = self.names.evictions();
        counters.descriptors_spared = self.names.closed();
        counters.listing_pages = self.pages.count();
    }
}

/// The helper has found what was known already.
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
