//! Random numbers that are the same for the same seed.

/// SplitMix64: small, and every seed is good.
pub(super) struct Random(pub u64);

impl Random {
    /// A number in (0, 1], so that its logarithm is finite.
    pub fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11).wrapping_add(1) as f64 / (1u64 << 53) as f64
    }

    /// Random time until the next event of a Poisson process with this mean interval.
    pub fn wait_us(&mut self, mean_us: f64) -> u64 {
        (-self.fraction().ln() * mean_us).round() as u64
    }
}
