//! GreedyDual-Size: which entry of a cache to evict, when many small entries are worth more than
//! few large ones.
//!
//! Each entry has a priority: the priority of the entry that was evicted last (the *inflation*),
//! plus the cost of a miss divided by the size of the entry. The entry with the lowest priority
//! goes first. A miss costs the same for every entry (one read of a file), so a byte of a small
//! entry is worth more. The inflation rises with each eviction, so entries that were inserted long
//! ago are evicted too, however small they are.
//!
//! The queue knows neither the contents nor the limit of the cache, because caches differ in both:
//! the caller pops entries until the rest fits, and may queue one again instead of evicting it.
//!
//! Source: P. Cao, S. Irani, *Cost-Aware WWW Proxy Caching Algorithms*, USITS 1997, section 4.1,
//! with a cost of 1.

use std::collections::BTreeMap;

/// The cost of a miss, in priority units times bytes. With entries of a page or more, 2^36
/// evictions fit into a priority; it saturates beyond that.
const MISS_COST: u64 = 1 << 40;

/// The entries of a cache in the order in which they are to be evicted.
///
/// ```
/// use headway_base::GreedyDualSize;
///
/// let mut queue = GreedyDualSize::new();
/// queue.insert(100, "small");
/// queue.insert(60_000, "large");
/// assert_eq!(queue.evict(), Some("large"));
/// ```
#[derive(Debug)]
pub struct GreedyDualSize<T> {
    /// The priority of the entry that was evicted last.
    inflation: u64,
    /// The number of the next entry: of equal priorities, the older one is evicted first.
    next: u64,
    entries: BTreeMap<Priority, T>,
}

/// The place of an entry in its queue; no two are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority {
    value: u64,
    number: u64,
}

impl<T> GreedyDualSize<T> {
    /// An empty queue.
    pub const fn new() -> GreedyDualSize<T> {
        GreedyDualSize {
            inflation: 0,
            next: 0,
            entries: BTreeMap::new(),
        }
    }

    /// Queues an entry of this size. Its place is what [`GreedyDualSize::remove`] wants.
    pub fn insert(&mut self, bytes: u64, entry: T) -> Priority {
        let priority = Priority {
            value: self.inflation.saturating_add(MISS_COST / bytes.max(1)),
            number: self.next,
        };
        self.next += 1;
        self.entries.insert(priority, entry);
        priority
    }

    /// Takes out the entry that is to be evicted first, and raises the inflation to its priority.
    pub fn evict(&mut self) -> Option<T> {
        let (priority, entry) = self.entries.pop_first()?;
        self.inflation = priority.value;
        Some(entry)
    }

    /// Takes out an entry which has left the cache for another reason.
    pub fn remove(&mut self, priority: Priority) -> Option<T> {
        self.entries.remove(&priority)
    }

    /// Takes out entries which have left the cache for another reason, up to the first which has
    /// not. Unlike an eviction this does not raise the inflation.
    pub fn discard_first(&mut self, mut has_left: impl FnMut(&T) -> bool) {
        while let Some(first) = self.entries.first_entry()
            && has_left(first.get())
        {
            first.remove();
        }
    }

    /// Takes out all entries which have left the cache for another reason.
    pub fn retain(&mut self, mut remains: impl FnMut(&T) -> bool) {
        self.entries.retain(|_, entry| remains(entry));
    }

    /// The number of queued entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<T> Default for GreedyDualSize<T> {
    fn default() -> GreedyDualSize<T> {
        GreedyDualSize::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_entry_is_evicted_first_and_the_older_of_equal_ones() {
        let mut queue = GreedyDualSize::new();
        for (bytes, entry) in [(10, 1), (60, 2), (30, 3), (60, 4)] {
            queue.insert(bytes, entry);
        }
        let evicted: Vec<u32> = std::iter::from_fn(|| queue.evict()).collect();
        assert_eq!(evicted, [2, 4, 3, 1]);
    }

    #[test]
    fn small_entry_is_evicted_too_after_many_insertions() {
        let mut queue = GreedyDualSize::new();
        queue.insert(10, 0);
        let mut insertions = 0;
        loop {
            insertions += 1;
            queue.insert(40, insertions);
            if queue.evict() == Some(0) {
                break;
            }
            assert!(insertions < 20, "never evicted");
        }
        assert!(
            insertions >= 4,
            "a quarter of the size lasts four times as long, not {insertions}"
        );
    }

    #[test]
    fn removed_entries_neither_come_again_nor_raise_the_inflation() {
        let mut queue = GreedyDualSize::new();
        let priority = queue.insert(1, 1);
        queue.insert(1, 2);
        assert_eq!(
            (queue.remove(priority), queue.remove(priority)),
            (Some(1), None)
        );
        queue.insert(1, 5);
        queue.discard_first(|&entry| entry == 2);
        assert_eq!(queue.len(), 1);
        queue.retain(|&entry| entry != 5);
        assert!(queue.is_empty());
        queue.insert(10, 3);
        queue.insert(20, 4);
        assert_eq!((queue.evict(), queue.len()), (Some(4), 1));
    }

    #[test]
    fn priority_saturates_when_the_inflation_is_at_its_end() {
        let mut queue = GreedyDualSize::new();
        queue.inflation = u64::MAX - 1;
        queue.insert(1, 1);
        queue.insert(1, 2);
        assert_eq!((queue.evict(), queue.evict()), (Some(1), Some(2)));
    }
}
