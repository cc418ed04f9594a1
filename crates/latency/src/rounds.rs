//! Servers that were measured in turn, in several rounds: which figures differ by more than the rounds
//! do?
//!
//! Runs of one server differ from each other by more than the requests of one run can show. So a round
//! counts as one observation: the ratio of two servers in it, on a logarithmic scale. Their mean has an
//! interval by Student's distribution. What drifts from round to round is in both servers of a round.
//!
//! All intervals hold together with 95 % confidence (Bonferroni). Sources: M. Abramowitz and I. Stegun,
//! *Handbook of Mathematical Functions*, 26.7; J. Fleiss, *The Design and Analysis of Clinical
//! Experiments*, 1986, for blocks of pairs.

use crate::analysis::{Analysis, Interval};
use crate::baseline::{Change, Comparison, Finding, finding};
use crate::blocks::CONFIDENCE;
use crate::compare::{CompareError, response};

/// The fewest rounds that give an interval.
pub const ROUNDS_MIN: usize = 3;

/// Figures of a comparison.
const FIGURES: [&str; 5] = ["mean", "p50", "p90", "p99", "rate"];

/// Compares a server with the first one, round by round. `comparisons` is how many such comparisons
/// are made with the same first server.
///
/// ```
/// use headway_latency::{Analyzer, Outcome, Row, RunDescription, baseline::Finding, rounds};
///
/// let run = |latency_ns: u64| {
///     let mut analyzer = Analyzer::new(&RunDescription::default());
///     for request in 0..1_000_u64 {
///         let start_ns = request * 1_000_000;
///         analyzer.push(&Row {
///             intended_ns: start_ns, start_ns, first_byte_ns: start_ns + latency_ns,
///             end_ns: start_ns + latency_ns, size_bytes: 512, bytes: 512, status: 200,
///             error: Outcome::Ok, connection: 0, ordinal: request as u32, class: Row::NO_CLASS,
///             target: 0, warmup: false, handshake_ns: 0,
///         });
///     }
///     analyzer.finish()
/// };
/// let first = [300_000, 310_000, 290_000, 305_000].map(run);
/// let second = [360_000, 370_000, 350_000, 365_000].map(run);
/// let found = rounds::compare(&first, &second, 1)?;
/// assert_eq!(found.changes[0].finding, Finding::Slower);
/// # Ok::<(), headway_latency::compare::CompareError>(())
/// ```
///
/// # Errors
/// [`CompareError`] when a run has no percentiles.
pub fn compare(
    first: &[Analysis],
    other: &[Analysis],
    comparisons: usize,
) -> Result<Comparison, CompareError> {
    let first = first.iter().map(|run| figures(run, "first"));
    let first = first.collect::<Result<Vec<_>, _>>()?;
    let other = other.iter().map(|run| figures(run, "other"));
    let other = other.collect::<Result<Vec<_>, _>>()?;
    let beyond = (1.0 - CONFIDENCE) / (FIGURES.len() * comparisons.max(1)) as f64;
    let changes = FIGURES.iter().enumerate().map(|(at, figure)| {
        let of = |runs: &[[f64; 5]]| runs.iter().map(|run| run[at]).collect::<Vec<_>>();
        change(figure, &of(&first), &of(&other), beyond)
    });
    Ok(Comparison {
        confidence: CONFIDENCE,
        changes: changes.collect(),
    })
}

fn figures(run: &Analysis, which: &'static str) -> Result<[f64; 5], CompareError> {
    let found = response(run, which)?;
    Ok([
        found.mean_us,
        found.p50_us,
        found.p90_us,
        found.p99_us,
        run.achieved_rps,
    ])
}

fn change(figure: &'static str, first: &[f64], other: &[f64], beyond: f64) -> Change {
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let ratios: Vec<f64> = first.iter().zip(other).map(|(a, b)| (b / a).ln()).collect();
    let center = mean(&ratios);
    let interval = (ratios.len() >= ROUNDS_MIN && center.is_finite()).then(|| {
        let squares = ratios.iter().map(|ratio| (ratio - center).powi(2));
        let rounds = ratios.len() as f64;
        let error = (squares.sum::<f64>() / (rounds - 1.0) / rounds).sqrt();
        let half = quantile(ratios.len() - 1, beyond) * error;
        Interval {
            low: (center - half).exp_m1(),
            high: (center + half).exp_m1(),
        }
    });
    let mut change = Change {
        figure,
        baseline: mean(&logs(first)).exp(),
        run: mean(&logs(other)).exp(),
        change: center.exp_m1(),
        interval,
        finding: Finding::TooFew,
    };
    change.finding = finding(&change);
    change
}

/// Student's quantile: beyond it, on both sides together, is this share.
fn quantile(freedom: usize, beyond: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        match within(freedom, middle) < 1.0 - beyond {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

/// The share between −t and t, for a whole number of degrees of freedom (26.7.3 and 26.7.4).
fn within(freedom: usize, t: f64) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let is_odd = freedom % 2 == 1;
    let (mut term, mut sum) = (if is_odd { cosine } else { 1.0 }, 0.0);
    let mut at = if is_odd { 1 } else { 0 };
    while at + 2 <= freedom {
        sum += term;
        let factor = (at + 1) as f64 / (at + 2) as f64;
        term *= factor * cosine * cosine;
        at += 2;
    }
    match is_odd {
        true => 2.0 / std::f64::consts::PI * (angle + sine * sum),
        false => sine * sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_base::random::{Draw, Random};

    #[test]
    fn quantiles_are_the_published_ones() {
        // Two-sided 5 % and 1 %, from the table of the handbook.
        let published = [
            (1, 12.706, 63.657),
            (2, 4.303, 9.925),
            (3, 3.182, 5.841),
            (4, 2.776, 4.604),
            (5, 2.571, 4.032),
            (15, 2.131, 2.947),
            (30, 2.042, 2.750),
        ];
        for (freedom, of_5, of_1) in published {
            for (beyond, expected) in [(0.05, of_5), (0.01, of_1)] {
                let found = quantile(freedom, beyond);
                assert!((found - expected).abs() < 6e-4, "{freedom}: {found}");
            }
        }
    }

    /// Rounds of two servers that differ by a factor, with a drift and noise of their own.
    fn rounds(random: &mut Random, factor: f64) -> Change {
        let mut noise = || (random.fraction() + random.fraction() - 1.0) * 0.05;
        let (mut first, mut other) = (Vec::new(), Vec::new());
        for round in 0..6 {
            let drift = 100.0 * (1.0 + 0.3 * f64::from(round));
            first.push(drift * noise().exp());
            other.push(drift * factor * noise().exp());
        }
        change("p50", &first, &other, 0.05)
    }

    #[test]
    fn equal_servers_seem_to_differ_rarely_and_a_slow_one_is_found() {
        let mut random = Random::new(3);
        let mut found = |factor| {
            let all = (0..400).map(|_| rounds(&mut random, factor).finding);
            let all: Vec<Finding> = all.collect();
            all.iter()
                .filter(|one| **one != Finding::NoEvidence)
                .count()
        };
        // 5 % of 400 are 20; four standard deviations are 17.
        assert!(found(1.0) <= 37);
        assert!(found(1.1) >= 390);
    }

    #[test]
    fn two_rounds_are_too_few() {
        let few = change("p50", &[1.0, 1.1], &[2.0, 2.1], 0.05);
        assert_eq!((few.interval, few.finding), (None, Finding::TooFew));
        let rate = change("rate", &[100.0; 3], &[90.0; 3], 0.05);
        assert_eq!(rate.finding, Finding::Slower);
    }
}
