//! Response times over the seconds of a run, one panel per server.

use headway_latency::analysis::TimelinePoint;
use headway_latency::study::result::Repeat;

use super::figures::{Drawn, Shown};
use crate::chart::{Axis, Chart, ChartMark, Scale, Size};
use crate::figure::{Drawing, Table, legend};
use crate::html::escaped;
use crate::section::{latency_axis, time_us};
use crate::units::{NONE, grouped, measured, plain};

type TimelineCurve = (&'static str, fn(&TimelinePoint) -> Option<f64>, usize);

const CURVES: [TimelineCurve; 2] = [
    ("99 %", |point| point.p99_us, 0),
    ("median", |point| point.p50_us, 2),
];

/// The first repeat of each measurement.
pub(super) fn drawn(shown: &[Shown]) -> Option<Drawn> {
    let with: Vec<(&Shown, &Repeat)> = shown
        .iter()
        .filter_map(|one| {
            Some((
                one,
                one.repeats().find(|repeat| !repeat.timeline.is_empty())?,
            ))
        })
        .collect();
    let (first, _) = with.first()?;
    let all: Vec<f64> = with
        .iter()
        .flat_map(|(_, repeat)| &repeat.timeline)
        .flat_map(|point| [point.p50_us, point.p99_us])
        .flatten()
        .collect();
    let end = with
        .iter()
        .filter_map(|(_, repeat)| Some(repeat.timeline.last()?.at_s + repeat.timeline_step_s))
        .fold(0.0, f64::max);
    let styles = CURVES.map(|(name, _, dash)| (first.style.with(dash, 0), name));
    let drawing = Drawing::each(
        legend(styles),
        &with,
        |(one, repeat)| format!("{} <small>{}</small>", escaped(&one.server), failed(repeat)),
        |(one, repeat), size, class| chart(one, repeat, &all, end, size).svg(class),
    );
    let caption = vec![
        "99th percentile and median of the requests that ended in each step, on one axis for all servers. A gap is a time in \
         which nothing ended."
            .into(),
    ];
    let mut numbers = Table::new(&["server", "at, s", "answered/s", "errors", "median", "99 %"]);
    for (one, repeat) in &with {
        for point in &repeat.timeline {
            let time = |us: Option<f64>| us.map_or(NONE.into(), time_us);
            numbers.rows.push(vec![
                escaped(&one.server),
                format!("{:.1}", point.at_s),
                measured(point.rate_rps),
                grouped(point.errors),
                time(point.p50_us),
                time(point.p99_us),
            ]);
        }
    }
    Some((caption, drawing, Some(numbers)))
}

fn failed(repeat: &Repeat) -> String {
    match repeat
        .timeline
        .iter()
        .map(|point| point.errors)
        .sum::<u64>()
    {
        0 => "no error".into(),
        1 => "1 error".into(),
        many => format!("{} errors", grouped(many)),
    }
}

fn chart(one: &Shown, repeat: &Repeat, all: &[f64], end: f64, size: Size) -> Chart {
    let mut marks = Vec::new();
    for (name, value, dash) in CURVES {
        for points in pieces(&repeat.timeline, value, repeat.timeline_step_s) {
            marks.push(ChartMark::Line {
                points,
                style: one.style.with(dash, 0),
                class: "",
                tooltip: format!("{}: {name}", one.name()),
            });
        }
    }
    let worst = repeat
        .timeline
        .iter()
        .filter_map(|point| point.p99_us)
        .fold(0.0, f64::max);
    Chart {
        size,
        title: format!("Response time of {} over time", one.name()),
        description: format!(
            "The largest 99th percentile of a step is {}.",
            time_us(worst)
        ),
        x: Axis {
            scale: Scale::from_zero(end),
            title: "seconds".into(),
            format: plain,
        },
        y: latency_axis("response time", all.iter().copied()),
        marks,
        left_min: 56.0,
    }
}

/// Runs of steps that have a value, each step as wide as it lasted.
fn pieces(
    timeline: &[TimelinePoint],
    value: fn(&TimelinePoint) -> Option<f64>,
    step_s: f64,
) -> Vec<Vec<(f64, f64)>> {
    let mut pieces: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut open = false;
    for point in timeline {
        let Some(us) = value(point) else {
            open = false;
            continue;
        };
        if !open {
            pieces.push(Vec::new());
        }
        open = true;
        if let Some(piece) = pieces.last_mut() {
            piece.extend([(point.at_s, us), (point.at_s + step_s, us)]);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_a_gap_when_no_request_ended() {
        let point = |at_s: f64, p50_us: Option<f64>| TimelinePoint {
            at_s,
            offered_rps: 1.0,
            rate_rps: 1.0,
            errors: 0,
            p50_us,
            p99_us: p50_us,
        };
        let timeline = [
            point(0.0, Some(5.0)),
            point(1.0, None),
            point(2.0, Some(7.0)),
            point(3.0, Some(8.0)),
        ];
        let found = pieces(&timeline, |point| point.p50_us, 1.0);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], [(0.0, 5.0), (1.0, 5.0)]);
        assert_eq!(found[1].last(), Some(&(4.0, 8.0)));
    }
}
