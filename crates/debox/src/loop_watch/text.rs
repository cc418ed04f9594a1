//! The metrics of a watched loop in the Prometheus text format, version 0.0.4.
//!
//! Names, labels and buckets are those of `headway serve`, so one dashboard and one alert fit both.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use super::Durations;
use crate::report::{Report, TraceLevel};

const TURN: &str = "headway_loop_turn_seconds";
const TURN_HELP: &str = "Time of a turn of the event loop, from the end of one wait for events to the next, \
                         preemptions included.";
const LAG: &str = "headway_loop_lag_seconds";
const LAG_HELP: &str =
    "How much later than due a timer of the event loop ran. It is set ten times per second.";
const BLOCKED: &str = "headway_loop_blocked_total";
const BLOCKED_HELP: &str = "Times that an event loop slept outside its event wait, by system call, resource and kernel function.";
const BLOCKED_SECONDS: &str = "headway_loop_blocked_seconds_total";
const BLOCKED_SECONDS_HELP: &str = "Time that event loops slept outside their event wait, by system call, resource and kernel function.";

/// All metrics of one moment.
pub(super) fn render(report: &Report, turns: &Durations, lag: &Durations) -> String {
    let mut out = String::new();
    histogram(&mut out, TURN, TURN_HELP, turns);
    histogram(&mut out, LAG, LAG_HELP, lag);
    blocked(&mut out, report);
    let single: [(&str, &str, &str, &dyn Display); 5] = [
        (
            "headway_loop_waits_total",
            "counter",
            "Times that an event loop slept in its event wait.",
            &report.waits.count,
        ),
        (
            "headway_loop_wait_seconds_total",
            "counter",
            "Time that event loops slept in their event wait.",
            &seconds(report.waits.total_ns),
        ),
        (
            "headway_loop_preemptions_total",
            "counter",
            "Times that the kernel preempted an event loop.",
            &report.preemptions.count,
        ),
        (
            "headway_trace_level",
            "gauge",
            "What the tracer of the event loops sees: 2 is sleeps and stacks, 1 is sleeps only, 0 is nothing.",
            &level(&report.level),
        ),
        (
            "headway_trace_lost_records_total",
            "counter",
            "Trace records lost. While this grows, sleeps may be missing.",
            &report.lost_records,
        ),
    ];
    for (name, kind, help, value) in single {
        head(&mut out, name, kind, help);
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "{name} {value}");
    }
    out
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn histogram(out: &mut String, name: &str, help: &str, durations: &Durations) {
    head(out, name, "histogram", help);
    // First the buckets, then their count: a loop may add to them meanwhile, and none may exceed it.
    for (limit, below) in durations.cumulative() {
        let _ = writeln!(out, "{name}_bucket{{le=\"{limit}\"}} {below}");
    }
    let count = durations.count();
    let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}");
    let _ = writeln!(out, "{name}_sum {}", durations.sum());
    let _ = writeln!(out, "{name}_count {count}");
}

/// The first series has empty labels and is always 0, so that an alert on the sum has data before
/// anything has blocked.
fn blocked(out: &mut String, report: &Report) {
    let mut sums: BTreeMap<[String; 3], (u64, u64)> = BTreeMap::new();
    sums.insert(Default::default(), (0, 0));
    for site in &report.sleeps {
        let symbol = site.symbol.as_deref().unwrap_or("unknown");
        let labels = [site.call.clone(), site.label.to_string(), symbol.to_owned()];
        let sum = sums.entry(labels).or_default();
        *sum = (sum.0 + site.count, sum.1 + site.total_ns);
    }
    head(out, BLOCKED, "counter", BLOCKED_HELP);
    for (labels, (count, _)) in &sums {
        let _ = writeln!(out, "{BLOCKED}{} {count}", series(labels));
    }
    head(out, BLOCKED_SECONDS, "counter", BLOCKED_SECONDS_HELP);
    for (labels, (_, total_ns)) in &sums {
        let _ = writeln!(
            out,
            "{BLOCKED_SECONDS}{} {}",
            series(labels),
            seconds(*total_ns)
        );
    }
}

/// Names of calls, resources and kernel functions have nothing to escape.
fn series([call, resource, site]: &[String; 3]) -> String {
    format!("{{call=\"{call}\",resource=\"{resource}\",site=\"{site}\"}}")
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn level(level: &TraceLevel) -> u8 {
    match level {
        TraceLevel::Stacks => 2,
        TraceLevel::SwitchesOnly { .. } => 1,
        TraceLevel::Off { .. } => 0,
    }
}
