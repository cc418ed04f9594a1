//! How far chance could have moved a figure: bootstrap confidence intervals, the same on every
//! machine.
//!
//! Requests of a run are not independent: a stall or a burst delays all that are in it. Resampling
//! single requests would then promise intervals that are much too narrow, and two runs of one
//! server would look different. So whole spans of the run (blocks) are resampled, with replacement,
//! as often as there are blocks. A run too short for ten blocks is resampled by request, as Poisson
//! counts of the histogram's buckets; [`Intervals::blocks`] says which it was. Either way the work
//! does not grow with the requests.
//!
//! An interval covers what varied *within* the run. What differs from run to run (another placement
//! in memory, another warm-up) only repeated runs can show.
//!
//! Sources: B. Efron, R. Tibshirani, *An Introduction to the Bootstrap*, chapters 13 (percentile
//! intervals) and 8.6 (blocks); Poisson counts for the multinomial: N. Chamandy et al., *Estimating
//! Uncertainty for Massive Data Streams*, 2012.

use crate::analysis::{Interval, Intervals};
use crate::coarse::Coarse;
use crate::histogram::Bucket;
use crate::histogram::Histogram;

use headway_base::random::{Draw, SplitMix64};

/// The confidence of the intervals.
pub const CONFIDENCE: f64 = 0.95;

/// Number of resamples per figure.
const REPLICATES: usize = 1000;

/// Fewer blocks than this vary too little to be resampled.
const BLOCKS_MIN: usize = 10;

/// More are joined: a block should be longer than a stall.
const BLOCKS_MAX: usize = 60;

const PERCENTS: [f64; 3] = [50.0, 95.0, 99.0];

/// Confidence intervals of a distribution whose steps are in order of time; `None` with fewer than
/// two requests.
///
/// `seed` makes the draw; the same seed and data give the same intervals.
pub(crate) fn intervals(whole: &Histogram, steps: &[&Coarse], seed: u64) -> Option<Intervals> {
    resample(whole, steps, seed, REPLICATES)
}

fn resample(
    whole: &Histogram,
    steps: &[&Coarse],
    seed: u64,
    replicates: usize,
) -> Option<Intervals> {
    if whole.count() < 2 {
        return None;
    }
    let blocks = blocks(steps);
    let random = &mut SplitMix64(seed);
    let (replicates, original) = if blocks.len() >= BLOCKS_MIN {
        (
            by_block(&blocks, random, replicates),
            figures(&join(&blocks)),
        )
    } else {
        let coarse = coarse(whole);
        let mut original = Coarse::default();
        coarse.resample(&mut original, |count| count);
        (by_request(&coarse, random, replicates), figures(&original))
    };
    let exact = [
        whole.mean_ns(),
        whole.percentile(50.0) as f64,
        whole.percentile(95.0) as f64,
        whole.percentile(99.0) as f64,
    ];
    let interval = |at: usize| {
        let values = replicates.iter().map(|figures| figures[at]).collect();
        // The resampled histogram is coarser than the one the figure is from; only its spread is
        // wanted.
        percentile_interval(values, exact[at] - original[at])
    };
    let blocks = if blocks.len() >= BLOCKS_MIN {
        blocks.len() as u64
    } else {
        0
    };
    Some(Intervals {
        confidence: CONFIDENCE,
        blocks,
        mean_us: interval(0),
        p50_us: interval(1),
        p95_us: interval(2),
        p99_us: interval(3),
    })
}

/// Mean and percentiles, in nanoseconds.
fn figures(histogram: &Coarse) -> [f64; 4] {
    let [p50, p95, p99] = histogram.percentiles(PERCENTS);
    [histogram.mean_ns(), p50, p95, p99]
}

/// Equal spans of the run: neighbouring steps, joined until there are at most [`BLOCKS_MAX`]. Empty
/// spans have nothing to resample and are left out.
fn blocks(steps: &[&Coarse]) -> Vec<Coarse> {
    let length = steps.len().div_ceil(BLOCKS_MAX).max(1);
    let joined = steps.chunks(length).map(|part| {
        let mut block = Coarse::default();
        part.iter().for_each(|step| block.add(step, 1));
        block
    });
    joined.filter(|block| block.count() > 0).collect()
}

fn join(blocks: &[Coarse]) -> Coarse {
    let mut whole = Coarse::default();
    blocks.iter().for_each(|block| whole.add(block, 1));
    whole
}

fn by_block(blocks: &[Coarse], random: &mut SplitMix64, count: usize) -> Vec<[f64; 4]> {
    let mut drawn = Coarse::default();
    let mut times = vec![0; blocks.len()];
    (0..count)
        .map(|_| {
            drawn.clear();
            times.fill(0);
            (0..blocks.len()).for_each(|_| times[random.index(blocks.len())] += 1);
            blocks
                .iter()
                .zip(&times)
                .filter(|(_, times)| **times > 0)
                .for_each(|(block, times)| drawn.add(block, *times));
            figures(&drawn)
        })
        .collect()
}

fn by_request(whole: &Coarse, random: &mut SplitMix64, count: usize) -> Vec<[f64; 4]> {
    let mut drawn = Coarse::default();
    let mut replicates = Vec::with_capacity(count);
    while replicates.len() < count {
        whole.resample(&mut drawn, |count| poisson(random, count));
        if drawn.count() > 0 {
            replicates.push(figures(&drawn));
        }
    }
    replicates
}

fn coarse(whole: &Histogram) -> Coarse {
    let mut coarse = Coarse::default();
    whole
        .buckets()
        .for_each(|(bucket, count)| coarse.record_n(Bucket::mid(bucket), count));
    coarse
}

/// The middle part of the replicates, moved by `shift`, in microseconds.
fn percentile_interval(mut values: Vec<f64>, shift: f64) -> Interval {
    values.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let at = |share: f64| values[(share * (values.len() - 1) as f64).round() as usize];
    Interval {
        low: (at(tail) + shift).max(0.0) / 1e3,
        high: (at(1.0 - tail) + shift) / 1e3,
    }
}

/// A Poisson count. From a mean of 64 on the normal approximation is as good as a histogram
/// needs.
fn poisson(random: &mut SplitMix64, mean: u64) -> u64 {
    if mean >= 64 {
        let (radius, angle) = (
            (-2.0 * random.positive_fraction().ln()).sqrt(),
            std::f64::consts::TAU * random.positive_fraction(),
        );
        let mean = mean as f64;
        return (mean + mean.sqrt() * radius * angle.cos()).round().max(0.0) as u64;
    }
    // Knuth: count uniform factors until their product falls below e^-mean.
    let floor = (-(mean as f64)).exp();
    let mut product = random.positive_fraction();
    let mut count = 0;
    while product > floor {
        product *= random.positive_fraction();
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(random: &mut SplitMix64, count: usize) -> (Histogram, Vec<Coarse>) {
        let mut whole = Histogram::new();
        let mut steps = vec![Coarse::default(); 40];
        for i in 0..count {
            // Exponential with a mean of 1 ms.
            let ns = (-random.positive_fraction().ln() * 1e6) as u64;
            whole.record_ns(ns);
            steps[i * 40 / count].record_ns(ns);
        }
        (whole, steps)
    }

    fn borrowed(steps: &[Coarse]) -> Vec<&Coarse> {
        steps.iter().collect()
    }

    #[test]
    fn interval_covers_the_true_value_at_its_confidence() {
        for by_blocks in [true, false] {
            let random = &mut SplitMix64(5);
            let mut held = [0; 2];
            for round in 0..30 {
                let (whole, steps) = sample(random, 1000);
                let steps = if by_blocks {
                    borrowed(&steps)
                } else {
                    Vec::new()
                };
                let found = resample(&whole, &steps, round, 100).expect("requests");
                assert_eq!(found.blocks, if by_blocks { 40 } else { 0 });
                let true_p95 = -(0.05_f64).ln() * 1000.0;
                held[0] += i32::from(found.mean_us.low <= 1000.0 && 1000.0 <= found.mean_us.high);
                held[1] += i32::from(found.p95_us.low <= true_p95 && true_p95 <= found.p95_us.high);
            }
            assert!(
                held.iter().all(|held| (24..=30).contains(held)),
                "by blocks: {by_blocks}: {held:?}"
            );
        }
    }

    #[test]
    fn interval_is_wider_when_latency_changes_over_the_run() {
        let mut whole = Histogram::new();
        let mut steps = vec![Coarse::default(); 40];
        for (i, step) in (0..).zip(&mut steps) {
            let ns = if i % 8 == 0 { 9_000_000 } else { 1_000_000 };
            (0..1000).for_each(|_| {
                whole.record_ns(ns);
                step.record_ns(ns);
            });
        }
        let width = |intervals: Intervals| intervals.mean_us.high - intervals.mean_us.low;
        let by_block = width(resample(&whole, &borrowed(&steps), 1, 50).expect("requests"));
        let by_request = width(resample(&whole, &[], 1, 50).expect("requests"));
        assert!(by_block > 10.0 * by_request, "{by_block} {by_request}");
    }

    #[test]
    fn intervals_are_the_same_when_the_seed_is() {
        let (whole, steps) = sample(&mut SplitMix64(1), 1000);
        let with = |seed| resample(&whole, &borrowed(&steps), seed, 20);
        assert_eq!(with(1), with(1));
        assert_ne!(with(1), with(2));
    }

    #[test]
    fn interval_is_the_figure_itself_when_every_latency_is_the_same() {
        let mut whole = Histogram::new();
        whole.record_n(5_000_123, 1000);
        let found = intervals(&whole, &[], 3).expect("requests");
        assert!(
            (found.p50_us.low - 5000.123).abs() < 6.0
                && (found.p99_us.high - 5000.123).abs() < 40.0,
            "{found:?}"
        );
        assert!(
            (found.mean_us.high - 5000.123).abs() < 1e-6
                && (found.mean_us.low - 5000.123).abs() < 1e-6,
            "{found:?}"
        );
        let mut one = Histogram::new();
        one.record_ns(1);
        assert_eq!(intervals(&one, &[], 1), None);
    }

    #[test]
    fn poisson_counts_have_equal_mean_and_variance() {
        let random = &mut SplitMix64(9);
        for mean in [1, 20, 63, 64, 10_000] {
            let counts: Vec<f64> = (0..20_000).map(|_| poisson(random, mean) as f64).collect();
            let average = counts.iter().sum::<f64>() / 20_000.0;
            let variance = counts
                .iter()
                .map(|count| (count - average).powi(2))
                .sum::<f64>()
                / 20_000.0;
            let mean = mean as f64;
            assert!(
                (average / mean - 1.0).abs() < 0.03 && (variance / mean - 1.0).abs() < 0.06,
                "{mean}: {average} {variance}"
            );
        }
    }
}
