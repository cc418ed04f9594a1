//! SplitMix64 schedules by the million: the distribution of their speed-ups.
//!
//! A trial is a pairing drawn uniformly from all pairings. Trials are dealt in blocks, each with a
//! stream of random numbers of its own, so the result depends on the seed and not on the number of
//! threads. Speed-ups are counted in [`BINS`] equal steps between the exact worst and the exact
//! best one, so the distribution is known to a two-thousandth of its range; smallest, mean and
//! largest are kept as they are.

use headway_base::random::{Draw, SplitMix64};
use serde::Serialize;

use super::pairing::Costs;
use super::parallel;

/// Steps of the distribution.
pub const BINS: usize = 2000;

/// Trials that one thread takes at a time, unless that made too many blocks.
const TRIALS_PER_BLOCK: u64 = 1 << 16;
/// Each block holds its own counts until the end.
const BLOCKS_MAX: u64 = 512;

/// How many trials, and which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trials {
    /// How many; 0 counts as 1.
    pub count: u64,
    /// Another seed gives other trials.
    pub seed: u64,
    /// Threads at once; 0 takes one for each CPU. The result is the same.
    pub threads: usize,
}

impl Trials {
    /// Threads that will work.
    pub(super) fn workers(&self) -> usize {
        match self.threads {
            0 => parallel::cpus(),
            threads => threads,
        }
    }
}

/// A point of the distribution: the share of trials whose speed-up is at most so much.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CdfPoint {
    /// A share: 0.2 is 20 %.
    pub speed_up: f64,
    /// Share of the trials, from 0 to 1.
    pub share: f64,
}

/// The speed-ups of the trials.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of trials.
    pub trials: u64,
    /// The smallest speed-up of a trial.
    pub min: f64,
    /// The mean speed-up.
    pub mean: f64,
    /// Largest speed-up.
    pub max: f64,
    /// The cumulative distribution, from share 0 to 1, ascending.
    #[serde(skip)]
    pub cdf: Vec<CdfPoint>,
}

impl Distribution {
    /// The speed-up that `share` of the trials do not exceed, to a two-thousandth of the range and
    /// never outside what was seen.
    pub fn quantile(&self, share: f64) -> f64 {
        let found = self.cdf.iter().find(|point| point.share >= share);
        found.map_or(self.max, |point| point.speed_up.clamp(self.min, self.max))
    }
}

/// Draws a pairing and returns its run time. `order` holds all places, in any order.
///
/// The last place takes a partner from the others at random, both leave, and so on: each pairing is
/// equally likely, with half the random numbers of a shuffle.
pub(super) fn draw(costs: &Costs, order: &mut [usize], random: &mut SplitMix64) -> f64 {
    let (mut left, mut run_time) = (order.len(), 0.0);
    while left > 1 {
        let partner = random.index(left - 1);
        run_time += costs.cost(order[left - 1], order[partner]);
        order.swap(partner, left - 2);
        left -= 2;
    }
    run_time
}

/// What one block of trials found.
struct TrialResults {
    sum: f64,
    min: f64,
    max: f64,
    counts: Vec<u64>,
}

/// Runs the trials. `range` holds the speed-ups of the exact worst and best schedule.
pub fn run(costs: &Costs, trials: &Trials, range: (f64, f64)) -> Distribution {
    let count = trials.count.max(1);
    let size = TRIALS_PER_BLOCK.max(count.div_ceil(BLOCKS_MAX));
    let found = parallel::in_order(count.div_ceil(size), trials.workers(), |block| {
        let own = size.min(count - block * size);
        one_block(
            costs,
            own,
            SplitMix64::for_stream(trials.seed, block),
            range,
        )
    });
    let mut counts = vec![0u64; BINS];
    for block in &found {
        for (all, own) in counts.iter_mut().zip(&block.counts) {
            *all += own;
        }
    }
    Distribution {
        trials: count,
        min: found
            .iter()
            .map(|block| block.min)
            .fold(f64::INFINITY, f64::min),
        mean: found.iter().map(|block| block.sum).sum::<f64>() / count as f64,
        max: found
            .iter()
            .map(|block| block.max)
            .fold(f64::NEG_INFINITY, f64::max),
        cdf: cumulative(&counts, count, range),
    }
}

fn one_block(
    costs: &Costs,
    trials: u64,
    mut random: SplitMix64,
    range: (f64, f64),
) -> TrialResults {
    let mut order: Vec<usize> = (0..costs.vertices()).collect();
    let (low, high) = range;
    // When all schedules are alike, everything falls into the first step.
    let steps = if high > low {
        BINS as f64 / (high - low)
    } else {
        0.0
    };
    let mut found = TrialResults {
        sum: 0.0,
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        counts: vec![0; BINS],
    };
    for _ in 0..trials {
        let speed_up = costs.speed_up(draw(costs, &mut order, &mut random));
        found.sum += speed_up;
        found.min = found.min.min(speed_up);
        found.max = found.max.max(speed_up);
        // A negative number becomes 0: the sum of the worst schedule in another order may be a
        // rounding below it.
        let step = ((speed_up - low) * steps) as usize;
        found.counts[step.min(BINS - 1)] += 1;
    }
    found
}

/// The upper end of each step with the share up to there, without the flat ends.
fn cumulative(counts: &[u64], trials: u64, (low, high): (f64, f64)) -> Vec<CdfPoint> {
    let at = |edge: usize| low + (high - low) * edge as f64 / BINS as f64;
    let first = counts.iter().position(|&n| n > 0).unwrap_or(0);
    let last = counts.iter().rposition(|&n| n > 0).unwrap_or(0);
    let mut points = vec![CdfPoint {
        speed_up: at(first),
        share: 0.0,
    }];
    let mut so_far = 0u64;
    for (step, count) in counts.iter().enumerate().take(last + 1).skip(first) {
        so_far += count;
        points.push(CdfPoint {
            speed_up: at(step + 1),
            share: so_far as f64 / trials as f64,
        });
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{draw as synthetic, pairing};
    use std::collections::HashMap;

    fn distribution(programs: usize, count: u64, seed: u64, threads: usize) -> Distribution {
        let matrix = synthetic::matrix(programs, (-0.2, 0.6), 11).unwrap();
        let trials = Trials {
            count,
            seed,
            threads,
        };
        let range = (
            pairing::worst(&matrix).speed_up,
            pairing::best(&matrix).speed_up,
        );
        run(&Costs::of(&matrix), &trials, range)
    }

    #[test]
    fn result_is_the_same_to_the_last_bit_when_the_number_of_threads_differs() {
        // More than two blocks, the last of them short.
        let count = 2 * TRIALS_PER_BLOCK + 1000;
        let one = distribution(7, count, 3, 1);
        assert_eq!(one, distribution(7, count, 3, 4));
        assert_eq!(one.trials, count);
        assert_ne!(one, distribution(7, count, 4, 1));
    }

    #[test]
    fn every_pairing_is_drawn_about_equally_often() {
        let matrix = synthetic::matrix(6, (-0.2, 0.6), 1).unwrap();
        let (costs, mut random) = (Costs::of(&matrix), SplitMix64::for_stream(9, 0));
        let mut seen = HashMap::new();
        for _ in 0..15_000 {
            // From the same order each time: one trial's order would make up for a bias of the
            // next.
            let run_time = draw(&costs, &mut [0, 1, 2, 3, 4, 5], &mut random);
            // Sums differ by rounding with their order.
            *seen.entry((run_time * 1e9).round() as i64).or_insert(0u32) += 1;
        }
        // Six places have 15 pairings; five standard deviations of a count of mean 1000.
        assert_eq!(seen.len(), 15);
        assert!(seen.values().all(|n| n.abs_diff(1000) < 155), "{seen:?}");
    }

    #[test]
    fn random_extremes_equal_the_exact_schedules() {
        for programs in [5, 6, 8] {
            let matrix = synthetic::matrix(programs, (-0.2, 0.6), 11).unwrap();
            let found = distribution(programs, 20_000, 1, 2);
            assert!((found.min - pairing::worst(&matrix).speed_up).abs() < 1e-9);
            assert!((found.max - pairing::best(&matrix).speed_up).abs() < 1e-9);
            assert!(found.min < found.mean && found.mean < found.max);
        }
    }

    #[test]
    fn distribution_ascends_from_nothing_to_all_and_its_quantiles_lie_inside() {
        let found = distribution(10, 5000, 1, 2);
        let (first, last) = (found.cdf[0], found.cdf[found.cdf.len() - 1]);
        assert_eq!((first.share, last.share), (0.0, 1.0));
        let ascends = |pair: &[CdfPoint]| {
            pair[0].speed_up < pair[1].speed_up && pair[0].share <= pair[1].share
        };
        assert!(found.cdf.windows(2).all(ascends));
        assert!(first.speed_up <= found.min + 1e-12 && found.max <= last.speed_up + 1e-12);
        let quantiles = [0.0, 0.01, 0.5, 0.99, 1.0].map(|share| found.quantile(share));
        assert!(quantiles.is_sorted(), "{quantiles:?}");
        assert!(quantiles[0] >= found.min && quantiles[4] <= found.max);
    }

    #[test]
    fn single_schedule_is_its_own_distribution_when_there_are_two_programs() {
        let found = distribution(2, 100, 1, 1);
        assert_eq!(found.min, found.max);
        assert_eq!(found.quantile(0.5), found.min);
        assert_eq!(found.cdf.len(), 2);
    }
}
