//! The metrics reference, generated from the table that the server renders its metrics from.

use headway_server::metrics::families::{self, Family, GROUPS};
use std::fmt::Write;

const INTRODUCTION: &str = "# Metrics reference

`headway serve --status ADDRESS` serves these metrics at `/metrics`, in the Prometheus text format.
See [Monitor with Prometheus](../howto/prometheus.md) for a scrape configuration and alerts.

All durations are in seconds and all sizes in bytes. Counters start at 0 when the server starts, and
survive the replacement of a worker. `/status.json` has the same numbers under `total.counters`.

This page is generated from the source code by `headway reference`.
";

/// The page in Markdown.
pub fn metrics() -> String {
    let families = families::all();
    let mut out = INTRODUCTION.to_owned();
    for group in GROUPS {
        let members: Vec<&Family> = families
            .iter()
            .filter(|family| family.group == group)
            .collect();
        if members.is_empty() {
            continue;
        }
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            out,
            "\n## {group}\n\n| Name | Type | Labels | Meaning |\n|---|---|---|---|\n"
        );
        for family in &members {
            let _ = writeln!(
                out,
                "| `{}` | {} | {} | {} |",
                family.name,
                family.kind.as_str(),
                labels(family),
                family.help
            );
        }
        for family in members.iter().filter(|family| !family.series.is_empty()) {
            label_values(&mut out, family);
        }
    }
    out
}

fn labels(family: &Family) -> String {
    let names: Vec<String> = family
        .labels
        .iter()
        .map(|label| format!("`{label}`"))
        .collect();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    }
}

/// The series of a family whose label values are fixed.
fn label_values(out: &mut String, family: &Family) {
    let _ = write!(out, "\n### Label values of `{}`\n\n|", family.name);
    for label in &family.labels {
        let _ = write!(out, " `{label}` |");
    }
    let _ = write!(
        out,
        " Meaning |\n|{}\n",
        "---|".repeat(family.labels.len() + 1)
    );
    for (values, help) in &family.series {
        out.push('|');
        for value in values {
            let _ = write!(out, " `{value}` |");
        }
        let _ = writeln!(out, " {help} |");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_every_family_and_label_value_once() {
        let page = metrics();
        for family in families::all() {
            let row = format!("| `{}` | {} |", family.name, family.kind.as_str());
            assert_eq!(page.matches(&row).count(), 1, "{row}\n{page}");
        }
        assert!(page.contains("| `file` | `hit` | Requests whose path was in the file cache. |"));
        assert!(page.lines().all(|line| line.len() <= 250), "{page}");
    }
}
