//! Counts of durations in buckets of powers of two, from several threads without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper limit of the first bucket, and how many there are: 16 µs to 17 s, as in `headway serve`.
const FIRST_LIMIT_US: u64 = 16;
const BUCKETS: usize = 21;

/// Durations by size.
pub(super) struct Durations {
    /// The last one has what is longer.
    buckets: [AtomicU64; BUCKETS + 1],
    sum_ns: AtomicU64,
}

impl Durations {
    pub(super) const fn new() -> Durations {
        Durations {
            buckets: [const { AtomicU64::new(0) }; BUCKETS + 1],
            sum_ns: AtomicU64::new(0),
        }
    }

    pub(super) fn record(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let fits = |index: &usize| nanoseconds <= limit_us(*index) * 1000;
        let index = (0..BUCKETS).find(fits).unwrap_or(BUCKETS);
        // Each number is right by itself; a reader may see them of two moments.
        self.buckets[index].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Each bucket's limit in seconds, and how many durations were no longer.
    pub(super) fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut below = 0;
        let buckets = self.buckets[..BUCKETS].iter().enumerate();
        let cumulated = buckets.map(|(index, count)| {
            below += count.load(Ordering::Relaxed);
            (limit_us(index) as f64 / 1e6, below)
        });
        cumulated.collect()
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.buckets
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// Their sum in seconds.
    pub(super) fn sum(&self) -> f64 {
        self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}

fn limit_us(index: usize) -> u64 {
    FIRST_LIMIT_US << index
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Durations};
    use std::time::Duration;

    #[test]
    fn duration_is_in_the_bucket_whose_limit_it_does_not_exceed() {
        let durations = Durations::new();
        for microseconds in [0, 16, 17, 20_000_000] {
            durations.record(Duration::from_micros(microseconds));
        }
        let cumulative = durations.cumulative();
        assert_eq!(cumulative[..2], [(0.000_016, 2), (0.000_032, 3)]);
        assert_eq!(cumulative[BUCKETS - 1], (16.777_216, 3));
        assert_eq!(durations.count(), 4);
        assert_eq!(durations.sum(), 20.000_033);
    }
}
