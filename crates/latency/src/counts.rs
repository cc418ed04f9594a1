//! How often each bucket was met: what both histograms of this crate consist of.

use headway_base::Octaves;

/// Counts by bucket of [`Octaves`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts<const BITS: u32> {
    /// As long as the largest bucket that was met.
    counts: Vec<u64>,
    /// No bucket before it has a count; most of a run's latencies are within a few octaves.
    first: usize,
    total: u64,
}

impl<const BITS: u32> Counts<BITS> {
    /// Nothing yet; needs no memory later for values up to `max`.
    pub(crate) fn with_room(max: u64) -> Counts<BITS> {
        Counts {
            counts: Vec::with_capacity(Octaves::<BITS>::of(max) as usize + 1),
            ..Counts::default()
        }
    }

    /// Counts a bucket `n` times.
    pub(crate) fn add(&mut self, bucket: u32, n: u64) {
        let bucket = bucket as usize;
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.first = match self.total {
            0 => bucket,
            _ => self.first.min(bucket),
        };
        self.counts[bucket] += n;
        self.total += n;
    }

    /// Adds other counts `times` over.
    pub(crate) fn add_all(&mut self, other: &Counts<BITS>, times: u64) {
        for (bucket, count) in other.buckets() {
            self.add(bucket, count * times);
        }
    }

    /// Empties it and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// All counts together.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The buckets that are not empty, ascending, with their counts.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let first = self.first.min(self.counts.len());
        let counts = self.counts[first..].iter().copied();
        (first as u32..).zip(counts).filter(|(_, count)| *count > 0)
    }
}
