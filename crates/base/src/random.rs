//! The generators behind every seed: the same numbers on every machine and in every version.
//!
//! They are implemented here because a seed has to repeat a run years later, so a stream may not
//! change with a dependency. There are two. [`Random`] (xoshiro256++) is behind everything that a
//! load does. [`SplitMix64`] has one word of state: it fills the state of the first, and simulations
//! and resampling use it, whose figures are published with their seeds. Both draw in the same way
//! ([`Draw`]), by integers and exact floating-point operations.
//!
//! Refused: secrets. Nothing here is unpredictable.
//!
//! Sources: D. Blackman, S. Vigna, *Scrambled Linear Pseudorandom Number Generators*, 2019;
//! G. Steele, D. Lea, C. Flood, *Fast Splittable Pseudorandom Number Generators*, 2014.

/// What can be drawn from a stream of words.
///
/// ```
/// use headway_base::random::{Draw, SplitMix64};
///
/// let mut random = SplitMix64(7);
/// assert!(random.below(6) < 6 && random.fraction() < 1.0);
/// ```
pub trait Draw {
    /// 64 bits, each as likely 0 as 1.
    fn next_u64(&mut self) -> u64;

    /// A number in [0, 1), a multiple of 2^-53.
    fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in (0, 1], so that its logarithm is finite.
    fn positive_fraction(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `bound`, each as likely. Lemire's multiplication with rejection: unbiased.
    ///
    /// # Panics
    /// When the bound is 0.
    fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            let low = product as u64;
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }

    /// An index into something of this length.
    ///
    /// # Panics
    /// When the length is 0.
    fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Puts values into an order, each as likely.
    fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.index(last + 1));
        }
    }

    /// A number of the exponential distribution with mean 1.
    ///
    /// Von Neumann's comparison method (1951): runs of descending uniform numbers decide, so that
    /// no logarithm is needed, whose last bit depends on the C library. Some six words each.
    fn exponential(&mut self) -> f64 {
        let mut whole = 0u32;
        loop {
            let first = self.next_u64() >> 11;
            let (mut last, mut length) = (first, 1u32);
            loop {
                let next = self.next_u64() >> 11;
                if next >= last {
                    break;
                }
                (last, length) = (next, length + 1);
            }
            if length % 2 == 1 {
                return f64::from(whole) + first as f64 / (1u64 << 53) as f64;
            }
            whole += 1;
        }
    }
}

/// A stream of numbers that a seed decides: xoshiro256++.
///
/// ```
/// use headway_base::random::{Draw, Random};
///
/// let (mut one, mut same) = (Random::new(7), Random::new(7));
/// assert_eq!(one.next_u64(), same.next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The stream of a seed. Any seed is as good as any other, 0 included.
    pub fn new(seed: u64) -> Random {
        let mut filler = SplitMix64(seed);
        Random([(); 4].map(|()| filler.next_u64()))
    }

    /// A stream for another purpose under the same seed: `purpose` tells them apart.
    pub fn for_stream(seed: u64, purpose: u64) -> Random {
        Random::new(seed ^ SplitMix64(purpose).next_u64())
    }
}

impl Draw for Random {
    #[inline]
    fn next_u64(&mut self) -> u64 {
        let state = &mut self.0;
        let result = state[0]
            .wrapping_add(state[3])
            .rotate_left(23)
            .wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }
}

/// A stream of numbers from one word of state, which is the seed at first. Any seed is good.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Stream number `stream` of a seed. Neighbouring seeds and streams start far apart.
    pub fn for_stream(seed: u64, stream: u64) -> SplitMix64 {
        SplitMix64(mixed(mixed(seed).wrapping_add(mixed(!stream))))
    }
}

impl Draw for SplitMix64 {
    #[inline]
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPLIT_MIX_STEP);
        mixed(self.0)
    }
}

/// What the state of a [`SplitMix64`] grows by with each number.
pub const SPLIT_MIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser: every bit of the result depends on every bit given. The number after
/// `step` others is `mixed(seed + (step + 1) × SPLIT_MIX_STEP)`, so any number can be had alone.
#[inline]
pub fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_the_published_ones() {
        // The authors' xoshiro256plusplus.c, started at 1, 2, 3, 4.
        let mut random = Random([1, 2, 3, 4]);
        let drawn = [(); 4].map(|()| random.next_u64());
        assert_eq!(
            drawn,
            [41943041, 58720359, 3588806011781223, 3591011842654386]
        );
        // The first numbers of the authors' splitmix64.c with the state 0.
        let mut random = SplitMix64(0);
        assert_eq!(random.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next_u64(), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(mixed(SPLIT_MIX_STEP.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn streams_do_not_change_between_versions() {
        assert_eq!(Random::new(0).next_u64(), 5987356902031041503);
        assert_eq!(Random::for_stream(1, 2).next_u64(), 5845468077739584681);
        assert_eq!(SplitMix64::for_stream(1, 2).next_u64(), 3671846923491014213);
    }

    #[test]
    fn streams_differ_when_their_purpose_does() {
        let mut one = Random::for_stream(1, 1);
        let mut other = Random::for_stream(1, 2);
        assert_ne!(one.next_u64(), other.next_u64());
    }

    #[test]
    fn numbers_are_below_the_limit_and_equally_often() {
        let mut random = Random::new(3);
        let mut counts = [0u32; 3];
        for _ in 0..30_000 {
            counts[random.below(3) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_000..11_000).contains(&count)));
        assert_eq!(random.below(1), 0);
        let mut random = SplitMix64::for_stream(1, 0);
        let mut seen = [0u32; 7];
        (0..70_000).for_each(|_| seen[random.index(7)] += 1);
        // Five standard deviations of a binomial count of mean 10,000.
        assert!(seen.iter().all(|&n| n.abs_diff(10_000) < 470), "{seen:?}");
    }

    #[test]
    fn fractions_are_within_their_interval_at_the_extreme_words() {
        struct Word(u64);
        impl Draw for Word {
            fn next_u64(&mut self) -> u64 {
                self.0
            }
        }
        assert_eq!(Word(0).fraction(), 0.0);
        assert!(Word(u64::MAX).fraction() < 1.0);
        assert!(Word(0).positive_fraction() > 0.0);
        assert_eq!(Word(u64::MAX).positive_fraction(), 1.0);
    }

    #[test]
    fn each_order_comes_about_equally_often_when_values_are_shuffled() {
        let mut random = SplitMix64(5);
        let mut counts = std::collections::HashMap::new();
        for _ in 0..60_000 {
            let mut values = [1, 2, 3];
            random.shuffle(&mut values);
            *counts.entry(values).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(
            counts.values().all(|n| n.abs_diff(10_000) < 470),
            "{counts:?}"
        );
    }

    #[test]
    fn exponential_has_its_moments_when_many_are_drawn() {
        let mut random = Random::new(11);
        let drawn: Vec<f64> = (0..200_000).map(|_| random.exponential()).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let square = drawn.iter().map(|value| value * value).sum::<f64>() / drawn.len() as f64;
        let above_one = drawn.iter().filter(|&&value| value > 1.0).count() as f64;
        assert!((mean - 1.0).abs() < 0.01, "mean {mean}");
        assert!((square - 2.0).abs() < 0.05, "second moment {square}");
        assert!((above_one / drawn.len() as f64 - (-1f64).exp()).abs() < 0.005);
    }
}
