//! Which of many files of different sizes are worth keeping within a bound: GreedyDual-Size.
//!
//! What it does: gives each entry a rank, that of the last one that had to go plus what a byte of
//! it is worth, and gives up the lowest. Every file saves one wait, so a byte of a small one is
//! worth more; and as ranks rise with each that goes, whoever came long ago goes too, however
//! small, and comes again if it is waited for again. What it refuses: to know what it keeps.
//!
//! Source: P. Cao, S. Irani, *Cost-Aware WWW Proxy Caching Algorithms*, USITS 1997, section 4.1,
//! with a cost of 1.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// What one wait is worth, in ranks a byte. An entry is a page at least, so 2^36 of them can go
/// before ranks would not fit.
const WAIT: u64 = 1 << 40;

/// Entries within a bound of bytes and of number. Keys are not chosen by clients.
#[derive(Debug)]
pub(super) struct Choice<K, V> {
    bytes_max: u64,
    entries_max: usize,
    bytes: u64,
    /// The rank of the last one that had to go.
    floor: u64,
    /// Tells apart those of one rank; the older one goes first.
    next: u64,
    entries: HashMap<K, Entry<V>>,
    order: BTreeMap<(u64, u64), K>,
}

#[derive(Debug)]
struct Entry<V> {
    place: (u64, u64),
    bytes: u64,
    value: V,
}

impl<K: Copy + Eq + Hash, V> Choice<K, V> {
    pub(super) fn new(bytes_max: u64, entries_max: usize) -> Choice<K, V> {
        Choice {
            bytes_max,
            entries_max,
            bytes: 0,
            floor: 0,
            next: 0,
            entries: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// From now on so many bytes at most; what had to go for it.
    pub(super) fn bound(&mut self, bytes_max: u64) -> Vec<V> {
        self.bytes_max = bytes_max;
        self.shrink(bytes_max, self.entries_max)
    }

    /// Let there be room for one more of so many bytes: what had to go for it, the least worth
    /// first. `None`: it can never be kept, and nothing has gone.
    pub(super) fn make_room(&mut self, bytes: u64) -> Option<Vec<V>> {
        if bytes > self.bytes_max || self.entries_max == 0 {
            return None;
        }
        Some(self.shrink(self.bytes_max - bytes, self.entries_max - 1))
    }

    /// Keep it; room for it has been made, and nothing is kept for its key.
    pub(super) fn insert(&mut self, key: K, bytes: u64, value: V) {
        let place = (self.floor + WAIT / bytes.max(1), self.next);
        self.next += 1;
        self.bytes += bytes;
        self.order.insert(place, key);
        let entry = Entry {
            place,
            bytes,
            value,
        };
        self.entries.insert(key, entry);
    }

    /// Give up those of which this is so.
    pub(super) fn part(&mut self, is: impl Fn(&V) -> bool) -> Vec<V> {
        let keys: Vec<K> = self
            .entries
            .iter()
            .filter_map(|(key, entry)| is(&entry.value).then_some(*key))
            .collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Give up the least worth until no more is left than this.
    fn shrink(&mut self, bytes: u64, entries: usize) -> Vec<V> {
        let mut gone = Vec::new();
        while self.bytes > bytes || self.entries.len() > entries {
            let Some(((rank, _), key)) = self.order.pop_first() else {
                break;
            };
            self.floor = rank;
            if let Some(entry) = self.entries.remove(&key) {
                self.bytes -= entry.bytes;
                gone.push(entry.value);
            }
        }
        gone
    }

    /// Give up what is kept for the key.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&entry.place);
        self.bytes -= entry.bytes;
        Some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(choice: &mut Choice<u32, u32>, key: u32, bytes: u64) -> Vec<u32> {
        choice.remove(&key);
        let gone = choice.make_room(bytes).unwrap_or_default();
        choice.insert(key, bytes, key);
        gone
    }

    #[test]
    fn largest_goes_first_when_nobody_has_gone_before() {
        let mut choice = Choice::new(100, 10);
        assert!(put(&mut choice, 1, 10).is_empty());
        assert!(put(&mut choice, 2, 60).is_empty());
        assert!(put(&mut choice, 3, 30).is_empty());
        assert_eq!(put(&mut choice, 4, 5), [2]);
        assert_eq!((choice.bytes(), choice.len()), (45, 3));
    }

    #[test]
    fn small_one_goes_too_when_it_is_not_asked_for_again_while_many_come() {
        let mut choice = Choice::new(100, 100);
        put(&mut choice, 0, 10);
        let mut turns = 0;
        while choice.entries.contains_key(&0) {
            turns += 1;
            put(&mut choice, turns, 40);
            assert!(turns < 20, "kept for ever");
        }
        assert!(
            turns > 6,
            "four times as small is worth four times as much, but it went after {turns}"
        );
    }

    #[test]
    fn neither_bound_is_exceeded_whatever_comes() {
        let mut choice = Choice::new(1000, 7);
        for key in 0..5000_u32 {
            let bytes = u64::from(key * 7919 % 300 + 1);
            put(&mut choice, key % 61, bytes);
            assert!(choice.bytes() <= 1000 && choice.len() <= 7);
            let held: u64 = choice.entries.values().map(|entry| entry.bytes).sum();
            assert_eq!((held, choice.order.len()), (choice.bytes(), choice.len()));
        }
    }

    #[test]
    fn least_worth_goes_when_the_bound_falls() {
        let mut choice = Choice::new(100, 10);
        for (key, bytes) in [(1, 40), (2, 10), (3, 30)] {
            put(&mut choice, key, bytes);
        }
        assert_eq!(choice.part(|value| *value == 7), [0; 0]);
        assert_eq!(choice.bound(45), [1]);
        assert_eq!(choice.bound(100), [0; 0]);
        assert_eq!(choice.bound(0), [3, 2]);
        assert_eq!(put(&mut choice, 4, 1), [0; 0]);
    }

    #[test]
    fn those_that_are_parted_with_leave_room() {
        let mut choice = Choice::new(100, 10);
        for (key, bytes) in [(1, 40), (2, 10), (3, 30)] {
            put(&mut choice, key, bytes);
        }
        let mut gone = choice.part(|value| *value != 2);
        gone.sort_unstable();
        assert_eq!((gone, choice.bytes(), choice.len()), (vec![1, 3], 10, 1));
        assert!(put(&mut choice, 4, 90).is_empty());
    }

    #[test]
    fn nothing_goes_for_what_can_never_be_kept() {
        let mut choice = Choice::new(100, 10);
        put(&mut choice, 1, 60);
        assert!(choice.make_room(101).is_none());
        assert_eq!(choice.remove(&1), Some(1));
        assert!(Choice::<u32, u32>::new(100, 0).make_room(1).is_none());
    }
}
