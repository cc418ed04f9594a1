//! Random numbers that are the same on every machine, in as many independent streams as there are
//! blocks of work.
//!
//! SplitMix64 (Steele, Lea and Flood, 2014): one word of state, a few operations a number, and it
//! passes the usual test batteries. Not for secrets.

/// A stream of random numbers.
pub(super) struct Random(u64);

impl Random {
    /// Stream number `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Random {
        // Mixed twice, so that neighbouring seeds and streams start far from one another.
        Random(mixed(mixed(seed).wrapping_add(mixed(!stream))))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// A whole number below `bound`, which is at least 1. The multiplication favours some numbers
    /// by less than bound ÷ 2⁶⁴, which no number of trials would show.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// A number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// SplitMix64's finaliser: every bit of the result depends on every bit given.
fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_its_authors_when_the_state_starts_at_zero() {
        // The first numbers of the authors' splitmix64.c with the state 0.
        let mut random = Random(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn every_number_below_the_bound_comes_about_equally_often() {
        let mut random = Random::new(1, 0);
        let mut seen = [0u32; 7];
        (0..70_000).for_each(|_| seen[random.below(7)] += 1);
        // Five standard deviations of a binomial count of mean 10,000.
        assert!(seen.iter().all(|&n| n.abs_diff(10_000) < 470), "{seen:?}");
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
