//! Two runs side by side: the difference of each headline figure, and whether chance explains it.
//!
//! The interval of a difference follows from the intervals of the two figures (MOVER: the distances
//! from figure to interval end add up as squares), so two analyses are enough and no rows are read
//! again. An interval that contains 0 is *no evidence of a difference*, which is not the same as
//! evidence of none.
//!
//! Source: G. Zou, A. Donner, *Construction of confidence limits about effect measures*, 2008.

use crate::analysis::{Analysis, Distribution, Interval, Intervals};
use serde::{Deserialize, Serialize};

/// What the rows say about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The interval contains 0: no evidence of a difference.
    None,
    /// The second run's figure is lower.
    Lower,
    /// The second run's figure is higher.
    Higher,
    /// One of the runs is too small for an interval.
    TooFew,
}

/// One figure of two runs, latency from the intended start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// `mean`, `p50`, `p95` or `p99`.
    pub figure: String,
    /// The figure of the first run.
    pub first_us: f64,
    /// The figure of the second run.
    pub second_us: f64,
    /// Second minus first.
    pub difference_us: f64,
    /// Interval of the difference.
    pub interval_us: Option<Interval>,
    /// What the interval shows.
    pub evidence: Evidence,
}

/// Why two runs cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// A run has no request that ended.
    #[error("no request ended in the {0} run, so there is nothing to compare")]
    Empty(&'static str),
    /// A run has too many requests without a latency.
    #[error("the percentiles of the {0} run are withheld: too many requests have no latency")]
    Withheld(&'static str),
}

/// Compares the response times of two runs, figure by figure.
///
/// ```
/// use headway_latency::{Analyzer, Outcome, Row, RunDescription, compare::compare};
///
/// let analysis = |latency_ns: u64| {
///     let mut analyzer = Analyzer::new(&RunDescription::default());
///     for request in 0..1_000_u64 {
///         analyzer.push(&Row {
///             intended_ns: request * 1_000_000,
///             start_ns: request * 1_000_000,
///             first_byte_ns: request * 1_000_000 + latency_ns,
///             end_ns: request * 1_000_000 + latency_ns,
///             size_bytes: 512,
///             bytes: 512,
///             status: 200,
///             error: Outcome::Ok,
///             connection: 0,
///             ordinal: request as u32,
///             class: Row::NO_CLASS,
///             target: 0,
///             warmup: false,
///             handshake_ns: 0,
///         });
///     }
///     analyzer.finish()
/// };
/// let differences = compare(&analysis(300_000), &analysis(400_000))?;
/// assert_eq!(differences[0].figure, "mean");
/// assert_eq!(differences[0].difference_us, 100.0);
/// # Ok::<(), headway_latency::compare::CompareError>(())
/// ```
///
/// # Errors
/// [`CompareError::Empty`] when no request of a run ended, [`CompareError::Withheld`] when its
/// percentiles are withheld.
pub fn compare(first: &Analysis, second: &Analysis) -> Result<Vec<Difference>, CompareError> {
    let first = response(first, "first")?;
    let second = response(second, "second")?;
    type Figure = fn(&Distribution) -> f64;
    type Range = fn(&Intervals) -> Interval;
    let figures: [(&str, Figure, Range); 4] = [
        ("mean", |found| found.mean_us, |intervals| intervals.mean_us),
        ("p50", |found| found.p50_us, |intervals| intervals.p50_us),
        ("p95", |found| found.p95_us, |intervals| intervals.p95_us),
        ("p99", |found| found.p99_us, |intervals| intervals.p99_us),
    ];
    let difference = |(name, figure, range): (&str, Figure, Range)| {
        let (a, b) = (figure(first), figure(second));
        let ranges = first
            .intervals
            .as_ref()
            .map(range)
            .zip(second.intervals.as_ref().map(range));
        let interval = ranges.map(|(of_a, of_b)| of_difference(a, of_a, b, of_b));
        Difference {
            figure: name.into(),
            first_us: a,
            second_us: b,
            difference_us: b - a,
            interval_us: interval,
            evidence: evidence(interval),
        }
    };
    Ok(figures.into_iter().map(difference).collect())
}

pub(crate) fn response<'a>(
    run: &'a Analysis,
    which: &'static str,
) -> Result<&'a Distribution, CompareError> {
    run.response.as_ref().ok_or(match run.withheld {
        true => CompareError::Withheld(which),
        false => CompareError::Empty(which),
    })
}

/// The interval of `b - a`. A figure outside its own interval, as rounding may leave it, counts as
/// its end.
fn of_difference(a: f64, of_a: Interval, b: f64, of_b: Interval) -> Interval {
    let below = |value: f64, interval: Interval| (value - interval.low).max(0.0);
    let above = |value: f64, interval: Interval| (interval.high - value).max(0.0);
    Interval {
        low: b - a - below(b, of_b).hypot(above(a, of_a)),
        high: b - a + above(b, of_b).hypot(below(a, of_a)),
    }
}

fn evidence(interval: Option<Interval>) -> Evidence {
    match interval {
        None => Evidence::TooFew,
        Some(interval) if interval.high < 0.0 => Evidence::Lower,
        Some(interval) if interval.low > 0.0 => Evidence::Higher,
        Some(_) => Evidence::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_interval_is_normal_when_both_are_symmetric() {
        let around = |value: f64, half: f64| Interval {
            low: value - half,
            high: value + half,
        };
        let found = of_difference(10.0, around(10.0, 3.0), 30.0, around(30.0, 4.0));
        assert_eq!(found, around(20.0, 5.0));
    }

    #[test]
    fn far_ends_make_the_interval_when_the_figures_are_skewed() {
        let (of_a, of_b) = (
            Interval {
                low: 9.0,
                high: 14.0,
            },
            Interval {
                low: 27.0,
                high: 32.0,
            },
        );
        let found = of_difference(10.0, of_a, 30.0, of_b);
        assert_eq!((found.low, found.high), (20.0 - 5.0, 20.0 + 5.0_f64.sqrt()));
    }

    #[test]
    fn evidence_follows_the_side_of_zero_on_which_the_interval_is() {
        let of = |low, high| evidence(Some(Interval { low, high }));
        assert_eq!(of(-1.0, 1.0), Evidence::None);
        assert_eq!(of(0.0, 1.0), Evidence::None);
        assert_eq!(of(0.1, 1.0), Evidence::Higher);
        assert_eq!(of(-2.0, -0.1), Evidence::Lower);
        assert_eq!(evidence(None), Evidence::TooFew);
    }
}
