//! The server's own counters: ready events per wakeup, and sleeps of its loops.

use super::{Section, legend_of};
use crate::chart::{Axis, Chart, ChartMark, Point, Scale, Size};
use crate::figure::{Drawing, Figure, Table};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{grouped, measured, percent, plain};
use headway_latency::ready::ReadyEvents;

/// The section; `None` if no run has counters of its server.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let shown: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| events(subject).is_some())
        .collect();
    if shown.is_empty() {
        return None;
    }
    Section::of(
        "server",
        "Inside the server",
        introduction(&shown),
        vec![Some(figure(&shown))],
    )
}

/// What was counted during the measurement that is shown, else over the whole run.
fn events(subject: &Subject) -> Option<&ReadyEvents> {
    let chosen = subject.chosen().and_then(|one| one.ready.as_ref());
    chosen.or(subject.ready.as_ref())
}

fn introduction(subjects: &[&Subject]) -> String {
    let one = |subject: &&Subject| {
        let times = match events(subject)?.blocked? {
            0 => "never slept".into(),
            1 => "slept once".into(),
            times => format!("slept {} times", grouped(times)),
        };
        Some(format!(
            "The loops of {} {times} outside their event wait.",
            subject.name
        ))
    };
    subjects
        .iter()
        .filter_map(one)
        .collect::<Vec<_>>()
        .join(" ")
}

fn figure(subjects: &[&Subject]) -> Figure {
    let most = subjects
        .iter()
        .filter_map(|subject| events(subject))
        .map(|events| events.max)
        .max();
    // The axis starts at 1: a wakeup without events (a deadline) is at its left end.
    let scale = Scale::log_around([1.0, most.unwrap_or(1).max(10) as f64]);
    let draw = |size: Size| Chart {
        size,
        title: "Ready events per wakeup".into(),
        description: described(subjects),
        x: Axis {
            scale,
            title: "ready events, at most".into(),
            format: plain,
        },
        y: Axis {
            scale: Scale::Linear {
                low: 0.0,
                high: 1.0,
            },
            title: "share of wakeups".into(),
            format: percent,
        },
        marks: subjects.iter().flat_map(|subject| marks(subject)).collect(),
        left_min: 56.0,
    };
    Figure {
        id: "ready-events",
        title: "Ready events per wakeup".into(),
        caption: vec![
            "The number of events that were ready each time the server's loop polled. A loop that \
             never blocks polls often and finds few; a loop that blocks finds many events \
             afterwards, and all of them have waited."
                .into(),
            "The point on each curve is its median. The server counts them, since its start if \
             its status was read only once; above 64 in powers of two."
                .into(),
        ],
        source: "The form of Figures 3.1 and 3.14 (dissertation).",
        drawing: Drawing::one(legend_of(subjects), draw),
        numbers: Some(numbers(subjects)),
    }
}

fn marks(subject: &Subject) -> Vec<ChartMark> {
    let Some(events) = events(subject) else {
        return Vec::new();
    };
    let mut points = vec![(1.0, 0.0)];
    let mut below = 0;
    for (upper, count) in &events.buckets {
        let x = (*upper).clamp(1, events.max.max(1)) as f64;
        points.push((x, below as f64 / events.count as f64));
        below += count;
        points.push((x, below as f64 / events.count as f64));
    }
    let median = events.quantile(0.5);
    let at_median: u64 = events
        .buckets
        .iter()
        .filter(|(upper, _)| *upper <= median)
        .map(|(_, count)| count)
        .sum();
    let tooltip = format!(
        "{}: median {}, mean {}",
        subject.name,
        grouped(median),
        measured(events.mean())
    );
    vec![
        ChartMark::Line {
            points,
            style: subject.style,
            class: "",
            tooltip: subject.name.clone(),
        },
        ChartMark::Points {
            points: vec![Point {
                at: (median.max(1) as f64, at_median as f64 / events.count as f64),
                interval: None,
                tooltip,
            }],
            style: subject.style,
        },
    ]
}

fn described(subjects: &[&Subject]) -> String {
    let one = |subject: &&Subject| {
        let events = events(subject)?;
        Some(format!(
            "{}: median {}, mean {}, most {}.",
            subject.name,
            grouped(events.quantile(0.5)),
            measured(events.mean()),
            grouped(events.max)
        ))
    };
    subjects
        .iter()
        .filter_map(one)
        .collect::<Vec<_>>()
        .join(" ")
}

fn numbers(subjects: &[&Subject]) -> Table {
    let mut table = Table::new(&["run", "wakeups", "median", "mean", "p95", "p99", "most"]);
    for subject in subjects {
        let Some(events) = events(subject) else {
            continue;
        };
        table.rows.push(vec![
            escaped(&subject.name),
            grouped(events.count),
            grouped(events.quantile(0.5)),
            measured(events.mean()),
            grouped(events.quantile(0.95)),
            grouped(events.quantile(0.99)),
            grouped(events.max),
        ]);
    }
    table
}
