//! The joint histogram of size and latency: how many requests had this size and this latency
//! bucket.
//!
//! Everything that relates latency to size follows from it (series, deciles, service inversion),
//! and cells of several machines add up to the cells of all. Sizes are kept exactly, because the
//! equal-size rule of service inversion asks which requests have the *same* size. Memory grows with
//! the number of different (size, bucket) pairs, not with the number of requests: 12 bytes a pair,
//! half as much again while parts are merged. That is less than a MB for the 36 sizes of SPECweb99,
//! and 120 MB for ten million requests that each have a pair of their own.
//!
//! A hash table needs three times as much and half of it again to sort it. Here recent requests are
//! collected, sorted, and merged into sorted runs, each more than twice as long as the one behind
//! it, so that a request is moved a logarithmic number of times. What does not fit into the packed
//! form (a size from 2^47 bytes, a count from 2^32) is in a map beside it.

use crate::histogram::Bucket;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::iter::Peekable;

/// One cell: a size, a latency bucket, and whether the responses were complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// Body length that was expected.
    pub size_bytes: u64,
    /// Bucket of the response time, see [`Bucket`].
    pub bucket: u32,
    /// Whether the response was complete; service inversion is about these only.
    pub complete: bool,
}

/// Bits of a packed cell below its size: sixteen of the bucket, one of `complete`.
const BELOW_SIZE: u32 = 17;

/// Requests that are collected before they are sorted: a millisecond's work, since `headway load`
/// without a directory counts cells beside the loop.
const RECENT_MAX: usize = 1 << 16;

const _: () = assert!(Bucket::COUNT <= 1 << (BELOW_SIZE - 1));

impl Cell {
    /// A number with the order of the cells; `None` for a size that has no room.
    fn packed(self) -> Option<u64> {
        let fits = self.size_bytes < 1 << (64 - BELOW_SIZE);
        let low = u64::from(self.bucket) << 1 | u64::from(self.complete);
        fits.then_some(self.size_bytes << BELOW_SIZE | low)
    }

    fn unpacked(key: u64) -> Cell {
        Cell {
            size_bytes: key >> BELOW_SIZE,
            bucket: (key >> 1) as u32 & 0xffff,
            complete: key & 1 == 1,
        }
    }
}

/// Counts by [`Cell`].
///
/// ```
/// use headway_latency::Cells;
///
/// let mut cells = Cells::new();
/// cells.record(5_000, 300_000, true);
/// cells.record(5_000, 300_000, true);
/// let counts: Vec<u64> = cells.iter().map(|(_, count)| count).collect();
/// assert_eq!(counts.iter().sum::<u64>(), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cells {
    /// In the order of arrival.
    recent: Vec<(u64, u32)>,
    /// The first is the longest.
    runs: Vec<Packed>,
    /// What has no room in the packed form; a cell may be here and there.
    large: BTreeMap<Cell, u64>,
}

impl Cells {
    /// No cells.
    pub fn new() -> Cells {
        Cells::default()
    }

    /// Counts one request by its size and response time.
    pub fn record(&mut self, size_bytes: u64, latency_ns: u64, complete: bool) {
        let bucket = Bucket::of(latency_ns);
        self.add(
            Cell {
                size_bytes,
                bucket,
                complete,
            },
            1,
        );
    }

    /// Adds `count` requests to a cell. Its bucket is one of [`Bucket`].
    pub fn add(&mut self, cell: Cell, count: u64) {
        debug_assert!((cell.bucket as usize) < Bucket::COUNT);
        match (cell.packed(), u32::try_from(count)) {
            (_, Ok(0)) => {}
            (Some(key), Ok(count)) => self.push(key, count),
            _ => *self.large.entry(cell).or_default() += count,
        }
    }

    fn push(&mut self, key: u64, count: u32) {
        self.recent.push((key, count));
        if self.recent.len() >= RECENT_MAX {
            self.sort_recent();
        }
    }

    /// Sorts the recent requests into a run, and merges runs until each is more than twice as long
    /// as the next.
    fn sort_recent(&mut self) {
        if self.recent.is_empty() {
            return;
        }
        self.runs.push(Packed::of(&mut self.recent));
        while let [.., before, last] = &self.runs[..]
            && before.keys.len() <= 2 * last.keys.len()
        {
            self.merge_last();
        }
    }

    fn merge_last(&mut self) {
        if let Some(last) = self.runs.pop()
            && let Some(before) = self.runs.last_mut()
        {
            before.absorb(&last);
        }
    }

    /// Sorts everything that was added, once, so that [`Cells::iter`] does not have to do it each
    /// time. Adding more is possible.
    pub fn compact(&mut self) {
        self.sort_recent();
        self.recent = Vec::new();
        while self.runs.len() > 1 {
            self.merge_last();
        }
    }

    /// Adds the requests of other cells.
    pub fn merge(&mut self, other: &Cells) {
        other.iter().for_each(|(cell, count)| self.add(cell, count));
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is no cell.
    pub fn is_empty(&self) -> bool {
        self.recent.is_empty() && self.runs.is_empty() && self.large.is_empty()
    }

    /// All cells by size, then latency, then incomplete before complete: the order of
    /// `cells.parquet`.
    ///
    /// Needs no memory after [`Cells::compact`], and a sorted copy before.
    pub fn iter(&self) -> impl Iterator<Item = (Cell, u64)> + '_ {
        Iter {
            packed: Walk {
                run: self.whole(),
                at: 0,
            }
            .peekable(),
            large: self
                .large
                .iter()
                .map(|(cell, count)| (*cell, *count))
                .peekable(),
        }
    }

    /// All cells in one run.
    fn whole(&self) -> Cow<'_, Packed> {
        match &self.runs[..] {
            [only] if self.recent.is_empty() => Cow::Borrowed(only),
            [] if self.recent.is_empty() => Cow::Owned(Packed::default()),
            _ => {
                let mut all = self.clone();
                all.compact();
                Cow::Owned(all.runs.pop().unwrap_or_default())
            }
        }
    }

    /// The cells of [`Cells::iter`] in a list.
    pub fn sorted(&self) -> Vec<(Cell, u64)> {
        self.iter().collect()
    }

    /// The complete responses by size, then latency: cell, count, and how many complete responses
    /// stand before the cell in the order of latency, where of one latency the smaller are first.
    /// No list is sorted by latency: counting each bucket gives its beginning, and the cells of a
    /// bucket come by with ascending sizes.
    pub fn placed(&self) -> impl Iterator<Item = (Cell, u64, u64)> + '_ {
        let complete = || self.iter().filter(|(cell, _)| cell.complete);
        let mut next: Vec<u64> = Vec::new();
        for (cell, count) in complete() {
            let bucket = cell.bucket as usize;
            if bucket >= next.len() {
                next.resize(bucket + 1, 0);
            }
            next[bucket] += count;
        }
        let mut before = 0;
        for position in &mut next {
            before += std::mem::replace(position, before);
        }
        complete().map(move |(cell, count)| {
            let position = &mut next[cell.bucket as usize];
            *position += count;
            (cell, count, *position - count)
        })
    }
}

impl PartialEq for Cells {
    /// Whether the same requests were added, in whatever order.
    fn eq(&self, other: &Cells) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Cells {}

/// Cells as numbers, ascending. A count that would not fit stands in several entries of the same
/// cell.
#[derive(Clone, Debug, Default)]
struct Packed {
    keys: Vec<u64>,
    counts: Vec<u32>,
}

impl Packed {
    /// Packs entries; the vector keeps its capacity.
    fn of(entries: &mut Vec<(u64, u32)>) -> Packed {
        entries.sort_unstable();
        let mut packed = Packed::default();
        for (key, count) in entries.drain(..) {
            packed.append(key, count);
        }
        packed
    }

    fn append(&mut self, key: u64, count: u32) {
        if self.keys.last() == Some(&key)
            && let Some(last) = self.counts.last_mut()
            && let Some(sum) = last.checked_add(count)
        {
            *last = sum;
            return;
        }
        self.keys.push(key);
        self.counts.push(count);
    }

    /// Merges another run into this one from the back, so that it needs room for the sum of both
    /// and not for the sum twice.
    fn absorb(&mut self, other: &Packed) {
        let (mut own, mut theirs) = (self.keys.len(), other.keys.len());
        let mut to = own + theirs;
        self.keys.reserve_exact(theirs);
        self.keys.resize(to, 0);
        self.counts.reserve_exact(theirs);
        self.counts.resize(to, 0);
        while theirs > 0 {
            let (key, mut count) = (other.keys[theirs - 1], other.counts[theirs - 1]);
            let before = own.checked_sub(1).map(|at| self.keys[at]);
            to -= 1;
            if let Some(before) = before.filter(|before| *before > key) {
                own -= 1;
                (self.keys[to], self.counts[to]) = (before, self.counts[own]);
                continue;
            }
            theirs -= 1;
            if before == Some(key)
                && let Some(sum) = count.checked_add(self.counts[own - 1])
            {
                own -= 1;
                count = sum;
            }
            (self.keys[to], self.counts[to]) = (key, count);
        }
        // What was met twice has left a gap.
        self.keys.drain(own..to);
        self.counts.drain(own..to);
    }
}

/// A run's entries as cells.
struct Walk<'a> {
    run: Cow<'a, Packed>,
    at: usize,
}

impl Iterator for Walk<'_> {
    type Item = (Cell, u64);

    fn next(&mut self) -> Option<(Cell, u64)> {
        let key = self.run.keys.get(self.at)?;
        let count = self.run.counts[self.at];
        self.at += 1;
        Some((Cell::unpacked(*key), count.into()))
    }
}

/// Both forms in one order, each cell once.
struct Iter<'a, L: Iterator<Item = (Cell, u64)>> {
    packed: Peekable<Walk<'a>>,
    large: Peekable<L>,
}

impl<L: Iterator<Item = (Cell, u64)>> Iterator for Iter<'_, L> {
    type Item = (Cell, u64);

    fn next(&mut self) -> Option<(Cell, u64)> {
        let ours = self.packed.peek().map(|(cell, _)| *cell);
        let theirs = self.large.peek().map(|(cell, _)| *cell);
        let cell = match (ours, theirs) {
            (Some(ours), Some(theirs)) => ours.min(theirs),
            (one, other) => one.or(other)?,
        };
        let mut sum = 0;
        while let Some((_, count)) = self.packed.next_if(|(next, _)| *next == cell) {
            sum += count;
        }
        while let Some((_, count)) = self.large.next_if(|(next, _)| *next == cell) {
            sum += count;
        }
        Some((cell, sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_base::random::{Draw, SplitMix64};
    use proptest::prelude::*;

    fn cell(size_bytes: u64, bucket: u32) -> Cell {
        Cell {
            size_bytes,
            bucket,
            complete: true,
        }
    }

    #[test]
    fn cell_takes_twelve_bytes_when_nearly_every_request_has_its_own() {
        let mut cells = Cells::new();
        let mut random = SplitMix64(1);
        let mut peak = 0;
        for _ in 0..1_000_000 {
            let state = random.next_u64();
            // 40,000 sizes, five octaves of latency.
            cells.record(
                state >> 33 & 0xffff | 1 << 20,
                100_000 + (state >> 40 & 0x2f_ffff),
                true,
            );
            let held = |run: &Packed| 8 * run.keys.capacity() + 4 * run.counts.capacity();
            peak =
                peak.max(16 * cells.recent.capacity() + cells.runs.iter().map(held).sum::<usize>());
        }
        cells.compact();
        assert!(cells.len() > 900_000, "{}", cells.len());
        let [run] = &cells.runs[..] else {
            panic!("one run, not {}", cells.runs.len())
        };
        assert_eq!(run.keys.capacity(), run.counts.capacity());
        assert!(
            12 * run.keys.capacity() < 13 * cells.len(),
            "{}",
            run.keys.capacity()
        );
        assert!(peak < 18 * cells.len(), "{peak}");
    }

    #[test]
    fn counts_and_sizes_are_exact_beyond_the_packed_form() {
        let mut cells = Cells::new();
        let most = u64::from(u32::MAX);
        for count in [most, most, 1, most + 1] {
            cells.add(cell(5, 7), count);
        }
        for size in [u64::MAX, 1 << 47, (1 << 47) - 1] {
            cells.add(cell(size, 1), 2);
        }
        cells.add(cell(9, 9), 0);
        let expected = vec![
            (cell(5, 7), 3 * most + 2),
            (cell((1 << 47) - 1, 1), 2),
            (cell(1 << 47, 1), 2),
            (cell(u64::MAX, 1), 2),
        ];
        assert_eq!(cells.sorted(), expected);
        cells.compact();
        assert_eq!(cells.sorted(), expected);
        let mut twice = cells.clone();
        twice.merge(&cells);
        assert_eq!(twice.sorted()[0].1, 2 * (3 * most + 2));
        assert!(!cells.is_empty() && Cells::new().is_empty());
    }

    #[test]
    fn ranks_equal_those_of_a_sorted_list_when_latencies_are_equal() {
        let mut cells = Cells::new();
        for (size, latency) in [(300, 20), (100, 20), (200, 10), (100, 20), (400, 5)] {
            cells.record(size, latency, true);
        }
        cells.record(50, 1, false);
        let placed: Vec<_> = cells
            .placed()
            .map(|(cell, count, before)| (cell.size_bytes, count, before))
            .collect();
        assert_eq!(placed, [(100, 2, 2), (200, 1, 1), (300, 1, 4), (400, 1, 0)]);
    }

    proptest! {
        #[test]
        fn cells_are_those_of_a_map_when_runs_are_merged(
            parts in proptest::collection::vec(proptest::collection::vec((0..5_u64, 0..40_u32, any::<bool>(), 1..3_u64), 0..60), 0..8),
        ) {
            let (mut cells, mut map) = (Cells::new(), BTreeMap::new());
            for part in parts {
                for (size_bytes, bucket, complete, count) in part {
                    let cell = Cell { size_bytes, bucket, complete };
                    cells.add(cell, count);
                    *map.entry(cell).or_insert(0) += count;
                }
                cells.sort_recent();
                prop_assert_eq!(cells.iter().collect::<Vec<_>>(), map.clone().into_iter().collect::<Vec<_>>());
                let lengths: Vec<usize> = cells.runs.iter().map(|run| run.keys.len()).collect();
                prop_assert!(lengths.is_sorted_by(|longer, shorter| *longer > 2 * shorter), "{:?}", lengths);
            }
        }

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
