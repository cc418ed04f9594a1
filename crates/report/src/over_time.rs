//! Latency over time of several runs, side by side, as one SVG file.
//!
//! Each request counts in the step in which it was due. A stall then appears as a triangle of
//! requests that wait for its end, not as one spike when they are all answered.

use std::collections::BTreeMap;

use headway_latency::{OpenError, Row};

use crate::chart::{Axis, Chart, ChartMark, Scale, Size};
use crate::html::escaped;
use crate::section::{latency_axis, time_us};
use crate::standalone::STYLE;
use crate::subject::Subject;
use crate::units::{plain, tick, time};

/// A span of time that is marked in every panel, for example while the disk stalls.
#[derive(Clone, Debug, PartialEq)]
pub struct Shaded {
    /// Start of the span, in seconds since the warm-up.
    pub from_s: f64,
    /// End of the span, in seconds since the warm-up.
    pub to_s: f64,
    /// What happens in the shaded interval.
    pub label: String,
}

const PANEL: Size = Size {
    width: 420.0,
    height: 260.0,
};

/// Above the panels: their names. Below: the legend.
const HEADER: f64 = 34.0;
const FOOTER: f64 = 26.0;

/// Possible lengths of a step, and the most steps of a run.
const STEPS_S: [f64; 8] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0];
const STEPS_MAX: f64 = 150.0;

/// The latencies of one run by the step in which its requests were due.
struct Latencies<'a> {
    subject: &'a Subject,
    /// Middle of the step, median and maximum in microseconds.
    steps: Vec<(f64, f64, f64)>,
}

/// The picture, a whole SVG document.
pub(crate) fn svg(subjects: &[Subject], shaded: Option<&Shaded>) -> Result<String, OpenError> {
    let length_s = subjects
        .iter()
        .filter_map(|subject| Some(subject.analysis()?.duration_s))
        .fold(0.0, f64::max);
    let step_s = STEPS_S
        .into_iter()
        .find(|step| length_s / step <= STEPS_MAX);
    let step_s = step_s.unwrap_or(length_s / STEPS_MAX);
    let mut series = Vec::new();
    for subject in subjects {
        series.push(course(subject, step_s)?);
    }
    let values = series
        .iter()
        .flat_map(|course| &course.steps)
        .flat_map(|&(_, median, max)| [median, max]);
    let y = latency_axis("response time", values);
    let panels: Vec<String> = series
        .iter()
        .enumerate()
        .map(|(index, course)| panel(index, course, length_s, &y, shaded))
        .collect();
    Ok(document(&panels, step_s))
}

fn course(subject: &Subject, step_s: f64) -> Result<Latencies<'_>, OpenError> {
    // Only those which have requests: one of a damaged run may be due in a hundred years.
    let mut steps: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let Some(chosen) = subject.chosen() else {
        return Ok(Latencies {
            subject,
            steps: Vec::new(),
        });
    };
    let load = &chosen.description.load;
    let start_ns = load
        .measured
        .map_or((load.warmup_s * 1e9) as u64, |window| window.start_ns);
    let mut take = |row: &Row| {
        if row.warmup || !row.error.has_latency() {
            return;
        }
        let at_s = row.intended_ns.saturating_sub(start_ns) as f64 / 1e9;
        let step = steps.entry((at_s / step_s) as u64).or_default();
        step.push(row.response_ns() as f64 / 1e3);
    };
    for batch in chosen.rows()? {
        batch?.iter().for_each(&mut take);
    }
    let figures = |(index, mut latencies): (u64, Vec<f64>)| {
        latencies.sort_by(f64::total_cmp);
        let max = *latencies.last()?;
        let median = latencies[(latencies.len() - 1) / 2];
        Some(((index as f64 + 0.5) * step_s, median, max))
    };
    let steps = steps.into_iter().filter_map(figures).collect();
    Ok(Latencies { subject, steps })
}

fn panel(
    index: usize,
    course: &Latencies,
    length_s: f64,
    y: &Axis,
    shaded: Option<&Shaded>,
) -> String {
    let subject = course.subject;
    let left = index as f64 * PANEL.width;
    let positioned = format!(
        "<svg x=\"{left}\" y=\"{HEADER}\" width=\"{}\" height=\"{}\" ",
        PANEL.width, PANEL.height
    );
    let colour = subject.style.colour;
    let mut out = format!(
        "<text class=\"name t{colour}\" x=\"{}\" y=\"22\">{}</text>",
        left + 56.0,
        escaped(&subject.name)
    );
    let title = match index {
        0 => y.title.clone(),
        _ => " ".into(),
    };
    let y = Axis { title, ..y.clone() };
    let chart = panel_chart(course, length_s, y, shaded);
    out += &chart.svg("alone").replacen("<svg ", &positioned, 1);
    // After the chart, whose band would cover it.
    if let Some(shaded) = shaded {
        // Where the chart's frame begins and ends; see `Chart::frame`.
        let width = PANEL.width - 14.0 - 56.0;
        let x = left + 56.0 + width * shaded.from_s / length_s.max(1e-9) + 12.0;
        out += &format!(
            "<text class=\"note\" x=\"{x:.1}\" y=\"{}\">{}</text>",
            HEADER + 110.0,
            escaped(&shaded.label)
        );
    }
    out
}

/// The chart of one subject: median and slowest request of each step.
fn panel_chart(course: &Latencies, length_s: f64, y: Axis, shaded: Option<&Shaded>) -> Chart {
    let subject = course.subject;
    let mut marks = Vec::new();
    if let (Some(shaded), Scale::Log { low, high }) = (shaded, y.scale) {
        marks.push(ChartMark::Band {
            edges: vec![(shaded.from_s, low, high), (shaded.to_s, low, high)],
            style: subject.style,
        });
    }
    let line = |value: fn(&(f64, f64, f64)) -> f64, dash, what: &str| ChartMark::Line {
        points: course
            .steps
            .iter()
            .map(|step| (step.0, value(step)))
            .collect(),
        style: subject.style.with(dash, 0),
        class: "",
        tooltip: format!("{}: {what}", subject.name),
    };
    marks.push(line(|step| step.1, 2, "median"));
    marks.push(line(|step| step.2, 0, "slowest"));
    let worst = course.steps.iter().map(|step| step.2).fold(0.0, f64::max);
    Chart {
        size: PANEL,
        title: format!("Response time of {} over time", subject.name),
        description: format!("The slowest request took {}.", time_us(worst)),
        x: Axis {
            scale: Scale::Linear {
                low: 0.0,
                high: length_s.max(1e-9),
            },
            title: "time, s".into(),
            format: |seconds| tick(&plain(seconds)),
        },
        y,
        marks,
        left_min: 56.0,
    }
}

fn document(panels: &[String], step_s: f64) -> String {
    let width = PANEL.width * panels.len().max(1) as f64;
    let height = HEADER + PANEL.height + FOOTER;
    let legend = format!(
        "Requests by the moment they were due, in steps of {}. Solid: the slowest one. Dotted: the median.",
        time(step_s * 1e9)
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\
         <title>Latency over time</title><style>{STYLE}.band{{fill:#f3e9d2;stroke:none}}\
         .name{{font-size:15px;font-weight:600}}</style>\
         <path fill=\"#fff\" d=\"M0 0h{width}v{height}h-{width}z\"/>{}\
         <text x=\"56\" y=\"{}\">{legend}</text></svg>\n",
        panels.concat(),
        HEADER + PANEL.height + 16.0
    )
}
