//! The file cache: the lookup result of each path, with open files and with what the server has
//! prepared from it. It corresponds to nginx's `open_file_cache`.
//!
//! What it does: keeps the most recently used results within two limits: entries and open
//! descriptors. A file whose contents the server has in memory need not stay open
//! ([`CachedContents`]): when descriptors are needed it is closed, and its entry stays. What it
//! refuses: to cache a shortage or an I/O error ([`Answer::cacheable`]), to evict an entry that is
//! in use, and to exceed a limit. If nothing can be evicted, a new result is returned without being
//! cached.
//!
//! Clients can invent paths. So failures have a limit of their own, [`FAILED_SHARE`] of the entries,
//! and evict each other only. A path that was asked for once does not evict an entry that has been
//! used again ([`frequency`]).
//!
//! A deleted file occupies its disk as long as it is open. [`FileCache::forget_deleted`] finds such
//! files without a request for them.
//!
//! Keys come from clients, so the hash has a random seed (SipHash) and clients cannot choose paths
//! that collide. Sources: the Flash papers' pathname cache.

mod frequency;

use crate::answer::Answer;
use crate::file::OpenFile;
use crate::revalidate::AbsentSiblings;
use crate::root::RootId;
use frequency::{Epochs, Hits, Sketch};
use hashlink::LinkedHashMap;
use hashlink::linked_hash_map::RawEntryMut;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::rc::Rc;

/// Entries in use that are passed over in one search for something to evict.
const SKIPS_MAX: usize = 64;

/// Entries that are passed over in one search because they were wanted more often than the new path.
const DEFENDED_MAX: usize = 8;

/// At most one entry in this many is a failure.
const FAILED_SHARE: usize = 8;

/// Longer paths that do not exist are not cached: a client can invent any number of them, and each
/// would take the memory of a path.
const FAILED_PATH_BYTES_MAX: usize = 256;

/// Missing precompressed variants are probed again at most once per this time. Three probes for
/// files that rarely exist would be most of the cost of a revalidation.
const ABSENT_MS: u64 = 60_000;

/// What a server has made of an answer.
pub trait CachedContents: Default {
    /// Whether the contents of this file of the answer are present: 0 is the file itself, then come
    /// its siblings.
    fn has_contents(&self, file: usize) -> bool;
}

impl CachedContents for () {
    fn has_contents(&self, _: usize) -> bool {
        false
    }
}

/// Limits of the cache.
#[derive(Clone, Copy, Debug)]
pub struct FileCacheLimits {
    /// Limit of entries.
    pub entries_max: usize,
    /// Limit of descriptors that entries hold open.
    pub descriptors_max: usize,
}

/// A cached result. It is in use while there are clones of its `Rc`, or of one of its files.
#[derive(Debug)]
pub struct Entry<T> {
    /// The answer.
    pub answer: Answer,
    /// When the answer was last known to be true.
    pub checked_ms: Cell<u64>,
    /// When it was last asked for, or made.
    pub used_ms: Cell<u64>,
    /// The latest time of which the answer is known to be true: a helper has looked up the path before its
    /// answer came.
    pub seen_ms: Cell<u64>,
    /// The version of the root in which the path was looked up.
    pub root_version: Cell<u32>,
    /// When the missing precompressed variants were last probed, if they were.
    pub absent_checked_ms: Cell<Option<u64>>,
    /// Whether the cache holds the entry, or only those who use it now.
    is_cached: Cell<bool>,
    /// What the server has made of the answer.
    pub prepared: T,
}

impl<T> Entry<T> {
    /// Whether the entry is in the cache. Otherwise what is made of it serves no other request.
    pub fn is_cached(&self) -> bool {
        self.is_cached.get()
    }

    /// What becomes of siblings that are absent, where it is checked now.
    pub fn absent(&self, now_ms: u64) -> AbsentSiblings {
        match self.absent_checked_ms.get() {
            Some(checked_ms) if now_ms < checked_ms + ABSENT_MS => AbsentSiblings::AssumeAbsent,
            _ => AbsentSiblings::Probe,
        }
    }

    /// Notes that the answer was found to be true once more.
    pub fn confirm(&self, absent: AbsentSiblings, now_ms: u64) {
        self.checked_ms.set(now_ms);
        self.seen_ms.set(now_ms);
        if absent == AbsentSiblings::Probe {
            self.absent_checked_ms.set(Some(now_ms));
        }
    }
}

impl<T: CachedContents> Entry<T> {
    /// Whether each file of the answer is open, or its contents are present.
    pub fn is_whole(&self) -> bool {
        match &self.answer {
            Answer::File(found) => found
                .files()
                .all(|(number, file)| file.is_open() || self.prepared.has_contents(number)),
            _ => true,
        }
    }

    /// Whether a file could be closed because its contents are present.
    fn can_close(&self) -> bool {
        match &self.answer {
            Answer::File(found) => found
                .files()
                .any(|(number, file)| file.is_open() && self.prepared.has_contents(number)),
            _ => false,
        }
    }

    /// Closes what is held.
    fn close(&self) {
        if let Answer::File(found) = &self.answer {
            found
                .files()
                .filter(|(number, _)| self.prepared.has_contents(*number))
                .for_each(|(_, file)| file.close());
        }
    }
}

#[derive(PartialEq, Eq, Hash, Debug)]
struct PathKey {
    root: RootId,
    path: Box<[u8]>,
}

#[derive(Debug)]
struct CacheSlot<T> {
    entry: Rc<Entry<T>>,
    /// The time of the last use, as a counter.
    used: u64,
    hits: Hits,
    /// The search for deleted files that has seen the entry.
    searched: Cell<u32>,
}

/// The least recently used is in front.
type Map<T> = LinkedHashMap<PathKey, CacheSlot<T>, RandomState>;

/// The cache.
///
/// # Example
/// ```
/// use headway_files::{Answer, Failure, FileCache, FileCacheLimits, RootId};
/// let mut names = FileCache::<()>::new(FileCacheLimits { entries_max: 100, descriptors_max: 50 });
/// names.insert(RootId(0), b"missing", Answer::Failed(Failure::NotFound), 17);
/// let entry = names.get(RootId(0), b"missing").unwrap();
/// assert_eq!(entry.checked_ms.get(), 17);
/// ```
#[derive(Debug)]
pub struct FileCache<T> {
    /// Answers that hold descriptors.
    open: Map<T>,
    /// Answers without: what there is to find without passing over these when descriptors are
    /// wanted.
    rest: Map<T>,
    /// Failures.
    failed: Map<T>,
    bounds: FileCacheLimits,
    uses: u64,
    wanted: Sketch,
    epochs: Epochs,
    /// The number of the search for deleted files.
    search: u32,
    descriptors: usize,
    evictions: u64,
    closed: u64,
    skips: u64,
    not_stored: u64,
}

impl<T: CachedContents> FileCache<T> {
    /// An empty cache.
    pub fn new(bounds: FileCacheLimits) -> FileCache<T> {
        let hasher = RandomState::new();
        FileCache {
            open: Map::with_hasher(hasher.clone()),
            rest: Map::with_hasher(hasher.clone()),
            failed: Map::with_hasher(hasher),
            bounds,
            uses: 0,
            wanted: Sketch::new(bounds.entries_max),
            epochs: Epochs::new(bounds.entries_max),
            search: 0,
            descriptors: 0,
            evictions: 0,
            closed: 0,
            skips: 0,
            not_stored: 0,
        }
    }

    /// The entry of a path, which is now the most recently used. Does not allocate.
    pub fn get(&mut self, root: RootId, path: &[u8]) -> Option<&Rc<Entry<T>>> {
        self.uses += 1;
        let hash = hash(self.open.hasher(), root, path);
        for map in [&mut self.open, &mut self.rest, &mut self.failed] {
            if let RawEntryMut::Occupied(mut slot) = find(map, hash, root, path) {
                slot.to_back();
                let slot = slot.into_mut();
                slot.used = self.uses;
                slot.hits.add(self.epochs.count_hit());
                return Some(&slot.entry);
            }
        }
        None
    }

    /// Whether there is an entry of the path; this is no use of it.
    pub fn contains(&self, root: RootId, path: &[u8]) -> bool {
        let hash = hash(self.open.hasher(), root, path);
        [&self.open, &self.rest, &self.failed]
            .into_iter()
            .any(|map| {
                map.raw_entry()
                    .from_hash(hash, |known| is(known, root, path))
                    .is_some()
            })
    }

    /// Caches a result in place of the previous one if it is cacheable and fits. Returns its entry
    /// in any case.
    pub fn insert(
        &mut self,
        root: RootId,
        path: &[u8],
        answer: Answer,
        now_ms: u64,
    ) -> Rc<Entry<T>> {
        self.remove(root, path);
        let descriptors = answer.descriptors();
        let is_failed = matches!(answer, Answer::Failed(_));
        let is_long = is_failed && path.len() > FAILED_PATH_BYTES_MAX;
        // Of paths that do not exist there is no end, so they are not counted.
        let wanted = match is_failed {
            true => 0,
            false => {
                self.epochs.count_miss();
                self.wanted.add(hash(self.open.hasher(), root, path))
            }
        };
        let store = answer.cacheable()
            && !is_long
            && match is_failed {
                true => self.make_room_for_failure(),
                false => self.make_room(descriptors, wanted),
            };
        let entry = Rc::new(Entry {
            answer,
            checked_ms: Cell::new(now_ms),
            used_ms: Cell::new(now_ms),
            seen_ms: Cell::new(now_ms),
            root_version: Cell::new(0),
            absent_checked_ms: Cell::new(Some(now_ms)),
            is_cached: Cell::new(store),
            prepared: T::default(),
        });
        if !store {
            self.not_stored += 1;
            return entry;
        }
        let key = PathKey {
            root,
            path: path.into(),
        };
        self.uses += 1;
        let slot = CacheSlot {
            entry: Rc::clone(&entry),
            used: self.uses,
            hits: Hits::new(wanted.saturating_sub(1), self.epochs.now()),
            searched: Cell::new(self.search),
        };
        self.descriptors += descriptors;
        match (is_failed, descriptors) {
            (true, _) => self.failed.insert(key, slot),
            (false, 0) => self.rest.insert(key, slot),
            (false, _) => self.open.insert(key, slot),
        };
        entry
    }

    /// Forget a path.
    pub fn remove(&mut self, root: RootId, path: &[u8]) -> Option<Rc<Entry<T>>> {
        let hash = hash(self.open.hasher(), root, path);
        let maps = [&mut self.open, &mut self.rest, &mut self.failed];
        let removed = maps
            .into_iter()
            .find_map(|map| match find(map, hash, root, path) {
                RawEntryMut::Occupied(slot) => Some(slot.remove()),
                RawEntryMut::Vacant(_) => None,
            })?;
        Some(self.removed(hash, removed))
    }

    /// Accounts for a slot that has left its map.
    fn removed(&mut self, hash: u64, slot: CacheSlot<T>) -> Rc<Entry<T>> {
        self.descriptors -= slot.entry.answer.descriptors();
        slot.entry.is_cached.set(false);
        // If the path comes back, its place is as safe as before.
        if !matches!(slot.entry.answer, Answer::Failed(_)) {
            self.wanted.raise(hash, slot.hits.count(self.epochs.now()));
        }
        slot.entry
    }

    /// Forgets entries with files that `is_deleted` says are deleted, so that their disk space becomes
    /// free. Looks at up to `count` entries that hold files open, and returns whether all have been
    /// looked at since it returned `true` last. Entries that are in use are forgotten, too: the last
    /// use closes the file.
    pub fn forget_deleted(&mut self, count: usize, is_deleted: impl Fn(&OpenFile) -> bool) -> bool {
        let search = self.search.wrapping_add(1);
        let unseen = self.open.iter();
        let mut unseen = unseen.filter(|(_, slot)| slot.searched.get() != search);
        let mut deleted = Vec::new();
        for (key, slot) in unseen.by_ref().take(count) {
            slot.searched.set(search);
            if let Answer::File(found) = &slot.entry.answer
                && found
                    .files()
                    .any(|(_, file)| file.open().is_some_and(|file| is_deleted(&file)))
            {
                deleted.push((key.root, key.path.clone()));
            }
        }
        let is_complete = unseen.next().is_none();
        for (root, path) in deleted {
            self.remove(root, &path);
        }
        if is_complete {
            self.search = search;
        }
        is_complete
    }

    /// Forgets all paths of a root, which is another directory now.
    pub fn remove_root(&mut self, root: RootId) {
        for map in [&mut self.open, &mut self.rest, &mut self.failed] {
            map.retain(|key, slot| {
                let stays = key.root != root;
                slot.entry.is_cached.set(stays);
                stays
            });
        }
        let open = self
            .open
            .values()
            .map(|slot| slot.entry.answer.descriptors());
        self.descriptors = open.sum();
    }

    /// Closes files of the least recently used entries until about `count` descriptors are on their
    /// way to be closed. Returns their number, which is smaller if the other entries are in use.
    ///
    /// For a process that runs out of descriptors below its limits.
    pub fn evict_descriptors(&mut self, count: usize) -> usize {
        let before = self.descriptors;
        let mut contest = Contest::new(u8::MAX);
        while before - self.descriptors < count && self.free_descriptors(&mut contest) {}
        before - self.descriptors
    }

    /// How many answers are remembered.
    pub fn len(&self) -> usize {
        self.open.len() + self.rest.len() + self.failed.len()
    }

    /// Nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many descriptors the remembered answers hold open.
    pub fn descriptors(&self) -> usize {
        self.descriptors
    }

    /// Entries evicted so far to stay within the limits.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Files closed so far because what they hold is in memory, and their descriptors were wanted.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// Entries passed over so far because they were in use.
    pub fn skips(&self) -> u64 {
        self.skips
    }

    /// Answers not remembered: not cacheable, or no room.
    pub fn not_stored(&self) -> u64 {
        self.not_stored
    }

    /// Evicts failures until one more fits; `false` if there may be none.
    fn make_room_for_failure(&mut self) -> bool {
        let failed_max = self.bounds.entries_max / FAILED_SHARE;
        while self.failed.len() >= failed_max.max(1) {
            self.evict_first(Which::Failed);
        }
        failed_max > 0
    }

    /// Evicts until one more entry with this many descriptors fits; `false` if that is impossible, or
    /// all candidates are wanted as often as the new path.
    fn make_room(&mut self, descriptors: usize, wanted: u8) -> bool {
        let failed_max = self.bounds.entries_max / FAILED_SHARE;
        let entries_max = self.bounds.entries_max - failed_max;
        if entries_max == 0 || descriptors > self.bounds.descriptors_max {
            return false;
        }
        let mut contest = Contest::new(wanted);
        while self.descriptors + descriptors > self.bounds.descriptors_max {
            if !self.free_descriptors(&mut contest) {
                return false;
            }
        }
        while self.open.len() + self.rest.len() >= entries_max {
            if !self.evict(&mut contest) {
                return false;
            }
        }
        true
    }

    /// Closes those files of the least recently used open entry whose contents are in memory. If there
    /// are none, evicts the entry, or passes it over if it is in use or wanted more often. Returns
    /// `false` if there is no such entry, or too many were passed over.
    fn free_descriptors(&mut self, contest: &mut Contest) -> bool {
        let Some((_, oldest)) = self.open.front() else {
            return false;
        };
        if is_in_use(&oldest.entry) || !oldest.entry.can_close() {
            return self.evict_from(Which::Open, contest);
        }
        let Some((key, slot)) = self.open.pop_front() else {
            return false;
        };
        let before = slot.entry.answer.descriptors();
        slot.entry.close();
        let left = slot.entry.answer.descriptors();
        self.descriptors -= before - left;
        self.closed += (before - left) as u64;
        match left {
            0 => self.rest.insert(key, slot),
            _ => self.open.insert(key, slot),
        };
        true
    }

    /// Evicts the least recently used entry that is no failure, or passes it over. `false`: there is
    /// none, or too many have been passed over.
    fn evict(&mut self, contest: &mut Contest) -> bool {
        let used = |map: &Map<T>| map.front().map(|(_, slot)| slot.used);
        match (used(&self.open), used(&self.rest)) {
            (None, None) => false,
            (Some(open), Some(rest)) if open < rest => self.evict_from(Which::Open, contest),
            (Some(_), None) => self.evict_from(Which::Open, contest),
            (_, Some(_)) => self.evict_from(Which::Rest, contest),
        }
    }

    /// Evicts the least recently used entry of a map, or passes it over because it is in use or wanted
    /// more often than the new path.
    fn evict_from(&mut self, which: Which, contest: &mut Contest) -> bool {
        let epoch = self.epochs.now();
        let Some((_, oldest)) = self.map(which).front() else {
            return false;
        };
        if is_in_use(&oldest.entry) {
            contest.skips += 1;
            self.skips += 1;
            self.pass_over(which);
            return contest.skips < SKIPS_MAX;
        }
        if oldest.hits.count(epoch) >= contest.wanted {
            contest.defended += 1;
            self.pass_over(which);
            return contest.defended < DEFENDED_MAX;
        }
        self.evict_first(which);
        true
    }

    fn evict_first(&mut self, which: Which) {
        if let Some((key, slot)) = self.map(which).pop_front() {
            let hash = hash(self.open.hasher(), key.root, &key.path);
            self.removed(hash, slot);
            self.evictions += 1;
        }
    }

    /// Marks the least recently used entry as recently used.
    fn pass_over(&mut self, which: Which) {
        self.uses += 1;
        let used = self.uses;
        if let Some(mut oldest) = self.map(which).front_entry() {
            oldest.get_mut().used = used;
            oldest.to_back();
        }
    }

    fn map(&mut self, which: Which) -> &mut Map<T> {
        match which {
            Which::Open => &mut self.open,
            Which::Rest => &mut self.rest,
            Which::Failed => &mut self.failed,
        }
    }
}

#[derive(Clone, Copy)]
enum Which {
    Open,
    Rest,
    Failed,
}

/// The search for a place for one path.
struct Contest {
    /// How often the path was wanted.
    wanted: u8,
    /// Entries that were passed over because they are in use.
    skips: usize,
    /// Entries that were passed over because they are wanted as often.
    defended: usize,
}

impl Contest {
    fn new(wanted: u8) -> Contest {
        Contest {
            wanted,
            skips: 0,
            defended: 0,
        }
    }
}

fn find<'m, T>(
    map: &'m mut Map<T>,
    hash: u64,
    root: RootId,
    path: &[u8],
) -> RawEntryMut<'m, PathKey, CacheSlot<T>, RandomState> {
    map.raw_entry_mut()
        .from_hash(hash, |known| is(known, root, path))
}

fn is_in_use<T>(entry: &Rc<Entry<T>>) -> bool {
    Rc::strong_count(entry) > 1
        || match &entry.answer {
            Answer::File(found) => found.files().any(|(_, file)| file.is_in_use()),
            _ => false,
        }
}

fn is(key: &PathKey, root: RootId, path: &[u8]) -> bool {
    key.root == root && *key.path == *path
}

/// The hash of a `PathKey` (as its derived `Hash`), without creating one.
fn hash(builder: &RandomState, root: RootId, path: &[u8]) -> u64 {
    let mut hasher = builder.build_hasher();
    root.hash(&mut hasher);
    path.hash(&mut hasher);
    hasher.finish()
}
