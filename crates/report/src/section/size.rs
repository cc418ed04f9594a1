//! Latency by size of the response, both logarithmic.

use headway_latency::analysis::{Latency, SizeGroup};

use super::{Section, latency_axis, legend_of, time_us};
use crate::chart::{Axis, Chart, ChartMark, Point, Scale, Size};
use crate::figure::{Drawing, Figure, Panel, Table};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{bytes, grouped};

/// Groups of fewer requests say little about their 95th percentile.
const GROUP_MIN: u64 = 20;

type Value = fn(&Latency) -> f64;

/// The section; `None` unless some run has responses of several sizes.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let shown: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| groups(subject).len() > 1)
        .collect();
    if shown.is_empty() {
        return None;
    }
    let lead = "The cost of a response itself, and the cost of waiting for others.";
    Section::of(
        "size",
        "Latency by size",
        lead.into(),
        vec![Some(figure(&shown))],
    )
}

fn groups(subject: &Subject) -> &[SizeGroup] {
    subject
        .analysis()
        .map_or(&[], |analysis| analysis.by_size.as_slice())
}

fn middle(group: &SizeGroup) -> f64 {
    (group.low_bytes.max(1) as f64 * group.high_bytes.max(1) as f64).sqrt()
}

fn figure(subjects: &[&Subject]) -> Figure {
    let all = subjects.iter().flat_map(|subject| groups(subject));
    let times: Vec<f64> = all
        .clone()
        .flat_map(|group| [group.latency.p50_us, group.latency.p95_us])
        .collect();
    let sizes: Vec<f64> = all.map(middle).collect();
    let panel = |heading: &str, value: Value| Panel {
        heading: format!("<span>{heading}</span>"),
        drawing: chart(subjects, heading, value, &times, &sizes).svg(""),
    };
    Figure {
        id: "size",
        title: "Response time by size of the response".into(),
        caption: vec![
            "Each point is a group of sizes. A line that is flat on the left and rises on the \
             right shows the cost of a request, then the cost of its bytes. If the 95th \
             percentile is flat throughout, small responses wait as long as large ones."
                .into(),
        ],
        source: "",
        drawing: Drawing::Panels(
            legend_of(subjects),
            vec![
                panel("Median", |l| l.p50_us),
                panel("95th percentile", |l| l.p95_us),
            ],
        ),
        numbers: Some(numbers(subjects)),
    }
}

fn chart(
    subjects: &[&Subject],
    heading: &str,
    value: Value,
    times: &[f64],
    sizes: &[f64],
) -> Chart {
    let mut marks = Vec::new();
    for subject in subjects {
        let usable: Vec<&SizeGroup> = groups(subject)
            .iter()
            .filter(|group| group.requests >= GROUP_MIN)
            .collect();
        marks.push(ChartMark::Line {
            points: usable
                .iter()
                .map(|group| (middle(group), value(&group.latency)))
                .collect(),
            style: subject.style,
            class: "thin",
            tooltip: subject.name.clone(),
        });
        // Many points would hide the line and one another; one in a few tells the runs apart.
        let every = usable.len().div_ceil(14).max(1);
        let point = |group: &&&SizeGroup| Point {
            at: (middle(group), value(&group.latency)),
            interval: None,
            tooltip: format!(
                "{}, {}: {} ({} responses)",
                subject.name,
                range(group),
                time_us(value(&group.latency)),
                grouped(group.requests)
            ),
        };
        marks.push(ChartMark::Points {
            points: usable
                .iter()
                .step_by(every)
                .map(|group| point(&group))
                .collect(),
            style: subject.style,
        });
    }
    Chart {
        size: Size::NARROW,
        title: format!("{heading} of response time by size"),
        description: described(subjects, value),
        x: Axis {
            scale: Scale::log_around(sizes.iter().copied()),
            title: "size of the response".into(),
            format: bytes,
        },
        y: latency_axis("response time", times.iter().copied()),
        marks,
        left_min: 50.0,
    }
}

fn range(group: &SizeGroup) -> String {
    let (low, high) = (
        bytes(group.low_bytes as f64),
        bytes(group.high_bytes as f64),
    );
    if low == high {
        low
    } else {
        format!("{low} to {high}")
    }
}

fn described(subjects: &[&Subject], value: Value) -> String {
    let one = |subject: &&Subject| {
        let (first, last) = groups(subject).first().zip(groups(subject).last())?;
        Some(format!(
            "{}: {} for {}, {} for {}.",
            subject.name,
            time_us(value(&first.latency)),
            range(first),
            time_us(value(&last.latency)),
            range(last)
        ))
    };
    subjects
        .iter()
        .filter_map(one)
        .collect::<Vec<_>>()
        .join(" ")
}

fn numbers(subjects: &[&Subject]) -> Table {
    let mut table = Table::new(&["run", "size", "responses", "mean", "median", "p95", "p99"]);
    for subject in subjects {
        for group in groups(subject) {
            let latency = &group.latency;
            let times = [
                latency.mean_us,
                latency.p50_us,
                latency.p95_us,
                latency.p99_us,
            ]
            .map(time_us);
            let names = [
                escaped(&subject.name),
                range(group),
                grouped(group.requests),
            ];
            table.rows.push(names.into_iter().chain(times).collect());
        }
    }
    table
}
