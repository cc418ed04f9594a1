//! A run beside a stored one, for continuous integration: is it slower, faster, or is there no
//! evidence of a difference?
//!
//! Five figures are compared as ratios, with intervals that hold together with 95 % confidence
//! ([`JointIntervals`]). So of runs of one server at most 5 % seem to differ in any of the figures,
//! as long as no difference is larger than what varies within a run. Two intervals make that of a
//! ratio by MOVER on logarithms, as in [`crate::compare`].

use crate::analysis::{Analysis, Interval, JointIntervals};
use crate::blocks;
use crate::compare::{CompareError, response};
use crate::run::{LoadInfo, Mode};
use serde::Serialize;

/// What the intervals say about a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The run is slower: its latency is higher, or its rate is lower.
    Slower,
    /// The run is faster.
    Faster,
    /// The interval contains 0.
    NoEvidence,
    /// One of the runs has no interval for the figure.
    TooFew,
}

/// One figure of the baseline and of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// `mean`, `p50`, `p90`, `p99` or `rate`.
    pub figure: &'static str,
    /// Microseconds, or responses per second.
    pub baseline: f64,
    /// The same of the run.
    pub run: f64,
    /// The change as a part of the baseline: 0.05 is 5 % more.
    pub change: f64,
    /// The interval of the change.
    pub interval: Option<Interval>,
    /// What the interval says.
    pub finding: Finding,
}

/// Every figure, and how sure the findings are together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The confidence of all findings together, such as 0.95.
    pub confidence: f64,
    /// The figures.
    pub changes: Vec<Change>,
}

impl Change {
    /// By which parts the run is slower, from and to: positive is slower, for latencies and rates.
    pub fn slowdown(&self) -> Option<Interval> {
        let interval = self.interval?;
        Some(match self.figure {
            RATE => Interval {
                low: -interval.high,
                high: -interval.low,
            },
            _ => interval,
        })
    }

    /// Whether the whole interval is above `limit`, a part of the baseline.
    pub fn is_slower_than(&self, limit: f64) -> bool {
        self.slowdown().is_some_and(|slowdown| slowdown.low > limit)
    }
}

const RATE: &str = "rate";

/// Compares a run with its baseline.
///
/// ```
/// use headway_latency::{Analyzer, Outcome, Row, RunDescription, baseline::{Finding, against}};
///
/// let analysis = |latency_ns: u64| {
///     let mut analyzer = Analyzer::new(&RunDescription::default());
///     for request in 0..30_000_u64 {
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
/// let found = against(&analysis(300_000), &analysis(330_000))?;
/// let p99 = found.changes.iter().find(|change| change.figure == "p99").expect("one of five");
/// assert_eq!(p99.finding, Finding::Slower);
/// assert!(p99.is_slower_than(0.05) && !p99.is_slower_than(0.15));
/// # Ok::<(), headway_latency::compare::CompareError>(())
/// ```
///
/// # Errors
/// [`CompareError`] when a run has no percentiles.
pub fn against(baseline: &Analysis, run: &Analysis) -> Result<Comparison, CompareError> {
    let (before, now) = (response(baseline, "stored")?, response(run, "new")?);
    type Range = fn(&JointIntervals) -> Option<Interval>;
    let figures: [(&'static str, f64, f64, Range); 5] = [
        ("mean", before.mean_us, now.mean_us, |joint| joint.mean_us),
        ("p50", before.p50_us, now.p50_us, |joint| joint.p50_us),
        ("p90", before.p90_us, now.p90_us, |joint| joint.p90_us),
        ("p99", before.p99_us, now.p99_us, |joint| joint.p99_us),
        (RATE, baseline.achieved_rps, run.achieved_rps, |joint| {
            joint.rate_rps
        }),
    ];
    let range = |of: &Analysis, range: Range| of.joint_intervals.as_ref().and_then(range);
    let changes = figures.map(|(figure, before, now, of)| {
        let ranges = range(baseline, of).zip(range(run, of));
        change(figure, before, now, ranges)
    });
    Ok(Comparison {
        confidence: blocks::CONFIDENCE,
        changes: changes.into(),
    })
}

fn change(
    figure: &'static str,
    baseline: f64,
    run: f64,
    ranges: Option<(Interval, Interval)>,
) -> Change {
    let interval = ranges.and_then(|(of_baseline, of_run)| {
        let positive = [baseline, run, of_baseline.low, of_run.low];
        let all = positive.iter().all(|figure| *figure > 0.0);
        all.then(|| of_ratio(baseline, of_baseline, run, of_run))
    });
    let mut change = Change {
        figure,
        baseline,
        run,
        change: run / baseline - 1.0,
        interval,
        finding: Finding::TooFew,
    };
    change.finding = finding(&change);
    change
}

/// What the interval of a change says.
pub(crate) fn finding(change: &Change) -> Finding {
    match change.slowdown() {
        None => Finding::TooFew,
        Some(slowdown) if slowdown.low > 0.0 => Finding::Slower,
        Some(slowdown) if slowdown.high < 0.0 => Finding::Faster,
        Some(_) => Finding::NoEvidence,
    }
}

/// The interval of `b / a - 1`. A figure outside its own interval counts as its end.
fn of_ratio(a: f64, of_a: Interval, b: f64, of_b: Interval) -> Interval {
    let below = |value: f64, interval: Interval| (value / interval.low).ln().max(0.0);
    let above = |value: f64, interval: Interval| (interval.high / value).ln().max(0.0);
    let ratio = (b / a).ln();
    let low = ratio - below(b, of_b).hypot(above(a, of_a));
    let high = ratio + above(b, of_b).hypot(below(a, of_a));
    Interval {
        low: low.exp_m1(),
        high: high.exp_m1(),
    }
}

/// Settings of the load in which two runs differ, so that their figures say nothing about a change
/// of the server. Length, warm-up and seed may differ.
pub fn differing_load(a: &LoadInfo, b: &LoadInfo) -> Vec<&'static str> {
    let is_closed = a.mode == Mode::Closed;
    let pause = |load: &LoadInfo| (load.think_ms, load.first_pause_ms);
    let body = |load: &LoadInfo| (load.method.clone(), load.body_bytes);
    let scenario = |load: &LoadInfo| load.scenario.as_ref().map(|one| one.checksum.clone());
    let http = |load: &LoadInfo| (load.protocol.clone(), load.streams);
    let differ = [
        ("the kind of loop", a.mode != b.mode),
        (
            "the offered rate",
            (a.rate_rps, &a.schedule) != (b.rate_rps, &b.schedule),
        ),
        ("the arrivals", a.arrivals != b.arrivals),
        // An open loop opens what it needs; its limit is that of the machine.
        (
            "the connections",
            is_closed && a.connections != b.connections,
        ),
        ("the method or the body", body(a) != body(b)),
        ("the scenario", scenario(a) != scenario(b)),
        ("the cookies", a.cookies != b.cookies),
        ("the version of HTTP", http(a) != http(b)),
        (
            "the requests per connection",
            a.requests_per_connection != b.requests_per_connection,
        ),
        ("the timeout", a.timeout_ms != b.timeout_ms),
        ("the pauses", pause(a) != pause(b)),
        (
            "the bandwidth",
            a.bandwidth_bits_per_s != b.bandwidth_bits_per_s,
        ),
    ];
    let differ = differ.into_iter().filter(|(_, differ)| *differ);
    differ.map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(value: f64, part: f64) -> Interval {
        Interval {
            low: value * (1.0 - part),
            high: value * (1.0 + part),
        }
    }

    #[test]
    fn finding_is_slower_only_when_the_whole_interval_is_on_that_side() {
        let of = |run: f64| {
            let ranges = (around(100.0, 0.03), around(run, 0.03));
            change("p99", 100.0, run, Some(ranges))
        };
        assert_eq!(of(103.0).finding, Finding::NoEvidence);
        assert_eq!(of(97.0).finding, Finding::NoEvidence);
        assert_eq!(of(110.0).finding, Finding::Slower);
        assert_eq!(of(90.0).finding, Finding::Faster);
        assert!(of(110.0).is_slower_than(0.05) && !of(110.0).is_slower_than(0.06));
        assert_eq!(change("p99", 1.0, 2.0, None).finding, Finding::TooFew);
    }

    #[test]
    fn lower_rate_is_slower() {
        let ranges = (around(100.0, 0.01), around(90.0, 0.01));
        let found = change(RATE, 100.0, 90.0, Some(ranges));
        assert_eq!(found.finding, Finding::Slower);
        assert!(found.is_slower_than(0.08) && !found.is_slower_than(0.1));
    }

    #[test]
    fn interval_of_a_ratio_is_normal_on_logarithms() {
        let by = |value: f64, logarithm: f64| Interval {
            low: value * (-logarithm).exp(),
            high: value * logarithm.exp(),
        };
        let found = of_ratio(10.0, by(10.0, 0.03), 20.0, by(20.0, 0.04));
        assert!((found.low - (2.0 * (-0.05_f64).exp() - 1.0)).abs() < 1e-12);
        assert!((found.high - (2.0 * 0.05_f64.exp() - 1.0)).abs() < 1e-12);
    }

    #[test]
    fn load_differs_in_what_changes_latency() {
        let load = LoadInfo {
            mode: Mode::Open,
            rate_rps: Some(100.0),
            connections: Some(10),
            ..LoadInfo::default()
        };
        let other = LoadInfo {
            connections: Some(20),
            seed: 7,
            warmup_s: 3.0,
            duration_s: Some(60.0),
            ..load.clone()
        };
        assert!(differing_load(&load, &other).is_empty());
        let faster = LoadInfo {
            rate_rps: Some(200.0),
            method: Some("POST".into()),
            ..load.clone()
        };
        assert_eq!(
            differing_load(&load, &faster),
            ["the offered rate", "the method or the body"]
        );
        let closed = |connections| LoadInfo {
            connections: Some(connections),
            ..LoadInfo::default()
        };
        assert_eq!(differing_load(&closed(1), &closed(2)), ["the connections"]);
    }
}
