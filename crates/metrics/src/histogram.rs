//! One histogram shape for everything a worker counts: exact to 1024, powers of two above.
//!
//! Ready events per wakeup are small integers whose exact distribution matters (Figure 1 of the
//! 2006 paper), times in microseconds span many orders of magnitude. One fixed shape serves both,
//! so that any two histograms merge by addition. Recording is an index and two additions; nothing
//! allocates.
//!
//! Not the histogram of `headway-latency`: with the same limits for small numbers that would have a
//! thousand buckets per octave above them, 130 kB for times of seconds, in dozens of counters per
//! worker. And a bucket here includes its upper bound, as `le` of Prometheus does.

use headway_base::Octaves;
use serde::{Deserialize, Serialize};

/// The largest value that has a bucket of its own is 2 to this power.
const EXACT_BITS: usize = 10;
/// The largest value that has a bucket of its own.
pub const EXACT_MAX: u64 = 1 << EXACT_BITS;
/// Buckets above the exact ones: (1024, 2048], (2048, 4096] … (2^45, 2^46].
const POWERS: usize = 36;
const BUCKETS: usize = EXACT_MAX as usize + 1 + POWERS;

/// Counts of values: exact from 0 to 1024, then one bucket a power of two.
///
/// Values above 2^46 are counted in the last bucket; `sum` and `max` keep their true size.
///
/// ```
/// use headway_metrics::Histogram;
/// let mut wakeups = Histogram::default();
/// for ready in [1, 1, 2, 300] {
///     wakeups.record(ready);
/// }
/// assert_eq!(wakeups.count(), 4);
/// assert_eq!(wakeups.quantile(0.5), Some(1));
/// assert_eq!(wakeups.quantile(1.0), Some(300));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SparseHistogram", into = "SparseHistogram")]
pub struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    sum: u64,
    max: u64,
}

/// The serialised form: only buckets that hold something, as `[upper bound, count]`.
#[derive(Serialize, Deserialize)]
struct SparseHistogram {
    count: u64,
    sum: u64,
    max: u64,
    buckets: Vec<(u64, u64)>,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: Box::new([0; BUCKETS]),
            count: 0,
            sum: 0,
            max: 0,
        }
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Counts the same value `times` times, for conversion from another histogram's buckets.
    #[inline]
    pub fn record_many(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        self.buckets[index(value)] += times;
        self.count += times;
        self.sum = self.sum.saturating_add(value.saturating_mul(times));
        self.max = self.max.max(value);
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all values, exact.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest value, exact; 0 when nothing was counted.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean, exact; `None` when nothing was counted.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The smallest bound below which at least the fraction `quantile` of the values lies.
    ///
    /// Exact up to 1024; above, the upper bound of the bucket, but never more than the largest
    /// value.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let wanted = ((quantile.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut below = 0;
        for (upper, count) in self.buckets() {
            below = count.saturating_add(below);
            if below >= wanted {
                return Some(upper.min(self.max));
            }
        }
        None
    }

    /// The buckets that hold something, as (inclusive upper bound, count), in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = |(index, count): (usize, &u64)| (*count > 0).then(|| (upper(index), *count));
        self.buckets.iter().enumerate().filter_map(filled)
    }

    /// The upper bound of the highest bucket which has more values than `before`, but never more than
    /// the largest value. `None` if there are no new values.
    pub fn max_since(&self, before: &Histogram) -> Option<u64> {
        let mut pairs = self.buckets.iter().zip(before.buckets.iter());
        let highest = pairs.rposition(|(now, before)| now > before)?;
        Some(upper(highest).min(self.max))
    }

    /// How many values are at most `bound`; exact when `bound` is the upper bound of a bucket.
    pub fn at_most(&self, bound: u64) -> u64 {
        self.buckets()
            .take_while(|(upper, _)| *upper <= bound)
            .fold(0, |sum, (_, count)| count.saturating_add(sum))
    }

    /// Adds another histogram's counts to this one.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *mine = mine.saturating_add(*theirs);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

fn index(value: u64) -> usize {
    if value <= EXACT_MAX {
        return value as usize;
    }
    // 1025..=2048 needs 11 bits once reduced by one, 2049..=4096 needs 12, and so on.
    let bits = Octaves::<0>::of(value - 1) as usize;
    (EXACT_MAX as usize + bits - EXACT_BITS).min(BUCKETS - 1)
}

fn upper(index: usize) -> u64 {
    match index.checked_sub(EXACT_MAX as usize + 1) {
        None => index as u64,
        Some(power) => 1 << (power + EXACT_BITS + 1),
    }
}

/// The helper pool's histogram, whose bucket `i` holds values below 2^i. The largest value is not
/// known there; the bound of its bucket stands for it.
impl From<&headway_files::Log2Histogram> for Histogram {
    fn from(powers: &headway_files::Log2Histogram) -> Self {
        let mut histogram = Histogram::default();
        for (bucket, count) in powers.buckets.iter().enumerate() {
            histogram.record_many(Octaves::<0>::high(bucket as u32), *count);
        }
        Histogram {
            sum: powers.sum,
            ..histogram
        }
    }
}

impl From<SparseHistogram> for Histogram {
    fn from(sparse: SparseHistogram) -> Self {
        let mut histogram = Histogram::default();
        for (upper, count) in sparse.buckets {
            let bucket = &mut histogram.buckets[index(upper)];
            *bucket = bucket.saturating_add(count);
        }
        Histogram {
            count: sparse.count,
            sum: sparse.sum,
            max: sparse.max,
            ..histogram
        }
    }
}

impl From<Histogram> for SparseHistogram {
    fn from(histogram: Histogram) -> Self {
        let buckets = histogram.buckets().collect();
        SparseHistogram {
            count: histogram.count,
            sum: histogram.sum,
            max: histogram.max,
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bucket_contains_its_upper_bound() {
        for bucket in 0..BUCKETS {
            assert_eq!(index(upper(bucket)), bucket);
        }
        assert_eq!(index(1025), index(2048));
        assert_ne!(index(2048), index(2049));
        assert_ne!(index(1023), index(1024));
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn histogram_quantiles_are_exact_for_small_values() {
        let mut histogram = Histogram::default();
        (1..=10).for_each(|value| histogram.record(value));
        assert_eq!(histogram.quantile(0.5), Some(5));
        assert_eq!(histogram.quantile(0.0), Some(1));
        assert_eq!(histogram.quantile(1.0), Some(10));
        assert_eq!(histogram.mean(), Some(5.5));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn largest_new_value_is_found_below_older_ones() {
        let mut histogram = Histogram::default();
        histogram.record(70_000);
        let before = histogram.clone();
        assert_eq!(histogram.max_since(&before), None);
        [3, 900, 5]
            .into_iter()
            .for_each(|value| histogram.record(value));
        assert_eq!(histogram.max_since(&before), Some(900));
        assert_eq!(histogram.max_since(&Histogram::default()), Some(70_000));
    }

    #[test]
    fn merged_histograms_equal_one_with_all_values() {
        let (mut left, mut right, mut whole) = <(Histogram, Histogram, Histogram)>::default();
        for value in [0, 1, 1024, 1025, 5000, 1 << 50] {
            left.record(value);
            whole.record(value);
        }
        for value in [3, 2048, 2049] {
            right.record(value);
            whole.record(value);
        }
        left.merge(&right);
        assert_eq!(left, whole);
    }

    #[test]
    fn pool_histogram_keeps_its_counts_and_sum() {
        let mut powers = headway_files::Log2Histogram::default();
        [0, 1, 5, 100, 100_000]
            .into_iter()
            .for_each(|value| powers.record(value));
        let histogram = Histogram::from(&powers);
        assert_eq!((histogram.count(), histogram.sum()), (5, 100_106));
        assert_eq!(histogram.quantile(0.6), Some(7));
        assert_eq!(histogram.max(), (1 << 17) - 1);
    }

    #[test]
    fn histogram_reads_back_from_json() {
        let mut histogram = Histogram::default();
        [0, 7, 70, 5_000_000, 1 << 60]
            .into_iter()
            .for_each(|value| histogram.record(value));
        let text = serde_json::to_string(&histogram).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram);
    }
}
