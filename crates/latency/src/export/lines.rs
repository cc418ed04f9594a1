//! Seconds as comma-separated values, or as JSON lines.

use super::Second;
use std::io::{self, Write};

const NAMES: [&str; 12] = [
    "second", "complete", "errors", "untimed", "bytes", "mean_us", "p50_us", "p90_us", "p99_us",
    "p99_9_us", "min_us", "max_us",
];

/// The percentiles, in the order of [`NAMES`].
const PERCENTS: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// The line of names.
pub(super) fn head(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", NAMES.join(","))
}

/// A line of values. A second without a latency has none.
pub(super) fn csv(out: &mut dyn Write, second: &Second) -> io::Result<()> {
    let counts = counts(second).map(|count| count.to_string());
    let times = times(second).map(|us| us.map_or(String::new(), |us| format!("{us:.1}")));
    writeln!(out, "{},{}", counts.join(","), times.join(","))
}

/// An object in a line.
pub(super) fn json(out: &mut dyn Write, second: &Second) -> io::Result<()> {
    let counts = counts(second).map(|count| count.to_string());
    let times = times(second).map(|us| us.map_or("null".to_owned(), |us| format!("{us:.1}")));
    let values = counts.iter().chain(&times);
    let members = NAMES.iter().zip(values);
    let members: Vec<String> = members
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    writeln!(out, "{{{}}}", members.join(","))
}

fn counts(second: &Second) -> [u64; 5] {
    [
        second.at,
        second.complete(),
        second.errors(),
        second.untimed(),
        second.bytes,
    ]
}

/// Microseconds; `None` where nothing has a latency.
fn times(second: &Second) -> [Option<f64>; 7] {
    let found = &second.response;
    let [p50, p90, p99, p99_9] = PERCENTS.map(|percent| found.percentile(percent) as f64);
    let extremes = [found.min_ns() as f64, found.max_ns() as f64];
    let times = [
        found.mean_ns(),
        p50,
        p90,
        p99,
        p99_9,
        extremes[0],
        extremes[1],
    ];
    times.map(|ns| (found.count() > 0).then_some(ns / 1e3))
}
