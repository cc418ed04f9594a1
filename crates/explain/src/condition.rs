//! Conditions of `--fail-if`: `blocked_share(p99) > 0.2`, `p99 > 50ms`.

use std::str::FromStr;

use crate::parts::Phase;
use crate::report::{Report, Shares};

/// A condition under which a server fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    figure: Figure,
    comparison: Comparison,
    limit: f64,
    text: String,
}

/// A text that is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is no condition: write a figure, a comparison and a limit, such as `blocked_share(p99) > 0.2` or \
     `p99 > 50ms`; figures are {}(p50|p95|p99|all), p50, p95, p99, mean and max",
    SHARES.map(|(name, _)| name).join("(…), ")
)]
pub struct ConditionError {
    text: String,
}

type ShareOf = fn(&Report) -> Shares;

/// Shares of the time of requests.
const SHARES: [(&str, ShareOf); 4] = [
    ("blocked_share", Report::blocked_share),
    ("queue_share", |report| {
        report.phase_share(&[Phase::AcceptQueue, Phase::ReceiveQueue])
    }),
    ("service_share", |report| {
        report.phase_share(&[Phase::Service])
    }),
    ("transfer_share", |report| {
        report.phase_share(&[Phase::Transfer])
    }),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    /// Of [`SHARES`], at a percentile or of all.
    Share(usize, &'static str),
    /// Microseconds.
    Time(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Less,
    AtMost,
    More,
    AtLeast,
}

/// Longest first, since one begins with the other.
const COMPARISONS: [(&str, Comparison); 4] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    (">", Comparison::More),
    ("<", Comparison::Less),
];

const POINTS: [&str; 4] = ["p50", "p95", "p99", "all"];
const TIMES: [&str; 5] = ["p50", "p95", "p99", "mean", "max"];

impl Condition {
    /// Why the server fails by this condition, if it does.
    pub fn failure(&self, report: &Report) -> Option<String> {
        if report.requests.answered == 0 {
            return Some(format!("{}: no request was answered", self.text));
        }
        let (value, shown) = match self.figure {
            Figure::Share(index, point) => {
                let shares = SHARES[index].1(report);
                let share = match point {
                    "p50" => shares.p50,
                    "p95" => shares.p95,
                    "p99" => shares.p99,
                    _ => shares.all,
                };
                (share, format!("{share:.3}"))
            }
            Figure::Time(point) => {
                let latency = &report.latency;
                let us = match point {
                    "p50" => latency.p50_us,
                    "p95" => latency.p95_us,
                    "p99" => latency.p99_us,
                    "mean" => latency.mean_us,
                    _ => latency.max_us,
                };
                (us, headway_base::format::time_us(us))
            }
        };
        let met = match self.comparison {
            Comparison::Less => value < self.limit,
            Comparison::AtMost => value <= self.limit,
            Comparison::More => value > self.limit,
            Comparison::AtLeast => value >= self.limit,
        };
        met.then(|| format!("{}: it is {shown}", self.text))
    }
}

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Condition, ConditionError> {
        let error = || ConditionError {
            text: text.to_owned(),
        };
        let found = COMPARISONS.iter().find_map(|(sign, comparison)| {
            let (figure, limit) = text.split_once(sign)?;
            Some((figure.trim(), *comparison, limit.trim()))
        });
        let (figure, comparison, limit) = found.ok_or_else(error)?;
        let figure = figure_of(figure).ok_or_else(error)?;
        let limit = match figure {
            Figure::Share(..) => share(limit),
            Figure::Time(_) => time_us(limit),
        };
        Ok(Condition {
            figure,
            comparison,
            limit: limit.ok_or_else(error)?,
            text: text.trim().to_owned(),
        })
    }
}

fn figure_of(text: &str) -> Option<Figure> {
    if let Some(point) = TIMES.iter().find(|point| **point == text) {
        return Some(Figure::Time(point));
    }
    let (name, point) = text.strip_suffix(')')?.split_once('(')?;
    let index = SHARES.iter().position(|(known, _)| *known == name.trim())?;
    let point = POINTS.iter().find(|known| **known == point.trim())?;
    Some(Figure::Share(index, point))
}

/// From 0 to 1, or in percent.
fn share(text: &str) -> Option<f64> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok()? / 100.0,
        None => text.parse().ok()?,
    };
    (0.0..=1.0).contains(&share).then_some(share)
}

/// With a unit.
fn time_us(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("s", 1e6)];
    let (number, factor) =
        (units.iter()).find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::Condition;
    use crate::report::{CauseShare, Latency, Report, Requests, Shares};

    fn report() -> Report {
        let blocked = CauseShare {
            blocked: true,
            share: Shares {
                p99: 0.25,
                ..Shares::default()
            },
            ..CauseShare::default()
        };
        Report {
            requests: Requests {
                answered: 9,
                ..Requests::default()
            },
            latency: Latency {
                p99_us: 50_000.0,
                ..Latency::default()
            },
            causes: vec![blocked],
            ..Report::default()
        }
    }

    fn failure(text: &str) -> Option<String> {
        text.parse::<Condition>().expect(text).failure(&report())
    }

    #[test]
    fn condition_is_met_when_the_figure_is_beyond_the_limit() {
        let text = failure("blocked_share(p99) > 0.2");
        assert_eq!(
            text.as_deref(),
            Some("blocked_share(p99) > 0.2: it is 0.250")
        );
        assert_eq!(failure("blocked_share( p99 )>30 %"), None);
        assert_eq!(failure("blocked_share(p50) > 0"), None);
        assert!(failure("p99 >= 50ms").is_some_and(|text| text.ends_with("it is 50.0 ms")));
        assert_eq!(failure("p99 > 0.05s"), None);
    }

    #[test]
    fn server_without_requests_fails_any_condition() {
        let condition: Condition = "p50 > 1s".parse().expect("a condition");
        assert!(condition.failure(&Report::default()).is_some());
    }

    #[test]
    fn text_that_is_no_condition_is_an_error() {
        let wrong = [
            "",
            "p99",
            "p99 > 5",
            "p98 > 5ms",
            "blocked_share > 0.2",
            "blocked_share(p99) > 2",
            "blocked_share(p99) = 0.2",
            "share(p99) > 0.2",
            "p99 > -1ms",
        ];
        for text in wrong {
            let error = text.parse::<Condition>().expect_err(text);
            assert!(error.to_string().contains("queue_share"), "{error}");
        }
    }
}
