//! Each kept call by the number of its invocation: the paper's Figures 2.5 and 2.6.
//!
//! The figure shows in-band time, as the paper's does: preemption is left out, so that a trend is
//! the call's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{label, location};
use crate::model::{KeptCall, Trace};
use crate::units::{grouped, time_unpadded};

use headway_base::html::escaped;

/// A kept call as a row. Times are nanoseconds, `start_ns` from the beginning of the trace.
pub(super) struct Row<'t> {
    pub call: &'t str,
    /// Counts from 1, for each call by itself.
    pub invocation: u64,
    pub pid: u32,
    pub thread: u32,
    pub start_ns: u64,
    pub wall_ns: u64,
    pub in_band_ns: u64,
    pub asleep_ns: u64,
    pub preempted_ns: u64,
    pub result: Option<i64>,
    /// Empty if it did not sleep.
    pub label: String,
    pub site: String,
    /// See [`KeptCall::waiters_entry_max`]; `None` means not counted, which is not 0.
    pub waiters_entry_max: Option<u64>,
    pub waiters_exit_max: Option<u64>,
}

/// Every kept call, in the order they began.
pub(super) fn rows(trace: &Trace) -> impl Iterator<Item = Row<'_>> {
    let mut invocations: BTreeMap<&str, u64> = BTreeMap::new();
    trace.kept.iter().map(move |kept| {
        let invocation = invocations.entry(&kept.call).or_default();
        *invocation += 1;
        let program = trace.programs.get(kept.program);
        Row {
            call: &kept.call,
            invocation: *invocation,
            pid: program.map_or(0, |program| program.pid),
            thread: kept.thread,
            start_ns: kept.start_ns.saturating_sub(trace.started_ns),
            wall_ns: kept.wall_ns,
            in_band_ns: kept.in_band_ns(),
            asleep_ns: kept.blocked_ns(),
            preempted_ns: kept.preemptions.total_ns,
            result: kept.result,
            label: label(kept),
            site: location(trace, kept),
            waiters_entry_max: kept.waiters_entry_max(),
            waiters_exit_max: kept.waiters_exit_max(),
        }
    })
}

/// Comma-separated values, one row a call: numbers by call (`invocation` counts from 1), times in
/// nanoseconds. What is not known is empty.
pub fn csv(trace: &Trace) -> String {
    let mut out = String::from(
        "call,invocation,pid,thread,start_ns,wall_ns,in_band_ns,asleep_ns,preempted_ns,result,label,site,\
         waiters_entry_max,waiters_exit_max\n",
    );
    for row in rows(trace) {
        let result = row.result.map(|result| result.to_string());
        let waiters = |count: Option<u64>| count.map(|count| count.to_string()).unwrap_or_default();
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            row.call,
            row.invocation,
            row.pid,
            row.thread,
            row.start_ns,
            row.wall_ns,
            row.in_band_ns,
            row.asleep_ns,
            row.preempted_ns,
            result.unwrap_or_default(),
            row.label,
            quoted(&row.site),
            waiters(row.waiters_entry_max),
            waiters(row.waiters_exit_max),
        );
    }
    out
}

/// RFC 4180: text with a comma, a quote or a line end is quoted.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

const WIDTH: f64 = 860.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 16.0;
const PANEL: f64 = 260.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 44.0;

/// A figure with one panel per call, up to six, those with the longest total time first.
pub fn svg(trace: &Trace) -> String {
    let mut calls: BTreeMap<&str, Vec<&KeptCall>> = BTreeMap::new();
    for kept in &trace.kept {
        calls.entry(&kept.call).or_default().push(kept);
    }
    let mut calls: Vec<_> = calls.into_iter().collect();
    calls.sort_by_key(|(_, kept)| {
        std::cmp::Reverse(kept.iter().map(|kept| kept.wall_ns).sum::<u64>())
    });
    calls.truncate(6);
    let height = (calls.len().max(1) as f64) * (PANEL + TOP + BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\" role=\"img\">\n<title>Call time as a function of invocation</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    if calls.is_empty() {
        out.push_str("<text x=\"20\" y=\"40\">No call was kept: choose calls with --history or --call.</text>\n");
    }
    for (index, (call, kept)) in calls.iter().enumerate() {
        panel(
            &mut out,
            call,
            kept,
            index as f64 * (PANEL + TOP + BOTTOM) + TOP,
        );
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, call: &str, kept: &[&KeptCall], top: f64) {
    let most = kept
        .iter()
        .map(|kept| kept.in_band_ns())
        .max()
        .unwrap_or(1)
        .max(1);
    let (step, steps) = ticks(most as f64);
    let high = step * f64::from(steps);
    let x = |invocation: usize| {
        LEFT + (WIDTH - LEFT - RIGHT) * (invocation as f64 + 0.5) / kept.len().max(1) as f64
    };
    let y = |ns: f64| top + PANEL * (1.0 - ns / high);
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"600\">{} <tspan font-weight=\"400\" fill=\"#555\">in-band call time by \
         invocation, {} calls kept</tspan></text>",
        top - 14.0,
        escaped(call),
        grouped(kept.len() as u64),
    );
    for tick in 0..=steps {
        let ns = step * f64::from(tick);
        let at = y(ns);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            time_unpadded(ns as u64),
        );
    }
    for (anchor, invocation) in [
        ("start", 1),
        ("middle", kept.len().div_ceil(2)),
        ("end", kept.len()),
    ] {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"#555\">{}</text>",
            x(invocation.saturating_sub(1)),
            top + PANEL + 20.0,
            grouped(invocation as u64),
        );
    }
    let path = points(kept, x, y);
    let _ = writeln!(
        out,
        "<path d=\"{path}\" stroke=\"#2563a8\" stroke-width=\"2.6\" stroke-linecap=\"round\" fill=\"none\"/>"
    );
}

/// Every call is a dot; dots that would cover each other are drawn once, so a million calls stay a
/// small file.
fn points(kept: &[&KeptCall], x: impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) -> String {
    let half_pixels = |value: f64| (value * 2.0).round() as i64;
    let dots: BTreeSet<(i64, i64)> = kept
        .iter()
        .enumerate()
        .map(|(index, kept)| {
            (
                half_pixels(x(index)),
                half_pixels(y(kept.in_band_ns() as f64)),
            )
        })
        .collect();
    let mut path = String::new();
    for (x, y) in dots {
        let _ = write!(path, "M{} {}h0", x as f64 / 2.0, y as f64 / 2.0);
    }
    path
}

/// A round step and how many of them reach `most`.
fn ticks(most: f64) -> (f64, u32) {
    let rough = most / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough)
        .max(1.0);
    (step, (most / step).ceil().max(1.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::{csv, quoted, ticks};
    use crate::export::tests::kept;
    use crate::model::{SleepAt, Trace};

    #[test]
    fn waiters_are_empty_when_they_were_not_counted() {
        let sleep = |entry, exit| SleepAt {
            waiters_entry_max: entry,
            waiters_exit_max: exit,
            ..SleepAt::default()
        };
        let counted = vec![
            sleep(Some(0), Some(3)),
            sleep(None, None),
            sleep(Some(2), Some(0)),
        ];
        let trace = Trace {
            kept: vec![
                kept("read", 0, Some(1), counted),
                kept("read", 1, Some(1), vec![sleep(None, None)]),
                kept("read", 2, Some(1), vec![sleep(Some(0), Some(0))]),
            ],
            ..Trace::default()
        };
        let table = csv(&trace);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].ends_with(",site,waiters_entry_max,waiters_exit_max"));
        let columns = lines[0].split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == columns));
        assert!(lines[1].ends_with(",2,3"), "{}", lines[1]);
        assert!(lines[2].ends_with(",,,"), "{}", lines[2]);
        assert!(lines[3].ends_with(",0,0"), "{}", lines[3]);
    }

    #[test]
    fn steps_are_round_and_reach_the_top_when_any_length_is_shown() {
        for most in [1.0, 37.0, 999.0, 1e6, 1.3e8] {
            let (step, steps) = ticks(most);
            assert!(step * f64::from(steps) >= most, "{most}");
            assert!(steps <= 5, "{most}: {steps} steps of {step}");
        }
    }

    #[test]
    fn text_is_quoted_when_it_would_break_a_row() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("f<a, b>(\"x\")"), "\"f<a, b>(\"\"x\"\")\"");
    }
}
