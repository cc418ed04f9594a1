//! Figures of counts: ready events per wakeup, runnable processes per sample.

use super::figures::{Drawn, Shown};
use crate::chart::{Axis, Chart, ChartMark, Scale, Size};
use crate::figure::{Drawing, Table, legend};
use crate::html::escaped;
use crate::units::{grouped, percent, plain};

/// More bars than this are put together, so that each can be seen.
const BINS: u64 = 32;

/// How often each count occurred, ascending, all repeats together.
fn summed<'a>(lists: impl Iterator<Item = &'a Vec<(u64, u64)>>) -> Vec<(u64, u64)> {
    let mut all: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
    for (count, times) in lists.flatten() {
        *all.entry(*count).or_default() += times;
    }
    all.into_iter().collect()
}

fn total(counts: &[(u64, u64)]) -> u64 {
    counts.iter().map(|(_, times)| times).sum()
}

/// The smallest count that at least this share did not exceed.
fn quantile(counts: &[(u64, u64)], share: f64) -> u64 {
    let wanted = ((share * total(counts) as f64).ceil() as u64).max(1);
    let mut below = 0;
    let found = counts.iter().find(|(_, times)| {
        below += times;
        below >= wanted
    });
    found.map_or(0, |(count, _)| *count)
}

/// Cumulative curves of ready events per wakeup, as in Figures 1 and 13.
pub(super) fn ready(shown: &[Shown]) -> Option<Drawn> {
    let with: Vec<(&Shown, Vec<(u64, u64)>)> = shown
        .iter()
        .map(|one| (one, summed(one.repeats().map(|repeat| &repeat.ready))))
        .filter(|(_, counts)| total(counts) > 0)
        .collect();
    let most = with
        .iter()
        .filter_map(|(_, counts)| counts.last())
        .map(|(count, _)| *count)
        .max()?;
    let scale = Scale::log_around([1.0, most.max(10) as f64]);
    let medians: Vec<String> = with
        .iter()
        .map(|(one, counts)| format!("{}: median {}", one.server, quantile(counts, 0.5)))
        .collect();
    let draw = |size: Size| Chart {
        size,
        title: "Ready events per wakeup".into(),
        description: format!("{}.", medians.join("; ")),
        x: Axis {
            scale,
            title: "ready events, at most".into(),
            format: plain,
        },
        y: Axis {
            scale: Scale::Linear {
                low: 0.0,
                high: 1.0,
            },
            title: "share of wakeups".into(),
            format: percent,
        },
        marks: with
            .iter()
            .map(|(one, counts)| steps(one, counts))
            .collect(),
        left_min: 56.0,
    };
    let caption = vec![
        "The number of events that were ready each time the loop polled. A loop that never blocks \
         polls often and finds few; a loop that blocks finds many events afterwards."
            .into(),
    ];
    let names = with.iter().map(|(one, _)| (one.style, one.server.as_str()));
    let mut numbers = Table::new(&[
        "server", "wakeups", "median", "90 %", "95 %", "99 %", "most",
    ]);
    for (one, counts) in &with {
        let mut row = vec![escaped(&one.name()), grouped(total(counts))];
        row.extend([0.5, 0.9, 0.95, 0.99, 1.0].map(|share| grouped(quantile(counts, share))));
        numbers.rows.push(row);
    }
    Some((caption, Drawing::one(legend(names), draw), Some(numbers)))
}

fn steps(one: &Shown, counts: &[(u64, u64)]) -> ChartMark {
    let all = total(counts) as f64;
    let mut points = vec![(1.0, 0.0)];
    let mut below = 0;
    for (count, times) in counts {
        let x = (*count).max(1) as f64;
        points.push((x, below as f64 / all));
        below += times;
        points.push((x, below as f64 / all));
    }
    ChartMark::Line {
        points,
        style: one.style,
        class: "",
        tooltip: one.name(),
    }
}

/// The form of Figure 2: which share of the time how many processes were runnable.
pub(super) fn runnable(shown: &[Shown]) -> Option<Drawn> {
    let with: Vec<(&Shown, Vec<(u64, u64)>)> = shown
        .iter()
        .map(|one| (one, summed(one.repeats().map(|repeat| &repeat.runnable))))
        .filter(|(_, counts)| total(counts) > 0)
        .collect();
    if with.is_empty() {
        return None;
    }
    let drawing = Drawing::each(
        String::new(),
        &with,
        |(one, _)| escaped(&one.server),
        |(one, counts), size, class| histogram(one, counts, size).svg(class),
    );
    let caption = vec![
        "The share of the samples in which this many of the server's processes were runnable. Two \
         peaks, one at zero and one far right, are typical of processes that wait for the same \
         lock."
            .into(),
    ];
    let mut numbers = Table::new(&[
        "server",
        "samples",
        "none runnable",
        "median",
        "95 %",
        "most",
    ]);
    for (one, counts) in &with {
        let none = counts
            .first()
            .filter(|(count, _)| *count == 0)
            .map_or(0, |(_, times)| *times);
        let mut row = vec![
            escaped(&one.name()),
            grouped(total(counts)),
            percent(none as f64 / total(counts) as f64),
        ];
        row.extend([0.5, 0.95, 1.0].map(|share| grouped(quantile(counts, share))));
        numbers.rows.push(row);
    }
    Some((caption, drawing, Some(numbers)))
}

fn histogram(one: &Shown, counts: &[(u64, u64)], size: Size) -> Chart {
    let most = counts.last().map_or(0, |(count, _)| *count);
    let width = (most + 1).div_ceil(BINS).max(1);
    let all = total(counts) as f64;
    let mut bins = vec![0u64; (most / width + 1) as usize];
    for (count, times) in counts {
        bins[(count / width) as usize] += times;
    }
    let mut points = Vec::new();
    let mut edges = Vec::new();
    for (index, times) in bins.iter().enumerate() {
        let (left, share) = ((index as u64 * width) as f64, *times as f64 / all);
        for x in [left, left + width as f64] {
            points.push((x, share));
            edges.push((x, 0.0, share));
        }
    }
    let highest = points.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    Chart {
        size,
        title: format!("Runnable processes of {}", one.name()),
        description: format!("Median {}, most {most}.", quantile(counts, 0.5)),
        x: Axis {
            scale: Scale::from_zero((most + width) as f64),
            title: "runnable processes".into(),
            format: plain,
        },
        y: Axis {
            scale: Scale::from_zero(highest),
            title: "share of samples".into(),
            format: percent,
        },
        marks: vec![
            ChartMark::Band {
                edges,
                style: one.style,
            },
            ChartMark::Line {
                points,
                style: one.style.with(0, 0),
                class: "",
                tooltip: one.name(),
            },
        ],
        left_min: 50.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_repeats_are_one_distribution_when_summed() {
        let lists = [vec![(1, 3), (4, 1)], vec![(0, 1), (4, 5)]];
        let counts = summed(lists.iter());
        assert_eq!(counts, [(0, 1), (1, 3), (4, 6)]);
        assert_eq!(
            [0.1, 0.4, 0.41, 1.0].map(|share| quantile(&counts, share)),
            [0, 1, 4, 4]
        );
        assert_eq!(quantile(&[], 0.5), 0);
    }
}
