//! The buckets of latency histograms: they are linear within an octave and logarithmic across
//! octaves.
//!
//! Below 2048 ns each nanosecond has a bucket of its own; above, an octave has 1024 of equal width,
//! so a bucket is never wider than 2^-10 of its values (0.1 %). The index is contiguous and grows
//! with the latency, and adding two histograms is adding counts. This is the layout of HdrHistogram
//! with eleven significant bits, over the whole range of `u64`, so that no latency has to be
//! rejected or clipped.

/// Bits of a value that a bucket keeps, less the leading one.
const BITS: u32 = 10;

/// One more than the largest bucket.
pub const BUCKETS: usize = ((64 - BITS as usize) << BITS) + (1 << BITS);

/// The bucket of a latency.
///
/// ```
/// use headway_latency::bucket;
///
/// let bucket = bucket::of(1_000_000);
/// assert!(bucket::low(bucket) <= 1_000_000 && 1_000_000 <= bucket::high(bucket));
/// ```
pub fn of(ns: u64) -> u32 {
    let shift = (63 - (ns | 1).leading_zeros()).saturating_sub(BITS);
    (shift << BITS) + (ns >> shift) as u32
}

/// The smallest latency of a bucket.
pub fn low(bucket: u32) -> u64 {
    let shift = shift(bucket);
    u64::from(bucket - (shift << BITS)) << shift
}

/// The largest latency of a bucket.
pub fn high(bucket: u32) -> u64 {
    low(bucket) + ((1 << shift(bucket)) - 1)
}

/// The latency that stands for a bucket: its middle, rounded down.
pub fn mid(bucket: u32) -> u64 {
    low(bucket) + ((1 << shift(bucket)) - 1) / 2
}

/// How many low bits of a value its bucket drops.
fn shift(bucket: u32) -> u32 {
    (bucket >> BITS).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_are_contiguous() {
        assert_eq!(low(0), 0);
        for index in 0..BUCKETS as u32 - 1 {
            assert_eq!(high(index) + 1, low(index + 1), "bucket {index}");
        }
        assert_eq!(high(BUCKETS as u32 - 1), u64::MAX);
    }

    proptest! {
        #[test]
        fn bucket_contains_its_value_and_is_narrow(ns in prop_oneof![0..10_000_u64, any::<u64>()]) {
            let index = of(ns);
            prop_assert!(low(index) <= ns && ns <= high(index));
            prop_assert!(low(index) <= mid(index) && mid(index) <= high(index));
            prop_assert!(high(index) - low(index) <= ns >> 10);
        }
    }
}
