//! The headline figures: one column per run, one row per figure.

use std::fmt::Write;

use headway_latency::analysis::{Analysis, Distribution, Interval};

use super::{load_text, time_us};
use crate::figure::sample;
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{NONE, bytes, counted, grouped, measured, percent, time};

type HeadlineFigure = fn(&Subject, &Analysis) -> String;

/// A row: name, what makes it clear, whether it is printed large, its figure as an element's
/// content.
type Row = (&'static str, &'static str, bool, HeadlineFigure);

const ROWS: &[Row] = &[
    ("requests", "", false, |_, a| grouped(a.counts.requests)),
    ("offered", "requests/s", false, |_, a| {
        a.offered_rps.map_or("as answered".into(), measured)
    }),
    ("rate", "complete responses/s", true, |_, a| {
        measured(a.achieved_rps)
    }),
    ("throughput", "body bytes", false, |_, a| {
        format!("{}/s", bytes(a.throughput_bytes_per_s))
    }),
    ("errors", "of all requests", false, errors),
    ("mean", "", false, |_, a| {
        latency(a, |d| Some(d.mean_us), |i| Some(i.mean_us))
    }),
    ("p50", "median", true, |_, a| {
        latency(a, |d| Some(d.p50_us), |i| Some(i.p50_us))
    }),
    ("p95", "", false, |_, a| {
        latency(a, |d| Some(d.p95_us), |i| Some(i.p95_us))
    }),
    ("p99", "", true, |_, a| {
        latency(a, |d| Some(d.p99_us), |i| Some(i.p99_us))
    }),
    ("p99.9", "", false, |_, a| {
        latency(a, |d| d.p99_9_us, |_| None)
    }),
    ("largest", "", false, |_, a| {
        latency(a, |d| d.max_us, |_| None)
    }),
    ("p99 of service", "from the actual start", false, |_, a| {
        a.service
            .as_ref()
            .map_or(NONE.into(), |service| time_us(service.p99_us))
    }),
    ("unfinished", "in flight at the end", false, unfinished),
    ("late starts", "", false, |_, a| grouped(a.late.starts)),
];

/// Shown where responses have different sizes.
const INVERSION_ROW: Row = (
    "service inversion",
    "0 by size, 1 reversed",
    false,
    inversion,
);

/// The table.
pub(crate) fn html(subjects: &[Subject]) -> String {
    let mut out = String::from(
        "<div class=\"headline scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Headline figures, table\"><table>\
         <thead><tr><th scope=\"col\"></th>",
    );
    for subject in subjects {
        let (sample, name, load) = (
            sample(subject.style),
            escaped(&subject.name),
            escaped(&load_text(subject)),
        );
        let _ = write!(
            out,
            "<th scope=\"col\">{sample}<span class=\"name\">{name}</span><br><small>{load}</small></th>"
        );
    }
    out.push_str("</tr></thead><tbody>");
    if subjects.iter().any(Subject::is_profile) {
        row(
            &mut out,
            "capacity",
            "requests/s",
            false,
            subjects.iter().map(capacity),
        );
    }
    let sizes_differ = subjects.iter().any(super::inversion::sizes_differ);
    let rows = ROWS.iter().chain(sizes_differ.then_some(&INVERSION_ROW));
    for (name, remark, large, figure) in rows {
        let cells = subjects.iter().map(|subject| match subject.analysis() {
            Some(analysis) => figure(subject, analysis),
            None => fallback(subject, name),
        });
        row(&mut out, name, remark, *large, cells);
    }
    out + "</tbody></table></div>"
}

fn row(
    out: &mut String,
    name: &str,
    remark: &str,
    large: bool,
    cells: impl Iterator<Item = String>,
) {
    let class = if large { " class=\"main\"" } else { "" };
    let remark = if remark.is_empty() {
        String::new()
    } else {
        format!(" <small>{remark}</small>")
    };
    let _ = write!(out, "<tr{class}><th scope=\"row\">{name}{remark}</th>");
    for cell in cells {
        let warning = if cell.starts_with("<b>") {
            " class=\"warning\""
        } else {
            ""
        };
        let cell = cell.replace("<b>", "").replace("</b>", "");
        let _ = write!(out, "<td{warning}>{cell}</td>");
    }
    out.push_str("</tr>");
}

/// The capacity of the server; a lower limit if the client was the bottleneck, with the rate of
/// load 1.
fn capacity(subject: &Subject) -> String {
    let profile = subject.description.profile.as_ref();
    let Some(base) = profile.and_then(|profile| profile.capacity_rps) else {
        return NONE.into();
    };
    match subject.client_bound() {
        None if subject.capacity_is_named() => {
            format!("{}<br><small>given, not measured</small>", measured(base))
        }
        None => measured(base),
        Some(bound) => format!(
            "≥ {}<br><small>the client is the bottleneck; load 1 is {}/s</small>",
            measured(bound.at_least_rps()),
            measured(base)
        ),
    }
}

fn errors(_: &Subject, analysis: &Analysis) -> String {
    let counts = &analysis.counts;
    if counts.errors == 0 {
        return "0".into();
    }
    let share = percent(counts.errors as f64 / counts.requests.max(1) as f64);
    let kinds: Vec<String> = analysis
        .errors
        .iter()
        .take(2)
        .map(|kind| format!("{} {}", grouped(kind.requests), escaped(&kind.outcome)))
        .collect();
    format!("<b>{share}</b><br><small>{}</small>", kinds.join(", "))
}

/// Requests without an end have no latency, so their number and age are all that shows a stall at
/// the end.
fn unfinished(_: &Subject, analysis: &Analysis) -> String {
    let count = grouped(analysis.counts.abandoned);
    match analysis.late.abandoned_oldest_us {
        oldest if oldest > 0.0 => format!("{count}<br><small>oldest {}</small>", time_us(oldest)),
        _ => count,
    }
}

fn inversion(_: &Subject, analysis: &Analysis) -> String {
    analysis.inversion.as_ref().map_or(NONE.into(), |found| {
        let (value, random) = (found.value, found.random);
        format!("{value:.2}<br><small>random {random:.2}</small>")
    })
}

fn latency(
    analysis: &Analysis,
    value: fn(&Distribution) -> Option<f64>,
    interval: fn(&headway_latency::analysis::Intervals) -> Option<Interval>,
) -> String {
    let Some(response) = &analysis.response else {
        return NONE.into();
    };
    let shown = value(response).map_or(NONE.into(), time_us);
    match response.intervals.as_ref().and_then(interval) {
        None => shown,
        Some(interval) => format!("{shown}<br><small>{}</small>", span(interval)),
    }
}

/// An interval of times in microseconds; one unit where both ends have the same.
pub(crate) fn span(interval: Interval) -> String {
    let (low, high) = (time_us(interval.low), time_us(interval.high));
    let unit = |text: &str| text.split('\u{202f}').nth(1).map(str::to_owned);
    match (unit(&low), unit(&high)) {
        (Some(one), Some(other)) if one == other => {
            let number = low.split('\u{202f}').next().unwrap_or_default();
            format!("{number}–{high}")
        }
        _ => format!("{low}–{high}"),
    }
}

/// The headline figures that the run noted down itself, for a run without readable rows.
fn fallback(subject: &Subject, name: &str) -> String {
    let summary = subject
        .chosen()
        .and_then(|one| one.description.summary.as_ref());
    let Some(summary) = summary.or(subject.description.summary.as_ref()) else {
        return NONE.into();
    };
    let micros = |us: Option<f64>| us.map_or(NONE.into(), |us| time(us * 1e3));
    match name {
        "requests" => grouped(summary.requests),
        "rate" => measured(summary.rate_rps),
        "throughput" => format!("{}/s", bytes(summary.throughput_bytes_per_s)),
        "errors" if summary.errors > 0 => format!("<b>{}</b>", counted(summary.errors, "request")),
        "errors" => "0".into(),
        "mean" => micros(summary.mean_us),
        "p50" => micros(summary.p50_us),
        "p95" => micros(summary.p95_us),
        "p99" => micros(summary.p99_us),
        _ => NONE.into(),
    }
}
