//! How often a path was wanted: of cached entries exactly, of others by a small sketch.
//!
//! A scan, such as a crawler or a search for weak spots, asks for many paths once. With the least
//! recently used entry evicted for each of them, it would empty the cache. So a path which is not
//! cached takes the place of an entry only if it was wanted more often (TinyLFU). An entry that was
//! never wanted again loses against every path, so new paths still get a chance.
//!
//! The sketch counts paths that were not found. It is cleared by halves, so that it shows the recent
//! past. Collisions make a count too high, never too low.
//!
//! Source: G. Einziger, R. Friedman, B. Manes, *TinyLFU: A Highly Efficient Cache Admission Policy*,
//! ACM Transactions on Storage 13(4), 2017.

/// Counts end here: more says nothing about the future.
const COUNT_MAX: u8 = 15;

/// Hits of an epoch, for each entry of the cache.
const HITS_PER_ENTRY: usize = 16;

/// The number of misses that make as much of an epoch as a hit. A scan must not make the hits look
/// old, but if nothing is hit any more, the entries have to go.
const MISSES_PER_HIT: usize = 8;

/// Counters per entry of the cache.
const COUNTERS_PER_ENTRY: usize = 16;

/// The fewest counters, so that two paths of a small cache hardly ever share all of theirs.
const COUNTERS_MIN: usize = 1 << 10;

/// The most counters: 1 MiB.
const COUNTERS_MAX: usize = 1 << 20;

/// All counts are halved when one path for this many counters has been counted. Of the paths of a scan
/// about 6 in 100 then share all counters with others.
const COUNTERS_PER_PATH: usize = 4;

/// Counters per path; the lowest one counts.
const PROBES: u32 = 3;

/// How often an entry was wanted since it was inserted. Counts of earlier epochs are halved for each
/// epoch that has passed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hits {
    count: u8,
    epoch: u32,
}

impl Hits {
    pub(super) fn new(count: u8, epoch: u32) -> Hits {
        Hits { count, epoch }
    }

    /// The count as of this epoch.
    pub(super) fn count(self, epoch: u32) -> u8 {
        self.count >> epoch.wrapping_sub(self.epoch).min(7)
    }

    pub(super) fn add(&mut self, epoch: u32) {
        self.count = (self.count(epoch) + 1).min(COUNT_MAX);
        self.epoch = epoch;
    }
}

/// Time as a cache sees it: an epoch lasts for a number of hits.
#[derive(Debug)]
pub(super) struct Epochs {
    epoch: u32,
    /// Misses, or [`MISSES_PER_HIT`] times the hits, that are left of the epoch.
    left: usize,
    length: usize,
}

impl Epochs {
    /// The first epoch of a cache of this many entries.
    pub(super) fn new(entries_max: usize) -> Epochs {
        let length = entries_max.saturating_mul(HITS_PER_ENTRY * MISSES_PER_HIT);
        let length = length.max(HITS_PER_ENTRY * MISSES_PER_HIT);
        Epochs {
            epoch: 0,
            left: length,
            length,
        }
    }

    pub(super) fn now(&self) -> u32 {
        self.epoch
    }

    /// Counts a hit, and returns the epoch that it belongs to.
    pub(super) fn count_hit(&mut self) -> u32 {
        self.advance(MISSES_PER_HIT);
        self.epoch
    }

    pub(super) fn count_miss(&mut self) {
        self.advance(1);
    }

    fn advance(&mut self, by: usize) {
        match self.left > by {
            true => self.left -= by,
            false => {
                self.epoch = self.epoch.wrapping_add(1);
                self.left = self.length;
            }
        }
    }
}

/// Approximate counts of paths by their hashes.
#[derive(Debug)]
pub(super) struct Sketch {
    /// A power of two.
    counters: Vec<u8>,
    /// Paths counted since the counts were halved.
    counted: usize,
}

impl Sketch {
    /// A sketch for a cache of this many entries.
    pub(super) fn new(entries_max: usize) -> Sketch {
        let wanted = entries_max
            .saturating_mul(COUNTERS_PER_ENTRY)
            .max(COUNTERS_MIN);
        let length = wanted.min(COUNTERS_MAX).next_power_of_two();
        Sketch {
            counters: vec![0; length],
            counted: 0,
        }
    }

    /// Counts a path once more, and returns how often it was counted.
    pub(super) fn add(&mut self, hash: u64) -> u8 {
        self.counted += 1;
        if self.counted > self.counters.len() / COUNTERS_PER_PATH {
            self.counted = 0;
            self.counters.iter_mut().for_each(|count| *count /= 2);
        }
        let count = self.count(hash).saturating_add(1);
        self.raise(hash, count)
    }

    /// Has a path count at least as much as this, and returns its count.
    pub(super) fn raise(&mut self, hash: u64, count: u8) -> u8 {
        let count = count.min(COUNT_MAX);
        for probe in 0..PROBES {
            let counter = self.position(hash, probe);
            self.counters[counter] = self.counters[counter].max(count);
        }
        count
    }

    fn count(&self, hash: u64) -> u8 {
        let counts = (0..PROBES).map(|probe| self.counters[self.position(hash, probe)]);
        counts.min().unwrap_or(0)
    }

    fn position(&self, hash: u64, probe: u32) -> usize {
        hash.rotate_left(21 * probe) as usize & (self.counters.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// A hash such as SipHash makes.
    fn hash(path: u64) -> u64 {
        let mixed = (path ^ 0x9E37_79B9).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB)
    }

    #[test]
    fn hits_are_halved_with_each_epoch() {
        let mut hits = Hits::new(0, 3);
        (0..20).for_each(|_| hits.add(3));
        let counts: Vec<u8> = (3..9).map(|epoch| hits.count(epoch)).collect();
        assert_eq!(counts, [15, 7, 3, 1, 0, 0]);
        hits.add(4);
        assert_eq!(hits.count(4), 8);
        assert_eq!(hits.count(u32::MAX), 0);
    }

    #[test]
    fn few_paths_of_a_scan_count_more_than_once() {
        let mut sketch = Sketch::new(10_000);
        let scanned = (0..200_000).filter(|path| sketch.add(hash(*path)) > 1);
        let several = scanned.count();
        assert!(several < 14_000, "{several} of 200,000");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_path_counts_less_than_it_was_counted_until_counts_are_halved(
            paths in prop::collection::vec(0..50_u64, 0..100),
        ) {
            let mut sketch = Sketch::new(1_000);
            let mut exact: HashMap<u64, u8> = HashMap::new();
            for path in paths {
                let count = exact.entry(path).or_default();
                *count = (*count + 1).min(COUNT_MAX);
                prop_assert!(sketch.add(hash(path)) >= *count);
            }
        }
    }
}
