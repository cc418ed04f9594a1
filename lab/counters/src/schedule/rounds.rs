//! A scheduler that knows nothing and pairs at random again in each round: how soon is it as good
//! as the average?
//!
//! The dissertation's remedy for a bad draw (section 4.7) is to draw again: the more rounds, the
//! closer every scheduler comes to the mean. Here many such schedulers run, each round doing the
//! same share of all programs' work under a pairing of its own, so the run time after some rounds
//! is the mean of theirs.

use headway_base::random::SplitMix64;
use serde::Serialize;

use super::pairing::Costs;
use super::parallel;
use super::trials::{self, Trials};

/// As many schedulers, at most: enough for the 5th and 95th percentile to be known to about a
/// hundredth of the spread.
pub const SCHEDULERS_MAX: u64 = 10_000;

/// Schedulers that one thread takes at a time.
const SCHEDULERS_PER_BLOCK: u64 = 100;

/// The speed-ups of the schedulers after a number of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpeedupsAfterRounds {
    /// Pairings that each of them has had.
    pub rounds: u32,
    /// The least fortunate one.
    pub min: f64,
    /// One in twenty has at most this.
    pub p5: f64,
    /// The mean of the schedulers.
    pub mean: f64,
    /// One in twenty has more than this.
    pub p95: f64,
    /// The most fortunate one.
    pub max: f64,
}

/// After 1, 2, 4 … rounds, and after `rounds`. As many schedulers as trials, [`SCHEDULERS_MAX`] at
/// most.
pub fn run(costs: &Costs, trials: &Trials, rounds: u32) -> Vec<SpeedupsAfterRounds> {
    let looks = sample_rounds(rounds.max(1));
    let schedulers = trials.count.clamp(1, SCHEDULERS_MAX);
    let blocks = parallel::in_order(
        schedulers.div_ceil(SCHEDULERS_PER_BLOCK),
        trials.workers(),
        |block| {
            let own = SCHEDULERS_PER_BLOCK.min(schedulers - block * SCHEDULERS_PER_BLOCK);
            // Streams from the far end, which the trials do not reach.
            let mut random = SplitMix64::for_stream(trials.seed, u64::MAX - 1 - block);
            let mut order: Vec<usize> = (0..costs.vertices()).collect();
            let each = (0..own).map(|_| one_scheduler(costs, &looks, &mut order, &mut random));
            each.collect::<Vec<_>>()
        },
    );
    let all: Vec<Vec<f64>> = blocks.into_iter().flatten().collect();
    let after = looks.iter().enumerate().map(|(at, &rounds)| {
        let mut gains: Vec<f64> = all.iter().map(|gains| gains[at]).collect();
        gains.sort_unstable_by(f64::total_cmp);
        summary(rounds, &gains)
    });
    after.collect()
}

/// The rounds at which the speed-up is sampled: powers of two, and the last one.
fn sample_rounds(rounds: u32) -> Vec<u32> {
    let powers = std::iter::successors(Some(1u32), |n| n.checked_mul(2));
    let mut looks: Vec<u32> = powers.take_while(|&n| n < rounds).collect();
    looks.push(rounds);
    looks
}

/// The speed-up of one scheduler at each look.
fn one_scheduler(
    costs: &Costs,
    looks: &[u32],
    order: &mut [usize],
    random: &mut SplitMix64,
) -> Vec<f64> {
    let (mut done, mut run_time) = (0, 0.0);
    let at = looks.iter().map(|&rounds| {
        while done < rounds {
            run_time += trials::draw(costs, order, random);
            done += 1;
        }
        costs.speed_up(run_time / f64::from(rounds))
    });
    at.collect()
}

/// Summary of sorted speed-ups.
fn summary(rounds: u32, sorted: &[f64]) -> SpeedupsAfterRounds {
    let last = sorted.len() - 1;
    // The nearest rank.
    let at =
        |share: f64| sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, last + 1) - 1];
    SpeedupsAfterRounds {
        rounds,
        min: sorted[0],
        p5: at(0.05),
        mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
        p95: at(0.95),
        max: sorted[last],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::draw;

    fn after(rounds: u32, threads: usize) -> Vec<SpeedupsAfterRounds> {
        let matrix = draw::matrix(9, (-0.2, 0.6), 2).unwrap();
        let trials = Trials {
            count: 550,
            seed: 1,
            threads,
        };
        run(&Costs::of(&matrix), &trials, rounds)
    }

    #[test]
    fn schedulers_approach_their_mean_with_more_rounds() {
        let after = after(100, 2);
        let rounds: Vec<u32> = after.iter().map(|after| after.rounds).collect();
        assert_eq!(rounds, [1, 2, 4, 8, 16, 32, 64, 100]);
        let spread: Vec<f64> = after.iter().map(|after| after.p95 - after.p5).collect();
        assert!(
            spread.windows(2).all(|pair| pair[1] < pair[0]),
            "{spread:?}"
        );
        // Independent draws: a hundred of them have a tenth of the spread of one, give or take.
        assert!(
            (0.07..0.14).contains(&(spread[7] / spread[0])),
            "{spread:?}"
        );
        assert!(
            after
                .iter()
                .all(|a| a.min <= a.p5 && a.p5 <= a.mean && a.mean <= a.p95 && a.p95 <= a.max)
        );
    }

    #[test]
    fn result_is_the_same_when_the_number_of_threads_differs() {
        assert_eq!(after(5, 1), after(5, 3));
        assert_eq!(after(1, 1).len(), 1);
    }
}
