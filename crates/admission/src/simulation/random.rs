//! Random times that are the same for the same seed.

use headway_base::random::{Draw, SplitMix64};

pub(super) struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64(seed))
    }

    /// A number in (0, 1].
    pub fn fraction(&mut self) -> f64 {
        self.0.positive_fraction()
    }

    /// Random time until the next event of a Poisson process with this mean interval.
    pub fn wait_us(&mut self, mean_us: f64) -> u64 {
        (-self.fraction().ln() * mean_us).round() as u64
    }
}
