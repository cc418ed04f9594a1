//! `--baseline`: the run beside a stored one.

use std::fmt::Write;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use headway_latency::analysis::Interval;
use headway_latency::baseline::{Change, Comparison, Finding, against, differing_load};
use headway_latency::format::{number, time_us};
use headway_latency::run::{Kind, Verdict};
use headway_latency::{Analysis, Run, RunDescription};

use super::ci::Case;
use crate::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct BaselineOptions {
    /// Compare with the run in DIR: slower, faster or no evidence of a difference
    ///
    /// Mean, p50, p90, p99 and the rate have intervals that hold together with 95 % confidence. The
    /// load must be the same as that of the stored run.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    baseline: Option<PathBuf>,
    /// Exit with 3 if an interval is wholly above this: 5%
    ///
    /// With 0% any slowdown for which there is evidence fails.
    #[arg(
        long,
        value_name = "PERCENT",
        requires = "baseline",
        hide_short_help = true
    )]
    fail_if_slower: Option<Slowdown>,
}

impl BaselineOptions {
    /// Whether a comparison can fail the run.
    pub(super) fn has_limit(&self) -> bool {
        self.fail_if_slower.is_some()
    }
}

/// A part by which a run may be slower.
#[derive(Clone, Debug)]
struct Slowdown {
    part: f64,
    text: String,
}

impl FromStr for Slowdown {
    type Err = String;

    fn from_str(text: &str) -> Result<Slowdown, String> {
        let percent = text.strip_suffix('%').map(str::trim_end);
        let percent = percent.and_then(|number| number.parse::<f64>().ok());
        match percent {
            Some(percent) if percent >= 0.0 && percent.is_finite() => Ok(Slowdown {
                part: percent / 100.0,
                text: text.to_owned(),
            }),
            _ => Err(format!("`{text}` is not a percentage, as in 5%")),
        }
    }
}

/// A stored run to compare with.
pub(super) struct Baseline {
    directory: String,
    targets: Vec<String>,
    analysis: Analysis,
    limit: Option<Slowdown>,
}

/// The comparison, or why there is none.
pub(super) struct Compared {
    directory: String,
    comparison: Result<Comparison, String>,
    limit: Option<Slowdown>,
    caution: Option<String>,
}

/// Opens the stored run, before anything is measured.
pub(super) fn open(
    options: &BaselineOptions,
    planned: &RunDescription,
) -> Result<Option<Baseline>, Failure> {
    let Some(path) = &options.baseline else {
        return Ok(None);
    };
    let run = Run::open(path)?;
    let (stored, directory) = (run.description(), path.display());
    if stored.kind != Kind::Load {
        let text = format!("--baseline {directory}: holds several runs; name one of them");
        return Err(Failure::Usage(text));
    }
    if !stored.complete {
        let text = format!("--baseline {directory}: the run is not complete; measure it again");
        return Err(Failure::Usage(text));
    }
    let differing = differing_load(&stored.load, &planned.load);
    if !differing.is_empty() {
        let text = format!(
            "--baseline {directory}: the stored run differs in {}; compare runs of one load",
            differing.join(", ")
        );
        return Err(Failure::Usage(text));
    }
    Ok(Some(Baseline {
        directory: directory.to_string(),
        targets: stored.targets.clone(),
        analysis: run.analysis()?,
        limit: options.fail_if_slower.clone(),
    }))
}

impl Baseline {
    /// Compares the run that was just measured.
    pub(super) fn compare(self, description: &RunDescription, run: &Analysis) -> Compared {
        let comparison = against(&self.analysis, run).map_err(|error| error.to_string());
        let client = description.client.as_ref();
        let is_invalid = client.is_some_and(|client| client.verdict == Verdict::Invalid);
        let caution = match self.targets == description.targets {
            _ if is_invalid => Some("this run is invalid, so the difference may be the client's"),
            false => Some("the stored run has another target"),
            true => None,
        };
        Compared {
            directory: self.directory,
            comparison,
            limit: self.limit,
            caution: caution.map(str::to_owned),
        }
    }
}

impl Compared {
    /// What `--fail-if-slower` checks, and why it fails; empty without the option.
    pub(super) fn cases(&self) -> Vec<Case> {
        let Some(limit) = &self.limit else {
            return Vec::new();
        };
        let option = format!("--fail-if-slower {}", limit.text);
        let case = |figure: &str, failure| Case {
            name: format!("{figure} slower by {}", limit.text),
            failure,
        };
        let compared = match &self.comparison {
            Ok(comparison) => &comparison.changes,
            Err(why) => {
                let why = format!("the run cannot be compared: {why}: {option}");
                return vec![case("run", Some(why))];
            }
        };
        if compared.iter().all(|change| change.interval.is_none()) {
            let why = format!("the run is too short to be compared: {option}");
            return vec![case("run", Some(why))];
        }
        let cases = compared.iter().map(|change| {
            let slower = change
                .slowdown()
                .filter(|_| change.is_slower_than(limit.part));
            let why = slower.map(|by| {
                let (figure, by) = (change.figure, percents(by));
                format!(
                    "{figure} is slower by {by} than in {}: {option}",
                    self.directory
                )
            });
            case(change.figure, why)
        });
        cases.collect()
    }

    /// The changes, if the runs can be compared.
    pub(super) fn changes(&self) -> &[Change] {
        self.comparison.as_ref().map_or(&[], |found| &found.changes)
    }

    /// The comparison as a table.
    pub(super) fn text(&self) -> String {
        let mut text = format!("\nAgainst {}\n", self.directory);
        if let Some(caution) = &self.caution {
            let _ = writeln!(text, "  caution: {caution}");
        }
        match &self.comparison {
            Err(why) => {
                let _ = writeln!(text, "  no comparison: {why}");
            }
            Ok(comparison) => {
                let rows: Vec<Vec<String>> = comparison.changes.iter().map(row).collect();
                let headings = ["", "stored", "now", "change", "95 % together", ""];
                text += &headway_cli_support::table::table(&headings, &rows);
            }
        }
        text
    }

    /// The same for `--json`.
    pub(super) fn json(&self) -> serde_json::Value {
        let comparison = self.comparison.as_ref();
        serde_json::json!({
            "directory": self.directory,
            "caution": self.caution,
            "comparison": comparison.ok(),
            "error": comparison.err(),
        })
    }
}

/// A figure, stored and now, the change and what follows.
pub(crate) fn row(change: &Change) -> Vec<String> {
    let figure = |value: f64| match change.figure {
        "rate" => format!("{}/s", number(value)),
        _ => time_us(value),
    };
    let finding = match change.finding {
        Finding::Slower => "slower",
        Finding::Faster => "faster",
        Finding::NoEvidence => "no evidence of a difference",
        Finding::TooFew => "too few requests to say",
    };
    vec![
        change.figure.to_owned(),
        figure(change.baseline),
        figure(change.run),
        format!("{:+.1} %", change.change * 100.0),
        change.interval.map_or("–".to_owned(), signed_percents),
        finding.to_owned(),
    ]
}

fn signed_percents(interval: Interval) -> String {
    let (low, high) = (interval.low * 100.0, interval.high * 100.0);
    format!("{low:+.1} … {high:+.1} %")
}

fn percents(interval: Interval) -> String {
    let (low, high) = (interval.low * 100.0, interval.high * 100.0);
    format!("{low:.1} % to {high:.1} %")
}

#[cfg(test)]
mod tests {
    use super::Slowdown;

    #[test]
    fn slowdown_is_a_percentage() {
        let part = |text: &str| text.parse::<Slowdown>().map(|limit| limit.part);
        assert_eq!(part("5%"), Ok(0.05));
        assert_eq!(part("0 %"), Ok(0.0));
        for text in ["5", "-1%", "%", "inf%", "5%%"] {
            let error = part(text).expect_err(text);
            assert!(error.contains("is not a percentage"), "{error}");
        }
    }
}
