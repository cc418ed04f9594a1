//! The buckets of histograms: they are linear within an octave and logarithmic across octaves.
//!
//! Below 2^(BITS+1) each value has a bucket of its own; above, an octave has 2^BITS of equal width,
//! so a bucket is never wider than 2^-BITS of its values. The index is contiguous and grows with the
//! value, and adding two histograms is adding counts. This is the layout of HdrHistogram with
//! BITS + 1 significant bits, over the whole range of `u64`, so that no value has to be rejected or
//! clipped. With no bits a bucket is an octave.

/// Buckets with 2^BITS to an octave.
///
/// ```
/// use headway_base::Octaves;
///
/// type Buckets = Octaves<10>;
/// let bucket = Buckets::of(1_000_000);
/// assert!(Buckets::low(bucket) <= 1_000_000 && 1_000_000 <= Buckets::high(bucket));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Octaves<const BITS: u32>;

impl<const BITS: u32> Octaves<BITS> {
    /// One more than the largest bucket.
    pub const COUNT: usize = ((64 - BITS as usize) << BITS) + (1 << BITS);

    /// The bucket of a value.
    #[inline]
    pub const fn of(value: u64) -> u32 {
        let shift = (63 - (value | 1).leading_zeros()).saturating_sub(BITS);
        (shift << BITS) + (value >> shift) as u32
    }

    /// The smallest value of a bucket.
    pub const fn low(bucket: u32) -> u64 {
        let shift = Self::shift(bucket);
        ((bucket - (shift << BITS)) as u64) << shift
    }

    /// The largest value of a bucket.
    pub const fn high(bucket: u32) -> u64 {
        Self::low(bucket) + ((1 << Self::shift(bucket)) - 1)
    }

    /// The value that stands for a bucket: its middle, rounded down.
    pub const fn mid(bucket: u32) -> u64 {
        Self::low(bucket) + ((1 << Self::shift(bucket)) - 1) / 2
    }

    /// How many low bits of a value its bucket drops.
    const fn shift(bucket: u32) -> u32 {
        (bucket >> BITS).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::Octaves;
    use proptest::prelude::*;

    fn are_contiguous<const BITS: u32>() {
        type Buckets<const BITS: u32> = Octaves<BITS>;
        assert_eq!(Buckets::<BITS>::low(0), 0);
        for index in 0..Buckets::<BITS>::COUNT as u32 - 1 {
            let next = Buckets::<BITS>::low(index + 1);
            assert_eq!(Buckets::<BITS>::high(index) + 1, next, "bucket {index}");
        }
        let last = Buckets::<BITS>::COUNT as u32 - 1;
        assert_eq!(Buckets::<BITS>::high(last), u64::MAX);
    }

    #[test]
    fn buckets_are_contiguous() {
        are_contiguous::<0>();
        are_contiguous::<2>();
        are_contiguous::<10>();
    }

    fn contains<const BITS: u32>(value: u64) {
        let index = Octaves::<BITS>::of(value);
        let (low, high) = (Octaves::<BITS>::low(index), Octaves::<BITS>::high(index));
        assert!(low <= value && value <= high, "{value} in {index}");
        let mid = Octaves::<BITS>::mid(index);
        assert!(low <= mid && mid <= high && high - low <= value >> BITS);
    }

    proptest! {
        #[test]
        fn bucket_contains_its_value_and_is_narrow(value in prop_oneof![0..10_000_u64, any::<u64>()]) {
            contains::<0>(value);
            contains::<2>(value);
            contains::<10>(value);
        }
    }
}
