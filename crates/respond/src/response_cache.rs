//! The response cache: complete responses of small files in memory, evicted by GreedyDual-Size with
//! a second chance.
//!
//! To make room, the cache takes the response with the lowest priority. If the response was used
//! since it was inserted, it is queued again with a new priority; otherwise it is evicted. So a
//! 50 kB page does not displace a hundred files of 500 bytes, and those are evicted too once they
//! are no longer requested.
//!
//! A hit only sets a flag, so the cache costs the hot path one store. Responses that are being sent
//! are skipped: evicting them would not free memory.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use headway_base::GreedyDualSize;
use headway_request::{CachedResponse, Entry, Variant};

/// The most entries checked per insertion, so that a cache full of popular responses costs bounded
/// time.
const EVICTION_CHECKS_MAX: usize = 64;

/// A queue with fewer entries is not swept.
const SWEEP_ENTRIES_MIN: usize = 256;

/// Complete responses of small files, up to a total size.
pub struct ResponseCache {
    used_bytes: Rc<Cell<u64>>,
    bytes_max: u64,
    /// Eviction candidates, lowest priority first.
    queue: GreedyDualSize<EvictionEntry>,
    /// The queue length at which entries of removed names are swept.
    sweep_at: usize,
    evictions: u64,
}

/// A cached response in the eviction queue.
struct EvictionEntry {
    entry: Weak<Entry>,
    variant: Variant,
}

impl ResponseCache {
    /// An empty cache of at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            used_bytes: Rc::new(Cell::new(0)),
            bytes_max,
            queue: GreedyDualSize::new(),
            sweep_at: SWEEP_ENTRIES_MIN,
            evictions: 0,
        }
    }

    /// The bytes in use, shared with the [`Charge`](headway_request::Charge) of each response.
    pub fn used_bytes(&self) -> &Rc<Cell<u64>> {
        &self.used_bytes
    }

    /// Whether this number of bytes fits without an eviction.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.used_bytes.get() + bytes <= self.bytes_max
    }

    /// The number of evicted responses.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Stores a response with its file cache entry, if there is room or room can be made.
    pub fn insert(&mut self, entry: &Rc<Entry>, variant: Variant, content: &Rc<CachedResponse>) {
        self.evict_to_fit();
        if self.used_bytes.get() > self.bytes_max {
            return;
        }
        *entry.prepared.responses[variant].borrow_mut() = Some(content.clone());
        if self.queue.len() >= self.sweep_at {
            self.sweep();
        }
        self.push(Rc::downgrade(entry), variant, content.memory_bytes());
    }

    fn push(&mut self, entry: Weak<Entry>, variant: Variant, bytes: u64) {
        self.queue.insert(bytes, EvictionEntry { entry, variant });
    }

    /// Removes queue entries whose names have left the file cache. Each of them keeps the memory of
    /// its entry allocated, and behind one long-lived name they would accumulate. The cost of a
    /// sweep is amortised over the insertions before it.
    fn sweep(&mut self) {
        self.queue.retain(|candidate| !candidate.is_stale());
        self.sweep_at = (2 * self.queue.len()).max(SWEEP_ENTRIES_MIN);
    }

    fn evict_to_fit(&mut self) {
        for _ in 0..EVICTION_CHECKS_MAX {
            self.queue.discard_first(EvictionEntry::is_stale);
            if self.used_bytes.get() <= self.bytes_max {
                return;
            }
            let Some(candidate) = self.queue.evict() else {
                return;
            };
            if let Some(entry) = candidate.entry.upgrade() {
                self.evict_or_requeue(&entry, candidate);
            }
        }
    }

    /// Evicts the candidate's response, or queues it again with a new priority.
    fn evict_or_requeue(&mut self, entry: &Entry, candidate: EvictionEntry) {
        let variant = candidate.variant;
        let mut cached = entry.prepared.responses[variant].borrow_mut();
        let Some(content) = &*cached else { return };
        if entry.prepared.recently_used.replace(false) || content.is_being_sent() {
            self.push(candidate.entry, variant, content.memory_bytes());
        } else {
            *cached = None;
            self.evictions += 1;
        }
    }
}

impl EvictionEntry {
    /// Whether its name has left the file cache.
    fn is_stale(&self) -> bool {
        self.entry.strong_count() == 0
    }
}

#[cfg(test)]
mod tests {
    use headway_files::{Answer, FileCache, FileCacheLimits, Meta, OpenFile, RootId};
    use headway_http::etag::Etag;

    use super::*;
    use headway_request::{CachedResponses, Charge, StoredBody};

    const BYTES: u64 = 100;

    struct Fixture {
        cache: ResponseCache,
        names: FileCache<CachedResponses>,
    }

    impl Fixture {
        fn for_contents(count: u64) -> Fixture {
            let bounds = FileCacheLimits {
                entries_max: 1000,
                descriptors_max: 1000,
            };
            Fixture {
                cache: ResponseCache::new(count * BYTES),
                names: FileCache::new(bounds),
            }
        }

        fn content(&self, bytes: u64) -> Rc<CachedResponse> {
            Rc::new(CachedResponse {
                bytes: vec![0; bytes as usize].into_boxed_slice(),
                stored: None,
                start: 0,
                body_at: 0,
                date_at: 0,
                date_second: 0,
                etag: Etag::new(&[1], None),
                modified: None,
                charge: Charge::new(self.cache.used_bytes(), bytes),
            })
        }

        /// Inserts a name with a response of `BYTES` bytes.
        fn insert(&mut self, name: &str) -> Rc<Entry> {
            self.insert_sized(name, BYTES)
        }

        /// Inserts a name with a response whose body is in the content store.
        fn insert_stored(&mut self, name: &str, bytes: u64) -> Rc<Entry> {
            let descriptor = std::fs::File::open("/dev/null").unwrap().into();
            let meta = Meta {
                size: bytes,
                modified: (0, 0),
                changed: (0, 0),
                device: 0,
                inode: 0,
            };
            let file = Rc::new(OpenFile::new(descriptor, meta));
            let charge = Charge::new(self.cache.used_bytes(), bytes);
            let mut content = Rc::into_inner(self.content(0)).unwrap();
            content.stored = Some(Rc::new(StoredBody::new(file, charge, false)));
            let path = name.as_bytes();
            let entry = self.names.insert(RootId(0), path, Answer::Directory, 0);
            self.cache.insert(&entry, 0, &Rc::new(content));
            entry
        }

        fn insert_sized(&mut self, name: &str, bytes: u64) -> Rc<Entry> {
            let path = name.as_bytes();
            let entry = self.names.insert(RootId(0), path, Answer::Directory, 0);
            let content = self.content(bytes);
            self.cache.insert(&entry, 0, &content);
            entry
        }
    }

    fn is_there(entry: &Entry) -> bool {
        entry.prepared.responses[0].borrow().is_some()
    }

    #[test]
    fn oldest_response_is_evicted_when_the_cache_is_full() {
        let mut all = Fixture::for_contents(2);
        let (first, second) = (all.insert("first"), all.insert("second"));
        assert_eq!(all.cache.evictions(), 0);
        let third = all.insert("third");
        assert!(!is_there(&first) && is_there(&second) && is_there(&third));
        assert_eq!(all.cache.evictions(), 1);
        assert_eq!(all.cache.used_bytes().get(), 2 * BYTES);
    }

    #[test]
    fn used_response_survives_one_eviction_round_and_not_a_second() {
        let mut all = Fixture::for_contents(2);
        let (first, second) = (all.insert("first"), all.insert("second"));
        first.prepared.recently_used.set(true);
        let third = all.insert("third");
        assert!(is_there(&first) && !is_there(&second));
        all.insert("fourth");
        assert!(!is_there(&first), "it was not requested again");
        assert!(is_there(&third));
    }

    #[test]
    fn larger_response_is_evicted_first_and_an_unused_small_one_later() {
        let mut all = Fixture::for_contents(10);
        let small = all.insert_sized("small", BYTES);
        let mut rounds = 0;
        let mut before = None;
        while is_there(&small) {
            assert!(rounds < 100, "never evicted");
            let large = all.insert_sized(&rounds.to_string(), 6 * BYTES);
            assert!(is_there(&large));
            if let Some(gone) = before.replace(large) {
                assert!(!is_there(&gone) || !is_there(&small), "two do not fit");
            }
            rounds += 1;
        }
        assert!(
            rounds >= 6,
            "a response of a sixth of the size lasts six times as long, not {rounds}"
        );
    }

    #[test]
    fn small_used_response_stays_among_many_large_ones() {
        let mut all = Fixture::for_contents(10);
        let small = all.insert_sized("small", BYTES);
        for round in 0..500 {
            if round % 3 == 0 {
                small.prepared.recently_used.set(true);
            }
            drop(all.insert_sized(&round.to_string(), 6 * BYTES));
            assert!(is_there(&small), "gone in round {round}");
        }
        assert!(all.cache.evictions() > 400);
    }

    #[test]
    fn memory_is_released_when_the_entry_is_removed_and_the_last_send_ends() {
        let mut all = Fixture::for_contents(2);
        let entry = all.insert("name");
        let being_sent = entry.prepared.responses[0].borrow().clone();
        all.names.remove(RootId(0), b"name");
        drop(entry);
        assert_eq!(
            all.cache.used_bytes().get(),
            BYTES,
            "it is still being sent"
        );
        drop(being_sent);
        assert_eq!(all.cache.used_bytes().get(), 0);
    }

    #[test]
    fn stored_body_is_not_evicted_and_holds_its_memory_while_it_is_sent() {
        let mut all = Fixture::for_contents(2);
        let entry = all.insert_stored("stored", BYTES);
        let stored = entry.prepared.responses[0]
            .borrow()
            .as_ref()
            .unwrap()
            .stored
            .clone();
        let piece = headway_request::Piece::Stored(stored.unwrap(), 0..BYTES);
        let other = all.insert_sized("other", 2 * BYTES);
        assert!(is_there(&entry) && !is_there(&other));
        all.names.remove(RootId(0), b"stored");
        drop(entry);
        assert_eq!(
            all.cache.used_bytes().get(),
            BYTES,
            "it is still being sent"
        );
        drop(piece);
        assert_eq!(all.cache.used_bytes().get(), 0);
    }

    #[test]
    fn response_is_not_cached_when_no_room_can_be_made() {
        let mut all = Fixture::for_contents(1);
        let kept = all.insert("kept");
        let being_sent = kept.prepared.responses[0].borrow().clone();
        let other = all.insert("other");
        assert!(
            !is_there(&other),
            "a response that is being sent holds its memory"
        );
        assert!(is_there(&kept), "and is not evicted for nothing");
        assert_eq!(
            (all.cache.used_bytes().get(), all.cache.evictions()),
            (BYTES, 0)
        );
        drop(being_sent);
        let next = all.insert("next");
        assert!(is_there(&next) && !is_there(&kept));
    }

    #[test]
    fn eviction_queue_is_swept_when_entries_become_stale() {
        let mut all = Fixture::for_contents(2);
        for round in 0..1000 {
            let name = round.to_string();
            drop(all.insert(&name));
            all.names.remove(RootId(0), name.as_bytes());
        }
        assert!(all.cache.queue.len() <= 1, "{}", all.cache.queue.len());
        assert_eq!(all.cache.evictions(), 0);
    }

    #[test]
    fn eviction_queue_is_swept_when_a_permanent_entry_precedes_stale_ones() {
        let mut all = Fixture::for_contents(10_000);
        let lasting = all.insert("lasting");
        for round in 0..10_000 {
            let name = round.to_string();
            drop(all.insert(&name));
            all.names.remove(RootId(0), name.as_bytes());
        }
        let queued = all.cache.queue.len();
        assert!(
            queued <= 2 * SWEEP_ENTRIES_MIN,
            "{queued} entries for one response"
        );
        assert!(is_there(&lasting));
    }
}
