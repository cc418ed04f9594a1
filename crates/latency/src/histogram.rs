//! How often each latency occurred: counts by bucket, with exact count, mean, smallest and largest.
//!
//! Percentiles are those of the nearest rank: the smallest latency that at least that share of the
//! requests did not exceed. They are exact to a bucket (0.1 %), and merging histograms gives the
//! percentiles of all requests together, which merging percentiles never does.

use headway_base::Octaves;

use crate::counts::Counts;

const BITS: u32 = 10;

/// The buckets of a [`Histogram`]: 0.1 % wide, and one nanosecond below 2048.
pub type Bucket = Octaves<BITS>;

/// Latencies in nanoseconds, by [`Bucket`].
///
/// ```
/// use headway_latency::Histogram;
///
/// let mut histogram = Histogram::new();
/// (1..=100).for_each(|us| histogram.record_ns(us * 1_000));
/// assert_eq!(histogram.mean_ns(), 50_500.0);
/// assert!(histogram.percentile(99.0).abs_diff(99_000) <= 99); // within 0.1 %
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Counts<BITS>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Histogram {
    /// An empty histogram; it takes memory for the buckets it meets.
    pub fn new() -> Histogram {
        Histogram::default()
    }

    /// An empty histogram that needs no memory later for latencies up to `max_ns`.
    pub fn with_room(max_ns: u64) -> Histogram {
        Histogram {
            counts: Counts::with_room(max_ns),
            ..Histogram::default()
        }
    }

    /// Counts one latency.
    pub fn record_ns(&mut self, ns: u64) {
        self.record_n(ns, 1);
    }

    /// Counts one latency `n` times.
    pub fn record_n(&mut self, ns: u64, n: u64) {
        if n == 0 {
            return;
        }
        self.widen(ns, ns);
        self.counts.add(Bucket::of(ns), n);
        self.sum_ns += u128::from(ns) * u128::from(n);
    }

    /// Adds the requests of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        if other.count() == 0 {
            return;
        }
        self.widen(other.min_ns, other.max_ns);
        self.counts.add_all(&other.counts, 1);
        self.sum_ns += other.sum_ns;
    }

    /// Before the counts are added, so that the first one sets the smallest.
    fn widen(&mut self, min_ns: u64, max_ns: u64) {
        self.min_ns = match self.count() {
            0 => min_ns,
            _ => self.min_ns.min(min_ns),
        };
        self.max_ns = self.max_ns.max(max_ns);
    }

    /// How many latencies were counted.
    pub fn count(&self) -> u64 {
        self.counts.total()
    }

    /// The smallest, exactly; 0 when empty.
    pub fn min_ns(&self) -> u64 {
        self.min_ns
    }

    /// The largest, exactly; 0 when empty.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean, exactly; 0 when empty.
    pub fn mean_ns(&self) -> f64 {
        if self.count() == 0 {
            return 0.0;
        }
        self.sum_ns as f64 / self.count() as f64
    }

    /// The percentile of the nearest rank, in nanoseconds; 0 when empty. `percent` is 0 to 100, so
    /// `99.9` is meant as it reads.
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = (percent / 100.0 * self.count() as f64).ceil().max(1.0);
        let rank = (wanted as u64).min(self.count());
        let mut below = 0;
        for (index, count) in self.buckets() {
            below += count;
            if below >= rank {
                return Bucket::mid(index).clamp(self.min_ns, self.max_ns);
            }
        }
        self.max_ns
    }

    /// The number of latencies up to `ns`; a bucket counts if its middle does.
    pub fn count_within(&self, ns: u64) -> u64 {
        let within = self
            .buckets()
            .take_while(|(index, _)| Bucket::mid(*index) <= ns);
        within.map(|(_, count)| count).sum()
    }

    /// The buckets that are not empty, ascending, with their counts.
    pub fn buckets(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.counts.buckets()
    }

    /// The cumulative distribution: latency in nanoseconds and the share of requests that did not
    /// exceed it, one point for each bucket that is not empty. Thin it with
    /// [`Histogram::cdf_thinned`] for a picture.
    pub fn cdf(&self) -> Vec<(u64, f64)> {
        let mut below = 0;
        let total = self.count() as f64;
        self.buckets()
            .map(|(index, count)| {
                below += count;
                let latency = Bucket::mid(index).clamp(self.min_ns, self.max_ns);
                (latency, below as f64 / total)
            })
            .collect()
    }

    /// The cumulative distribution with up to `points` points, including the first and the last.
    pub fn cdf_thinned(&self, points: usize) -> Vec<(u64, f64)> {
        thin(self.cdf(), points)
    }
}

/// Keeps a point when share or latency (as an octave's part) has moved enough since the last one
/// kept.
fn thin(all: Vec<(u64, f64)>, points: usize) -> Vec<(u64, f64)> {
    if all.len() <= points {
        return all;
    }
    let log = |ns: u64| (ns.max(1) as f64).ln();
    let (first, last) = (all[0], all[all.len() - 1]);
    let span = (log(last.0) - log(first.0)).max(f64::MIN_POSITIVE);
    // The length of the curve is at most 2 when both axes are scaled to 1, and each step of it
    // keeps one point.
    let step = 2.0 / (points.max(4) - 2) as f64;
    let way = |point: &(u64, f64)| (log(point.0) - log(first.0)) / span + point.1;
    let mut kept = vec![first];
    for point in &all[1..all.len() - 1] {
        if way(point) - way(&kept[kept.len() - 1]) >= step {
            kept.push(*point);
        }
    }
    kept.push(last);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(latencies: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        latencies.iter().for_each(|&ns| histogram.record_ns(ns));
        histogram
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank_when_latencies_are_few() {
        let histogram = of(&[15, 20, 35, 40, 50]);
        for (percent, expected) in [
            (0.0, 15),
            (5.0, 15),
            (30.0, 20),
            (40.0, 20),
            (50.0, 35),
            (100.0, 50),
        ] {
            assert_eq!(histogram.percentile(percent), expected, "{percent}");
        }
        assert_eq!(histogram.mean_ns(), 32.0);
        assert_eq!(histogram.count_within(35), 3);
    }

    #[test]
    fn everything_is_zero_when_nothing_was_recorded() {
        let empty = Histogram::new();
        assert_eq!(
            (empty.percentile(99.0), empty.max_ns(), empty.count()),
            (0, 0, 0)
        );
        assert_eq!(empty.mean_ns(), 0.0);
        assert!(empty.cdf().is_empty());
        let mut filled = of(&[7]);
        filled.merge(&empty);
        assert_eq!(filled, of(&[7]));
    }

    #[test]
    fn thinned_cdf_has_both_ends_and_at_most_the_wanted_points() {
        let histogram = of(&(1..50_000).map(|i| i * 37).collect::<Vec<_>>());
        let all = histogram.cdf();
        let few = histogram.cdf_thinned(300);
        assert!(all.len() > 1000 && few.len() <= 300 && few.len() > 100);
        assert_eq!((few[0], few[few.len() - 1]), (all[0], all[all.len() - 1]));
        assert_eq!(few[few.len() - 1].1, 1.0);
    }

    proptest! {
        #[test]
        fn percentile_is_within_a_bucket_of_a_sorted_list(
            mut latencies in proptest::collection::vec(0..u64::MAX / 2, 1..200), percent in 0.0..100.0_f64,
        ) {
            let histogram = of(&latencies);
            latencies.sort_unstable();
            let rank = ((percent / 100.0 * latencies.len() as f64).ceil() as usize).max(1);
            let exact = latencies[rank - 1];
            prop_assert!(histogram.percentile(percent).abs_diff(exact) <= exact >> 10);
        }

        #[test]
        fn merge_is_the_histogram_of_all_when_a_list_is_divided(
            latencies in proptest::collection::vec(0..1_000_000_u64, 0..100), cut in 0..100_usize,
        ) {
            let cut = cut.min(latencies.len());
            let mut left = of(&latencies[..cut]);
            left.merge(&of(&latencies[cut..]));
            prop_assert_eq!(left, of(&latencies));
        }
    }
}
