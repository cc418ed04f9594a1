//! Whether the runs differ, and by how much, or whether chance could have made the difference.
//!
//! Each run is compared with the first one that was named, at the load that stands for it. The
//! judgement is `latency`'s: an interval that holds 0 is *no evidence of a difference*, which is
//! not evidence of none.

use headway_latency::compare::{Difference, Evidence, compare};

use super::{Section, listed, load_text, time_us};
use crate::chart::{Axis, Chart, ChartMark, LineStyle, Point, Scale, Size};
use crate::figure::{Drawing, Figure, Table, legend};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{NONE, percent};

/// One run against the first.
struct Pair<'a> {
    subject: &'a Subject,
    differences: Vec<Difference>,
}

/// The section; `None` with fewer than two runs that have figures.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let mut shown = subjects
        .iter()
        .filter(|subject| subject.analysis().is_some_and(|a| a.response.is_some()));
    let first = shown.next()?;
    let pairs: Vec<Pair> = shown
        .filter_map(|subject| {
            let differences = compare(first.analysis()?, subject.analysis()?).ok()?;
            Some(Pair {
                subject,
                differences,
            })
        })
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let name_and_load = |subject: &Subject| format!("{} ({})", subject.name, load_text(subject));
    let names: Vec<String> = pairs
        .iter()
        .map(|pair| name_and_load(pair.subject))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let lead = format!("{} against {}.", listed(&names), name_and_load(first));
    Section::of(
        "comparison",
        "Comparison",
        lead,
        vec![Some(figure(first, &pairs))],
    )
}

fn figure(first: &Subject, pairs: &[Pair]) -> Figure {
    Figure {
        id: "comparison",
        title: format!("Response time against {}", first.name),
        caption: [
            "The figure of each run divided by that of the first run: left of 1 is faster, right \
             of it slower. The bar is the 95 % confidence interval of the difference."
                .into(),
            "A bar that crosses 1 means no evidence of a difference, not evidence that there is \
             none. The intervals cover the variation within the runs; only repetitions show the \
             variation between runs."
                .into(),
        ]
        .into_iter()
        .chain(pairs.iter().map(verdict))
        .collect(),
        source: "",
        drawing: drawing(first, pairs),
        numbers: Some(numbers(first, pairs)),
    }
}

/// What the intervals of one run show, figure by figure, as text.
fn verdict(pair: &Pair) -> String {
    let by = |wanted: Evidence| -> Vec<&str> {
        let found = pair
            .differences
            .iter()
            .filter(|difference| difference.evidence == wanted);
        found.map(|difference| difference.figure.as_str()).collect()
    };
    let parts = [
        (by(Evidence::Lower), "lower"),
        (by(Evidence::Higher), "higher"),
        (by(Evidence::None), "no evidence of a difference"),
        (by(Evidence::TooFew), "too few requests to say"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(figures, _)| !figures.is_empty())
        .map(|(figures, finding)| format!("{finding} in {}", listed(figures)))
        .collect();
    format!("{}: {}.", pair.subject.name, parts.join("; "))
}

/// Rows of dots with bars on a ratio axis: one row a figure, the runs below one another in it.
fn drawing(first: &Subject, pairs: &[Pair]) -> Drawing {
    let ratios = pairs
        .iter()
        .flat_map(|pair| &pair.differences)
        .flat_map(|difference| {
            let interval = interval(difference).unwrap_or((ratio(difference), ratio(difference)));
            [interval.0, interval.1, ratio(difference)]
        });
    // The axis always holds 1, and enough around it that a small difference looks small.
    let (low, high) = ratios
        .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        .fold((0.8, 1.25), |(low, high): (f64, f64), ratio| {
            (low.min(ratio), high.max(ratio))
        });
    let scale = Scale::Log {
        low: low.max(1e-4) / 1.15,
        high: high.min(1e6) * 1.15,
    };
    let legend = legend(
        pairs
            .iter()
            .map(|pair| (pair.subject.style, pair.subject.name.as_str())),
    );
    let rows = pairs.first().map_or(0, |pair| pair.differences.len());
    let draw = |size: Size| Chart {
        size: size.with_height(70.0 + rows as f64 * (26.0 + 16.0 * pairs.len() as f64)),
        title: format!(
            "Response time of the other runs as multiples of {}",
            first.name
        ),
        description: pairs.iter().map(verdict).collect::<Vec<_>>().join(" "),
        x: Axis {
            scale,
            title: format!("times {}", crate::html::shortened(&first.name, 30)),
            format: times,
        },
        y: Axis {
            scale: Scale::Rows { rows },
            title: String::new(),
            format: |row| {
                ["mean", "p50", "p95", "p99"]
                    .get(row as usize)
                    .map_or(String::new(), |&name| name.into())
            },
        },
        marks: marks(pairs, rows),
        left_min: 50.0,
    };
    Drawing::one(legend, draw)
}

fn times(ratio: f64) -> String {
    crate::units::tick(&match ratio {
        r if r >= 100.0 => format!("{r:.0}×"),
        r if r >= 0.1 => format!("{r:.2}×"),
        r => format!("{r:.4}×"),
    })
}

fn marks(pairs: &[Pair], rows: usize) -> Vec<ChartMark> {
    let mut marks = vec![ChartMark::Guide {
        from: (1.0, -0.5),
        to: (1.0, rows as f64 - 0.5),
    }];
    for (index, pair) in pairs.iter().enumerate() {
        // Runs share a row's middle six tenths.
        let offset = (index as f64 + 0.5) / pairs.len() as f64 * 0.6 - 0.3;
        let style = pair.subject.style;
        let mut points = Vec::new();
        for (row, difference) in pair.differences.iter().enumerate() {
            let y = row as f64 + offset;
            if let Some((low, high)) = interval(difference) {
                marks.push(ChartMark::Line {
                    points: vec![(low, y), (high, y)],
                    style: LineStyle { dash: 0, ..style },
                    class: "strong",
                    tooltip: tooltip(pair, difference),
                });
            }
            points.push(Point {
                at: (ratio(difference), y),
                interval: None,
                tooltip: tooltip(pair, difference),
            });
        }
        marks.push(ChartMark::Points { points, style });
    }
    marks
}

fn tooltip(pair: &Pair, difference: &Difference) -> String {
    format!(
        "{}, {}: {}",
        pair.subject.name,
        difference.figure,
        difference_text(difference)
    )
}

fn ratio(difference: &Difference) -> f64 {
    difference.second_us / difference.first_us
}

/// The interval of the difference as multiples of the first run's figure.
fn interval(difference: &Difference) -> Option<(f64, f64)> {
    let interval = difference.interval_us?;
    let of = |us: f64| ((difference.first_us + us) / difference.first_us).max(1e-4);
    Some((of(interval.low), of(interval.high)))
}

fn difference_text(difference: &Difference) -> String {
    let change = percent((ratio(difference) - 1.0).abs());
    match difference.evidence {
        Evidence::Lower => format!("lower by {change}"),
        Evidence::Higher if ratio(difference) >= 3.0 => {
            format!("{:.1} times as high", ratio(difference))
        }
        Evidence::Higher => format!("higher by {change}"),
        Evidence::None => "no evidence of a difference".into(),
        Evidence::TooFew => "too few requests to say".into(),
    }
}

fn numbers(first: &Subject, pairs: &[Pair]) -> Table {
    let mut table = Table::new(&[
        "run",
        "figure",
        &first.name,
        "this run",
        "difference",
        "95 % interval",
        "that is",
    ]);
    for pair in pairs {
        for difference in &pair.differences {
            let signed =
                |us: f64| format!("{}{}", if us < 0.0 { "−" } else { "+" }, time_us(us.abs()));
            let interval = difference.interval_us.map_or(NONE.into(), |interval| {
                format!("{} to {}", signed(interval.low), signed(interval.high))
            });
            table.rows.push(vec![
                escaped(&pair.subject.name),
                escaped(&difference.figure),
                time_us(difference.first_us),
                time_us(difference.second_us),
                signed(difference.difference_us),
                interval,
                escaped(&difference_text(difference)),
            ]);
        }
    }
    table
}
