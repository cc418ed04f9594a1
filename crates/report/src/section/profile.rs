//! Latency by relative load, the form of Figure 3.4: 5th percentile, mean, median, 95th percentile.

use headway_latency::analysis::{Analysis, Distribution};

use super::{Section, heading, latency_axis, listed, load_axis, time_us};
use crate::chart::{Chart, ChartMark, LineStyle, Point, Size};
use crate::figure::{Drawing, Figure, Table};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::measured;

/// Name, value, dash and shape of a curve.
type StatisticCurve = (&'static str, fn(&Distribution) -> f64, usize, usize);

const CURVES: [StatisticCurve; 4] = [
    ("p95", |d| d.p95_us, 0, 2),
    ("mean", |d| d.mean_us, 1, 3),
    ("median", |d| d.p50_us, 0, 0),
    ("p5", |d| d.p5_us, 2, 4),
];

/// A load with what its repetitions gave: middle, smallest, largest.
pub(crate) struct Level {
    pub at: f64,
    pub middle: f64,
    pub low: f64,
    pub high: f64,
    pub repeats: usize,
}

/// The section; `None` without a profile.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let shown: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| !subject.loads().is_empty())
        .collect();
    if shown.is_empty() {
        return None;
    }
    let lead = "How latency grows with the offered load.";
    Section::of(
        "profile",
        "Latency profile",
        lead.into(),
        vec![Some(figure(&shown))],
    )
}

fn figure(subjects: &[&Subject]) -> Figure {
    let all = subjects
        .iter()
        .flat_map(|subject| CURVES.iter().flat_map(|curve| levels(subject, curve.1)));
    let all: Vec<f64> = all.flat_map(|level| [level.low, level.high]).collect();
    let most = subjects
        .iter()
        .flat_map(|subject| subject.loads())
        .map(|(load, _)| load)
        .fold(0.0, f64::max);
    let draw =
        |subject: &&Subject, size: Size, class: &str| chart(subject, size, &all, most).svg(class);
    let mut caption = vec![
        "Each server gets shares of the rate that its heading calls 1.0, which is its capacity \
         unless the heading tooltip otherwise. Time runs from the intended start of a request to its \
         last byte. The band contains nine tenths of all requests."
            .to_owned(),
        "A flat median under a rising mean means that a few requests wait very long. If the 5th \
         percentile rises too, even the fastest requests wait in a queue."
            .to_owned(),
    ];
    let those = |which: fn(&Subject) -> bool| -> Vec<&str> {
        let found = subjects.iter().filter(|subject| which(subject));
        found.map(|subject| subject.name.as_str()).collect()
    };
    let bound = those(|subject| subject.client_bound().is_some());
    if !bound.is_empty() {
        caption.push(format!(
            "The client was the bottleneck for {}: load 1 is the rate that the client can offer, \
             and the server can answer more.",
            listed(&bound)
        ));
    }
    let named = those(Subject::capacity_is_named);
    if !named.is_empty() {
        caption.push(format!(
            "The rate of load 1 was given for {}, not measured, so it is not the capacity of the \
             server.",
            listed(&named)
        ));
    }
    Figure {
        id: "profile",
        title: "Response time by relative load".into(),
        caption,
        source: "The form of Figure 3.4 (dissertation). The latency axis is logarithmic.",
        drawing: Drawing::each(
            String::new(),
            subjects,
            |subject| heading(subject, &capacity(subject)),
            draw,
        ),
        numbers: Some(numbers(subjects)),
    }
}

fn capacity(subject: &Subject) -> String {
    let capacity = subject
        .description
        .profile
        .as_ref()
        .and_then(|profile| profile.capacity_rps);
    let bound = match subject.client_bound() {
        Some(_) => ", the client's limit",
        None if subject.capacity_is_named() => ", given",
        None => "",
    };
    capacity.map_or(String::new(), |rate| {
        format!("1.0 = {}/s{bound}", measured(rate))
    })
}

fn chart(subject: &Subject, size: Size, all: &[f64], most: f64) -> Chart {
    let mut marks = Vec::new();
    let (low, high) = (levels(subject, CURVES[3].1), levels(subject, CURVES[0].1));
    let edges = low
        .iter()
        .zip(&high)
        .map(|(low, high)| (low.at, low.middle, high.middle))
        .collect();
    marks.push(ChartMark::Band {
        edges,
        style: subject.style,
    });
    for (name, value, dash, shape) in CURVES {
        let style = subject.style.with(dash, shape);
        marks.extend(curve(&levels(subject, value), style, name, time_us));
    }
    Chart {
        size,
        title: format!("Latency profile of {}", subject.name),
        description: described(subject),
        x: load_axis(most),
        y: latency_axis("response time", all.iter().copied()),
        marks,
        left_min: 50.0,
    }
}

/// A curve over loads: line, points with the span of their repetitions, its name at its end.
pub(crate) fn curve(
    levels: &[Level],
    style: LineStyle,
    name: &str,
    format: fn(f64) -> String,
) -> Vec<ChartMark> {
    let points = levels.iter().map(|level| Point {
        at: (level.at, level.middle),
        interval: (level.repeats > 1).then_some((level.low, level.high)),
        tooltip: format!("{name} at {:.2}: {}", level.at, format(level.middle)),
    });
    let line = ChartMark::Line {
        points: levels
            .iter()
            .map(|level| (level.at, level.middle))
            .collect(),
        style,
        class: "",
        tooltip: name.into(),
    };
    let end = levels.last().map(|level| ChartMark::EndLabel {
        at: (level.at, level.middle),
        label: name.into(),
        style,
    });
    let points = ChartMark::Points {
        points: points.collect(),
        style,
    };
    [line, points].into_iter().chain(end).collect()
}

/// One figure of the response time over the loads of a profile.
fn levels(subject: &Subject, value: fn(&Distribution) -> f64) -> Vec<Level> {
    levels_of(subject, |analysis| analysis.response.as_ref().map(value))
}

/// Any figure over the loads of a profile; loads without it are left out.
pub(crate) fn levels_of(subject: &Subject, value: impl Fn(&Analysis) -> Option<f64>) -> Vec<Level> {
    let loads = subject.loads().into_iter();
    let level = |(at, repeats): (f64, Vec<&Analysis>)| {
        let mut values: Vec<f64> = repeats
            .into_iter()
            .filter_map(&value)
            .filter(|v| v.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        Some(Level {
            at,
            middle: *values.get(values.len().saturating_sub(1) / 2)?,
            low: *values.first()?,
            high: *values.last()?,
            repeats: values.len(),
        })
    };
    loads.filter_map(level).collect()
}

fn described(subject: &Subject) -> String {
    let ends = |value| {
        let levels = levels(subject, value);
        match (levels.first(), levels.last()) {
            (Some(first), Some(last)) => {
                format!("from {} to {}", time_us(first.middle), time_us(last.middle))
            }
            _ => "not measured".into(),
        }
    };
    let sentences: Vec<String> = CURVES
        .iter()
        .map(|(name, value, ..)| format!("{name} {}", ends(*value)))
        .collect();
    let loads = subject.loads();
    let span = loads
        .first()
        .zip(loads.last())
        .map_or(String::new(), |(first, last)| {
            format!("From relative load {:.2} to {:.2}: ", first.0, last.0)
        });
    format!("{span}{}.", sentences.join("; "))
}

fn numbers(subjects: &[&Subject]) -> Table {
    let mut table = Table::new(&[
        "run", "load", "repeats", "p5", "median", "mean", "p95", "p99",
    ]);
    for subject in subjects {
        for (load, repeats) in subject.loads() {
            let value = |value: fn(&Distribution) -> f64| {
                let level = levels(subject, value)
                    .into_iter()
                    .find(|level| crate::subject::same_load(level.at, load));
                level.map_or(crate::units::NONE.into(), |level| time_us(level.middle))
            };
            table.rows.push(vec![
                escaped(&subject.name),
                format!("{load:.2}"),
                repeats.len().to_string(),
                value(|d| d.p5_us),
                value(|d| d.p50_us),
                value(|d| d.mean_us),
                value(|d| d.p95_us),
                value(|d| d.p99_us),
            ]);
        }
    }
    table
}
