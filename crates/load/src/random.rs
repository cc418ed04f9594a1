//! The generator behind every seed: the same numbers on every machine and in every version.
//!
//! xoshiro256++ (Blackman and Vigna, 2019), its state filled by SplitMix64 as its authors advise.
//! It is implemented here because a seed has to repeat a run years later, so the stream may not
//! change with a dependency. Only integers and exact floating-point operations are used: the last
//! bit of a logarithm depends on the C library.
//!
//! Refused: secrets. Nothing here is unpredictable.

/// A stream of numbers that a seed decides.
///
/// ```
/// use headway_load::random::Random;
///
/// let (mut one, mut same) = (Random::new(7), Random::new(7));
/// assert_eq!(one.next_u64(), same.next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The stream of a seed. Any seed is as good as any other, 0 included.
    pub fn new(seed: u64) -> Random {
        let mut state = seed;
        Random([(); 4].map(|()| split_mix(&mut state)))
    }

    /// A stream for another purpose under the same seed: `purpose` tells them apart.
    pub fn for_stream(seed: u64, purpose: u64) -> Random {
        let mut state = purpose;
        Random::new(seed ^ split_mix(&mut state))
    }

    /// 64 bits, each as likely 0 as 1.
    pub fn next_u64(&mut self) -> u64 {
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

    /// A number in [0, 1), a multiple of 2^-53.
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `bound`, each as likely. Lemire's multiplication with rejection: unbiased.
    ///
    /// # Panics
    /// When the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            let low = product as u64;
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number of the exponential distribution with mean 1.
    ///
    /// Von Neumann's comparison method (1951): runs of descending uniform numbers decide, so that
    /// no logarithm is needed and every machine draws the same. Some six uniform numbers each.
    pub fn exponential(&mut self) -> f64 {
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

/// One step of SplitMix64 (Steele, Lea and Flood, 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_stream_is_the_published_one() {
        // The authors' xoshiro256plusplus.c, started at 1, 2, 3, 4.
        let mut random = Random([1, 2, 3, 4]);
        let drawn = [(); 4].map(|()| random.next_u64());
        assert_eq!(
            drawn,
            [41943041, 58720359, 3588806011781223, 3591011842654386]
        );
    }

    #[test]
    fn random_stream_does_not_change_between_versions() {
        let mut random = Random::new(0);
        assert_eq!(random.next_u64(), 5987356902031041503);
    }

    #[test]
    fn streams_differ_when_their_purpose_does() {
        let mut one = Random::for_stream(1, 1);
        let mut other = Random::for_stream(1, 2);
        assert_ne!(one.next_u64(), other.next_u64());
    }

    #[test]
    fn numbers_are_below_the_limit() {
        let mut random = Random::new(3);
        let mut counts = [0u32; 3];
        for _ in 0..30_000 {
            counts[random.below(3) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_000..11_000).contains(&count)));
        assert_eq!(random.below(1), 0);
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
