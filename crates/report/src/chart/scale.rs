//! From values to positions on an axis, and where its ticks are.
//!
//! A scale maps its interval to 0..1 and clamps what lies outside, so a mark never leaves its
//! frame. Intervals are rounded outwards to nice numbers, hence an axis always ends on a tick or
//! just after one.

/// How an axis maps values to 0..1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Equal distances for equal differences.
    Linear {
        /// The value at 0.
        low: f64,
        /// The value at 1, above `low`.
        high: f64,
    },
    /// Equal distances for equal ratios.
    Log {
        /// The value at 0, above zero.
        low: f64,
        /// The value at 1, above `low`.
        high: f64,
    },
    /// Shares of a distribution, each step towards 1 a tenfold smaller rest: 0, 90 %, 99 %, 99.9 %
    /// …
    Tail {
        /// How many nines the axis holds.
        nines: f64,
    },
    /// Named rows from 0, the first at the far end (the top of a vertical axis), each a unit high
    /// around its number.
    Rows {
        /// Number of rows.
        rows: usize,
    },
}

impl Scale {
    /// From zero to a nice number at or above `high`; to 1 when there is nothing to show.
    pub fn from_zero(high: f64) -> Scale {
        if !high.is_finite() || high <= 0.0 {
            return Scale::Linear {
                low: 0.0,
                high: 1.0,
            };
        }
        let step = nice_step(high / 4.0);
        let high = (high / step - 1e-9).ceil() * step;
        Scale::Linear { low: 0.0, high }
    }

    /// Whole 1-2-5 steps around the positive values; one decade around 1 when there are none.
    ///
    /// The interval holds at least a factor of ten: less would blow noise up to the height of the
    /// chart.
    pub fn log_around(values: impl IntoIterator<Item = f64>) -> Scale {
        let positive = values.into_iter().filter(|v| v.is_finite() && *v > 0.0);
        let (low, high) = positive.fold((f64::INFINITY, 0.0f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        if high == 0.0 {
            return Scale::Log {
                low: 1.0,
                high: 10.0,
            };
        }
        let (mut low, mut high) = (step_below(low), step_above(high));
        while high / low < 9.99 {
            low = step_below(low * 0.99);
            high = if high / low < 9.99 {
                step_above(high * 1.01)
            } else {
                high
            };
        }
        Scale::Log { low, high }
    }

    /// Where a value lies, 0 to 1; what cannot be placed (not a number, zero on a log axis) lies
    /// at 0.
    pub fn at(&self, value: f64) -> f64 {
        let position = match *self {
            Scale::Linear { low, high } => (value - low) / (high - low),
            Scale::Log { low, high } => (value / low).ln() / (high / low).ln(),
            Scale::Tail { nines } => -(1.0 - value).max(0.0).log10() / nines,
            Scale::Rows { rows } => 1.0 - (value + 0.5) / rows as f64,
        };
        if position.is_nan() {
            0.0
        } else {
            position.clamp(0.0, 1.0)
        }
    }

    /// Round values inside the interval, ascending: about `wanted` values, and never more than
    /// twice that.
    pub fn ticks(&self, wanted: usize) -> Vec<f64> {
        let wanted = wanted.max(2);
        match *self {
            Scale::Linear { low, high } => linear_ticks(low, high, wanted),
            Scale::Log { low, high } => log_ticks(low, high, wanted),
            Scale::Tail { nines } => {
                let whole = (1..=(nines + 1e-9) as i32).map(|n| 1.0 - 10f64.powi(-n));
                [0.0, 0.5].into_iter().chain(whole).collect()
            }
            Scale::Rows { rows } => (0..rows).map(|row| row as f64).collect(),
        }
    }
}

fn linear_ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let step = nice_step((high - low) / wanted as f64);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

/// Decades, or 1-2-5 steps when there is room for them, or every second or third decade when there
/// is not.
fn log_ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32;
    let inside = |value: &f64| *value >= low * (1.0 - 1e-9) && *value <= high * (1.0 + 1e-9);
    let steps = |factors: &'static [f64]| {
        (first..=last)
            .flat_map(move |decade| factors.iter().map(move |f| f * 10f64.powi(decade)))
            .filter(inside)
            .collect::<Vec<f64>>()
    };
    let fine = steps(&[1.0, 2.0, 5.0]);
    if fine.len() <= wanted + 1 {
        return fine;
    }
    let decades = steps(&[1.0]);
    if decades.len() < 2 {
        return steps(&[1.0, 3.0]);
    }
    let every = decades.len().div_ceil(wanted + 1);
    decades.into_iter().step_by(every).collect()
}

/// The smallest of 1, 2, 5 times a power of ten that is at least `step`.
fn nice_step(step: f64) -> f64 {
    step_above(step)
}

fn step_above(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let factor = value / decade;
    let nice = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|n| factor <= n * (1.0 + 1e-9));
    nice.unwrap_or(10.0) * decade
}

fn step_below(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let factor = value / decade;
    let nice = [5.0, 2.0, 1.0]
        .into_iter()
        .find(|n| factor >= n * (1.0 - 1e-9));
    nice.unwrap_or(1.0) * decade
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: &[f64], right: &[f64]) {
        assert_eq!(left.len(), right.len(), "{left:?} {right:?}");
        for (l, r) in left.iter().zip(right) {
            assert!((l - r).abs() <= r.abs() * 1e-9, "{left:?} {right:?}");
        }
    }

    #[test]
    fn ticks_are_nice_and_inside_when_the_scale_is_linear() {
        close(&Scale::from_zero(8700.0).ticks(4), &[0.0, 5000.0, 10_000.0]);
        close(
            &Scale::from_zero(0.9).ticks(5),
            &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
        );
        let Scale::Linear { high, .. } = Scale::from_zero(8700.0) else {
            unreachable!("from_zero is linear")
        };
        assert_eq!(high, 10_000.0);
    }

    #[test]
    fn ticks_are_decades_when_many_and_finer_steps_when_few() {
        close(
            &Scale::Log {
                low: 1e4,
                high: 1e9,
            }
            .ticks(6),
            &[1e4, 1e5, 1e6, 1e7, 1e8, 1e9],
        );
        close(
            &Scale::Log {
                low: 1e4,
                high: 1e5,
            }
            .ticks(6),
            &[1e4, 2e4, 5e4, 1e5],
        );
        let far = Scale::Log {
            low: 1.0,
            high: 1e12,
        }
        .ticks(5);
        assert!(far.len() <= 6, "{far:?}");
    }

    #[test]
    fn axis_is_usable_with_one_value_or_none() {
        for scale in [
            Scale::from_zero(0.0),
            Scale::from_zero(f64::NAN),
            Scale::log_around([]),
            Scale::log_around([0.0, f64::NAN, -1.0]),
            Scale::log_around([42.0]),
            Scale::log_around([1e-300, 1e300]),
        ] {
            let ticks = scale.ticks(5);
            assert!((2..=12).contains(&ticks.len()), "{scale:?} {ticks:?}");
            for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 42.0] {
                assert!((0.0..=1.0).contains(&scale.at(value)), "{scale:?} {value}");
            }
        }
    }

    #[test]
    fn first_named_row_is_on_top() {
        let scale = Scale::Rows { rows: 4 };
        close(&scale.ticks(2), &[0.0, 1.0, 2.0, 3.0]);
        close(&[scale.at(0.0), scale.at(3.0)], &[0.875, 0.125]);
    }

    #[test]
    fn nines_are_equally_far_apart_when_the_scale_is_a_tail() {
        let scale = Scale::Tail { nines: 4.0 };
        assert_eq!(scale.at(0.0), 0.0);
        assert!((scale.at(0.99) - 0.5).abs() < 1e-9);
        assert_eq!(scale.at(1.0), 1.0);
        close(&scale.ticks(9), &[0.0, 0.5, 0.9, 0.99, 0.999, 0.9999]);
    }
}
