//! The part of one loop in a run that several threads share, or of one agent in a load of several machines.
//!
//! Each loop draws only its own requests. Of a list in a fixed order it takes every `count`-th entry, so all loops
//! together have the list of one loop. Random values are drawn from a seed of the loop. Independent Poisson processes
//! add up to one with the sum of their rates.

use headway_base::random::{Draw, SplitMix64};

/// The seeds of parts follow from this among the streams of a seed.
const PART_STREAM: u64 = 1 << 32;

/// Which requests, clients and connections of a run one loop has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    index: u32,
    count: u32,
}

impl Part {
    /// All of them.
    pub const WHOLE: Part = Part { index: 0, count: 1 };

    /// Part `index` of `count`, numbered from 0.
    pub(crate) fn new(index: u32, count: u32) -> Part {
        Part { index, count }
    }

    /// The parts of `count` loops.
    ///
    /// ```
    /// use headway_load::engine::Part;
    ///
    /// assert_eq!(Part::all(2).count(), 2);
    /// assert_eq!(Part::all(1).next(), Some(Part::WHOLE));
    /// ```
    pub fn all(count: u32) -> impl Iterator<Item = Part> {
        (0..count).map(move |index| Part::new(index, count))
    }

    /// Its share of a number. The shares of all parts add up to the number.
    pub(super) fn share(self, number: u32) -> u32 {
        number / self.count + u32::from(self.index < number % self.count)
    }

    /// As [`Part::share`].
    pub(crate) fn share_u64(self, number: u64) -> u64 {
        let (index, count) = (u64::from(self.index), u64::from(self.count));
        number / count + u64::from(index < number % count)
    }

    /// The number in the whole run of what has this number in the part.
    pub(crate) fn number(self, own: u64) -> u32 {
        (own * u64::from(self.count) + u64::from(self.index)) as u32
    }

    /// How many parts there are.
    pub(crate) fn count(self) -> u32 {
        self.count
    }

    /// How many requests of other parts come before the first of this one.
    pub(super) fn before_first(self) -> u32 {
        self.index
    }

    /// Its own seed. That of the first part is that of the run.
    pub(super) fn seed(self, of_run: u64) -> u64 {
        match self.index {
            0 => of_run,
            index => SplitMix64::for_stream(of_run, PART_STREAM + u64::from(index)).next_u64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole_and_share_no_number() {
        let parts: Vec<Part> = Part::all(3).collect();
        let shares: Vec<u32> = parts.iter().map(|part| part.share(11)).collect();
        assert_eq!(shares, [4, 4, 3]);
        assert_eq!(parts.iter().map(|part| part.share_u64(11)).sum::<u64>(), 11);
        let numbers = parts
            .iter()
            .flat_map(|part| (0..part.share(11)).map(|own| part.number(own.into())));
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..11).collect::<Vec<u32>>());
    }

    #[test]
    fn seeds_of_parts_differ_and_the_first_is_that_of_the_run() {
        let mut seeds: Vec<u64> = Part::all(256).map(|part| part.seed(7)).collect();
        assert_eq!(seeds[0], 7);
        assert_eq!(
            seeds,
            Vec::from_iter(Part::all(256).map(|part| part.seed(7)))
        );
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 256);
    }
}
