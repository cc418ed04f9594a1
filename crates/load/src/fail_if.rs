//! Conditions under which a run has failed, for continuous integration: `p99 > 50ms`,
//! `errors > 0.1%`, `rate < 0.95 * offered`.
//!
//! Latencies are those of all requests that ended, from their intended start, errors included. A
//! figure that is not known, because too few requests have a latency, meets every condition: a run
//! that cannot show it did not pass.

use std::fmt;
use std::str::FromStr;

use headway_latency::Analysis;
use headway_latency::analysis::{Counts, StepGroup};
use headway_latency::format::{count, number, percent, time_us};

use crate::cli_types::Time;

/// One condition.
#[derive(Clone, Debug)]
pub struct Condition {
    figure: &'static str,
    is_met: Comparison,
    limit: Limit,
    text: String,
}

/// Whether a figure, which comes first, meets the condition with this limit.
type Comparison = fn(&f64, &f64) -> bool;

/// What a figure is compared with.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// Microseconds, requests, requests per second or an inversion.
    Absolute(f64),
    /// A share of all requests.
    Share(f64),
    /// A part of the offered rate.
    OfOffered(f64),
}

/// All but the last three are response times.
const FIGURES: [&str; 12] = [
    "mean",
    "p50",
    "p75",
    "p90",
    "p95",
    "p99",
    "p99.9",
    "p99.99",
    "max",
    "errors",
    "rate",
    "inversion",
];

/// Longest first, since one begins with the other.
const COMPARISONS: [(&str, Comparison); 4] = [
    (">=", f64::ge),
    ("<=", f64::le),
    (">", f64::gt),
    ("<", f64::lt),
];

impl Condition {
    /// Whether it compares with the offered rate, which only an open loop has.
    pub fn needs_offered(&self) -> bool {
        matches!(self.limit, Limit::OfOffered(_))
    }

    /// Whether it is about a figure that a step of a scenario has: a latency, or errors.
    pub fn fits_a_step(&self) -> bool {
        !matches!(self.figure, "rate" | "inversion")
    }

    /// Why the run has failed by this condition; `None` if it has not.
    ///
    /// ```
    /// use headway_latency::{Analyzer, RunDescription};
    /// use headway_load::fail_if::Condition;
    ///
    /// let condition: Condition = "rate < 100".parse()?;
    /// let analysis = Analyzer::new(&RunDescription::default()).finish();
    /// let why = condition.failure(&analysis).expect("no request at all");
    /// assert_eq!(why, "rate is 0/s: --fail-if 'rate < 100'");
    /// # Ok::<(), String>(())
    /// ```
    pub fn failure(&self, analysis: &Analysis) -> Option<String> {
        let why = self.why(analysis)?;
        Some(format!("{why}: --fail-if '{self}'"))
    }

    /// As [`Condition::failure`], for one step of a scenario.
    pub fn failure_of_step(&self, step: &StepGroup, analysis: &Analysis) -> Option<String> {
        let own = Analysis {
            counts: Counts {
                requests: step.requests,
                errors: step.errors,
                ..Counts::default()
            },
            response: step.response.clone(),
            ..analysis.clone()
        };
        let why = self.why(&own)?;
        Some(format!("step `{}`: {why}: fail-if '{self}'", step.name))
    }

    fn why(&self, analysis: &Analysis) -> Option<String> {
        let found = self.found(analysis);
        let limit = match self.limit {
            Limit::Absolute(limit) | Limit::Share(limit) => limit,
            Limit::OfOffered(part) => part * analysis.offered_rps.unwrap_or(f64::NAN),
        };
        if found.is_some_and(|found| !(self.is_met)(&found, &limit)) {
            return None;
        }
        let verb = if self.figure == "errors" { "are" } else { "is" };
        let found = found.map_or("not known".to_owned(), |found| self.show(found, analysis));
        Some(format!("{} {verb} {found}", self.figure))
    }

    fn found(&self, analysis: &Analysis) -> Option<f64> {
        let errors = analysis.counts.errors as f64;
        match (self.figure, self.limit) {
            ("errors", Limit::Share(_)) => {
                let all = analysis.counts.requests;
                (all > 0).then(|| errors / all as f64)
            }
            ("errors", _) => Some(errors),
            ("rate", _) => Some(analysis.achieved_rps),
            ("inversion", _) => Some(analysis.inversion.as_ref()?.value),
            (latency, _) => latency_us(latency, analysis),
        }
    }

    fn show(&self, found: f64, analysis: &Analysis) -> String {
        let counts = &analysis.counts;
        match (self.figure, self.limit) {
            ("errors", Limit::Share(_)) => {
                let (errors, all) = (count(counts.errors), count(counts.requests));
                format!("{} ({errors} of {all})", percent(found))
            }
            ("errors", _) => count(counts.errors),
            ("rate", Limit::OfOffered(_)) => {
                let offered = analysis.offered_rps.unwrap_or(0.0);
                format!("{}/s of {}/s offered", number(found), number(offered))
            }
            ("rate", _) => format!("{}/s", number(found)),
            ("inversion", _) => number(found),
            _ => time_us(found),
        }
    }
}

fn latency_us(name: &str, analysis: &Analysis) -> Option<f64> {
    let all = analysis.response.as_ref()?;
    match name {
        "mean" => Some(all.mean_us),
        "p50" => Some(all.p50_us),
        "p75" => Some(all.p75_us),
        "p90" => Some(all.p90_us),
        "p95" => Some(all.p95_us),
        "p99" => Some(all.p99_us),
        "p99.9" => all.p99_9_us,
        "p99.99" => all.p99_99_us,
        _ => all.max_us,
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Condition, String> {
        let text = text.trim();
        let sign = text.find(['<', '>']);
        let (figure, rest) = text.split_at(sign.unwrap_or(text.len()));
        let figure = figure.trim_end();
        let compared = COMPARISONS
            .iter()
            .find_map(|(sign, is_met)| Some((rest.strip_prefix(sign)?, *is_met)));
        let (limit, is_met) = compared.ok_or_else(|| {
            format!("`{figure}` needs a limit after >, >=, < or <=, as in 'p99 > 50ms'")
        })?;
        let figure = FIGURES
            .into_iter()
            .find(|name| *name == figure)
            .ok_or_else(|| format!("no figure `{figure}`; there are {}", FIGURES.join(", ")))?;
        Ok(Condition {
            figure,
            is_met,
            limit: Limit::parse(limit.trim(), figure)?,
            text: text.to_owned(),
        })
    }
}

impl Limit {
    fn parse(text: &str, figure: &str) -> Result<Limit, String> {
        match (figure, text.split_once('*')) {
            ("rate", Some((part, offered))) if offered.trim() == "offered" => {
                Ok(Limit::OfOffered(parse_number(part.trim())?))
            }
            ("rate", Some(_)) => Err(format!("expected `0.95 * offered` instead of `{text}`")),
            ("rate", None) => {
                parse_number(text.strip_suffix("/s").unwrap_or(text)).map(Limit::Absolute)
            }
            ("errors", _) => match text.strip_suffix('%') {
                Some(share) => Ok(Limit::Share(parse_number(share)? / 100.0)),
                None => parse_number(text).map(Limit::Absolute),
            },
            ("inversion", _) => parse_number(text).map(Limit::Absolute),
            _ => match text.parse() {
                Ok(Time(time)) if text.ends_with(|c: char| c.is_ascii_alphabetic()) => {
                    Ok(Limit::Absolute(time.as_secs_f64() * 1e6))
                }
                _ => Err(format!("`{text}` is not a time with a unit, as in 50ms")),
            },
        }
    }
}

fn parse_number(text: &str) -> Result<f64, String> {
    let is_plain = |c: char| c.is_ascii_digit() || c == '.';
    match text.parse::<f64>() {
        Ok(number) if text.chars().all(is_plain) && number.is_finite() => Ok(number),
        _ => Err(format!("`{text}` is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_latency::analysis::Inversion;
    use headway_latency::run::description::{LoadInfo, Mode};
    use headway_latency::{Analyzer, Outcome, Row, RunDescription};

    /// 1,000 requests in a second of 1 to 1,000 ms, of which the first ones failed.
    fn analysis(errors: u64) -> Analysis {
        let description = RunDescription {
            load: LoadInfo {
                mode: Mode::Open,
                ..LoadInfo::default()
            },
            ..RunDescription::default()
        };
        let mut analyzer = Analyzer::new(&description);
        for index in 0..1000 {
            let error = match index < errors {
                true => Outcome::Status,
                false => Outcome::Ok,
            };
            analyzer.push(&Row {
                intended_ns: (999 - index) * 1_000_000,
                start_ns: (999 - index) * 1_000_000,
                first_byte_ns: 1_000_000_000,
                end_ns: 1_000_000_000,
                size_bytes: 1,
                bytes: 1,
                status: 200,
                error,
                connection: 0,
                ordinal: 0,
                class: Row::NO_CLASS,
                target: 0,
                warmup: false,
                handshake_ns: 0,
            });
        }
        analyzer.finish()
    }

    fn failure(text: &str, analysis: &Analysis) -> Option<String> {
        text.parse::<Condition>().expect(text).failure(analysis)
    }

    #[test]
    fn condition_says_the_figure_when_it_is_met() {
        let run = analysis(10);
        for (text, why) in [
            ("p99 > 50ms", Some("p99 is 990 ms: --fail-if 'p99 > 50ms'")),
            (" max>=1s ", Some("max is 1.00 s: --fail-if 'max>=1s'")),
            (
                "p50 < 600ms",
                Some("p50 is 500 ms: --fail-if 'p50 < 600ms'"),
            ),
            (
                "errors > 0.1%",
                Some("errors are 1 % (10 of 1,000): --fail-if 'errors > 0.1%'"),
            ),
            ("errors > 9", Some("errors are 10: --fail-if 'errors > 9'")),
            (
                "rate < 0.995 * offered",
                Some("rate is 990/s of 1,000/s offered: --fail-if 'rate < 0.995 * offered'"),
            ),
            (
                "rate <= 990/s",
                Some("rate is 990/s: --fail-if 'rate <= 990/s'"),
            ),
            ("p99 > 991ms", None),
            ("p99.9 <= 1ms", None),
            ("errors > 1%", None),
            ("errors > 10", None),
            ("rate < 0.99*offered", None),
            ("rate < 989", None),
        ] {
            assert_eq!(failure(text, &run).as_deref(), why, "{text}");
        }
    }

    #[test]
    fn condition_is_met_when_its_figure_is_not_known() {
        let none = Analyzer::new(&RunDescription::default()).finish();
        let why = failure("p99 > 50ms", &none);
        assert_eq!(
            why.as_deref(),
            Some("p99 is not known: --fail-if 'p99 > 50ms'")
        );
        assert!(failure("errors > 1%", &none).is_some());
        assert!(failure("inversion > 0.4", &none).is_some());
        assert_eq!(failure("errors > 0", &none), None);
    }

    #[test]
    fn inversion_is_compared_as_it_is_and_not_with_that_of_a_random_order() {
        let mut run = analysis(0);
        run.inversion = Some(Inversion {
            value: 0.25,
            random: 0.5,
            reversed: 1.0,
            of_random: Some(0.5),
            of_reversed: Some(0.25),
            jain: Some(0.9),
            requests: 1000,
            sizes: 3,
        });
        let why = failure("inversion > 0.2", &run).expect("it is met");
        assert!(why.starts_with("inversion is 0.25"), "{why}");
        assert_eq!(failure("inversion > 0.3", &run), None);
    }

    #[test]
    fn error_says_what_is_malformed() {
        for (text, start) in [
            ("", "`` needs a limit after >"),
            ("p99", "`p99` needs a limit after >"),
            ("p99 = 5ms", "`p99 = 5ms` needs a limit after >"),
            ("p98 > 5ms", "no figure `p98`; there are mean, p50"),
            ("p99 > 50", "`50` is not a time with a unit"),
            ("p99 > ", "`` is not a time"),
            ("p99 > 5ms 6ms", "`5ms 6ms` is not a time"),
            ("p99 =< 5ms", "no figure `p99 =`"),
            ("p99 > < 5ms", "`< 5ms` is not a time"),
            ("errors > x%", "`x` is not a number"),
            ("errors > -1", "`-1` is not a number"),
            ("inversion > 50%", "`50%` is not a number"),
            ("rate < 1e3", "`1e3` is not a number"),
            ("rate < 0.9 * ofered", "expected `0.95 * offered`"),
        ] {
            let error = text.parse::<Condition>().expect_err(text);
            assert!(error.starts_with(start), "{text}: {error}");
        }
    }
}
