//! Intervals that hold together: with 95 % confidence, all five figures of a comparison are within
//! theirs.
//!
//! Requests of a run depend on each other, so a run counts as 16 blocks of time and not as
//! thousands of requests. A figure's standard error follows from the differences between the
//! blocks, with the quantile of Student's distribution for so few of them. Percentiles have order
//! statistics for limits: the error is that of the share of requests below the percentile, and is
//! never taken to be less than the binomial one. Each figure has a fifth of the 5 %.
//!
//! Not covered, as in `bootstrap.rs`: what differs from run to run.
//!
//! Sources: R. Woodruff, *Confidence intervals for medians and other position measures*, 1952;
//! B. Schmeiser, *Batch size effects in the analysis of simulation output*, 1982.

use crate::analysis::{Interval, JointIntervals};
use crate::coarse::Coarse;
use crate::histogram::Histogram;

/// The confidence of all five intervals together.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// More would be shorter than what delays many requests; fewer give wide intervals.
pub(crate) const BLOCKS: usize = 16;

/// Student's quantile with 15 degrees of freedom at 1 − (5 % / 5 figures) / 2.
const QUANTILE: f64 = 2.9467;

/// What a block of time has.
#[derive(Clone, Debug, Default)]
struct Block {
    response: Coarse,
    /// Complete responses, of whole steps only.
    complete: f64,
    steps: f64,
}

/// The responses that ended in one step of a run, and how many of those were complete.
pub(crate) type StepOf<'a> = (&'a Coarse, u64);

/// The intervals of a run of `whole_steps` steps; `None` if there are fewer steps than blocks, or
/// fewer than two requests.
pub(crate) fn intervals(
    whole: &Histogram,
    steps: &[StepOf<'_>],
    whole_steps: usize,
    step_s: f64,
) -> Option<JointIntervals> {
    if whole.count() < 2 || whole_steps < BLOCKS {
        return None;
    }
    let blocks = blocks(steps, whole_steps);
    let percentile = |percent| percentile(whole, &blocks, percent);
    Some(JointIntervals {
        confidence: CONFIDENCE,
        blocks: BLOCKS as u64,
        mean_us: mean(whole, &blocks),
        p50_us: percentile(50.0),
        p90_us: percentile(90.0),
        p99_us: percentile(99.0),
        rate_rps: rate(&blocks, step_s),
    })
}

/// Blocks of equal length, but for a step. Responses that ended after the run are in the last.
fn blocks(steps: &[StepOf<'_>], whole_steps: usize) -> Vec<Block> {
    let mut blocks = vec![Block::default(); BLOCKS];
    for (index, (response, complete)) in steps.iter().enumerate() {
        let block = &mut blocks[(index * BLOCKS / whole_steps).min(BLOCKS - 1)];
        block.response.add(response, 1);
        if index < whole_steps {
            block.complete += *complete as f64;
        }
    }
    // Steps at the end in which nothing ended are not in the list.
    (0..whole_steps).for_each(|index| blocks[index * BLOCKS / whole_steps].steps += 1.0);
    blocks
}

/// The standard error of a sum over all blocks, from the part of it that each block has too much.
fn error_of_sum(excesses: impl Iterator<Item = f64>) -> f64 {
    let squares: f64 = excesses.map(|excess| excess * excess).sum();
    (squares * BLOCKS as f64 / (BLOCKS as f64 - 1.0)).sqrt()
}

fn mean(whole: &Histogram, blocks: &[Block]) -> Option<Interval> {
    let mean = whole.mean_ns();
    let excess = |block: &Block| block.response.sum_ns() - mean * block.response.count() as f64;
    let half = QUANTILE * error_of_sum(blocks.iter().map(excess)) / whole.count() as f64;
    Some(Interval {
        low: (mean - half).max(whole.min_ns() as f64) / 1e3,
        high: (mean + half) / 1e3,
    })
}

/// `None` with too few requests beyond the percentile for an upper limit.
fn percentile(whole: &Histogram, blocks: &[Block], percent: f64) -> Option<Interval> {
    let at_ns = whole.percentile(percent) as f64;
    let all = whole.count() as f64;
    let below: Vec<f64> = blocks
        .iter()
        .map(|block| block.response.count_below(at_ns))
        .collect();
    let share = below.iter().sum::<f64>() / all;
    let excess = |(block, below): (&Block, &f64)| below - share * block.response.count() as f64;
    let of_blocks = error_of_sum(blocks.iter().zip(&below).map(excess)) / all;
    let p = percent / 100.0;
    let half = QUANTILE * of_blocks.max((p * (1.0 - p) / all).sqrt());
    let at = |share: f64| whole.percentile(share * 100.0) as f64 / 1e3;
    (p + half < 1.0).then(|| Interval {
        low: at((p - half).max(0.0)),
        high: at(p + half),
    })
}

fn rate(blocks: &[Block], step_s: f64) -> Option<Interval> {
    let steps: f64 = blocks.iter().map(|block| block.steps).sum();
    let complete: f64 = blocks.iter().map(|block| block.complete).sum();
    let (seconds, per_step) = (steps * step_s, complete / steps);
    let excess = |block: &Block| block.complete - per_step * block.steps;
    let half = QUANTILE * error_of_sum(blocks.iter().map(excess)) / seconds;
    let rate = complete / seconds;
    (complete > 0.0).then(|| Interval {
        low: (rate - half).max(0.0),
        high: rate + half,
    })
}

#[cfg(test)]
mod tests;
