//! Where the time of requests went, for runs that were traced: blocking, queueing or transfer.

use headway_latency::breakdown::{Breakdown, Parts, SLOW_SHARE};

use super::Section;
use crate::chart::{Bar, Size, Stack};
use crate::figure::{Drawing, Figure, Table};
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{grouped, percent, time};

/// The section; `None` if no run has a trace of its time.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let shown: Vec<(&Subject, &Breakdown)> = subjects
        .iter()
        .filter_map(|subject| Some((subject, subject.chosen()?.breakdown.as_ref()?)))
        .collect();
    if shown.is_empty() {
        return None;
    }
    let lead = "How much of the response time was blocking. A trace does not say which request a call was made for. So \
        each sleep counts as the wait of one request, and of a sleep of an event loop all other requests of that \
        loop wait behind it.";
    let figure = Figure {
        id: "breakdown",
        title: "Parts of the response time".into(),
        caption: vec![format!(
            "The leftmost bar is the fastest tenth of the requests, the rightmost the slowest. The column 'slow' of the \
             table is the slowest {}.",
            percent(1.0 - SLOW_SHARE)
        )],
        source: "The question of Ruan and Pai (2006), section 5.4: blocking or queueing?",
        drawing: Drawing::each(
            legend(),
            &shown,
            |(subject, _)| escaped(&subject.name),
            |(subject, found), size, class| stack(subject, found, size).svg(class),
        ),
        numbers: Some(numbers(&shown)),
    };
    Section::of(
        "breakdown",
        "Blocking or queueing",
        lead.into(),
        vec![Some(figure)],
    )
}

fn legend() -> String {
    let item = |(index, name): (usize, &&str)| {
        format!(
            "<li><svg class=\"swatch\" viewBox=\"0 0 16 14\" aria-hidden=\"true\"><rect class=\"part q{index}\" width=\"16\" \
             height=\"14\"/></svg><span>{}: {}</span></li>",
            index + 1,
            escaped(name)
        )
    };
    let items: String = Parts::NAMES.iter().enumerate().map(item).collect();
    format!("<ul class=\"legend\">{items}</ul>")
}

fn stack(subject: &Subject, found: &Breakdown, size: Size) -> Stack {
    let bar = |(index, group): (usize, &Parts)| Bar {
        name: (index + 1).to_string(),
        parts: group.shares().to_vec(),
        tooltip: Parts::NAMES
            .iter()
            .zip(group.shares())
            .map(|(name, share)| format!("tenth {}, {name}: {}", index + 1, percent(share)))
            .collect(),
    };
    let [own, behind, ..] = found.slow.shares();
    Stack {
        size,
        title: format!("Parts of the response time of {}", subject.name),
        description: format!(
            "Of the time of slow requests {} was their own wait and {} behind a blocked loop.",
            percent(own),
            percent(behind)
        ),
        above: "share of the response time".into(),
        below: "tenths of the requests, fastest to slowest".into(),
        bars: found.groups.iter().enumerate().map(bar).collect(),
    }
}

fn numbers(shown: &[(&Subject, &Breakdown)]) -> Table {
    let mut table = Table::new(&[
        "run",
        "part",
        "all: mean",
        "all: share",
        "slow: mean",
        "slow: share",
    ]);
    for (subject, found) in shown {
        let (all, slow) = (&found.all, &found.slow);
        for (index, name) in Parts::NAMES.iter().enumerate() {
            let mean = |parts: &Parts| time(parts.times()[index] / parts.requests.max(1) as f64);
            table.rows.push(vec![
                escaped(&subject.name),
                escaped(name),
                mean(all),
                percent(all.shares()[index]),
                mean(slow),
                percent(slow.shares()[index]),
            ]);
        }
        table.rows.push(vec![
            escaped(&subject.name),
            "requests".into(),
            grouped(all.requests),
            String::new(),
            grouped(slow.requests),
            format!("from {}", time(found.slow_ns as f64)),
        ]);
    }
    table
}
