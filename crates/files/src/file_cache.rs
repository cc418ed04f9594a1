//! The file cache: the lookup result of each path, with open files and with what the server has
//! prepared from it. It corresponds to nginx's `open_file_cache`.
//!
//! What it does: keeps the most recently used results, including failures, within two limits:
//! entries and open descriptors. A file whose contents the server has in memory need not stay open
//! ([`CachedContents`]): when descriptors are needed it is closed, and its entry stays. What it
//! refuses: to cache a shortage or an I/O error ([`Answer::cacheable`]), to evict an entry that is
//! in use, and to exceed a limit. If nothing can be evicted, a new result is returned without being
//! cached.
//!
//! Keys come from clients, so the hash has a random seed (SipHash) and clients cannot choose paths
//! that collide. Sources: the Flash papers' pathname cache.

use crate::answer::Answer;
use crate::revalidate::AbsentSiblings;
use crate::root::RootId;
use hashlink::LinkedHashMap;
use hashlink::linked_hash_map::RawEntryMut;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::rc::Rc;

/// Entries in use that are passed over in one search for something to evict.
const SKIPS_MAX: usize = 64;

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
    /// What the server has made of the answer.
    pub prepared: T,
}

impl<T> Entry<T> {
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
    /// All others: what there is to find without passing over these when descriptors are wanted.
    rest: Map<T>,
    bounds: FileCacheLimits,
    uses: u64,
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
            rest: Map::with_hasher(hasher),
            bounds,
            uses: 0,
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
        for map in [&mut self.open, &mut self.rest] {
            if let RawEntryMut::Occupied(mut slot) = find(map, hash, root, path) {
                slot.to_back();
                let slot = slot.into_mut();
                slot.used = self.uses;
                return Some(&slot.entry);
            }
        }
        None
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
        let is_long = path.len() > FAILED_PATH_BYTES_MAX && matches!(answer, Answer::Failed(_));
        let store = answer.cacheable() && !is_long && self.make_room(descriptors);
        let checked_ms = Cell::new(now_ms);
        let entry = Rc::new(Entry {
            answer,
            checked_ms,
            used_ms: Cell::new(now_ms),
            seen_ms: Cell::new(now_ms),
            root_version: Cell::new(0),
            absent_checked_ms: Cell::new(Some(now_ms)),
            prepared: T::default(),
        });
        if store {
            let key = PathKey {
                root,
                path: path.into(),
            };
            self.uses += 1;
            let slot = CacheSlot {
                entry: Rc::clone(&entry),
                used: self.uses,
            };
            self.descriptors += descriptors;
            match descriptors {
                0 => self.rest.insert(key, slot),
                _ => self.open.insert(key, slot),
            };
        } else {
            self.not_stored += 1;
        }
        entry
    }

    /// Forget a path.
    pub fn remove(&mut self, root: RootId, path: &[u8]) -> Option<Rc<Entry<T>>> {
        let hash = hash(self.open.hasher(), root, path);
        for map in [&mut self.open, &mut self.rest] {
            if let RawEntryMut::Occupied(slot) = find(map, hash, root, path) {
                let removed = slot.remove().entry;
                self.descriptors -= removed.answer.descriptors();
                return Some(removed);
            }
        }
        None
    }

    /// Forgets all paths of a root, which is another directory now.
    pub fn remove_root(&mut self, root: RootId) {
        for map in [&mut self.open, &mut self.rest] {
            map.retain(|key, _| key.root != root);
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
        let (before, mut skips) = (self.descriptors, 0);
        while before - self.descriptors < count && self.free_descriptors(&mut skips) {}
        before - self.descriptors
    }

    /// How many answers are remembered.
    pub fn len(&self) -> usize {
        self.open.len() + self.rest.len()
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

    /// Evicts until one more entry with this many descriptors fits; `false` if that is impossible.
    fn make_room(&mut self, descriptors: usize) -> bool {
        if self.bounds.entries_max == 0 || descriptors > self.bounds.descriptors_max {
            return false;
        }
        let mut skips = 0;
        while self.descriptors + descriptors > self.bounds.descriptors_max {
            if !self.free_descriptors(&mut skips) {
                return false;
            }
        }
        while self.len() >= self.bounds.entries_max {
            if !self.evict(&mut skips) {
                return false;
            }
        }
        true
    }

    /// Closes those files of the least recently used open entry whose contents are in memory, or
    /// evicts the entry if there are none, or skips it if it is in use. Returns `false` if there is
    /// no such entry, or too many were skipped.
    fn free_descriptors(&mut self, skips: &mut usize) -> bool {
        let Some(oldest) = self.open.front() else {
            return false;
        };
        if is_in_use(&oldest.1.entry) {
            return self.skip_in_use(Which::Open, skips);
        }
        let Some((key, slot)) = self.open.pop_front() else {
            return false;
        };
        let before = slot.entry.answer.descriptors();
        slot.entry.close();
        let left = slot.entry.answer.descriptors();
        if left == before {
            self.descriptors -= before;
            self.evictions += 1;
            return true;
        }
        self.descriptors -= before - left;
        self.closed += (before - left) as u64;
        match left {
            0 => self.rest.insert(key, slot),
            _ => self.open.insert(key, slot),
        };
        true
    }

    /// Evict the least recently used entry, or pass it over because it is in use. `false`: there is
    /// none, or too many have been passed over.
    fn evict(&mut self, skips: &mut usize) -> bool {
        let used = |map: &Map<T>| map.front().map(|(_, slot)| slot.used);
        let which = match (used(&self.open), used(&self.rest)) {
            (None, None) => return false,
            (Some(open), Some(rest)) if open < rest => Which::Open,
            (Some(_), None) => Which::Open,
            (_, Some(_)) => Which::Rest,
        };
        let Some((_, oldest)) = self.map(which).front() else {
            return false;
        };
        if is_in_use(&oldest.entry) {
            return self.skip_in_use(which, skips);
        }
        if let Some((_, slot)) = self.map(which).pop_front() {
            self.descriptors -= slot.entry.answer.descriptors();
            self.evictions += 1;
        }
        true
    }

    /// Marks an entry in use as recently used.
    fn skip_in_use(&mut self, which: Which, skips: &mut usize) -> bool {
        self.uses += 1;
        let used = self.uses;
        if let Some(mut oldest) = self.map(which).front_entry() {
            oldest.get_mut().used = used;
            oldest.to_back();
        }
        *skips += 1;
        self.skips += 1;
        *skips < SKIPS_MAX
    }

    fn map(&mut self, which: Which) -> &mut Map<T> {
        match which {
            Which::Open => &mut self.open,
            Which::Rest => &mut self.rest,
        }
    }
}

#[derive(Clone, Copy)]
enum Which {
    Open,
    Rest,
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
