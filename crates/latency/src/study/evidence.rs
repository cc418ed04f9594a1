//! What one finished measurement left behind, gathered for
//! [`Quantity::take`](super::quantity::Quantity::take).
//!
//! The rows are read once. Besides the whole run there are [`BLOCKS`] equal spans of it: the spread
//! of a figure over them says how far chance could have moved it (batch means), for figures that
//! the bootstrap of the analysis does not cover. The lab adds four small files, whose formats are
//! here: use of the disk, use of the server, runnable processes, and sleeps.

use super::quantity::part::RunSegment;
use super::result::SleepCount;
use crate::analysis::{Analysis, Analyzer};
use crate::breakdown::Breakdown;
use crate::row::{Outcome, Row};
use crate::run::RunDescription;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::ops::Range;

/// Spans into which the measured part of a run is cut.
pub const BLOCKS: usize = 10;

/// Everything that is known of one run.
#[derive(Clone, Debug, Default)]
pub struct RunEvidence {
    /// The content of `run.json`.
    pub description: RunDescription,
    /// What the rows amount to; absent if there is no run, only samples.
    pub rows: Option<Rows>,
    /// The analysis of the other client, in a measure with a probe.
    pub background: Option<Analysis>,
    /// `server.json`: two statuses, `before` and `after`.
    pub server: Option<Json>,
    /// The modelled disk.
    pub disk: Option<DiskUse>,
    /// The server's processes.
    pub usage: Option<ServerUse>,
    /// The run-queue sampler.
    pub runnable: Option<Runnable>,
    /// What the server's calls slept on.
    pub sleeps: Option<Sleeps>,
    /// Blocking, queueing and transfer, if the server was traced.
    pub breakdown: Option<Breakdown>,
}

/// The aggregated rows of a run.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The figures of the run.
    pub analysis: Analysis,
    /// The whole measured part.
    pub whole: RunSegment,
    /// The blocks; empty if the run does not describe its measured part.
    pub blocks: Vec<RunSegment>,
}

/// `disk.json`: the modelled disk while a run lasted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskUse {
    /// Length of the observation.
    pub seconds: f64,
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Mean number of requests in the disk.
    pub queue_mean: Option<f64>,
    /// Most requests in the disk.
    pub queue_max: Option<f64>,
    /// Share of the time that it had work.
    pub busy_share: Option<f64>,
    /// Mean time of a request in the disk, without waiting.
    pub service_ms: Option<f64>,
}

/// `usage.json`: all processes of the server while a run lasted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerUse {
    /// Length of the observation.
    pub seconds: f64,
    /// User and system time.
    pub cpu_ms: f64,
    /// Resident memory at the end.
    pub rss_bytes: u64,
    /// Processes at the end.
    pub processes: u64,
}

/// `runnable.json`: how many of the server's processes were runnable, sampled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Runnable {
    /// (runnable processes, samples), ascending.
    pub samples: Vec<(u64, u64)>,
    /// Processes of the server.
    pub processes: u64,
    /// Median time to sample all processes.
    pub look_us: u64,
}

/// The server's calls, from `trace.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sleeps {
    /// Sleeps by label and call, most frequent first.
    pub counts: Vec<SleepCount>,
    /// All calls by name.
    pub calls: Vec<CallTime>,
    /// Length of the observation.
    pub seconds: f64,
}

/// The calls of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTime {
    /// The name.
    pub call: String,
    /// Number of calls.
    pub count: u64,
    /// Time in these calls, without sleeps and without waiting for a CPU.
    pub running_ns: u64,
}

/// Collects the rows of a run one by one.
pub struct Collector {
    analyzer: Analyzer,
    window: Range<u64>,
    block_ns: u64,
    whole: RunSegment,
    blocks: Vec<RunSegment>,
}

impl Collector {
    /// For the run that is so described.
    pub fn new(description: &RunDescription) -> Collector {
        let window = description.load.measured.unwrap_or_default();
        let length_ns = window.end_ns.saturating_sub(window.start_ns);
        let block_ns = length_ns / BLOCKS as u64;
        let block = RunSegment::new(block_ns as f64 / 1e9);
        let blocks = if block_ns > 0 { BLOCKS } else { 0 };
        Collector {
            analyzer: Analyzer::new(description),
            window: window.start_ns..window.end_ns,
            block_ns,
            whole: RunSegment::new(length_ns as f64 / 1e9),
            blocks: vec![block; blocks],
        }
    }

    /// Adds one row.
    pub fn push(&mut self, row: &Row) {
        self.analyzer.push(row);
        if self.window.contains(&row.end_ns) {
            self.whole.push_response(row);
        }
        if let Some(block) = self.block(row.end_ns) {
            block.push_response(row);
        }
        if row.warmup || row.error == Outcome::Abandoned {
            return;
        }
        self.whole.push(row);
        if let Some(block) = self.block(row.intended_ns) {
            block.push(row);
        }
    }

    fn block(&mut self, at_ns: u64) -> Option<&mut RunSegment> {
        let since = at_ns.checked_sub(self.window.start)?;
        let index = since.checked_div(self.block_ns)?;
        self.blocks.get_mut(index as usize)
    }

    /// What the rows amount to.
    pub fn finish(mut self) -> Rows {
        Rows {
            analysis: self.analyzer.finish(),
            whole: self.whole,
            blocks: self.blocks,
        }
    }
}

impl Sleeps {
    /// Reads a `trace.json`: the sleeps of all call sites, summed by label and call.
    pub fn from_trace(trace: &Json) -> Option<Sleeps> {
        let at = |name: &str| trace.get(name).and_then(Json::as_u64);
        let seconds = at("ended_ns")?.checked_sub(at("started_ns")?)? as f64 / 1e9;
        let mut found: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        let mut calls: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for site in trace.get("sites")?.as_array()? {
            let call = site.get("call").and_then(Json::as_str).unwrap_or("?");
            let of_site = |name: &str| site.get(name).and_then(Json::as_u64).unwrap_or(0);
            let waited = |name: &str| {
                let wait = site.get(name).and_then(|wait| wait.get("total_ns"));
                wait.and_then(Json::as_u64).unwrap_or(0)
            };
            let entry = calls.entry(call.into()).or_default();
            entry.0 += of_site("count");
            entry.1 += of_site("wall_ns").saturating_sub(waited("slept") + waited("preemptions"));
            let sleeps = site.get("sleeps").and_then(Json::as_array);
            for sleep in sleeps.into_iter().flatten() {
                let label = sleep.get("label").and_then(Json::as_str).unwrap_or("other");
                let number = |name: &str| sleep.get(name).and_then(Json::as_u64).unwrap_or(0);
                let entry = found.entry((label.into(), call.into())).or_default();
                entry.0 += number("count");
                entry.1 += number("total_ns");
            }
        }
        let count = |((label, call), (count, total_ns)): (_, (u64, u64))| SleepCount {
            label,
            call,
            count,
            total_ms: total_ns as f64 / 1e6,
            observed_s: seconds,
        };
        let mut counts: Vec<_> = found.into_iter().map(count).collect();
        counts.sort_by_key(|sleep| std::cmp::Reverse(sleep.count));
        let of_call = |(call, (count, running_ns))| CallTime {
            call,
            count,
            running_ns,
        };
        let calls = calls.into_iter().map(of_call).collect();
        Some(Sleeps {
            counts,
            calls,
            seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sleeps_add_up_by_label_and_call_when_sites_share_them() {
        let trace = json!({
            "started_ns": 1_000_000_000_u64, "ended_ns": 3_000_000_000_u64,
            "sites": [
                {"call": "openat", "sleeps": [{"label": "page-io", "count": 2, "total_ns": 4_000_000}]},
                {"call": "openat", "sleeps": [{"label": "page-io", "count": 5, "total_ns": 1_000_000}]},
                {"call": "read", "count": 20, "wall_ns": 900, "slept": {"count": 9, "total_ns": 200},
                 "preemptions": {"count": 1, "total_ns": 100},
                 "sleeps": [{"label": "page-io", "count": 9, "total_ns": 0}]},
                {"call": "read", "count": 1, "wall_ns": 50},
                {"call": "close"},
            ],
        });
        let sleeps = Sleeps::from_trace(&trace).expect("a trace");
        assert_eq!(sleeps.seconds, 2.0);
        let counts: Vec<_> = sleeps
            .counts
            .iter()
            .map(|sleep| (sleep.call.as_str(), sleep.count, sleep.total_ms))
            .collect();
        assert_eq!(counts, [("read", 9, 0.0), ("openat", 7, 5.0)]);
        let read = sleeps.calls.iter().find(|call| call.call == "read");
        let read = read.map(|call| (call.count, call.running_ns));
        assert_eq!(read, Some((21, 650)), "neither asleep nor preempted");
        assert_eq!(Sleeps::from_trace(&json!({"sites": []})), None);
    }
}
