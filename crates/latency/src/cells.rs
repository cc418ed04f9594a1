//! The joint histogram of size and latency: how many requests had this size and this latency bucket.
//!
//! Everything that relates latency to size follows from it (series, deciles, service inversion), and cells
//! of several machines add up to the cells of all. Sizes are kept exactly, because the equal-size rule of
//! service inversion asks which requests have the *same* size. Memory grows with the number of different
//! (size, bucket) pairs, not with the number of requests: a few MB for the 36 sizes of SPECweb99, and about 100
//! bytes a request when nearly each has a pair of its own, as with tens of thousands of sizes.

use crate::quantum;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// One cell: a size, a latency bucket, and whether the replies were complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// Body length that was expected.
    pub size_bytes: u64,
    /// Bucket of the response time, see [`quantum`].
    pub bucket: u32,
    /// Whether the reply was complete; service inversion is about these only.
    pub complete: bool,
}

/// Counts by [`Cell`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    counts: HashMap<Cell, u64, BuildHasherDefault<Mix>>,
}

impl Cells {
    /// No cells.
    pub fn new() -> Cells {
        Cells::default()
    }

    /// Counts one request by its size and response time.
    pub fn record(&mut self, size_bytes: u64, latency_ns: u64, complete: bool) {
        let bucket = quantum::bucket(latency_ns);
        self.add(
            Cell {
                size_bytes,
                bucket,
                complete,
            },
            1,
        );
    }

    /// Adds `count` requests to a cell.
    pub fn add(&mut self, cell: Cell, count: u64) {
        if count > 0 {
            *self.counts.entry(cell).or_default() += count;
        }
    }

    /// Adds the requests of other cells.
    pub fn merge(&mut self, other: &Cells) {
        other
            .counts
            .iter()
            .for_each(|(cell, count)| self.add(*cell, *count));
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether there is no cell.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// All cells in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Cell, u64)> + '_ {
        self.counts.iter().map(|(cell, count)| (*cell, *count))
    }

    /// All cells by size, then latency, then incomplete before complete: the order of `cells.parquet`.
    pub fn sorted(&self) -> Vec<(Cell, u64)> {
        let mut cells: Vec<_> = self.iter().collect();
        cells.sort_unstable_by_key(|(cell, _)| *cell);
        cells
    }
}

/// A multiplication a word. The keys are measurements, nobody chooses them to collide.
#[derive(Clone, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn merge_is_the_cells_of_all_when_requests_are_divided(
            requests in proptest::collection::vec((0..5_u64, 0..3_000_u64, any::<bool>()), 0..200), cut in 0..200_usize,
        ) {
            let of = |part: &[(u64, u64, bool)]| {
                let mut cells = Cells::new();
                part.iter().for_each(|&(size, latency, complete)| cells.record(size, latency, complete));
                cells
            };
            let cut = cut.min(requests.len());
            let mut merged = of(&requests[..cut]);
            merged.merge(&of(&requests[cut..]));
            prop_assert_eq!(merged.sorted(), of(&requests).sorted());
            prop_assert_eq!(merged.iter().map(|(_, count)| count).sum::<u64>(), requests.len() as u64);
        }
    }
}
