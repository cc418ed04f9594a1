//! Whether small files wait for large ones: deciles by size series, and service inversion by load.

use headway_latency::Analysis;

use super::profile::{curve, levels_of};
use super::{Section, heading, legend_of, load_axis, load_text};
use crate::chart::{Axis, Bar, Chart, ChartMark, Scale, Size, Stack};
use crate::figure::{Drawing, Figure, Table};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{NONE, bytes, grouped, percent, tick};

/// The section; `None` if no run has complete responses of different sizes.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let shown: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| sizes_differ(subject))
        .collect();
    if shown.is_empty() {
        return None;
    }
    let lead = "A server in which small responses can overtake large ones answers roughly in the order of \
     size. The order is lost when requests wait for the disk reads of other requests.";
    let has_deciles = |subject: &&Subject| subject.analysis().is_some_and(|found| !found.withheld);
    let with_deciles: Vec<&Subject> = shown.iter().copied().filter(has_deciles).collect();
    let deciles = (!with_deciles.is_empty()).then(|| deciles(&with_deciles));
    let figures = vec![deciles, by_load(&shown)];
    Section::of("inversion", "Service inversion", lead.into(), figures)
}

/// Whether the run has complete responses of different sizes.
pub(super) fn sizes_differ(subject: &Subject) -> bool {
    let found = subject
        .analysis()
        .and_then(|analysis| analysis.inversion.as_ref());
    found.is_some_and(|inversion| inversion.sizes > 1)
}

fn deciles(subjects: &[&Subject]) -> Figure {
    let draw = |subject: &&Subject, size: Size, class: &str| stack(subject, size).svg(class);
    let heading = |subject: &&Subject| heading(subject, &load_text(subject));
    Figure {
        id: "deciles",
        title: "Sizes of fast and slow responses".into(),
        caption: vec![
            "The leftmost bar is the fastest tenth of the complete responses, the rightmost the slowest. Each bar shows how many \
             of them belong to each of the four size series, the smallest files at the bottom."
                .into(),
            "Without inversion, light parts fill the left and dark parts the right, and few bars \
             are mixed. If all bars style alike, latency does not depend on size."
                .into(),
        ],
        source: "The form of Figures 3.10, 3.11 and 3.19, the series of Table 3.2 (dissertation).",
        drawing: Drawing::each(series_legend(subjects), subjects, heading, draw),
        numbers: Some(decile_numbers(subjects)),
    }
}

/// The four series with their sizes. The boundaries are the same for all runs.
fn series_legend(subjects: &[&Subject]) -> String {
    let first = subjects.iter().find_map(|subject| subject.analysis());
    let items: String = first
        .iter()
        .flat_map(|analysis| &analysis.series)
        .map(|series| {
            let range = match series.high_bytes {
                Some(high) if series.low_bytes <= 1 => format!("up to {}", bytes(high as f64)),
                Some(high) => format!("{} to {}", bytes(series.low_bytes as f64), bytes(high as f64)),
                None => format!("from {}", bytes(series.low_bytes as f64)),
            };
            let (index, number) = (series.series.saturating_sub(1), series.series);
            format!(
                "<li><svg class=\"swatch\" viewBox=\"0 0 16 14\" aria-hidden=\"true\"><rect class=\"part q{index}\" width=\"16\" \
                 height=\"14\"/></svg><span>Series {number}: {range}</span></li>"
            )
        })
        .collect();
    format!("<ul class=\"legend\">{items}</ul>")
}

fn stack(subject: &Subject, size: Size) -> Stack {
    let deciles = subject
        .analysis()
        .map_or([[0; 4]; 10], |analysis| analysis.deciles);
    let bars = deciles.iter().enumerate().map(|(index, counts)| {
        let total = counts.iter().sum::<u64>().max(1) as f64;
        let parts: Vec<f64> = counts.iter().map(|count| *count as f64 / total).collect();
        let tooltip = parts
            .iter()
            .zip(counts)
            .enumerate()
            .map(|(series, (share, count))| {
                format!(
                    "decile {}, series {}: {} ({} responses)",
                    index + 1,
                    series + 1,
                    percent(*share),
                    grouped(*count)
                )
            });
        Bar {
            name: (index + 1).to_string(),
            tooltip: tooltip.collect(),
            parts,
        }
    });
    let smallest = |decile: usize| {
        let counts = deciles[decile];
        percent(counts[0] as f64 / counts.iter().sum::<u64>().max(1) as f64)
    };
    Stack {
        size,
        title: format!("Deciles of {} by size series", subject.name),
        description: format!(
            "The smallest files are {} of the fastest tenth and {} of the slowest.",
            smallest(0),
            smallest(9)
        ),
        above: "share of each decile".into(),
        below: "decile of response time, fastest to slowest".into(),
        bars: bars.collect(),
    }
}

fn decile_numbers(subjects: &[&Subject]) -> Table {
    let mut table = Table::new(&[
        "run", "decile", "series 1", "series 2", "series 3", "series 4",
    ]);
    for subject in subjects {
        let Some(analysis) = subject.analysis() else {
            continue;
        };
        for (index, counts) in analysis.deciles.iter().enumerate() {
            let names = [escaped(&subject.name), (index + 1).to_string()];
            table
                .rows
                .push(names.into_iter().chain(counts.map(grouped)).collect());
        }
    }
    table
}

/// Inversion by relative load for profiles; single runs appear in the table and in the headline.
fn by_load(subjects: &[&Subject]) -> Option<Figure> {
    let profiles: Vec<&Subject> = subjects
        .iter()
        .copied()
        .filter(|subject| subject.is_profile())
        .collect();
    let first = profiles.first()?;
    let random = first.analysis()?.inversion.as_ref()?.random;
    let most = profiles
        .iter()
        .flat_map(|subject| subject.loads())
        .map(|(load, _)| load)
        .fold(0.0, f64::max);
    let draw = |size: Size| {
        let mut marks = vec![ChartMark::Level {
            y: random,
            label: format!("a random order: {random:.2}"),
        }];
        marks.extend(profiles.iter().flat_map(|subject| lines(subject, size)));
        Chart {
            size,
            title: "Service inversion by relative load".into(),
            description: described(&profiles),
            x: load_axis(most),
            y: Axis {
                scale: Scale::Linear {
                    low: 0.0,
                    high: 1.0,
                },
                title: "service inversion".into(),
                format: |value| tick(&format!("{value:.2}")),
            },
            marks,
            left_min: 40.0,
        }
    };
    Some(Figure {
        id: "inversion",
        title: "Service inversion by load".into(),
        caption: vec![
            "0: responses in the order of their sizes. 1: in the reverse order. The dotted line is \
             the value of a random order, so a value near it means that the order does not depend \
             on size."
                .into(),
            "If sending a large file takes no longer than sending a small one, as on a loopback \
             interface, even a good server is near the dotted line. Compare servers only over the \
             same link."
                .into(),
        ],
        source: "The form of Figures 3.12 and 3.20, by equation 3.1 with its rule for equal sizes (dissertation).",
        drawing: Drawing::one(legend_of(&profiles), draw),
        numbers: Some(inversion_numbers(&profiles)),
    })
}

fn inversion(analysis: &Analysis) -> Option<f64> {
    analysis.inversion.as_ref().map(|found| found.value)
}

fn lines(subject: &Subject, size: Size) -> Vec<ChartMark> {
    let levels = levels_of(subject, inversion);
    let mut marks = curve(&levels, subject.style, &subject.name, |value| {
        format!("{value:.3}")
    });
    // On a phone the names would take the room of the curves; the legend has them.
    if size.width < Size::WIDE.width {
        marks.retain(|mark| !matches!(mark, ChartMark::EndLabel { .. }));
    }
    marks
}

fn described(profiles: &[&Subject]) -> String {
    let one = |subject: &&Subject| {
        let levels = levels_of(subject, inversion);
        let (first, last) = levels.first().zip(levels.last())?;
        Some(format!(
            "{}: {:.2} at load {:.2}, {:.2} at load {:.2}.",
            subject.name, first.middle, first.at, last.middle, last.at
        ))
    };
    profiles
        .iter()
        .filter_map(one)
        .collect::<Vec<_>>()
        .join(" ")
}

fn inversion_numbers(profiles: &[&Subject]) -> Table {
    let mut table = Table::new(&[
        "run",
        "load",
        "inversion",
        "random order",
        "reversed order",
        "of random",
        "Jain's index",
    ]);
    for subject in profiles {
        for (load, repeats) in subject.loads() {
            for found in repeats
                .iter()
                .filter_map(|analysis| analysis.inversion.as_ref())
            {
                table.rows.push(vec![
                    escaped(&subject.name),
                    format!("{load:.2}"),
                    format!("{:.3}", found.value),
                    format!("{:.3}", found.random),
                    format!("{:.3}", found.reversed),
                    found
                        .of_random
                        .map_or(NONE.into(), |share| format!("{share:.2}")),
                    found.jain.map_or(NONE.into(), |jain| format!("{jain:.3}")),
                ]);
            }
        }
    }
    table
}
