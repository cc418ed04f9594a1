//! Sleeps by label and system call, in the form of Table 2.4: a column a resource, the calls that
//! slept on it below.

use std::collections::BTreeMap;
use std::fmt::Write;

use headway_latency::study::result::{Figure, SleepCount};

use super::figures::Shown;
use crate::html::escaped;
use crate::units::measured;

/// Resources shown of each server; the others are put into a sentence.
const COLUMNS_MAX: usize = 6;
/// Sleeps that a process asks for and is not hindered by.
const IDLE: &str = "event-wait";

/// Sleeps per second of one resource, by call, most frequent first.
struct Column {
    label: String,
    total: f64,
    calls: Vec<(String, f64)>,
}

/// A small table per server; `None` if no server was traced.
pub(super) fn html(figure: &Figure, shown: &[Shown]) -> Option<String> {
    let with: Vec<&Shown> = shown
        .iter()
        .filter(|one| one.repeats().any(observed))
        .collect();
    if with.is_empty() {
        return None;
    }
    let mut out = format!(
        "<div class=\"tabled\"><h3>{}</h3><p class=\"soft\">Each column is a resource with the sleeps per second on it; below stand \
         the system calls that slept, with theirs. The form of Table 2.4.</p><div class=\"sleepers\">",
        escaped(&figure.title)
    );
    for one in with {
        let columns = columns(one);
        let _ = write!(
            out,
            "<div><h4>{} <small>{}</small></h4>",
            escaped(&one.server),
            escaped(&one.point)
        );
        out.push_str(&table(&columns, &one.name()));
        out.push_str("</div>");
    }
    Some(out + "</div></div>")
}

fn observed(repeat: &headway_latency::study::result::Repeat) -> bool {
    !repeat.sleeps.is_empty() || repeat.values.contains_key("sleeps")
}

/// Rates over all repeats together.
fn columns(one: &Shown) -> Vec<Column> {
    let repeats: Vec<_> = one.repeats().filter(|repeat| observed(repeat)).collect();
    let mut rates: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    let wanted = |sleep: &&SleepCount| sleep.label != IDLE && sleep.observed_s > 0.0;
    for sleep in repeats
        .iter()
        .flat_map(|repeat| &repeat.sleeps)
        .filter(wanted)
    {
        let rate = sleep.count as f64 / sleep.observed_s / repeats.len() as f64;
        *rates
            .entry(&sleep.label)
            .or_default()
            .entry(&sleep.call)
            .or_default() += rate;
    }
    let column = |(label, calls): (&str, BTreeMap<&str, f64>)| {
        let mut calls: Vec<(String, f64)> = calls
            .into_iter()
            .map(|(call, rate)| (call.into(), rate))
            .collect();
        calls.sort_by(|a, b| b.1.total_cmp(&a.1));
        Column {
            label: label.into(),
            total: calls.iter().map(|(_, rate)| rate).sum(),
            calls,
        }
    };
    let mut columns: Vec<Column> = rates.into_iter().map(column).collect();
    columns.sort_by(|a, b| b.total.total_cmp(&a.total));
    columns
}

fn table(columns: &[Column], name: &str) -> String {
    if columns.is_empty() {
        return "<p>No sleep but the event wait.</p>".into();
    }
    let shown = &columns[..columns.len().min(COLUMNS_MAX)];
    let rows = shown
        .iter()
        .map(|column| column.calls.len())
        .max()
        .unwrap_or(0)
        .min(COLUMNS_MAX);
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Sleeps of {}, table\"><table><thead><tr>",
        escaped(name)
    );
    for column in shown {
        let _ = write!(
            out,
            "<th scope=\"col\">{} / {}</th>",
            escaped(&column.label),
            measured(column.total)
        );
    }
    out.push_str("</tr></thead><tbody>");
    for row in 0..rows {
        out.push_str("<tr>");
        for column in shown {
            let cell = column.calls.get(row).map_or(String::new(), |(call, rate)| {
                format!("{} / {}", escaped(call), measured(*rate))
            });
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    let rest: Vec<String> = columns[shown.len()..]
        .iter()
        .map(|column| format!("{} / {}", escaped(&column.label), measured(column.total)))
        .collect();
    if !rest.is_empty() {
        let _ = write!(out, "<p class=\"soft\">Also {}.</p>", rest.join(", "));
    }
    out
}
