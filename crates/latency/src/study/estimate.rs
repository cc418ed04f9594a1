//! From the repeats of a figure to a value with an interval, and from there to draws.
//!
//! With three repeats or more the interval is Student's t over them, since only repeats show what
//! differs from one run to the next. One or two cannot show it; then the hull of the runs' own
//! intervals stands for it. A figure that has neither is taken as it is. Draws lie on both sides of
//! the value as a normal distribution does, with the width of each side of its own, so that a
//! skewed interval stays skewed.

use super::result::Value;
use crate::analysis::Interval;

use headway_base::random::{Draw, SplitMix64};

/// Student's t for a 95 % interval, by degrees of freedom from 1.
const STUDENT_T: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131,
];

/// The normal distribution's value, for many degrees of freedom.
pub const NORMAL: f64 = 1.96;

/// From this many repeats on their own spread decides.
const REPEATS_MIN: usize = 3;

/// The half-width of a 95 % interval in standard errors.
pub fn student_t(freedom: usize) -> f64 {
    match freedom.checked_sub(1) {
        None => f64::INFINITY,
        Some(at) => STUDENT_T.get(at).copied().unwrap_or(NORMAL),
    }
}

/// A figure over its repeats.
///
/// ```
/// use headway_latency::study::{estimate::Estimate, result::Value};
///
/// let values = [1.0, 3.0].map(|value| Value {
///     value,
///     ..Value::default()
/// });
/// assert_eq!(Estimate::of(&values).expect("two values").value, 2.0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean of the repeats.
    pub value: f64,
    /// The 95 % interval.
    pub interval: Option<Interval>,
}

impl Estimate {
    /// The estimate of the repeats' values; `None` without any.
    pub fn of(values: &[Value]) -> Option<Estimate> {
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        let value = values.iter().map(|found| found.value).sum::<f64>() / count;
        let interval = match values.len() >= REPEATS_MIN {
            true => Some(over_repeats(value, values)),
            false => hull(value, values),
        };
        Some(Estimate { value, interval })
    }

    /// A value that chance could have brought about.
    pub(super) fn draw(&self, random: &mut SplitMix64) -> f64 {
        let Some(interval) = self.interval else {
            return self.value;
        };
        let normal = (-2.0 * random.positive_fraction().ln()).sqrt()
            * (std::f64::consts::TAU * random.positive_fraction()).cos();
        let width = match normal < 0.0 {
            true => self.value - interval.low,
            false => interval.high - self.value,
        };
        let drawn = self.value + normal * width.max(0.0) / NORMAL;
        // No quantity is negative; a draw below nothing would turn the sign of a ratio.
        if self.value >= 0.0 {
            drawn.max(0.0)
        } else {
            drawn
        }
    }
}

fn over_repeats(value: f64, values: &[Value]) -> Interval {
    let count = values.len() as f64;
    let squares: f64 = values
        .iter()
        .map(|found| (found.value - value).powi(2))
        .sum();
    let half = student_t(values.len() - 1) * (squares / (count - 1.0) / count).sqrt();
    Interval {
        low: value - half,
        high: value + half,
    }
}

/// The smallest interval that holds the runs' own and their values; `None` for one value without an
/// interval.
fn hull(value: f64, values: &[Value]) -> Option<Interval> {
    let known = values.len() > 1 || values.iter().any(|found| found.interval.is_some());
    let around = Interval {
        low: value,
        high: value,
    };
    known.then(|| {
        values.iter().fold(around, |hull, found| {
            let own = found.interval.unwrap_or(Interval {
                low: found.value,
                high: found.value,
            });
            Interval {
                low: hull.low.min(own.low).min(found.value),
                high: hull.high.max(own.high).max(found.value),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(value: f64, interval: Option<(f64, f64)>) -> Value {
        let interval = interval.map(|(low, high)| Interval { low, high });
        Value { value, interval }
    }

    #[test]
    fn interval_is_students_when_there_are_three_repeats() {
        let values = [1.0, 2.0, 3.0].map(|of| value(of, Some((0.0, 100.0))));
        let estimate = Estimate::of(&values).expect("values");
        assert_eq!(estimate.value, 2.0);
        let interval = estimate.interval.expect("an interval");
        // Deviation 1, three values: 4.303 / sqrt(3).
        assert!((interval.high - 4.484).abs() < 0.001, "{interval:?}");
    }

    #[test]
    fn interval_is_the_hull_of_the_runs_when_there_are_two() {
        let two = [value(1.0, Some((0.9, 1.2))), value(2.0, None)];
        let interval = Estimate::of(&two).and_then(|estimate| estimate.interval);
        assert_eq!(
            interval,
            Some(Interval {
                low: 0.9,
                high: 2.0
            })
        );
        let one = Estimate::of(&[value(7.0, None)]).expect("a value");
        assert_eq!(one.interval, None);
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn draws_fill_the_interval_when_it_is_skewed() {
        let estimate = Estimate {
            value: 10.0,
            interval: Some(Interval {
                low: 9.0,
                high: 14.0,
            }),
        };
        let random = &mut SplitMix64(1);
        let mut draws: Vec<f64> = (0..20_000).map(|_| estimate.draw(random)).collect();
        draws.sort_by(f64::total_cmp);
        let (low, high) = (draws[500], draws[19_500]);
        assert!((low - 9.0).abs() < 0.1, "{low}");
        assert!((high - 14.0).abs() < 0.3, "{high}");
    }
}
