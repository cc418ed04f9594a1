//! The page's sections, in the order a reader meets them. Each takes the subjects and returns its
//! elements.
//!
//! A section that has nothing to say for these runs is empty and is left out, with two exceptions:
//! what is missing because something went wrong is said, and said in the verdict.

pub(crate) mod verdict;
pub(crate) mod headline;
pub(crate) mod specweb99;
pub(crate) mod profile;
pub(crate) mod distribution;
pub(crate) mod inversion;
pub(crate) mod overload;
pub(crate) mod size;
pub(crate) mod timeline;
pub(crate) mod server;
pub(crate) mod blocked;
pub(crate) mod breakdown;
pub(crate) mod comparison;
pub(crate) mod environment;

use crate::chart::{Axis, Scale};
use crate::figure::{Figure, legend, sample};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units;

/// A section of the page.
pub(crate) struct Section {
    /// The anchor of the section.
    pub id: &'static str,
    /// The heading of the section, and its name in the table of contents.
    pub title: &'static str,
    /// A sentence or two below the heading, plain text.
    pub lead: String,
    /// The figures or other elements of the section, in order.
    pub parts: Vec<String>,
}

impl Section {
    /// A section of figures; `None` when there are none.
    pub fn of(
        id: &'static str,
        title: &'static str,
        lead: String,
        figures: Vec<Option<Figure>>,
    ) -> Option<Section> {
        let parts: Vec<String> = figures
            .into_iter()
            .flatten()
            .map(|figure| figure.html())
            .collect();
        (!parts.is_empty()).then_some(Section {
            id,
            title,
            lead,
            parts,
        })
    }
}

/// The times that charts show, in microseconds as an analysis has them.
pub(crate) fn time_us(us: f64) -> String {
    units::time(us * 1e3)
}

/// An axis of latencies, logarithmic because they span orders of magnitude, with a little room at
/// both ends.
pub(crate) fn latency_axis(title: &str, values: impl IntoIterator<Item = f64>) -> Axis {
    Axis {
        scale: Scale::log_around(values.into_iter().flat_map(|us| [us * 0.93, us * 1.07])),
        title: title.into(),
        format: time_us,
    }
}

/// An axis of relative loads from 0 to 1, or a little more if more was offered.
pub(crate) fn load_axis(most: f64) -> Axis {
    Axis {
        scale: if most <= 1.0 {
            Scale::Linear {
                low: 0.0,
                high: 1.0,
            }
        } else {
            Scale::from_zero(most)
        },
        title: "relative load".into(),
        format: units::plain,
    }
}

/// The legend of all subjects.
pub(crate) fn legend_of(subjects: &[&Subject]) -> String {
    legend(
        subjects
            .iter()
            .map(|subject| (subject.style, subject.name.as_str())),
    )
}

/// A panel's heading: the run's sample of line, its name, and a remark.
pub(crate) fn heading(subject: &Subject, remark: &str) -> String {
    let remark = match remark {
        "" => String::new(),
        text => format!(" <small>{}</small>", escaped(text)),
    };
    format!(
        "{}<span>{}{remark}</span>",
        sample(subject.style),
        escaped(&subject.name)
    )
}

/// The load of a run as text: `load 0.95`, `20.0k/s`, `closed, 64 connections`.
pub(crate) fn load_text(subject: &Subject) -> String {
    let Some(one) = subject.chosen() else {
        return String::new();
    };
    if let Some(relative) = one.relative {
        let twins = subject
            .measurements
            .iter()
            .filter(|other| other.relative == one.relative);
        return match twins.count() {
            0 | 1 => format!("load {relative:.2}"),
            many => format!("load {relative:.2}, repetition {} of {many}", one.repeat),
        };
    }
    let load = &one.description.load;
    match (load.mode, load.rate_rps, load.connections) {
        (headway_latency::run::Mode::Open, Some(rate), _) => {
            format!("open, {}/s", units::tick(&units::plain(rate)))
        }
        (headway_latency::run::Mode::Open, None, _) => "open".into(),
        (headway_latency::run::Mode::Closed, _, Some(connections)) => {
            format!("closed, {}", units::counted(connections, "connection"))
        }
        (headway_latency::run::Mode::Closed, _, None) => "closed".into(),
    }
}

/// Names as a sentence lists them.
pub(crate) fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).into(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
