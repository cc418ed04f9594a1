//! What happened when: rate, latency and errors over the measured part of each run.

use headway_latency::analysis::TimelinePoint;

use super::{Section, heading, latency_axis, load_text, time_us};
use crate::chart::{Axis, Chart, ChartMark, Scale, Size};
use crate::figure::{Drawing, Figure};
use crate::subject::Subject;
use crate::units::{plain, tick, time};

/// What all strips share, so that runs can be compared by eye.
struct Extent {
    length_s: f64,
    rate: f64,
    times: Vec<f64>,
    errors: f64,
}

/// The section; `None` unless some run lasted more than one step.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let shown: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| steps(subject).len() > 1)
        .collect();
    if shown.is_empty() {
        return None;
    }
    let lead = "Rate, latency and errors in the course of each run.";
    Section::of(
        "timeline",
        "Timeline",
        lead.into(),
        vec![Some(figure(&shown))],
    )
}

fn steps(subject: &Subject) -> &[TimelinePoint] {
    subject
        .analysis()
        .map_or(&[], |analysis| analysis.timeline.points.as_slice())
}

fn step_s(subject: &Subject) -> f64 {
    subject
        .analysis()
        .map_or(1.0, |analysis| analysis.timeline.step_s.max(1e-9))
}

fn errors_per_s(subject: &Subject, step: &TimelinePoint) -> f64 {
    step.errors as f64 / step_s(subject)
}

fn figure(subjects: &[&Subject]) -> Figure {
    let all = || subjects.iter().flat_map(|subject| steps(subject));
    let extent = Extent {
        length_s: subjects
            .iter()
            .filter_map(|subject| Some(steps(subject).last()?.at_s + step_s(subject)))
            .fold(0.0, f64::max),
        rate: all()
            .map(|step| step.rate_rps.max(step.offered_rps))
            .fold(0.0, f64::max),
        times: all()
            .flat_map(|step| [step.p50_us, step.p99_us])
            .flatten()
            .collect(),
        errors: subjects
            .iter()
            .flat_map(|subject| {
                steps(subject)
                    .iter()
                    .map(|step| errors_per_s(subject, step))
            })
            .fold(0.0, f64::max),
    };
    let draw = |subject: &&Subject, size: Size, class: &str| strips(subject, size, class, &extent);
    let about_errors = match extent.errors {
        0.0 => "No request failed, so there is no chart of errors.",
        _ => "The last chart shows failed requests per second.",
    };
    Figure {
        id: "timeline",
        title: "Rate, latency and errors over time".into(),
        caption: vec![
            format!(
                "From the end of the warm-up, in steps of {}. Above: complete responses per second, dotted the offered rate. \
                 Below: the 99th percentile and, dotted, the median of what ended in each step. {about_errors}",
                time(step_s(subjects[0]) * 1e9)
            ),
            "A gap in the rate with a peak of latency is a stall: all requests that were due in \
             it waited."
                .into(),
        ],
        source: "",
        drawing: Drawing::each(
            String::new(),
            subjects,
            |subject| heading(subject, &load_text(subject)),
            draw,
        ),
        numbers: None,
    }
}

fn strips(subject: &Subject, size: Size, class: &str, extent: &Extent) -> String {
    let tall = if size.width > Size::NARROW.width {
        170.0
    } else {
        132.0
    };
    let mut charts = vec![rate_strip(subject, extent), latency_strip(subject, extent)];
    if extent.errors > 0.0 {
        charts.push(error_strip(subject, extent));
    }
    let last = charts.len() - 1;
    let draw = |(index, mut chart): (usize, Chart)| {
        let more = if index == last { 36.0 } else { 0.0 };
        chart.size = size.with_height(tall + more);
        if index == last {
            chart.x.title = "seconds since the warm-up".into();
        }
        chart.svg(class)
    };
    charts.into_iter().enumerate().map(draw).collect()
}

fn strip(
    subject: &Subject,
    what: &str,
    description: String,
    extent: &Extent,
    y: Axis,
    marks: Vec<ChartMark>,
) -> Chart {
    Chart {
        size: Size::NARROW,
        title: format!("{what} of {} over time", subject.name),
        description,
        x: Axis {
            scale: Scale::Linear {
                low: 0.0,
                high: extent.length_s.max(1e-9),
            },
            title: String::new(),
            format: |seconds| tick(&plain(seconds)),
        },
        y,
        marks,
        left_min: 56.0,
    }
}

/// A line that is level over each step, so that a step's length can be seen.
fn step_line(
    subject: &Subject,
    value: impl Fn(&TimelinePoint) -> Option<f64>,
) -> Vec<Vec<(f64, f64)>> {
    let length = step_s(subject);
    let few = steps(subject).len() <= 60;
    let mut lines: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
    for step in steps(subject) {
        match (value(step), lines.last_mut()) {
            (Some(value), Some(line)) if few => {
                line.extend([(step.at_s, value), (step.at_s + length, value)])
            }
            (Some(value), Some(line)) => line.push((step.at_s + length / 2.0, value)),
            // A step without a value breaks the line: nothing ended in it, so nothing is known.
            (None, _) => lines.push(Vec::new()),
            (Some(_), None) => {}
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

fn drawn(
    subject: &Subject,
    dash: usize,
    class: &'static str,
    tooltip: &str,
    value: impl Fn(&TimelinePoint) -> Option<f64>,
) -> Vec<ChartMark> {
    let line = |points| ChartMark::Line {
        points,
        style: subject.style.with(dash, 0),
        class,
        tooltip: tooltip.into(),
    };
    step_line(subject, value).into_iter().map(line).collect()
}

fn rate_strip(subject: &Subject, extent: &Extent) -> Chart {
    let y = Axis {
        scale: Scale::from_zero(extent.rate),
        title: "responses/s".into(),
        format: plain,
    };
    let open = subject
        .analysis()
        .is_some_and(|analysis| analysis.offered_rps.is_some());
    // What ends after the measured part belongs to it, but a rate of the few stragglers would look
    // like a collapse.
    let measured_s = subject
        .analysis()
        .map_or(0.0, |analysis| analysis.duration_s);
    let half = step_s(subject) / 2.0;
    let within = |step: &TimelinePoint| step.at_s + half <= measured_s;
    let mut marks = Vec::new();
    if open {
        marks.extend(drawn(subject, 2, "faint", "offered", |step| {
            within(step).then_some(step.offered_rps)
        }));
    }
    marks.extend(drawn(subject, 0, "thin", "complete responses", |step| {
        within(step).then_some(step.rate_rps)
    }));
    let rates = || {
        steps(subject)
            .iter()
            .filter(|step| within(step))
            .map(|step| step.rate_rps)
    };
    let (least, most) = (
        rates().fold(f64::INFINITY, f64::min),
        rates().fold(0.0, f64::max),
    );
    let description = format!("Between {} and {} per second.", plain(least), plain(most));
    strip(subject, "Rate", description, extent, y, marks)
}

fn latency_strip(subject: &Subject, extent: &Extent) -> Chart {
    let y = latency_axis("response time", extent.times.iter().copied());
    let mut marks = drawn(subject, 2, "faint", "median", |step| step.p50_us);
    marks.extend(drawn(subject, 0, "thin", "99th percentile", |step| {
        step.p99_us
    }));
    let worst = steps(subject)
        .iter()
        .filter_map(|step| step.p99_us)
        .fold(0.0, f64::max);
    let description = format!("The worst 99th percentile of a step is {}.", time_us(worst));
    strip(subject, "Response time", description, extent, y, marks)
}

fn error_strip(subject: &Subject, extent: &Extent) -> Chart {
    let y = Axis {
        scale: Scale::from_zero(extent.errors),
        title: "errors/s".into(),
        format: |value| tick(&plain(value)),
    };
    let marks = drawn(subject, 0, "thin", "errors", |step| {
        Some(errors_per_s(subject, step))
    });
    let worst = steps(subject)
        .iter()
        .map(|step| errors_per_s(subject, step))
        .fold(0.0, f64::max);
    let description = format!("At most {} per second.", plain(worst));
    strip(subject, "Errors", description, extent, y, marks)
}
