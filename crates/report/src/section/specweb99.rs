//! A SPECweb99-like run: how many connections conform, what each received, and how long each kind
//! of request took.
//!
//! Everything is in `run.json` already, judged by `latency`; nothing is counted here.

use headway_latency::specweb99::{Iteration, KindFigures, SpecWeb99Info, Times};

use super::{Section, heading, legend_of, time_us};
use crate::chart::{Axis, Chart, ChartMark, Scale, Size};
use crate::figure::{Drawing, Figure, Table};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{NONE, bit_rate, counted, grouped, measured, percent, plain};

/// The section; `None` if no run is of this kind.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let shown: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| shown(subject).is_some())
        .collect();
    if shown.is_empty() {
        return None;
    }
    let mut parts = vec![
        conformance(&shown).html("Conformance"),
        rates(&shown).html(),
    ];
    for (title, of) in TABLES {
        for subject in &shown {
            let (heading, table) = (heading(subject, title), kinds(subject, *of).html(title));
            parts.push(format!(
                "<div class=\"panel\"><h3>{heading}</h3>{table}</div>"
            ));
        }
    }
    Some(Section {
        id: "specweb99",
        title: "SPECweb99-like score",
        lead: introduction(&shown),
        parts,
    })
}

type Of = fn(&KindFigures) -> Option<Times>;

const TABLES: &[(&str, Of)] = &[
    ("to the first byte, by kind of request", |kind| {
        kind.first_byte
    }),
    ("response time, by kind of request", |kind| kind.response),
];

/// The run's rules and score, and the iteration that stands for it.
fn shown(subject: &Subject) -> Option<(&SpecWeb99Info, &Iteration)> {
    let chosen = || subject.chosen()?.description.specweb99.as_ref();
    let info = subject.description.specweb99.as_ref().or_else(chosen)?;
    let iteration = info.median().or(info.iterations.first())?;
    Some((info, iteration))
}

fn introduction(subjects: &[&Subject]) -> String {
    let one = |subject: &&Subject| {
        let (info, iteration) = shown(subject)?;
        let score = info.score.unwrap_or(iteration.conforming);
        let held = match info.held {
            Some(true) => "the load is held",
            Some(false) => "the load is not held",
            None => "a single iteration",
        };
        let of = counted(info.connections, "connection");
        Some(format!(
            "{}: {} of {of} conform, {held}.",
            subject.name,
            grouped(score)
        ))
    };
    let sentences: Vec<String> = subjects.iter().filter_map(one).collect();
    format!(
        "{} A connection conforms if it receives at least 320 of its 400 kbit/s, with fewer than \
         1 % errors. This is not a SPEC result: only the published rules are known.",
        sentences.join(" ")
    )
}

fn conformance(subjects: &[&Subject]) -> Table {
    let mut table = Table::new(&[
        "run, iteration",
        "connections",
        "conform",
        "share",
        "mean rate",
        "least rate",
        "requests/s",
        "errors",
        "log of posts",
    ]);
    for subject in subjects {
        let Some((info, _)) = shown(subject) else {
            continue;
        };
        for (index, one) in info.iterations.iter().enumerate() {
            table.rows.push(vec![
                format!("{}, {}", escaped(&subject.name), index + 1),
                grouped(one.connections),
                grouped(one.conforming),
                percent(one.conforming_share()),
                bit_rate(one.rate_mean_bits_per_s()),
                bit_rate(one.rate_least_bits_per_s() as f64),
                measured(one.rate_rps),
                grouped(one.errors),
                escaped(&log(info)),
            ]);
        }
    }
    table
}

fn log(info: &SpecWeb99Info) -> String {
    match &info.log {
        None => NONE.into(),
        Some(log) if log.fault.is_some() => "cannot be believed".into(),
        Some(log) if log.is_right() => format!("{}, in order", counted(log.records, "record")),
        Some(log) => format!(
            "{}: {} missing, {} out of order, {} unknown",
            counted(log.records, "record"),
            grouped(log.missing),
            grouped(log.out_of_order),
            grouped(log.unknown)
        ),
    }
}

/// What each connection received, the slowest first.
fn rates(subjects: &[&Subject]) -> Figure {
    let most = subjects.iter().filter_map(|subject| shown(subject));
    let most = most
        .map(|(info, _)| info.rate_max_bits_per_s as f64)
        .fold(400_000.0, f64::max);
    let least = subjects.iter().filter_map(|subject| shown(subject));
    let least = least
        .map(|(info, _)| info.rate_min_bits_per_s)
        .fold(0.0, f64::max);
    let draw = |size: Size| Chart {
        size,
        title: "What each connection received".into(),
        description: introduction(subjects),
        x: Axis {
            scale: Scale::Linear {
                low: 0.0,
                high: 1.0,
            },
            title: "share of the connections, the slowest first".into(),
            format: percent,
        },
        y: Axis {
            scale: Scale::from_zero(most),
            title: "bits per second".into(),
            format: plain,
        },
        marks: subjects
            .iter()
            .filter_map(|subject| line(subject))
            .chain([ChartMark::Level {
                y: least,
                label: "conforms from here".into(),
            }])
            .collect(),
        left_min: 56.0,
    };
    Figure {
        id: "specweb99-rates",
        title: "What each connection received".into(),
        caption: vec![
            "Bodies of correct and complete responses over the measured time, in the iteration with \
             the median score. A connection carries at most 400 kbit/s; waiting for the server, \
             connecting and errors reduce it."
                .into(),
        ],
        source: "The measure behind Figure 2.8 and Table 2.9 (dissertation).",
        drawing: Drawing::one(legend_of(subjects), draw),
        numbers: Some(numbers(subjects)),
    }
}

fn sorted(iteration: &Iteration) -> Vec<u64> {
    let mut rates = iteration.rates_bits_per_s.clone();
    rates.sort_unstable();
    rates
}

fn line(subject: &Subject) -> Option<ChartMark> {
    let (_, iteration) = shown(subject)?;
    let rates = sorted(iteration);
    let count = rates.len().max(1) as f64;
    let mut points: Vec<(f64, f64)> = Vec::with_capacity(rates.len() + 1);
    points.extend(
        rates
            .iter()
            .enumerate()
            .map(|(index, &rate)| (index as f64 / count, rate as f64)),
    );
    points.extend(rates.last().map(|&rate| (1.0, rate as f64)));
    Some(ChartMark::Line {
        points,
        style: subject.style,
        class: "",
        tooltip: subject.name.clone(),
    })
}

fn numbers(subjects: &[&Subject]) -> Table {
    let mut table = Table::new(&["run", "least", "5 %", "50 %", "95 %", "most"]);
    for subject in subjects {
        let Some((_, iteration)) = shown(subject) else {
            continue;
        };
        let rates = sorted(iteration);
        let at = |share: f64| {
            let index = (share * rates.len().saturating_sub(1) as f64).round() as usize;
            rates
                .get(index)
                .map_or(NONE.into(), |&rate| bit_rate(rate as f64))
        };
        let mut row = vec![escaped(&subject.name)];
        row.extend([0.0, 0.05, 0.5, 0.95, 1.0].map(at));
        table.rows.push(row);
    }
    table
}

/// A table in the form of the dissertation's Table 2.6.
fn kinds(subject: &Subject, of: Of) -> Table {
    let mut table = Table::new(&["kind", "requests", "errors", "5 %", "50 %", "95 %", "mean"]);
    for kind in shown(subject)
        .iter()
        .flat_map(|(_, iteration)| &iteration.kinds)
    {
        let mut row = vec![
            escaped(&kind.kind),
            grouped(kind.requests),
            grouped(kind.errors),
        ];
        match of(kind) {
            Some(times) => {
                let times = [times.p5_us, times.p50_us, times.p95_us, times.mean_us];
                row.extend(times.map(time_us));
            }
            None => row.extend([NONE; 4].map(String::from)),
        }
        table.rows.push(row);
    }
    table
}
