//! What comes out when more goes in: throughput, errors and latency by offered load, the overload
//! curve.
//!
//! The points of a profile make a curve; so do several open-loop runs of one label, measured at
//! different rates.

use headway_latency::Analysis;

use super::{Section, latency_axis, time_us};
use crate::chart::{Axis, Chart, ChartMark, LineStyle, Point, Scale, Size};
use crate::figure::{Drawing, Figure, Panel, Table, legend};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{measured, percent, plain};

/// Measurements of one server at several offered rates, ascending.
struct ServerCurve<'a> {
    name: &'a str,
    style: LineStyle,
    points: Vec<(f64, &'a Analysis)>,
}

/// The section; `None` without an open-loop run.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let curves = curves(subjects);
    if !curves.iter().any(|curve| curve.points.len() > 1) {
        return None;
    }
    let lead = "Absolute figures: the offered load, and what each server answered.";
    Section::of(
        "overload",
        "Throughput and errors",
        lead.into(),
        vec![Some(figure(&curves))],
    )
}

fn curves(subjects: &[Subject]) -> Vec<ServerCurve<'_>> {
    let mut curves: Vec<ServerCurve> = Vec::new();
    for subject in subjects {
        let analyses = subject
            .measurements
            .iter()
            .filter_map(|one| one.analysis.as_ref());
        let points: Vec<_> = analyses
            .filter_map(|analysis| Some((analysis.offered_rps?, analysis)))
            .collect();
        if points.is_empty() {
            continue;
        }
        let kin = curves
            .iter_mut()
            .find(|curve| !subject.is_profile() && curve.name == subject.label);
        match kin {
            Some(curve) => curve.points.extend(points),
            None => curves.push(ServerCurve {
                name: if subject.is_profile() {
                    &subject.name
                } else {
                    &subject.label
                },
                style: subject.style,
                points,
            }),
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    curves
}

fn figure(curves: &[ServerCurve]) -> Figure {
    let most = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|(rate, _)| *rate)
        .fold(0.0, f64::max);
    let size = Size::NARROW;
    let panels = [
        ("Responses", rate_chart(curves, most, size)),
        ("Errors", error_chart(curves, most, size)),
        ("99th percentile", latency_chart(curves, most, size)),
    ];
    let panel = |(heading, chart): (&str, Chart)| Panel {
        heading: format!("<span>{heading}</span>"),
        drawing: chart.svg(""),
    };
    Figure {
        id: "overload",
        title: "Responses, errors and latency by offered load".into(),
        caption: vec![
            "First: complete responses per second. On the dotted diagonal all offered requests are \
             answered; where a curve leaves it, the server is saturated. If a curve falls after \
             its maximum, the server spends time on requests that fail."
                .into(),
            "Second: the share of requests that failed. Third: the 99th percentile of response \
             time."
                .into(),
        ],
        source: "The form of the overload curves of Brecht and Ostrowski (2001), section 5.",
        drawing: Drawing::Panels(
            legend(curves.iter().map(|curve| (curve.style, curve.name))),
            panels.into_iter().map(panel).collect(),
        ),
        numbers: Some(numbers(curves)),
    }
}

fn offered_axis(most: f64) -> Axis {
    Axis {
        scale: Scale::from_zero(most),
        title: "offered, requests/s".into(),
        format: plain,
    }
}

fn lines(
    curves: &[ServerCurve],
    value: impl Fn(&Analysis) -> Option<f64>,
    format: fn(f64) -> String,
) -> Vec<ChartMark> {
    let mut marks = Vec::new();
    for curve in curves {
        let placed: Vec<(f64, f64)> = curve
            .points
            .iter()
            .filter_map(|(rate, analysis)| Some((*rate, value(analysis)?)))
            .collect();
        let point = |&(rate, value): &(f64, f64)| Point {
            at: (rate, value),
            interval: None,
            tooltip: format!("{} at {}/s: {}", curve.name, measured(rate), format(value)),
        };
        marks.push(ChartMark::Line {
            points: placed.clone(),
            style: curve.style,
            class: "",
            tooltip: curve.name.into(),
        });
        marks.push(ChartMark::Points {
            points: placed.iter().map(point).collect(),
            style: curve.style,
        });
    }
    marks
}

fn rate_chart(curves: &[ServerCurve], most: f64, size: Size) -> Chart {
    let best = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|(_, a)| a.achieved_rps)
        .fold(0.0, f64::max);
    let top = best.max(most);
    let mut marks = vec![ChartMark::Guide {
        from: (0.0, 0.0),
        to: (most, most),
    }];
    marks.extend(lines(
        curves,
        |analysis| Some(analysis.achieved_rps),
        |v| format!("{}/s", measured(v)),
    ));
    Chart {
        size,
        title: "Complete responses by offered load".into(),
        description: described(curves, |a| format!("{}/s", measured(a.achieved_rps))),
        x: offered_axis(most),
        y: Axis {
            scale: Scale::from_zero(top),
            title: "complete responses/s".into(),
            format: plain,
        },
        marks,
        left_min: 48.0,
    }
}

fn failed(analysis: &Analysis) -> f64 {
    analysis.counts.errors as f64 / analysis.counts.requests.max(1) as f64
}

fn error_chart(curves: &[ServerCurve], most: f64, size: Size) -> Chart {
    let worst = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|(_, a)| failed(a))
        .fold(0.0, f64::max);
    let scale = match worst {
        0.0 => Scale::from_zero(0.01),
        w if w > 0.5 => Scale::Linear {
            low: 0.0,
            high: 1.0,
        },
        w => Scale::from_zero(w),
    };
    Chart {
        size,
        title: "Failed requests by offered load".into(),
        description: described(curves, |a| percent(failed(a))),
        x: offered_axis(most),
        y: Axis {
            scale,
            title: "share of requests that failed".into(),
            format: |share| crate::units::tick(&percent(share)),
        },
        marks: lines(curves, |analysis| Some(failed(analysis)), percent),
        left_min: 48.0,
    }
}

fn p99(analysis: &Analysis) -> Option<f64> {
    analysis.response.as_ref().map(|response| response.p99_us)
}

fn latency_chart(curves: &[ServerCurve], most: f64, size: Size) -> Chart {
    let all = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .filter_map(|(_, analysis)| p99(analysis));
    Chart {
        size,
        title: "99th percentile of response time by offered load".into(),
        description: described(curves, |a| p99(a).map_or("none".into(), time_us)),
        x: offered_axis(most),
        y: latency_axis("response time, p99", all),
        marks: lines(curves, p99, time_us),
        left_min: 48.0,
    }
}

fn described(curves: &[ServerCurve], value: impl Fn(&Analysis) -> String) -> String {
    let one = |curve: &ServerCurve| {
        let (rate, analysis) = curve.points.last()?;
        Some(format!(
            "{}: {} at {}/s offered.",
            curve.name,
            value(analysis),
            measured(*rate)
        ))
    };
    curves.iter().filter_map(one).collect::<Vec<_>>().join(" ")
}

fn numbers(curves: &[ServerCurve]) -> Table {
    let mut table = Table::new(&["run", "offered/s", "complete/s", "failed", "median", "p99"]);
    for curve in curves {
        for (rate, analysis) in &curve.points {
            let latency = |value: fn(&headway_latency::analysis::Distribution) -> f64| {
                let response = analysis.response.as_ref();
                response.map_or(crate::units::NONE.into(), |response| {
                    time_us(value(response))
                })
            };
            table.rows.push(vec![
                escaped(curve.name),
                measured(*rate),
                measured(analysis.achieved_rps),
                percent(failed(analysis)),
                latency(|d| d.p50_us),
                latency(|d| d.p99_us),
            ]);
        }
    }
    table
}
