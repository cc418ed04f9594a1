//! How latencies are distributed: cumulative curves of all runs, their tails, each profile by load,
//! and the response time beside the service time, whose difference is the waiting that a closed
//! loop would hide.

use headway_latency::analysis::{Analysis, CdfPoint, Distribution};

use super::{Section, heading, latency_axis, legend_of, load_text, time_us};
use crate::chart::{Axis, Chart, ChartMark, LineStyle, Point, Scale, Size};
use crate::figure::{Drawing, Figure, Table, legend};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{NONE, percent, tick};

/// The section; `None` if no run has a latency.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let shown: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| response(subject).is_some())
        .collect();
    if shown.is_empty() {
        return None;
    }
    let figures = vec![
        Some(body(&shown)),
        tail(&shown),
        by_load(&shown),
        response_and_service(&shown),
    ];
    Section::of(
        "distribution",
        "Distribution",
        introduction(&shown),
        figures,
    )
}

fn response(subject: &Subject) -> Option<&Distribution> {
    subject.analysis()?.response.as_ref()
}

fn introduction(subjects: &[&Subject]) -> String {
    let loads: Vec<f64> = subjects
        .iter()
        .filter_map(|subject| subject.relative())
        .collect();
    match loads.as_slice() {
        [] => "The share of the requests that was answered within a time.".into(),
        [first, rest @ ..]
            if rest
                .iter()
                .all(|load| crate::subject::same_load(*first, *load)) =>
        {
            format!(
                "Profiles are shown at relative load {first:.2}, the highest that all of them have."
            )
        }
        _ => "Profiles are shown at their highest load; they have none in common.".into(),
    }
}

const MARKED_PERCENTILES: [(f64, &str); 3] = [(0.5, "median"), (0.95, "p95"), (0.99, "p99")];

fn body(subjects: &[&Subject]) -> Figure {
    let all: Vec<&Distribution> = subjects
        .iter()
        .filter_map(|subject| response(subject))
        .collect();
    let share = Axis {
        scale: Scale::Linear {
            low: 0.0,
            high: 1.0,
        },
        title: "share of requests answered".into(),
        format: percent,
    };
    let draw = |size: Size| Chart {
        size,
        title: "Cumulative distribution of response time".into(),
        description: described(subjects),
        x: latency_axis(
            "response time, at most",
            all.iter().flat_map(|d| [d.min_us, slowest_us(d)]),
        ),
        y: share.clone(),
        marks: subjects
            .iter()
            .flat_map(|subject| cdf_marks(subject, &subject.name))
            .collect(),
        left_min: 56.0,
    };
    Figure {
        id: "cdf",
        title: "Response time of all runs".into(),
        caption: vec![
            "The curve shows which share of the requests was answered within a time. Further left \
             is faster. A steep curve is a steady server; a step is a group of requests that \
             waited for the same thing."
                .into(),
            "Points mark the median, the 95th and the 99th percentile. Failed requests count with \
             the time they took."
                .into(),
        ],
        source: "The form of Figures 3.6 and 3.7 (dissertation).",
        drawing: Drawing::one(legend_of(subjects), draw),
        numbers: Some(numbers(subjects)),
    }
}

fn cdf_marks(subject: &Subject, name: &str) -> Vec<ChartMark> {
    let Some(response) = response(subject) else {
        return Vec::new();
    };
    let marked = |(share, statistic): (f64, &str)| {
        let us = match statistic {
            "median" => response.p50_us,
            "p95" => response.p95_us,
            _ => response.p99_us,
        };
        Point {
            at: (us, share),
            interval: None,
            tooltip: format!("{name}: {statistic} {}", time_us(us)),
        }
    };
    let line = curve(response, subject.style, name);
    let points = ChartMark::Points {
        points: MARKED_PERCENTILES.map(marked).into(),
        style: subject.style,
    };
    vec![line, points]
}

fn curve(distribution: &Distribution, style: LineStyle, name: &str) -> ChartMark {
    let first = (distribution.min_us, 0.0);
    let points = distribution
        .cdf
        .iter()
        .map(|point| (point.latency_us, point.share));
    ChartMark::Line {
        points: [first].into_iter().chain(points).collect(),
        style,
        class: "",
        tooltip: name.into(),
    }
}

/// The slow end: each step of the axis is ten times rarer. `None` if no run has enough requests for
/// it.
fn tail(subjects: &[&Subject]) -> Option<Figure> {
    let most = subjects
        .iter()
        .filter_map(|subject| response(subject))
        .map(|d| d.requests)
        .max()?;
    if most < 100 {
        return None;
    }
    let nines = (most as f64).log10().min(6.0);
    let all: Vec<&Distribution> = subjects
        .iter()
        .filter_map(|subject| response(subject))
        .collect();
    let draw = |size: Size| Chart {
        size,
        title: "Response time by percentile".into(),
        description: described(subjects),
        x: Axis {
            scale: Scale::Tail { nines },
            title: "percentile, each step ten times rarer".into(),
            format: |share| tick(&format!("{:.4}", share * 100.0)),
        },
        y: latency_axis(
            "response time",
            all.iter()
                .flat_map(|d| [d.p5_us.max(d.min_us), slowest_us(d)]),
        ),
        marks: subjects
            .iter()
            .filter_map(|subject| tail_line(subject, nines))
            .flatten()
            .collect(),
        left_min: 56.0,
    };
    Some(Figure {
        id: "tail",
        title: "The slow end".into(),
        caption: vec![
            "The same requests by percentile: one request in a thousand takes longer than the \
             value at 99.9. A user who loads a page of a hundred parts usually meets the 99th \
             percentile."
                .into(),
            "A curve that turns upwards near the right end is a stall that affected few requests."
                .into(),
        ],
        source: "",
        drawing: Drawing::one(legend_of(subjects), draw),
        numbers: None,
    })
}

fn tail_line(subject: &Subject, nines: f64) -> Option<Vec<ChartMark>> {
    let response = response(subject)?;
    Some(vec![ChartMark::Line {
        points: tail_points(response, nines),
        style: subject.style,
        class: "",
        tooltip: format!(
            "{}: largest {}",
            subject.name,
            time_or_none(response.max_us)
        ),
    }])
}

/// A distribution by percentile, from the smallest to the largest latency.
fn tail_points(distribution: &Distribution, nines: f64) -> Vec<(f64, f64)> {
    // The largest of n requests stands for the percentile 1 - 1/n; no further is known.
    let known = 1.0 - 1.0 / distribution.requests.max(2) as f64;
    let end = known.min(1.0 - 10f64.powf(-nines));
    let inside = distribution.cdf.iter().filter(|point| point.share < end);
    let inside = inside.map(|point: &CdfPoint| (point.share, point.latency_us));
    let first = (0.0, distribution.min_us);
    [first]
        .into_iter()
        .chain(inside)
        .chain(distribution.max_us.map(|max_us| (end, max_us)))
        .collect()
}

/// The slowest latency that is known: requests without a latency may have been slower.
fn slowest_us(distribution: &Distribution) -> f64 {
    let last = || distribution.cdf.last().map(|point| point.latency_us);
    distribution.max_us.or_else(last).unwrap_or_default()
}

fn time_or_none(us: Option<f64>) -> String {
    us.map_or(NONE.into(), time_us)
}

/// Each profile's distribution at each of its loads.
fn by_load(subjects: &[&Subject]) -> Option<Figure> {
    let profiles: Vec<&Subject> = subjects
        .iter()
        .copied()
        .filter(|subject| subject.loads().len() > 1)
        .collect();
    let first = profiles.first()?;
    let loads = all_loads(&profiles);
    let labels: Vec<String> = loads.iter().map(|load| format!("load {load:.2}")).collect();
    let styles = (0..loads.len()).map(|index| LineStyle::of_load(index, loads.len()));
    let legend = legend(styles.zip(labels.iter().map(String::as_str)));
    let responses = profiles
        .iter()
        .flat_map(|subject| subject.loads())
        .flat_map(|(_, repeats)| repeats);
    let ends: Vec<f64> = responses
        .filter_map(|analysis| analysis.response.as_ref())
        .flat_map(|response| [response.min_us, slowest_us(response)])
        .collect();
    let draw = |subject: &&Subject, size: Size, class: &str| {
        let chart = Chart {
            size,
            title: format!("Cumulative distributions of {} by load", subject.name),
            description: format!("One curve for each of {} loads.", subject.loads().len()),
            x: latency_axis("response time, at most", ends.iter().copied()),
            y: Axis {
                scale: Scale::Linear {
                    low: 0.0,
                    high: 1.0,
                },
                title: "share of requests".into(),
                format: percent,
            },
            marks: load_curves(subject, &loads),
            left_min: 56.0,
        };
        chart.svg(class)
    };
    let title = match profiles.len() {
        1 => format!("{} at each load", first.name),
        _ => "Each server at each load".into(),
    };
    Some(Figure {
        id: "cdf-by-load",
        title,
        caption: vec![
            "One curve per load; darker is higher (brighter on a dark page). If the curves stay \
             together, the server treats most requests alike at any load; if they move to the \
             right, all requests wait. Only the first repetition is shown."
                .into(),
        ],
        source: "The form of Figures 3.6 and 3.7 (dissertation).",
        drawing: Drawing::each(legend, &profiles, |subject| heading(subject, ""), draw),
        numbers: None,
    })
}

fn all_loads(profiles: &[&Subject]) -> Vec<f64> {
    let mut loads: Vec<f64> = profiles
        .iter()
        .flat_map(|subject| subject.loads())
        .map(|(load, _)| load)
        .collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup_by(|a, b| crate::subject::same_load(*a, *b));
    loads
}

fn load_curves(subject: &Subject, loads: &[f64]) -> Vec<ChartMark> {
    let line = |(load, repeats): (f64, Vec<&Analysis>)| {
        let index = loads
            .iter()
            .position(|known| crate::subject::same_load(*known, load))?;
        let response = repeats.first()?.response.as_ref()?;
        let tooltip = format!("load {load:.2}: median {}", time_us(response.p50_us));
        Some(curve(
            response,
            LineStyle::of_load(index, loads.len()),
            &tooltip,
        ))
    };
    subject.loads().into_iter().filter_map(line).collect()
}

/// Response and service time of each run.
fn response_and_service(subjects: &[&Subject]) -> Option<Figure> {
    let both = |subject: &Subject| {
        let analysis = subject.analysis()?;
        Some((analysis.response.clone()?, analysis.service.clone()?))
    };
    let open: Vec<&Subject> = subjects
        .iter()
        .copied()
        .filter(|subject| {
            subject
                .analysis()
                .is_some_and(|analysis| analysis.offered_rps.is_some())
        })
        .collect();
    let pairs: Vec<_> = open.iter().filter_map(|subject| both(subject)).collect();
    if pairs.is_empty() {
        return None;
    }
    let ends: Vec<f64> = pairs
        .iter()
        .flat_map(|(r, s)| [s.min_us, slowest_us(r)])
        .collect();
    let draw = |subject: &&Subject, size: Size, class: &str| {
        let (response, service) = both(subject).unwrap_or_default();
        let nines = (response.requests.max(10) as f64).log10().min(6.0);
        apart_chart(subject, size, &ends, nines, &response, &service).svg(class)
    };
    Some(Figure {
        id: "apart",
        title: "Response time and service time".into(),
        caption: vec![
            "Response time (solid) runs from the intended start of a request, service time \
             (dotted) from its actual start. Where they differ, requests waited before the client \
             could send them. A load generator that measures only service time hides this wait \
             (coordinated omission)."
                .into(),
            "If the verdict is valid, the server caused the difference, not the client.".into(),
        ],
        source: "",
        drawing: Drawing::each(
            String::new(),
            &open,
            |subject| heading(subject, &load_text(subject)),
            draw,
        ),
        numbers: Some(apart_numbers(&open)),
    })
}

fn apart_chart(
    subject: &Subject,
    size: Size,
    ends: &[f64],
    nines: f64,
    response: &Distribution,
    service: &Distribution,
) -> Chart {
    let line = |distribution: &Distribution, style: LineStyle, name: &str| ChartMark::Line {
        points: tail_points(distribution, nines),
        style,
        class: "",
        tooltip: format!("{name}: p99 {}", time_us(distribution.p99_us)),
    };
    let dotted = subject.style.with(2, 0);
    let solid = subject.style.with(0, 0);
    let end = |distribution: &Distribution, name: &str, style: LineStyle| ChartMark::EndLabel {
        at: (1.0, slowest_us(distribution)),
        label: name.into(),
        style,
    };
    Chart {
        size,
        title: format!("Response and service time of {}", subject.name),
        description: format!(
            "99th percentile: response {}, service {}.",
            time_us(response.p99_us),
            time_us(service.p99_us)
        ),
        x: Axis {
            scale: Scale::Tail { nines },
            title: "percentile".into(),
            format: |share| tick(&format!("{:.4}", share * 100.0)),
        },
        y: latency_axis("time", ends.iter().copied()),
        marks: vec![
            line(service, dotted, "service time"),
            line(response, solid, "response time"),
            end(response, "response", solid),
            end(service, "service", dotted),
        ],
        left_min: 56.0,
    }
}

fn apart_numbers(subjects: &[&Subject]) -> Table {
    let mut table = Table::new(&["run", "time", "median", "p95", "p99", "p99.9", "largest"]);
    for subject in subjects {
        let Some(analysis) = subject.analysis() else {
            continue;
        };
        for (what, found) in [
            ("response", &analysis.response),
            ("service", &analysis.service),
        ] {
            let Some(d) = found else { continue };
            let usual = [d.p50_us, d.p95_us, d.p99_us].map(Some);
            let times = usual.into_iter().chain([d.p99_9_us, d.max_us]);
            let names = [escaped(&subject.name), what.into()];
            table
                .rows
                .push(names.into_iter().chain(times.map(time_or_none)).collect());
        }
    }
    table
}

fn described(subjects: &[&Subject]) -> String {
    let one = |subject: &&Subject| {
        let d = response(subject)?;
        let (p50, p99, max) = (time_us(d.p50_us), time_us(d.p99_us), time_or_none(d.max_us));
        Some(format!(
            "{}: median {p50}, 99th percentile {p99}, largest {max}.",
            subject.name
        ))
    };
    subjects
        .iter()
        .filter_map(one)
        .collect::<Vec<_>>()
        .join(" ")
}

fn numbers(subjects: &[&Subject]) -> Table {
    let head = [
        "run", "smallest", "p5", "p25", "median", "p75", "p90", "p95", "p99", "p99.9", "p99.99",
        "largest",
    ];
    let mut table = Table::new(&head);
    for subject in subjects {
        let Some(d) = response(subject) else { continue };
        let times = [
            d.min_us, d.p5_us, d.p25_us, d.p50_us, d.p75_us, d.p90_us, d.p95_us, d.p99_us,
        ];
        let slow = [d.p99_9_us, d.p99_99_us, d.max_us];
        let row = [escaped(&subject.name)]
            .into_iter()
            .chain(times.map(time_us))
            .chain(slow.map(time_or_none));
        table.rows.push(row.collect());
    }
    table
}
