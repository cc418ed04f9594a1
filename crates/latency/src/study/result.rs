//! The kept result of a study: `NAME.json`, from which its tables, figures and verdicts can be
//! shown again.
//!
//! It holds what a reader needs and no raw rows, so it is small enough to be kept with the sources.
//! A field that this version does not know is ignored, a field that is absent has its default, a
//! newer version is an error.

use crate::analysis::{CdfPoint, Interval, TimelinePoint};
use crate::run::description::{Environment, Format, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name in the `format` field.
pub const FORMAT_NAME: &str = "headway-study";

/// The newest version that this program reads and the one it writes.
pub const FORMAT_VERSION: u32 = 1;

/// A study that was run, wholly or in part.
///
/// ```
/// use headway_latency::StudyResult;
///
/// let text = r#"{ "format": { "name": "headway-study", "version": 1 }, "number": 14 }"#;
/// assert_eq!(StudyResult::from_json(text)?.number, 14);
/// # Ok::<(), headway_latency::study::result::ResultError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StudyResult {
    /// `headway-study` and its version.
    pub format: Format,
    /// The number of the study.
    pub number: u32,
    /// The name of the study, `service-inversion`.
    pub name: String,
    /// The title of the study.
    pub title: String,
    /// The paper, table and figure that it repeats.
    pub source: String,
    /// What the study asks.
    pub question: String,
    /// Remarks of its author.
    pub notes: Vec<String>,
    /// In what the set-up differs from the paper's.
    pub differences: Vec<String>,
    /// `quick` or `full`.
    pub scale: String,
    /// When this result was put together, RFC 3339.
    pub made: String,
    /// Whether every measurement was made or has a reason why it could not be.
    pub complete: bool,
    /// The command that repeats it.
    pub command: Vec<String>,
    /// The machine of the client, and of the server unless the environment says otherwise.
    pub machine: Environment,
    /// The environments in which was measured.
    pub environments: Vec<EnvironmentResult>,
    /// The servers.
    pub servers: Vec<ServerResult>,
    /// Measurements, in the order of the study.
    pub measurements: Vec<Measurement>,
    /// Tables, the paper's rows beside ours.
    pub tables: Vec<Table>,
    /// Figures to be drawn from the measurements.
    pub figures: Vec<Figure>,
    /// Claims and their outcomes.
    pub claims: Vec<ClaimResult>,
}

/// An environment as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvironmentResult {
    /// The name of the environment in the study.
    pub name: String,
    /// One line: `400 MB set, ide-5400 with ext4, 130 MB memory, 1 Gbit/s`.
    #[serde(rename = "words")]
    pub summary: String,
    /// Parts that were missing on this machine, and why.
    pub missing: Vec<String>,
}

/// A server as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerResult {
    /// The name of the server in the study.
    pub name: String,
    /// The name of the server in tables.
    pub label: String,
    /// Which program or preset.
    pub kind: String,
    /// Whether the server is a peer, not one of our presets.
    pub peer: bool,
    /// The version of the program that ran.
    pub version: Option<String>,
    /// Why the server could not be measured.
    pub unavailable: Option<String>,
}

/// One server at one point of one measure, over its repeats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measurement {
    /// The `[[measure]]`.
    pub measure: String,
    /// The environment of the measure.
    pub environment: String,
    /// The server's name.
    pub server: String,
    /// The point as the study writes it: `capacity`, `95%`, `80% of best-peer`.
    pub point: String,
    /// The repeats that were measured or tried, ascending.
    pub repeats: Vec<Repeat>,
}

/// One run of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Repeat {
    /// Number of the repeat, from 1.
    pub repeat: u32,
    /// The directory below `measurements/`.
    pub key: String,
    /// Why there are no figures; absent when there are.
    pub failed: Option<String>,
    /// Requests per second that were offered; absent for a closed loop.
    pub rate_rps: Option<f64>,
    /// The client's verdict on itself.
    pub verdict: Verdict,
    /// The reasons of the verdict.
    pub reasons: Vec<String>,
    /// Headline quantities by name, and those that the study needs.
    pub values: BTreeMap<String, Value>,
    /// Cumulative distribution of response times with up to 100 points; only if a figure needs it.
    pub cdf: Vec<CdfPoint>,
    /// Complete responses by latency decile (fastest first) and size series.
    pub deciles: Option<[[u64; 4]; 10]>,
    /// Ready events per wakeup: (inclusive upper limit, wakeups), ascending.
    pub ready: Vec<(u64, u64)>,
    /// Runnable processes: (number, samples), ascending.
    pub runnable: Vec<(u64, u64)>,
    /// Sleeps by label and system call, most frequent first.
    pub sleeps: Vec<SleepCount>,
    /// The timeline with up to 120 points; only if a figure needs it.
    pub timeline: Vec<TimelinePoint>,
    /// Length of its steps.
    pub timeline_step_s: f64,
}

/// One figure of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// The value of the quantity.
    pub value: f64,
    /// How far chance within the run could have moved it; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

/// Sleeps of one call on one label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SleepCount {
    /// The resource: `page-io`, `inode-lock` …
    pub label: String,
    /// The system call.
    pub call: String,
    /// Number of sleeps.
    pub count: u64,
    /// Total length of the sleeps.
    pub total_ms: f64,
    /// Length of the observation.
    pub observed_s: f64,
}

/// A table: the paper's rows, then ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Table {
    /// The title of the table.
    pub title: String,
    /// The unit of its cells, empty without one.
    pub unit: String,
    /// Digits after the point; absent: three significant ones.
    pub digits: Option<u8>,
    /// The heading above the names of the rows.
    pub corner: String,
    /// The headings.
    pub columns: Vec<String>,
    /// `lines` or `dots` if it is to be drawn as well.
    pub draw: Option<String>,
    /// Whether the values are drawn on a logarithmic axis.
    pub log: bool,
    /// The rows as the paper prints them.
    pub paper: Vec<PaperRow>,
    /// The rows as measured.
    pub ours: Vec<OurRow>,
}

impl Table {
    /// The most digits after the point that the paper prints a number of this column with, so that
    /// 450.0 among 437.5 stays 450.0.
    pub fn paper_decimals(&self, column: usize) -> usize {
        let cells = self.paper.iter().filter_map(|row| row.cells.get(column));
        let digits = cells.map(|cell| match cell {
            PaperCell::Number(number) => number
                .to_string()
                .split_once('.')
                .map_or(0, |(_, after)| after.len()),
            PaperCell::Text(_) => 0,
        });
        digits.max().unwrap_or(0)
    }
}

/// A row of the paper.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PaperRow {
    /// The name of the row.
    pub row: String,
    /// The cells of the row.
    pub cells: Vec<PaperCell>,
}

/// A cell as printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PaperCell {
    /// A number.
    Number(f64),
    /// A dash, or words.
    Text(String),
}

/// A row of ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OurRow {
    /// The name of the row.
    pub row: String,
    /// The paper's row beside which it is to be read.
    pub beside: Option<String>,
    /// The cells of the row.
    pub cells: Vec<OurCell>,
    /// Why the whole row is empty.
    pub absent: Option<String>,
}

/// A cell of ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OurCell {
    /// The expression.
    pub expression: String,
    /// The value over the repeats; absent if it could not be measured.
    pub value: Option<f64>,
    /// The 95 % interval, if one is known.
    pub interval: Option<Interval>,
    /// Why there is no value.
    pub missing: Option<String>,
    /// The worst verdict of the runs behind it.
    pub verdict: Verdict,
    /// Why that is not *valid*.
    pub reasons: Vec<String>,
}

/// A figure, drawn from [`Repeat`]s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figure {
    /// The title of the figure.
    pub title: String,
    /// `cdf`, `deciles`, `ready`, `runnable`, `timeline` or `blocked`.
    pub kind: String,
    /// The `[[measure]]`.
    pub measure: String,
    /// Names of servers, groups resolved.
    pub servers: Vec<String>,
    /// Points, `*` resolved.
    pub points: Vec<String>,
}

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimOutcome {
    /// The rule is true.
    Confirmed,
    /// The rule is false.
    NotConfirmed,
    /// The interval contains both, a run is invalid, or something is not measured yet.
    #[default]
    Inconclusive,
    /// The claim cannot be measured on this machine.
    Untestable,
}

impl ClaimOutcome {
    /// The outcome as text.
    pub fn name(self) -> &'static str {
        match self {
            ClaimOutcome::Confirmed => "confirmed",
            ClaimOutcome::NotConfirmed => "not confirmed",
            ClaimOutcome::Inconclusive => "inconclusive",
            ClaimOutcome::Untestable => "cannot be tested",
        }
    }
}

/// A claim and how it was decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimResult {
    /// The text of the claim.
    pub text: String,
    /// Where the claim is made.
    pub source: String,
    /// The rule; absent if it cannot be tested at all.
    pub rule: Option<String>,
    /// What the paper says about it.
    pub expected: String,
    /// The outcome of the claim here.
    pub outcome: ClaimOutcome,
    /// Why the claim is not decided or cannot be tested; empty otherwise.
    pub why: Vec<String>,
    /// The author's explanation, shown when it does not hold.
    pub explain: Option<String>,
    /// Each comparison of the rule.
    pub comparisons: Vec<Comparison>,
    /// What a reader has to know: members left out, suspect runs, a single repeat.
    pub caveats: Vec<String>,
}

/// One comparison of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Comparison {
    /// The comparison as the rule writes it.
    pub text: String,
    /// The left side.
    pub left: Option<f64>,
    /// The 95 % interval of the left side.
    pub left_interval: Option<Interval>,
    /// `<`, `<=`, `>` or `>=`.
    pub operator: String,
    /// The right side.
    pub right: Option<f64>,
    /// The 95 % interval of the right side.
    pub right_interval: Option<Interval>,
    /// Share of the draws in which the comparison is true.
    pub support: Option<f64>,
    /// The outcome of this comparison.
    pub outcome: ClaimOutcome,
}

/// Why a text is no result of a study.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// The file is something else.
    #[error("not the result of a study: {0}")]
    Other(String),
    /// A newer headway wrote it.
    #[error("format version {0}, this headway reads up to {FORMAT_VERSION}; use a newer headway")]
    Newer(u32),
}

impl StudyResult {
    /// Reads the text of a `NAME.json`.
    ///
    /// # Errors
    /// See [`ResultError`].
    pub fn from_json(text: &str) -> Result<StudyResult, ResultError> {
        #[derive(Deserialize)]
        struct Named {
            format: Format,
        }
        let other = |error: serde_json::Error| ResultError::Other(error.to_string());
        let named: Named = serde_json::from_str(text).map_err(other)?;
        if named.format.name != FORMAT_NAME {
            return Err(ResultError::Other(format!(
                "its format is {:?}, expected {FORMAT_NAME:?}",
                named.format.name
            )));
        }
        match named.format.version {
            newer if newer > FORMAT_VERSION => Err(ResultError::Newer(newer)),
            _ => serde_json::from_str(text).map_err(other),
        }
    }

    /// The measurement of a server at a point.
    pub fn measurement(&self, measure: &str, server: &str, point: &str) -> Option<&Measurement> {
        self.measurements.iter().find(|found| {
            found.measure == measure && found.server == server && found.point == point
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> StudyResult {
        StudyResult {
            format: Format {
                name: FORMAT_NAME.into(),
                version: FORMAT_VERSION,
            },
            number: 7,
            name: "service-inversion".into(),
            ..StudyResult::default()
        }
    }

    #[test]
    fn result_is_the_same_when_written_and_read() {
        let mut result = result();
        result.tables.push(Table {
            paper: vec![PaperRow {
                row: "Flash".into(),
                cells: vec![PaperCell::Number(0.25), PaperCell::Text("–".into())],
            }],
            ..Table::default()
        });
        let text = serde_json::to_string(&result).expect("JSON");
        assert_eq!(StudyResult::from_json(&text).expect("a result"), result);
    }

    #[test]
    fn foreign_and_newer_files_are_an_error() {
        let foreign = serde_json::to_string(&StudyResult::default()).expect("JSON");
        let error = StudyResult::from_json(&foreign).unwrap_err().to_string();
        assert!(error.contains("headway-run"), "{error}");
        let mut newer = result();
        newer.format.version = FORMAT_VERSION + 1;
        let newer = serde_json::to_string(&newer).expect("JSON");
        let error = StudyResult::from_json(&newer).unwrap_err().to_string();
        assert!(error.contains("use a newer headway"), "{error}");
        assert!(StudyResult::from_json("[]").is_err());
    }
}
