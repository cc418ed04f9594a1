//! Figures drawn from distributions: which kind becomes which drawing, and the two of latency,
//! curves and deciles.

use headway_latency::study::StudyResult;
use headway_latency::study::result::{Figure, Measurement, Repeat};

use super::styles::{ServerStyles, label, point};
use super::{blocked, counts, timeline};
use crate::chart::{Axis, Bar, Chart, ChartMark, LineStyle, Scale, Size, Stack};
use crate::figure::{Caption, Drawing, Table, framed, legend};
use crate::html::escaped;
use crate::section::{latency_axis, time_us};
use crate::units::{grouped, percent};

/// A measurement that a figure shows.
pub(super) struct Shown<'a> {
    /// What was measured.
    pub measurement: &'a Measurement,
    /// The server's label.
    pub server: String,
    /// The point as text.
    pub point: String,
    /// The server's look.
    pub style: LineStyle,
}

impl Shown<'_> {
    /// Repeats that have figures.
    pub(super) fn repeats(&self) -> impl Iterator<Item = &Repeat> {
        self.measurement
            .repeats
            .iter()
            .filter(|repeat| repeat.failed.is_none())
    }

    /// Server and point.
    pub(super) fn name(&self) -> String {
        format!("{}, {}", self.server, self.point)
    }
}

/// One figure; a sentence where nothing of it was measured.
pub(super) fn html(
    result: &StudyResult,
    index: usize,
    figure: &Figure,
    styles: &ServerStyles,
) -> String {
    let shown = shown(result, figure, styles);
    let drawn = match figure.kind.as_str() {
        "cdf" => curves(&shown),
        "deciles" => deciles(&shown),
        "ready" => counts::ready(&shown),
        "runnable" => counts::runnable(&shown),
        "timeline" => timeline::drawn(&shown),
        "blocked" => return blocked::html(figure, &shown).unwrap_or_else(|| absent(figure)),
        _ => None,
    };
    let Some((paragraphs, drawing, numbers)) = drawn else {
        return absent(figure);
    };
    let id = format!("{}-{}", result.number, index + 1);
    let caption = Caption {
        id: &id,
        title: &figure.title,
        paragraphs: &paragraphs,
        source: "",
    };
    framed(&caption, &drawing, numbers.as_ref())
}

/// What a figure is made of: paragraphs, drawing, numbers.
pub(super) type Drawn = (Vec<String>, Drawing, Option<Table>);

fn absent(figure: &Figure) -> String {
    format!(
        "<p class=\"absent\">{}: nothing of this figure was measured.</p>",
        escaped(&figure.title)
    )
}

fn shown<'a>(result: &'a StudyResult, figure: &Figure, styles: &ServerStyles) -> Vec<Shown<'a>> {
    let pairs = figure
        .servers
        .iter()
        .flat_map(|server| figure.points.iter().map(move |point| (server, point)));
    let found = pairs.filter_map(|(server, at)| {
        let measurement = result.measurement(&figure.measure, server, at)?;
        Some(Shown {
            measurement,
            server: label(result, server).into(),
            point: point(at),
            style: styles.server(server),
        })
    });
    found.collect()
}

/// The servers among those shown, in order, each with its points.
fn by_server<'a, 'b>(shown: &'b [&'b Shown<'a>]) -> Vec<Vec<&'b Shown<'a>>> {
    let mut groups: Vec<Vec<&Shown>> = Vec::new();
    for one in shown {
        match groups
            .iter_mut()
            .find(|group| group[0].server == one.server)
        {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// Cumulative curves: one server by load, several servers at one load, or a panel a server.
fn curves(shown: &[Shown]) -> Option<Drawn> {
    let with: Vec<&Shown> = shown
        .iter()
        .filter(|one| one.repeats().any(|r| !r.cdf.is_empty()))
        .collect();
    let servers = by_server(&with);
    let points = servers.iter().map(Vec::len).max()?;
    let times = || {
        with.iter()
            .flat_map(|one| one.repeats())
            .flat_map(|r| &r.cdf)
            .map(|p| p.latency_us)
    };
    let x = latency_axis("response time, at most", times());
    let caption = vec![
        "The curve shows which share of the requests was answered within a time. Every repeat has \
         a curve of its own."
            .into(),
    ];
    let drawing = match (servers.len(), points) {
        (1, _) => {
            let styles: Vec<LineStyle> = (0..with.len())
                .map(|index| LineStyle::of_load(index, with.len()))
                .collect();
            let names = with
                .iter()
                .zip(&styles)
                .map(|(one, style)| (*style, one.point.as_str()));
            Drawing::one(legend(names), |size| chart(&with, &styles, size, &x))
        }
        (_, 1) => {
            let styles: Vec<LineStyle> = with.iter().map(|one| one.style).collect();
            let names = with.iter().map(|one| (one.style, one.server.as_str()));
            Drawing::one(legend(names), |size| chart(&with, &styles, size, &x))
        }
        _ => {
            let styles: Vec<LineStyle> = (0..points)
                .map(|index| LineStyle::of_load(index, points))
                .collect();
            let longest = servers.iter().max_by_key(|group| group.len())?;
            let names = longest
                .iter()
                .zip(&styles)
                .map(|(one, style)| (*style, one.point.as_str()));
            Drawing::each(
                legend(names),
                &servers,
                |group| escaped(&group[0].server),
                |group, size, class| chart(group, &styles, size, &x).svg(class),
            )
        }
    };
    Some((caption, drawing, Some(headline(&with))))
}

fn chart(shown: &[&Shown], styles: &[LineStyle], size: Size, x: &Axis) -> Chart {
    let lines = shown.iter().zip(styles).flat_map(|(one, style)| {
        one.repeats()
            .filter(|repeat| !repeat.cdf.is_empty())
            .map(|repeat| ChartMark::Line {
                points: repeat
                    .cdf
                    .iter()
                    .map(|point| (point.latency_us, point.share))
                    .collect(),
                style: *style,
                class: "",
                tooltip: format!("{}, repeat {}", one.name(), repeat.repeat),
            })
    });
    let names: Vec<String> = shown.iter().map(|one| one.name()).collect();
    Chart {
        size,
        title: "Cumulative distribution of response time".into(),
        description: format!("{}.", names.join("; ")),
        x: x.clone(),
        y: Axis {
            scale: Scale::Linear {
                low: 0.0,
                high: 1.0,
            },
            title: "share of requests answered".into(),
            format: percent,
        },
        marks: lines.collect(),
        left_min: 56.0,
    }
}

/// The percentiles that the result has of each repeat.
fn headline(shown: &[&Shown]) -> Table {
    const NAMES: [(&str, &str); 5] = [
        ("median_ms", "median"),
        ("mean_ms", "mean"),
        ("p90_ms", "90 %"),
        ("p95_ms", "95 %"),
        ("p99_ms", "99 %"),
    ];
    let heads: Vec<&str> = ["server", "load", "repeat"]
        .into_iter()
        .chain(NAMES.map(|(_, head)| head))
        .collect();
    let mut table = Table::new(&heads);
    for one in shown {
        for repeat in one.repeats() {
            let mut row = vec![
                escaped(&one.server),
                escaped(&one.point),
                repeat.repeat.to_string(),
            ];
            row.extend(NAMES.map(|(name, _)| {
                let value = repeat.values.get(name);
                value.map_or(crate::units::NONE.into(), |value| {
                    time_us(value.value * 1e3)
                })
            }));
            table.rows.push(row);
        }
    }
    table
}

/// Which sizes the quick and the slow responses have, all repeats together.
fn deciles(shown: &[Shown]) -> Option<Drawn> {
    let with: Vec<(&Shown, [[u64; 4]; 10])> = shown
        .iter()
        .filter_map(|one| {
            let mut sum = [[0; 4]; 10];
            let mut any = false;
            for found in one.repeats().filter_map(|repeat| repeat.deciles.as_ref()) {
                any = true;
                for (row, counts) in sum.iter_mut().zip(found) {
                    row.iter_mut()
                        .zip(counts)
                        .for_each(|(total, count)| *total += count);
                }
            }
            any.then_some((one, sum))
        })
        .collect();
    if with.is_empty() {
        return None;
    }
    let caption = vec![
        "The leftmost bar is the fastest tenth of the complete responses, the rightmost the slowest. Each bar shows how many of \
         them belong to each of the four size series, the smallest files at the bottom."
            .into(),
        "Without inversion the light parts fill the left and the dark parts the right.".into(),
    ];
    let drawing = Drawing::each(
        series_legend(),
        &with,
        |(one, _)| {
            format!(
                "{} <small>{}</small>",
                escaped(&one.server),
                escaped(&one.point)
            )
        },
        |(one, counts), size, class| stack(one, counts, size).svg(class),
    );
    let mut numbers = Table::new(&[
        "server", "decile", "series 1", "series 2", "series 3", "series 4",
    ]);
    for (one, counts) in &with {
        for (index, row) in counts.iter().enumerate() {
            let names = [escaped(&one.name()), (index + 1).to_string()];
            numbers
                .rows
                .push(names.into_iter().chain(row.map(grouped)).collect());
        }
    }
    Some((caption, drawing, Some(numbers)))
}

fn series_legend() -> String {
    let names = ["0.1–0.5 KB", "0.6–4 KB", "5–6 KB", "7–900 KB"];
    let items = names.iter().enumerate().map(|(index, name)| {
        format!(
            "<li><svg class=\"swatch\" viewBox=\"0 0 16 14\" aria-hidden=\"true\"><rect class=\"part q{index}\" width=\"16\" \
             height=\"14\"/></svg><span>Series {}: {name}</span></li>",
            index + 1
        )
    });
    format!("<ul class=\"legend\">{}</ul>", items.collect::<String>())
}

fn stack(one: &Shown, deciles: &[[u64; 4]; 10], size: Size) -> Stack {
    let bar = |(index, counts): (usize, &[u64; 4])| {
        let total = counts.iter().sum::<u64>().max(1) as f64;
        let parts: Vec<f64> = counts.iter().map(|count| *count as f64 / total).collect();
        let tooltip = parts.iter().enumerate().map(|(series, share)| {
            format!(
                "decile {}, series {}: {}",
                index + 1,
                series + 1,
                percent(*share)
            )
        });
        Bar {
            name: (index + 1).to_string(),
            tooltip: tooltip.collect(),
            parts,
        }
    };
    let smallest = |decile: usize| {
        let counts = deciles[decile];
        percent(counts[0] as f64 / counts.iter().sum::<u64>().max(1) as f64)
    };
    Stack {
        size,
        title: format!("Deciles of {} by size series", one.name()),
        description: format!(
            "The smallest files are {} of the fastest tenth and {} of the slowest.",
            smallest(0),
            smallest(9)
        ),
        above: "share of each decile".into(),
        below: "decile of response time, fastest to slowest".into(),
        bars: deciles.iter().enumerate().map(bar).collect(),
    }
}
