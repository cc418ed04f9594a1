//! Durations of the calls of a call site: a histogram with four buckets per octave.
//!
//! The limits of a bucket differ by at most 25 %, so a quantile is accurate to an eighth.
//! Histograms with fixed buckets can be added up across threads and processes; percentiles cannot.
//!
//! Not the histogram of `headway-latency`, which grows: these buckets are a part of the record's
//! format, so that a traced thread counts in shared memory and never allocates. What both have in
//! common is which bucket a length falls into, [`headway_base::Octaves`].

use std::fmt;

use serde::Serialize;

/// From below 32 ns to above 103 s.
pub(super) const BUCKETS: usize = 128;

type Octaves = headway_base::Octaves<2>;

/// The bucket below the first one that is not "less": up to 2⁵ ns.
const LESS: u32 = Octaves::of(1 << 5) - 1;

/// A histogram of nanoseconds.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Histogram {
    counts: Vec<u64>,
}

/// The bucket a length falls into.
#[inline]
pub(super) fn bucket(ns: u64) -> usize {
    (Octaves::of(ns).saturating_sub(LESS) as usize).min(BUCKETS - 1)
}

/// The smallest length of a bucket.
const fn low_ns(bucket: usize) -> u64 {
    match bucket {
        0 => 0,
        _ => Octaves::low(bucket as u32 + LESS),
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: vec![0; BUCKETS],
        }
    }
}

impl Histogram {
    /// Adds to a bucket; ignored if there is no bucket of that number.
    pub(super) fn add_to(&mut self, bucket: usize, count: u64) {
        if let Some(sum) = self.counts.get_mut(bucket) {
            *sum += count;
        }
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
    }

    /// How many lengths are in it.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The buckets that are not empty: from (inclusive) and to (exclusive) in nanoseconds, and the
    /// count. The last bucket has no end.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, Option<u64>, u64)> + '_ {
        let filled = |(_, count): &(usize, &u64)| **count > 0;
        self.counts
            .iter()
            .enumerate()
            .filter(filled)
            .map(|(bucket, &count)| {
                let high = (bucket + 1 < BUCKETS).then(|| low_ns(bucket + 1));
                (low_ns(bucket), high, count)
            })
    }

    /// The length below which this share (0 to 1) of the calls lie: the middle of the bucket it
    /// falls into, right to an eighth. `None` if empty.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        for (low, high, count) in self.buckets() {
            below += count;
            if below >= rank {
                return Some(high.map_or(low, |high| low.midpoint(high)));
            }
        }
        None
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buckets = self.buckets().map(|(low, _, count)| (low, count));
        f.debug_map().entries(buckets).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Histogram, bucket, low_ns};

    #[test]
    fn length_is_within_its_bucket_when_any_length_is_added() {
        let mut ns = 1_u64;
        while ns < 1 << 36 {
            for near in [ns - 1, ns, ns + 1] {
                let index = bucket(near);
                assert!(low_ns(index) <= near, "{near} in {index}");
                assert!(
                    index + 1 == BUCKETS || near < low_ns(index + 1),
                    "{near} in {index}"
                );
            }
            ns = ns * 5 / 4 + 1;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantile_is_near_the_length_when_all_lengths_are_equal() {
        let mut histogram = Histogram::default();
        histogram.add_to(bucket(1000), 99);
        histogram.add_to(bucket(1_000_000), 1);
        let median = histogram.quantile_ns(0.5).expect("not empty");
        assert!((875..1125).contains(&median), "{median}");
        let last = histogram.quantile_ns(1.0).expect("not empty");
        assert!((875_000..1_125_000).contains(&last), "{last}");
        assert_eq!(Histogram::default().quantile_ns(0.5), None);
    }
}
