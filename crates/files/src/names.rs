//! The name cache: what was answered for a path, with what the server has prepared from it.
//!
//! What it does: keeps the most recently used answers, failures included, within two bounds:
//! entries and the descriptors they hold open. What it refuses: to remember a shortage or a fault
//! ([`Answer::cacheable`]), to evict an entry that is in use, and to exceed a bound: if nothing can
//! be evicted, a new answer is given back without being remembered.
//!
//! Keys come from clients, so the hash is keyed with a random seed (SipHash): nobody can choose
//! names that collide. Sources: the Flash papers' pathname cache.

use crate::answer::Answer;
use crate::revalidate::Absent;
use crate::root::RootId;
use hashlink::LinkedHashMap;
use hashlink::linked_hash_map::{RawEntryMut, RawOccupiedEntryMut};
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::rc::Rc;

/// Entries in use that are passed over in one search for something to evict.
const SKIPS_MAX: usize = 64;

/// Answers forgotten at most in one [`Names::shed`], which is a millisecond or so.
const SHED_MAX: usize = 4096;

/// Longer names of nothing are not remembered: a client can think of any number of them, and each
/// would take the memory of a path.
const FAILED_PATH_BYTES_MAX: usize = 256;

/// So long a sibling that was absent is not looked for again beside a file that stays the same. Three files that most
/// do not have would be most of what a check costs.
const ABSENT_MS: u64 = 60_000;

/// How much to remember.
#[derive(Clone, Copy, Debug)]
pub struct NamesBounds {
    /// Entries at most.
    pub entries_max: usize,
    /// Descriptors held open by them at most.
    pub descriptors_max: usize,
}

/// A remembered answer. It is in use while somebody holds a clone of its `Rc`, or of one of its
/// files.
#[derive(Debug)]
pub struct Entry<T> {
    /// The answer.
    pub answer: Answer,
    /// When it was last known to be true.
    pub checked_ms: Cell<u64>,
    /// When siblings that it does not have were last looked for.
    pub sought_ms: Cell<u64>,
    /// What the server has made of it.
    pub prepared: T,
}

impl<T> Entry<T> {
    /// What becomes of siblings that are absent, where it is checked now.
    pub fn absent(&self, now_ms: u64) -> Absent {
        match now_ms < self.sought_ms.get() + ABSENT_MS {
            true => Absent::Believed,
            false => Absent::Sought,
        }
    }

    /// It was found to be true once more.
    pub fn confirm(&self, absent: Absent, now_ms: u64) {
        self.checked_ms.set(now_ms);
        if absent == Absent::Sought {
            self.sought_ms.set(now_ms);
        }
    }
}

#[derive(PartialEq, Eq, Hash, Debug)]
struct Key {
    root: RootId,
    path: Box<[u8]>,
}

/// The least recently used is in front.
type Map<T> = LinkedHashMap<Key, Rc<Entry<T>>, RandomState>;

/// The cache.
///
/// # Example
/// ```
/// use headway_files::{Answer, Failure, Names, NamesBounds, RootId};
/// let mut names = Names::<()>::new(NamesBounds { entries_max: 100, descriptors_max: 50 });
/// names.insert(RootId(0), b"missing", Answer::Failed(Failure::NotFound), 17);
/// let entry = names.get(RootId(0), b"missing").unwrap();
/// assert_eq!(entry.checked_ms.get(), 17);
/// ```
#[derive(Debug)]
pub struct Names<T> {
    map: Map<T>,
    bounds: NamesBounds,
    descriptors: usize,
    evictions: u64,
    skips: u64,
    not_stored: u64,
}

impl<T: Default> Names<T> {
    /// An empty cache.
    pub fn new(bounds: NamesBounds) -> Names<T> {
        Names {
            map: Map::with_hasher(RandomState::new()),
            bounds,
            descriptors: 0,
            evictions: 0,
            skips: 0,
            not_stored: 0,
        }
    }

    /// The entry of a path, which is now the most recently used. Does not allocate.
    pub fn get(&mut self, root: RootId, path: &[u8]) -> Option<&Rc<Entry<T>>> {
        match self.find(root, path) {
            RawEntryMut::Occupied(mut entry) => {
                entry.to_back();
                Some(entry.into_mut())
            }
            RawEntryMut::Vacant(_) => None,
        }
    }

    /// Remember an answer in place of the one before, if it may be remembered and fits; return its
    /// entry in any case.
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
            sought_ms: Cell::new(now_ms),
            prepared: T::default(),
        });
        if store {
            let hash = hash(self.map.hasher(), root, path);
            let key = Key {
                root,
                path: path.into(),
            };
            let place = self
                .map
                .raw_entry_mut()
                .from_hash(hash, |known| is(known, root, path));
            if let RawEntryMut::Vacant(vacant) = place {
                vacant.insert_hashed_nocheck(hash, key, Rc::clone(&entry));
                self.descriptors += descriptors;
            }
        } else {
            self.not_stored += 1;
        }
        entry
    }

    /// Forget a path.
    pub fn remove(&mut self, root: RootId, path: &[u8]) -> Option<Rc<Entry<T>>> {
        let RawEntryMut::Occupied(entry) = self.find(root, path) else {
            return None;
        };
        let removed = entry.remove();
        self.descriptors -= removed.answer.descriptors();
        Some(removed)
    }

    /// Forget the least recently used answers until `count` descriptors, or a few more, are on their
    /// way to be closed; how many are. Fewer when the others are in use, or behind more than 4096
    /// answers without a file: call it again then.
    ///
    /// For a process that runs out of descriptors below its bounds.
    pub fn shed(&mut self, count: usize) -> usize {
        let (before, mut skips) = (self.descriptors, 0);
        for _ in 0..SHED_MAX {
            if before - self.descriptors >= count || !self.evict(&mut skips) {
                break;
            }
        }
        before - self.descriptors
    }

    /// How many answers are remembered.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// How many descriptors the remembered answers hold open.
    pub fn descriptors(&self) -> usize {
        self.descriptors
    }

    /// Entries evicted so far to stay within the bounds.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Entries passed over so far because they were in use.
    pub fn skips(&self) -> u64 {
        self.skips
    }

    /// Answers not remembered: not cacheable, or no room.
    pub fn not_stored(&self) -> u64 {
        self.not_stored
    }

    fn find(
        &mut self,
        root: RootId,
        path: &[u8],
    ) -> RawEntryMut<'_, Key, Rc<Entry<T>>, RandomState> {
        let hash = hash(self.map.hasher(), root, path);
        self.map
            .raw_entry_mut()
            .from_hash(hash, |known| is(known, root, path))
    }

    /// Evict until one more entry with so many descriptors fits; `false` if it cannot.
    fn make_room(&mut self, descriptors: usize) -> bool {
        if self.bounds.entries_max == 0 || descriptors > self.bounds.descriptors_max {
            return false;
        }
        let mut skips = 0;
        while self.map.len() >= self.bounds.entries_max
            || self.descriptors + descriptors > self.bounds.descriptors_max
        {
            if !self.evict(&mut skips) {
                return false;
            }
        }
        true
    }

    /// Evict the least recently used entry, or pass it over because it is in use. `false`: there is
    /// none, or too many have been passed over.
    fn evict(&mut self, skips: &mut usize) -> bool {
        let Some(mut oldest) = self.map.front_entry() else {
            return false;
        };
        if is_in_use(&mut oldest) {
            // Whoever uses it has just used it: it is not the least recently used any more.
            oldest.to_back();
            *skips += 1;
            self.skips += 1;
            return *skips < SKIPS_MAX;
        }
        self.descriptors -= oldest.remove().answer.descriptors();
        self.evictions += 1;
        true
    }
}

fn is_in_use<T>(entry: &mut RawOccupiedEntryMut<'_, Key, Rc<Entry<T>>, RandomState>) -> bool {
    let entry = entry.get();
    if Rc::strong_count(entry) > 1 {
        return true;
    }
    match &entry.answer {
        Answer::File(found) => {
            let files = std::iter::once(&found.file).chain(found.siblings.iter().flatten());
            files.into_iter().any(|file| Rc::strong_count(file) > 1)
        }
        _ => false,
    }
}

fn is(key: &Key, root: RootId, path: &[u8]) -> bool {
    key.root == root && *key.path == *path
}

/// What `Key`'s derived `Hash` gives, without making a `Key`.
fn hash(builder: &RandomState, root: RootId, path: &[u8]) -> u64 {
    let mut hasher = builder.build_hasher();
    root.hash(&mut hasher);
    path.hash(&mut hasher);
    hasher.finish()
}
