//! A cache within a limit of bytes and of entries, evicted by GreedyDual-Size.

use std::collections::HashMap;
use std::hash::Hash;

use headway_base::{GreedyDualSize, Priority};

/// A cache with a limit of bytes and of entries. Clients do not choose the keys.
#[derive(Debug)]
pub(super) struct LimitedCache<K, V> {
    bytes_max: u64,
    entries_max: usize,
    bytes: u64,
    entries: HashMap<K, LimitedEntry<V>>,
    order: GreedyDualSize<K>,
}

#[derive(Debug)]
struct LimitedEntry<V> {
    /// The place of the entry in `order`.
    priority: Priority,
    bytes: u64,
    value: V,
}

impl<K: Copy + Eq + Hash, V> LimitedCache<K, V> {
    pub(super) fn new(bytes_max: u64, entries_max: usize) -> LimitedCache<K, V> {
        LimitedCache {
            bytes_max,
            entries_max,
            bytes: 0,
            entries: HashMap::new(),
            order: GreedyDualSize::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Changes the limit of bytes and returns the entries that were evicted for it.
    pub(super) fn set_limit(&mut self, bytes_max: u64) -> Vec<V> {
        self.bytes_max = bytes_max;
        self.shrink(bytes_max, self.entries_max)
    }

    /// Makes room for one more entry of this size and returns the evicted entries, the lowest
    /// priority first. Returns `None`, and evicts nothing, if the entry can never fit.
    pub(super) fn make_room(&mut self, bytes: u64) -> Option<Vec<V>> {
        if bytes > self.bytes_max || self.entries_max == 0 {
            return None;
        }
        Some(self.shrink(self.bytes_max - bytes, self.entries_max - 1))
    }

    /// Inserts an entry. The caller has made room, and the key is not in the cache.
    pub(super) fn insert(&mut self, key: K, bytes: u64, value: V) {
        self.bytes += bytes;
        let priority = self.order.insert(bytes, key);
        let entry = LimitedEntry {
            priority,
            bytes,
            value,
        };
        self.entries.insert(key, entry);
    }

    /// Removes and returns the entries for which the condition is true.
    pub(super) fn remove_where(&mut self, condition: impl Fn(&V) -> bool) -> Vec<V> {
        let keys: Vec<K> = self
            .entries
            .iter()
            .filter_map(|(key, entry)| condition(&entry.value).then_some(*key))
            .collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Evicts until at most this much is left.
    fn shrink(&mut self, bytes: u64, entries: usize) -> Vec<V> {
        let mut evicted = Vec::new();
        while self.bytes > bytes || self.entries.len() > entries {
            let Some(key) = self.order.evict() else {
                break;
            };
            if let Some(entry) = self.entries.remove(&key) {
                self.bytes -= entry.bytes;
                evicted.push(entry.value);
            }
        }
        evicted
    }

    /// Removes the entry of a key.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.order.remove(entry.priority);
        self.bytes -= entry.bytes;
        Some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &mut LimitedCache<u32, u32>, key: u32, bytes: u64) -> Vec<u32> {
        cache.remove(&key);
        let evicted = cache.make_room(bytes).unwrap_or_default();
        cache.insert(key, bytes, key);
        evicted
    }

    #[test]
    fn largest_entry_is_evicted_first_when_nothing_was_evicted_before() {
        let mut cache = LimitedCache::new(100, 10);
        assert!(put(&mut cache, 1, 10).is_empty());
        assert!(put(&mut cache, 2, 60).is_empty());
        assert!(put(&mut cache, 3, 30).is_empty());
        assert_eq!(put(&mut cache, 4, 5), [2]);
        assert_eq!((cache.bytes(), cache.len()), (45, 3));
    }

    #[test]
    fn neither_limit_is_exceeded() {
        let mut cache = LimitedCache::new(1000, 7);
        for key in 0..5000_u32 {
            let bytes = u64::from(key * 7919 % 300 + 1);
            put(&mut cache, key % 61, bytes);
            assert!(cache.bytes() <= 1000 && cache.len() <= 7);
            let held: u64 = cache.entries.values().map(|entry| entry.bytes).sum();
            assert_eq!((held, cache.order.len()), (cache.bytes(), cache.len()));
        }
    }

    #[test]
    fn lowest_priority_is_evicted_when_the_limit_falls() {
        let mut cache = LimitedCache::new(100, 10);
        for (key, bytes) in [(1, 40), (2, 10), (3, 30)] {
            put(&mut cache, key, bytes);
        }
        assert_eq!(cache.remove_where(|value| *value == 7), [0; 0]);
        assert_eq!(cache.set_limit(45), [1]);
        assert_eq!(cache.set_limit(100), [0; 0]);
        assert_eq!(cache.set_limit(0), [3, 2]);
        assert_eq!(put(&mut cache, 4, 1), [0; 0]);
    }

    #[test]
    fn removed_entries_leave_room() {
        let mut cache = LimitedCache::new(100, 10);
        for (key, bytes) in [(1, 40), (2, 10), (3, 30)] {
            put(&mut cache, key, bytes);
        }
        let mut removed = cache.remove_where(|value| *value != 2);
        removed.sort_unstable();
        assert_eq!((removed, cache.bytes(), cache.len()), (vec![1, 3], 10, 1));
        assert!(put(&mut cache, 4, 90).is_empty());
    }

    #[test]
    fn nothing_is_evicted_for_an_entry_that_can_never_fit() {
        let mut cache = LimitedCache::new(100, 10);
        put(&mut cache, 1, 60);
        assert!(cache.make_room(101).is_none());
        assert_eq!(cache.remove(&1), Some(1));
        assert!(LimitedCache::<u32, u32>::new(100, 0).make_room(1).is_none());
    }
}
