//! What one run amounts to: every figure that its tables and pictures need.
//!
//! [`Analyzer`] takes rows one by one in bounded memory and returns an [`Analysis`], which is what
//! `headway analyze --json` prints. Times are microseconds, shares are 0 to 1, rates are per
//! second. The warm-up is counted and otherwise left out. A request still in flight when the run
//! ended has no latency; such requests are counted, and the age of the oldest is given, so that
//! they cannot hide a stall.
//!
//! Sources: dissertation 3.3.4 (latency profiles), 3.4.1 (deciles), 3.4.2 (service inversion).

mod analyzer;
mod timeline;
mod groups;

pub use analyzer::{Analyzer, UNTIMED_SHARE_MAX};

use crate::run::Format;
use serde::{Deserialize, Serialize};

/// The name in the `format` field of an analysis.
pub const FORMAT_NAME: &str = "headway-analysis";

/// The version of the analysis that this program writes.
pub const FORMAT_VERSION: u32 = 1;

/// The figures of one run.
///
/// ```
/// use headway_latency::{Analysis, Analyzer, RunDescription};
///
/// let analysis: Analysis = Analyzer::new(&RunDescription::default()).finish();
/// assert_eq!(analysis.counts.requests, 0);
/// assert!(analysis.response.is_none(), "no request, no percentiles");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// `headway-analysis` and its version.
    pub format: Format,
    /// Requests by how they ended.
    pub counts: Counts,
    /// Length of the measured part.
    pub duration_s: f64,
    /// Intended starts per second; absent for a closed loop, which offers as much as is answered.
    pub offered_rps: Option<f64>,
    /// Complete responses per second that ended within the measured part.
    pub achieved_rps: f64,
    /// Body bytes received per second within the measured part.
    pub throughput_bytes_per_s: f64,
    /// Failed requests by outcome, most frequent first; no `ok`.
    pub errors: Vec<OutcomeCount>,
    /// Responses by status, ascending; 0 stands for requests without a response.
    pub statuses: Vec<StatusCount>,
    /// Whether there are no percentiles: a request found the client's queue full, or
    /// [`UNTIMED_SHARE_MAX`] of the requests have no latency.
    #[serde(default)]
    pub withheld: bool,
    /// From the intended start, of every request that ended: errors are in it with their time.
    /// `None` also if latencies are `withheld`.
    pub response: Option<Distribution>,
    /// Intervals of the figures that a comparison with a baseline uses; `None` for a short run, or
    /// if latencies are `withheld`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joint_intervals: Option<JointIntervals>,
    /// From the actual start, of those of the same requests that had a connection.
    pub service: Option<Distribution>,
    /// From the intended start, of complete responses only; `None` also if `withheld`.
    pub complete: Option<Distribution>,
    /// From the actual start to the first byte, of requests that got one; `None` also if
    /// `withheld`.
    pub first_byte: Option<Distribution>,
    /// TLS handshakes, of requests for which a connection was opened; `None` without TLS, or if
    /// `withheld`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake: Option<Distribution>,
    /// Lag of the starts of requests behind their intended starts.
    pub late: Late,
    /// Complete responses within each deadline that was asked for.
    pub goodput: Vec<Goodput>,
    /// The four size series of Table 3.2.
    pub series: Vec<SeriesShare>,
    /// Complete responses by latency decile (fastest first) and size series; 0 if `withheld`.
    pub deciles: [[u64; 4]; 10],
    /// Service inversion of complete responses; `None` with fewer than two, or if `withheld`.
    pub inversion: Option<Inversion>,
    /// Latency of complete responses by size, ascending; ranges if there are many sizes. Empty if
    /// `withheld`.
    pub by_size: Vec<SizeGroup>,
    /// Latency of complete responses by SPECweb class; empty if the work has none, or if
    /// `withheld`.
    pub by_class: Vec<ClassGroup>,
    /// Requests by step of the scenario; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_step: Vec<StepGroup>,
    /// The course of the run by intervals of time.
    pub timeline: Timeline,
}

/// Requests by how they ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests of the measured part that ended.
    pub requests: u64,
    /// Requests with a complete and expected response.
    pub complete: u64,
    /// Requests that were not good.
    pub errors: u64,
    /// Requests of the warm-up, not in any other figure.
    pub warmup: u64,
    /// In flight when the run ended, not in any other figure.
    pub abandoned: u64,
}

/// Failed requests of one outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeCount {
    /// The name of an [`crate::Outcome`].
    pub outcome: String,
    /// Number of requests.
    pub requests: u64,
}

/// Requests of one status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusCount {
    /// The status; 0 without a response.
    pub status: u16,
    /// Number of requests.
    pub requests: u64,
}

/// A distribution of latencies. Percentiles are of the nearest rank and exact to 0.1 %; mean, min,
/// max are exact. A request without a latency is among the slow ones, so percentiles that it could
/// be above are `None`, and so is the maximum if there is any such request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Number of requests.
    pub requests: u64,
    /// Mean latency.
    pub mean_us: f64,
    /// Smallest latency.
    pub min_us: f64,
    /// 5th percentile.
    pub p5_us: f64,
    /// 10th percentile.
    pub p10_us: f64,
    /// 25th percentile.
    pub p25_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 75th percentile.
    pub p75_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: Option<f64>,
    /// 99.99th percentile.
    pub p99_99_us: Option<f64>,
    /// Largest latency.
    pub max_us: Option<f64>,
    /// How far chance could have moved the headline figures; absent with fewer than two requests.
    pub intervals: Option<Intervals>,
    /// The cumulative distribution: at most 300 points, ascending.
    pub cdf: Vec<CdfPoint>,
}

/// Bootstrap intervals of the headline figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Intervals {
    /// The confidence, such as 0.95.
    pub confidence: f64,
    /// Spans of time that were resampled; 0 if single requests were.
    pub blocks: u64,
    /// The interval of the mean.
    pub mean_us: Interval,
    /// The interval of the median.
    pub p50_us: Interval,
    /// The interval of the 95th percentile.
    pub p95_us: Interval,
    /// The interval of the 99th percentile.
    pub p99_us: Interval,
}

/// Intervals that hold together, from blocks of time, see [`crate::baseline`]. A figure has none if
/// too few requests are beyond it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JointIntervals {
    /// The confidence of all of them together, such as 0.95.
    pub confidence: f64,
    /// Spans of time that were compared with each other.
    pub blocks: u64,
    /// The interval of the mean response time.
    pub mean_us: Option<Interval>,
    /// The interval of the median.
    pub p50_us: Option<Interval>,
    /// The interval of the 90th percentile.
    pub p90_us: Option<Interval>,
    /// The interval of the 99th percentile.
    pub p99_us: Option<Interval>,
    /// The interval of complete responses per second.
    pub rate_rps: Option<Interval>,
}

/// A confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A point of a cumulative distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CdfPoint {
    /// A latency.
    pub latency_us: f64,
    /// The share of requests that did not exceed it.
    pub share: f64,
}

/// Lag of the starts of requests behind their intended starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Late {
    /// A start later than this is a late start.
    pub threshold_us: f64,
    /// Number of starts that were late.
    pub starts: u64,
    /// Mean of actual minus intended start.
    pub lag_mean_us: f64,
    /// Median of it.
    pub lag_p50_us: f64,
    /// 99th percentile of it.
    pub lag_p99_us: f64,
    /// 99.9th percentile of it.
    pub lag_p99_9_us: f64,
    /// Largest of it.
    pub lag_max_us: f64,
    /// Age of the oldest request in flight when the run ended, from its intended start; 0 if there
    /// was none.
    pub abandoned_oldest_us: f64,
}

/// Requests with a complete response within a deadline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// The deadline, from the intended start.
    pub deadline_ms: f64,
    /// Number of requests that met the deadline.
    pub requests: u64,
    /// Requests per second that met it.
    pub rate_rps: f64,
    /// Share of all requests that ended, errors included.
    pub share: f64,
}

/// One size series and its share of the complete responses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesShare {
    /// 1 to 4, as in Table 3.2.
    pub series: u8,
    /// The smallest size of the series.
    pub low_bytes: u64,
    /// The largest size of the series; absent for the last one.
    pub high_bytes: Option<u64>,
    /// Complete responses.
    pub requests: u64,
    /// Share of all complete responses.
    pub share: f64,
    /// Latency of the responses; `None` if `withheld`.
    pub latency: Option<Latency>,
}

/// A few latency figures of a group, exact to a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

/// Service inversion, dissertation 3.4.2.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inversion {
    /// Equation 3.1: summed displacement over floor(n²/2). 0: ordered by size.
    pub value: f64,
    /// What a random order would give on average, for these sizes.
    pub random: f64,
    /// What the reversed order would give, for these sizes: 1 when all differ, less with equal
    /// sizes.
    pub reversed: f64,
    /// `value / random`: 0 ordered by size, 1 as good as random; absent if all sizes are equal.
    pub of_random: Option<f64>,
    /// `value / reversed`: 0 ordered by size, 1 reversed; absent if all sizes are equal.
    pub of_reversed: Option<f64>,
    /// Jain's index of the response times: 1 when all are equal, 1/n when one is all. Absent in
    /// files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jain: Option<f64>,
    /// Complete responses that were ordered.
    pub requests: u64,
    /// Different sizes among them.
    pub sizes: u64,
}

/// Latency of complete responses of one size or a range of sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeGroup {
    /// Smallest size in it that occurred.
    pub low_bytes: u64,
    /// Largest size in it that occurred.
    pub high_bytes: u64,
    /// Complete responses.
    pub requests: u64,
    /// Latency of the responses.
    pub latency: Latency,
}

/// Latency of complete responses of one SPECweb class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassGroup {
    /// 0 to 3.
    pub class: u8,
    /// Complete responses.
    pub requests: u64,
    /// Latency of the responses.
    pub latency: Latency,
}

/// The requests of one step of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepGroup {
    /// The name of the step.
    pub name: String,
    /// Requests that ended.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// From the intended start, of every request that ended, as [`Analysis::response`], without a
    /// curve; `None` also if latencies are `withheld`.
    pub response: Option<Distribution>,
}

/// What happened when, in steps of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Length of a step in seconds.
    pub step_s: f64,
    /// The steps: at most 600, ascending, including empty ones.
    pub points: Vec<TimelinePoint>,
}

/// One step of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// Start of the step, in seconds from the start of the measured part.
    pub at_s: f64,
    /// Intended starts per second.
    pub offered_rps: f64,
    /// Complete responses per second.
    pub rate_rps: f64,
    /// Requests that failed in it.
    pub errors: u64,
    /// Median response time of what ended in it; absent if nothing did, or if latencies are
    /// withheld.
    pub p50_us: Option<f64>,
    /// 99th percentile of it.
    pub p99_us: Option<f64>,
}
