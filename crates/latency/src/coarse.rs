//! A histogram small enough for every step of a run: its buckets are eight times as wide, 0.8 %.
//!
//! Percentiles are interpolated within a bucket, so they are continuous; that is what a picture
//! over time and a bootstrap want, and why headline figures do not come from here.

use headway_base::Octaves;

use crate::counts::Counts;

const BITS: u32 = 7;

type Bucket = Octaves<BITS>;

/// Counts by coarse bucket, with the exact sum.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coarse {
    counts: Counts<BITS>,
    sum_ns: f64,
}

impl Coarse {
    pub(crate) fn record_ns(&mut self, ns: u64) {
        self.record_n(ns, 1);
    }

    pub(crate) fn record_n(&mut self, ns: u64, n: u64) {
        self.counts.add(Bucket::of(ns), n);
        self.sum_ns += ns as f64 * n as f64;
    }

    /// Adds another histogram `times` over.
    pub(crate) fn add(&mut self, other: &Coarse, times: u64) {
        self.counts.add_all(&other.counts, times);
        self.sum_ns += other.sum_ns * times as f64;
    }

    /// Fills `drawn` with a count that `draw` makes of each bucket's count. Its sum takes the
    /// middle of each bucket.
    pub(crate) fn resample(&self, drawn: &mut Coarse, mut draw: impl FnMut(u64) -> u64) {
        drawn.clear();
        for (bucket, count) in self.counts.buckets() {
            let count = draw(count);
            let (low, end) = bounds(bucket);
            drawn.counts.add(bucket, count);
            drawn.sum_ns += f64::midpoint(low, end) * count as f64;
        }
    }

    /// Empties it and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.counts.clear();
        self.sum_ns = 0.0;
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.total()
    }

    /// All latencies together, exactly.
    pub(crate) fn sum_ns(&self) -> f64 {
        self.sum_ns
    }

    /// How many are below `ns`, with a part of the bucket that it is in.
    pub(crate) fn count_below(&self, ns: f64) -> f64 {
        let below = |(bucket, count)| {
            let (low, end) = bounds(bucket);
            count as f64 * ((ns - low) / (end - low)).clamp(0.0, 1.0)
        };
        let reached = |(bucket, _): &(u32, u64)| bounds(*bucket).0 < ns;
        self.counts.buckets().take_while(reached).map(below).sum()
    }

    pub(crate) fn mean_ns(&self) -> f64 {
        self.sum_ns / self.count() as f64
    }

    /// Percentiles for ascending `percents`, in nanoseconds, in one walk over the buckets.
    pub(crate) fn percentiles<const N: usize>(&self, percents: [f64; N]) -> [f64; N] {
        let mut found = [0.0; N];
        let mut wanted = 0;
        let mut below = 0;
        for (bucket, count) in self.counts.buckets() {
            while wanted < N {
                let rank = percents[wanted] / 100.0 * self.count() as f64;
                if (below + count) as f64 <= rank && below + count < self.count() {
                    break;
                }
                let part = ((rank - below as f64) / count as f64).clamp(0.0, 1.0);
                let (low, end) = bounds(bucket);
                found[wanted] = low + part * (end - low);
                wanted += 1;
            }
            below += count;
        }
        found
    }
}

/// The latencies from which and up to which a coarse bucket reaches.
fn bounds(bucket: u32) -> (f64, f64) {
    (
        Bucket::low(bucket) as f64,
        Bucket::high(bucket) as f64 + 1.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_are_within_the_coarse_bucket_of_a_sorted_list(
            mut latencies in proptest::collection::vec(2_000..1_000_000_000_u64, 1..200),
        ) {
            let mut coarse = Coarse::default();
            latencies.iter().for_each(|&ns| coarse.record_ns(ns));
            latencies.sort_unstable();
            let last = latencies.len() - 1;
            let percents = [0.0, 50.0, 95.0, 100.0];
            for (found, percent) in coarse.percentiles(percents).into_iter().zip(percents) {
                // Interpolation may land between the ranks on either side.
                let rank = percent / 100.0 * latencies.len() as f64;
                let low = latencies[((rank.ceil() as usize).max(1) - 1).min(last)] as f64;
                let high = latencies[(rank.floor() as usize).min(last)] as f64;
                prop_assert!(found >= low.min(high) * 0.99 && found <= low.max(high) * 1.01, "{percent}: {low} {found} {high}");
            }
        }

        #[test]
        fn count_below_is_that_of_a_list_but_for_the_bucket(
            latencies in proptest::collection::vec(2_000..1_000_000_000_u64, 1..200), at in 2_000..1_000_000_000_u64,
        ) {
            let mut coarse = Coarse::default();
            latencies.iter().for_each(|&ns| coarse.record_ns(ns));
            let below = |limit: f64| latencies.iter().filter(|ns| (**ns as f64) < limit).count() as f64;
            let (found, at) = (coarse.count_below(at as f64), at as f64);
            prop_assert!(below(at * 0.99) <= found && found <= below(at * 1.01), "{found}");
            prop_assert_eq!(coarse.sum_ns(), latencies.iter().sum::<u64>() as f64);
        }

        #[test]
        fn weight_of_two_equals_recording_twice(latencies in proptest::collection::vec(0..10_000_u64, 1..50)) {
            let (mut once, mut twice, mut weighted) = (Coarse::default(), Coarse::default(), Coarse::default());
            latencies.iter().for_each(|&ns| { once.record_ns(ns); twice.record_ns(ns); });
            latencies.iter().for_each(|&ns| twice.record_ns(ns));
            weighted.add(&once, 2);
            prop_assert_eq!(&weighted.counts, &twice.counts);
            prop_assert_eq!(weighted.mean_ns(), twice.mean_ns());
            weighted.clear();
            prop_assert_eq!(weighted.count(), 0);
        }
    }
}
