//! A figure of one run, by name: `median_ms`, `within:10`, `sleeps:page-io:openat`.
//!
//! The names and their units are those of docs/research/src/studies.md. A figure that the run
//! cannot give says why; a figure of the rows comes with an interval, from the bootstrap of the
//! analysis where that covers it, otherwise from the spread over equal spans of the run (batch
//! means). Counts of one run have none.

mod breakdown;
pub mod part;
mod names;
mod withheld;

pub use names::HEADLINE_QUANTITIES;
use names::{
    OF_BACKGROUND, OF_DISK, OF_ORDER, OF_ROWS, OF_RUN, OF_RUNNABLE, OF_SERVER, OF_USAGE, SHARES,
    WITH_NUMBERS,
};

use super::estimate::student_t;
use super::evidence::{Rows, RunEvidence, Sleeps};
use super::result::Value;
use crate::analysis::{Analysis, Distribution, Interval, Intervals};
use crate::ready::ReadyEvents;
use crate::row::Outcome;
use serde_json::Value as Json;
use std::fmt;

/// Spans with a figure that a spread is taken from; with fewer there is none.
const BLOCKS_MIN: usize = 4;

/// A quantity: its name and its arguments.
///
/// ```
/// use headway_latency::study::quantity::Quantity;
///
/// assert_eq!(Quantity::parse("p99_ms")?.to_string(), "p99_ms");
/// assert!(Quantity::parse("p99_furlongs").is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    name: String,
    arguments: Vec<String>,
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)?;
        let mut arguments = self.arguments.iter();
        arguments.try_for_each(|argument| write!(formatter, ":{argument}"))
    }
}

impl Quantity {
    /// Reads `name` or `name:argument:…`.
    ///
    /// # Errors
    /// A sentence: there is no such quantity, or its arguments are others.
    pub fn parse(text: &str) -> Result<Quantity, String> {
        let mut parts = text.split(':').map(str::to_owned);
        let name = parts.next().unwrap_or_default();
        let quantity = Quantity {
            name,
            arguments: parts.collect(),
        };
        quantity.check().map(|()| quantity)
    }

    fn check(&self) -> Result<(), String> {
        let name = self.name.as_str();
        let given = self.arguments.len();
        let plain: [&[&str]; 8] = [
            &OF_ROWS,
            &OF_ORDER,
            &OF_RUN,
            &OF_SERVER,
            &OF_RUNNABLE,
            &OF_DISK,
            &OF_USAGE,
            &OF_BACKGROUND,
        ];
        let (low, high) = match name {
            _ if plain.iter().any(|group| group.contains(&name)) => (0, 0),
            "counter" | "worker_skew" | "outcome_share" | "time_share" => (1, 1),
            "part_share" | "slow_part_share" => (1, 1),
            "sleeps" => (0, 2),
            "asleep_ms" => (1, 2),
            _ if SHARES.contains(&name) => (1, 1),
            _ => match WITH_NUMBERS.iter().find(|(known, _)| *known == name) {
                Some((_, count)) => (*count, *count),
                None => {
                    return Err(format!(
                        "there is no quantity {name:?}; docs/research/src/studies.md lists them"
                    ));
                }
            },
        };
        if !(low..=high).contains(&given) {
            let wanted = match low == high {
                true => low.to_string(),
                false => format!("{low} to {high}"),
            };
            return Err(format!("{name} takes {wanted} arguments, {given} given"));
        }
        if name == "outcome_share" {
            return self.outcome().map(drop);
        }
        if self.is_part() {
            return self.part_index().map(drop);
        }
        let numbered = WITH_NUMBERS.iter().any(|(known, _)| *known == name);
        match numbered || SHARES.contains(&name) {
            true => self.numbers().map(drop),
            false => Ok(()),
        }
    }

    /// How a request ended, by its word in files and tables.
    fn outcome(&self) -> Result<Outcome, String> {
        let word = self.arguments.first().map_or("", String::as_str);
        word.parse().map_err(|_| {
            let all: Vec<&str> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
            format!("{}: no outcome {word:?}: {}", self.name, all.join(", "))
        })
    }

    fn numbers(&self) -> Result<Vec<f64>, String> {
        if self.name == "outcome_share" {
            return Ok(vec![f64::from(self.outcome()?.code())]);
        }
        let number = |word: &String| {
            word.parse::<f64>()
                .map_err(|_| format!("{}: {word:?} is not a number", self.name))
        };
        self.arguments.iter().map(number).collect()
    }

    /// The observer without which the quantity is not seen: `trace` or `runnable`.
    pub fn observer(&self) -> Option<&'static str> {
        match self.name.as_str() {
            "sleeps" | "asleep_ms" | "time_share" => Some("trace"),
            _ if self.is_part() => Some("trace"),
            "runnable_above" | "runnable_at_most" => Some("runnable"),
            name if OF_RUNNABLE.contains(&name) => Some("runnable"),
            _ => None,
        }
    }

    /// The figure of a run.
    ///
    /// # Errors
    /// A sentence: why this run has no such figure.
    pub fn take(&self, evidence: &RunEvidence) -> Result<Value, String> {
        let name = self.name.as_str();
        if OF_SERVER.contains(&name) || name == "counter" {
            return self.of_server(evidence).map(exact);
        }
        if OF_RUNNABLE.contains(&name) {
            return self.of_runnable(evidence).map(exact);
        }
        if SHARES.contains(&name) {
            return self.of_counts(evidence).map(exact);
        }
        if OF_DISK.contains(&name) {
            return self.of_disk(evidence).map(exact);
        }
        if OF_USAGE.contains(&name) {
            return self.of_usage(evidence).map(exact);
        }
        if name == "worker_skew" {
            return self.of_workers(evidence).map(exact);
        }
        if self.is_part() {
            return self.of_breakdown(evidence).map(exact);
        }
        if name == "time_share" {
            return self.of_times(evidence).map(exact);
        }
        if matches!(name, "sleeps" | "asleep_ms") {
            let sleeps = evidence
                .sleeps
                .as_ref()
                .ok_or("the server was not traced")?;
            return Ok(exact(self.of_sleeps(sleeps)));
        }
        if let Some(plain) = name.strip_prefix("background_") {
            let background = evidence
                .background
                .as_ref()
                .ok_or("there was no other client")?;
            withheld::check(plain, background)?;
            return of_analysis(plain, background).ok_or_else(nothing);
        }
        let rows = evidence
            .rows
            .as_ref()
            .ok_or("no requests were made in this measurement")?;
        self.of_rows(rows)
    }

    fn of_rows(&self, rows: &Rows) -> Result<Value, String> {
        let name = self.name.as_str();
        // The rows that are left would give a figure, and it would flatter the server.
        withheld::check(name, &rows.analysis)?;
        if let Some(found) = of_analysis(name, &rows.analysis) {
            return Ok(found);
        }
        let numbers = self.numbers().unwrap_or_default();
        let value = rows.whole.figure(name, &numbers).ok_or_else(nothing)?;
        let parts = rows.blocks.iter();
        let parts: Vec<f64> = parts
            .filter_map(|block| block.figure(name, &numbers))
            .collect();
        Ok(Value {
            value,
            interval: batch_means(value, &parts),
        })
    }

    fn of_server(&self, evidence: &RunEvidence) -> Result<f64, String> {
        let server = evidence
            .server
            .as_ref()
            .ok_or("the server has no status page")?;
        if let Some(path) = self
            .arguments
            .first()
            .filter(|_| self.name.as_str() == "counter")
        {
            return counter(server, path)
                .ok_or_else(|| format!("the status page has no number {path}"));
        }
        if let Some(found) = self.of_turns(server) {
            return found.ok_or("the status page has no turns of the loops".into());
        }
        let ready = ReadyEvents::from_status(server).ok_or("the status page has no wakeups")?;
        let blocked = ready.blocked.ok_or("the loops were not traced");
        match self.name.as_str() {
            "ready_mean" => Ok(ready.mean()),
            "ready_median" => Ok(ready.quantile(0.5) as f64),
            "ready_p95" => Ok(ready.quantile(0.95) as f64),
            "ready_max" => Ok(ready.max as f64),
            "loop_blocked" => Ok(blocked? as f64),
            _ => match evidence.rows.as_ref().map(|rows| rows.analysis.duration_s) {
                Some(seconds) if seconds > 0.0 => Ok(blocked? as f64 / seconds),
                _ => Err(nothing()),
            },
        }
    }

    /// How long turns of the loops took, or how long ready events waited in them; limits of buckets.
    fn of_turns(&self, server: &Json) -> Option<Option<f64>> {
        let (name, is_max) = match self.name.as_str() {
            "loop_turn_p99_ms" => ("loop_turn_us", false),
            "loop_turn_max_ms" => ("loop_turn_us", true),
            "loop_lag_p99_ms" => ("loop_lag_us", false),
            "loop_lag_max_ms" => ("loop_lag_us", true),
            _ => return None,
        };
        let found = ReadyEvents::of_histogram(server, name);
        let us = found.map(|found| {
            if is_max {
                found.max
            } else {
                found.quantile(0.99)
            }
        });
        Some(us.map(|us| us as f64 / 1e3))
    }

    /// The most that one worker's counter has grown, by the mean of all.
    fn of_workers(&self, evidence: &RunEvidence) -> Result<f64, String> {
        let path = self.arguments.first().map_or("", String::as_str);
        let server = evidence
            .server
            .as_ref()
            .ok_or("the server has no status page")?;
        let grown = workers(server, path)
            .ok_or_else(|| format!("the status page has no workers with a number {path}"))?;
        let sum: f64 = grown.iter().sum();
        let most = grown.iter().copied().fold(0.0, f64::max);
        match grown.len() > 1 && sum > 0.0 {
            true => Ok(most * grown.len() as f64 / sum),
            false => Err(nothing()),
        }
    }

    /// The share of the server's CPU time in system calls of these names, without sleeps and
    /// without waiting for a CPU: what a kernel profiler would report for them.
    fn of_times(&self, evidence: &RunEvidence) -> Result<f64, String> {
        let sleeps = evidence
            .sleeps
            .as_ref()
            .ok_or("the server was not traced")?;
        let usage = evidence
            .usage
            .ok_or("the server's processes were not watched")?;
        let names = self.arguments.first().map_or("", String::as_str);
        let calls = sleeps.calls.iter();
        let ns: u64 = calls
            .filter(|call| names.split('|').any(|name| name == call.call))
            .map(|call| call.running_ns)
            .sum();
        // The trace and the look at the processes are not of exactly the same length.
        let in_calls = ns as f64 / 1e9 / sleeps.seconds.max(f64::MIN_POSITIVE);
        let in_all = usage.cpu_ms / 1e3 / usage.seconds.max(f64::MIN_POSITIVE);
        match in_all > 0.0 {
            true => Ok(in_calls / in_all),
            false => Err(nothing()),
        }
    }

    fn of_runnable(&self, evidence: &RunEvidence) -> Result<f64, String> {
        let runnable = evidence
            .runnable
            .as_ref()
            .ok_or("the run queue was not sampled")?;
        let count: u64 = runnable.samples.iter().map(|(_, count)| count).sum();
        if count == 0 {
            return Err(nothing());
        }
        if self.name == "runnable_look_us" {
            return Ok(runnable.look_us as f64);
        }
        let (word, of) = match self.name.strip_prefix("runnable_share_") {
            Some(word) => (word, runnable.processes.max(1) as f64),
            None => (self.name.trim_start_matches("runnable_"), 1.0),
        };
        let quantile = |share: f64| {
            let wanted = ((share * count as f64).ceil() as u64).max(1);
            let mut below = 0;
            let mut samples = runnable.samples.iter();
            let found = samples.find(|(_, samples)| {
                below += samples;
                below >= wanted
            });
            found.map_or(0.0, |(number, _)| *number as f64)
        };
        let sum: f64 = runnable
            .samples
            .iter()
            .map(|&(number, samples)| number as f64 * samples as f64)
            .sum();
        Ok(match word {
            "mean" => sum / count as f64,
            "median" => quantile(0.5),
            "p95" => quantile(0.95),
            _ => quantile(1.0),
        } / of)
    }

    /// The share of wakeups above a number of events, or of samples above or up to a share of the
    /// processes.
    fn of_counts(&self, evidence: &RunEvidence) -> Result<f64, String> {
        let bound = self.numbers()?.first().copied().unwrap_or_default();
        let (counts, of) = if self.name == "ready_above" {
            let server = evidence.server.as_ref();
            let server = server.ok_or("the server has no status page")?;
            if let Some(found) = self.of_turns(server) {
                return found.ok_or("the status page has no turns of the loops".into());
            }
            let ready = ReadyEvents::from_status(server).ok_or("the status page has no wakeups")?;
            (ready.buckets, 1.0)
        } else {
            let runnable = evidence.runnable.as_ref();
            let runnable = runnable.ok_or("the run queue was not sampled")?;
            (runnable.samples.clone(), runnable.processes.max(1) as f64)
        };
        let all: u64 = counts.iter().map(|(_, times)| times).sum();
        let above = counts
            .iter()
            .filter(|(number, _)| *number as f64 / of > bound);
        let above: u64 = above.map(|(_, times)| times).sum();
        match (all, self.name.as_str()) {
            (0, _) => Err(nothing()),
            (_, "runnable_at_most") => Ok((all - above) as f64 / all as f64),
            _ => Ok(above as f64 / all as f64),
        }
    }

    fn of_disk(&self, evidence: &RunEvidence) -> Result<f64, String> {
        let disk = evidence.disk.ok_or("there was no modelled disk")?;
        let a_second = |amount: f64| (disk.seconds > 0.0).then(|| amount / disk.seconds);
        let found = match self.name.as_str() {
            "disk_reads_per_s" => a_second(disk.reads as f64),
            "disk_read_mbit" => a_second(disk.read_bytes as f64 * 8.0 / 1e6),
            "disk_busy" => disk.busy_share,
            "disk_queue_mean" => disk.queue_mean,
            "disk_queue_max" => disk.queue_max,
            _ => disk.service_ms,
        };
        found.ok_or_else(nothing)
    }

    fn of_usage(&self, evidence: &RunEvidence) -> Result<f64, String> {
        let usage = evidence
            .usage
            .ok_or("the server's processes were not watched")?;
        let responses = evidence
            .rows
            .as_ref()
            .map_or(0.0, |rows| rows.analysis.achieved_rps * usage.seconds);
        match self.name.as_str() {
            "rss_mb" => Ok(usage.rss_bytes as f64 / 1e6),
            "cpu_share" if usage.seconds > 0.0 => Ok(usage.cpu_ms / 1e3 / usage.seconds),
            "cpu_us_per_request" if responses > 0.0 => Ok(usage.cpu_ms * 1e3 / responses),
            _ => Err(nothing()),
        }
    }

    /// A second. Waiting for events is what a loop is for, so it counts only when it is asked for
    /// by name.
    fn of_sleeps(&self, sleeps: &Sleeps) -> f64 {
        let is = |at: usize, word: &str| {
            let wanted = self.arguments.get(at).map_or("*", String::as_str);
            wanted == word || (wanted == "*" && !(at == 0 && word == "event-wait"))
        };
        let found = sleeps.counts.iter();
        let found = found.filter(|sleep| is(0, &sleep.label) && is(1, &sleep.call));
        let amount: f64 = match self.name.as_str() {
            "sleeps" => found.map(|sleep| sleep.count as f64).sum(),
            _ => found.map(|sleep| sleep.total_ms).sum(),
        };
        amount / sleeps.seconds.max(f64::MIN_POSITIVE)
    }
}

fn nothing() -> String {
    "nothing happened that it could be taken from".to_owned()
}

fn exact(value: f64) -> Value {
    Value {
        value,
        interval: None,
    }
}

/// Figures that the analysis has already, exact and with intervals.
fn of_analysis(name: &str, analysis: &Analysis) -> Option<Value> {
    type Figure = fn(&Distribution) -> f64;
    type Range = fn(&Intervals) -> Interval;
    let plain: [(&str, Figure, Range); 4] = [
        ("mean_ms", |d| d.mean_us, |i| i.mean_us),
        ("median_ms", |d| d.p50_us, |i| i.p50_us),
        ("p95_ms", |d| d.p95_us, |i| i.p95_us),
        ("p99_ms", |d| d.p99_us, |i| i.p99_us),
    ];
    if let Some((_, figure, range)) = plain.iter().find(|(known, ..)| *known == name) {
        let response = analysis.response.as_ref()?;
        let interval = response.intervals.as_ref().map(range);
        return Some(Value {
            value: figure(response) / 1e3,
            interval: interval.map(|us| Interval {
                low: us.low / 1e3,
                high: us.high / 1e3,
            }),
        });
    }
    let points = analysis.timeline.points.iter();
    Some(exact(match name {
        "requests" => analysis.counts.requests as f64,
        "errors" => analysis.counts.errors as f64,
        "abandoned" => analysis.counts.abandoned as f64,
        "offered_rps" => analysis.offered_rps?,
        "timeline_max_p99_ms" => points
            .filter_map(|point| point.p99_us)
            .fold(None, |most: Option<f64>, p99| {
                Some(most.map_or(p99, |most| most.max(p99)))
            })
            .map(|us| us / 1e3)?,
        _ => return None,
    }))
}

/// The interval of a figure from its values in equal spans. Only their spread is used, because
/// their mean may be biased (an extreme percentile of a short span is).
fn batch_means(value: f64, parts: &[f64]) -> Option<Interval> {
    if parts.len() < BLOCKS_MIN {
        return None;
    }
    let count = parts.len() as f64;
    let mean = parts.iter().sum::<f64>() / count;
    let squares: f64 = parts.iter().map(|part| (part - mean).powi(2)).sum();
    let half = student_t(parts.len() - 1) * (squares / (count - 1.0) / count).sqrt();
    Some(Interval {
        low: (value - half).max(0.0),
        high: value + half,
    })
}

/// A number of the status page: the difference of two, or as it is in a single one. The master's
/// own are asked for by `master.`, all others are those of the workers together.
fn counter(server: &Json, path: &str) -> Option<f64> {
    let of = |status: &Json| {
        let total = status.get("total").filter(|total| !total.is_null());
        let start = match path.starts_with("master.") {
            true => status,
            false => total.unwrap_or(status),
        };
        let mut keys = path.split('.');
        keys.try_fold(start, |value, key| value.get(key))?.as_f64()
    };
    match (server.get("before"), server.get("after")) {
        (before, Some(after)) => Some(of(after)? - before.and_then(of).unwrap_or(0.0)),
        _ => of(server),
    }
}

/// How much a number of each worker has grown between two statuses; of a worker that is new since,
/// what it has.
fn workers(server: &Json, path: &str) -> Option<Vec<f64>> {
    let after = server.get("after").unwrap_or(server);
    let all = |status: &Json| status.get("workers").and_then(Json::as_array).cloned();
    let number = |worker: &Json| {
        let found = path.split('.').try_fold(worker, |at, word| at.get(word));
        found?.as_f64()
    };
    let before = server.get("before").and_then(all).unwrap_or_default();
    let grown = |worker: &Json| {
        let same = |other: &&Json| other.get("pid") == worker.get("pid");
        let then = before.iter().find(same).and_then(number);
        Some(number(worker)? - then.unwrap_or(0.0))
    };
    all(after)?.iter().map(grown).collect()
}

#[cfg(test)]
mod tests;
