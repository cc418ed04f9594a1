//! The metrics reference, generated from the table that the server renders its metrics from.

use headway_load::session::metrics::FAMILIES;
use headway_server::metrics::families::{self, Family, GROUPS};
use std::fmt::Write;

use headway_cli_support::command_line::wrapped;

const INTRODUCTION: &str = "# Metrics

`headway serve --status ADDRESS` serves these metrics at `/metrics`, in the Prometheus text format.
See [Monitor with Prometheus](../howto/prometheus.md) for a scrape configuration and alerts.

All durations are in seconds and all sizes in bytes. Counters start at 0 when the server starts, and
survive the replacement of a worker. `/status.json` has the same numbers under `total.counters`. The
counters under *Kernel* cover the network namespace. Histograms have classic buckets, since the text format has no
native ones.

Each metric has its labels in braces, its type and its meaning. The values of its labels, where they are fixed,
are listed below it. This page is generated from the code.
";

const LOAD: &str = "
## Load tests

`headway load --out prometheus=URL` sends these once per second ([how](../howto/load-live.md)). All have the labels
`job=\"headway-load\"`, `instance` (the host), `run` (`--label`, or when the run began) and `agent`.

With `--out otlp=URL` a name has no unit and no `_total`: `headway.load.requests`, `headway.load.response` (`s`).
Receivers that write into Prometheus add them again.

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
        let _ = write!(out, "\n## {group}\n\n");
        for family in members {
            let (kind, help) = (family.kind.as_str(), family.help);
            let described = description(&family.name, &family.labels, kind, help);
            out.push_str(&wrapped("- ", &described));
            for (values, help) in &family.series {
                let values = values.iter().map(|value| format!("`{value}`"));
                let values = values.collect::<Vec<_>>().join(", ");
                out.push_str(&wrapped("  - ", &format!("{values}: {help}")));
            }
        }
    }
    out.push_str(LOAD);
    for family in FAMILIES {
        let described = description(family.name, family.labels, family.kind, family.help);
        out.push_str(&wrapped("- ", &described));
    }
    out
}

/// A family as one line: name, labels, type and meaning.
fn description(name: &str, labels: &[&str], kind: &str, help: &str) -> String {
    let labels = match labels.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", labels.join(",")),
    };
    format!("`{name}{labels}`, {kind}: {help}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_every_family_and_label_value_once() {
        let page = metrics();
        for family in families::all() {
            let with_labels = format!("\n- `{}{{", family.name);
            let without = format!("\n- `{}`, ", family.name);
            let count = page.matches(&with_labels).count() + page.matches(&without).count();
            assert_eq!(count, 1, "{}\n{page}", family.name);
        }
        assert!(page.contains("\n  - `file`, `hit`: Requests whose path was in the file cache."));
        assert!(page.lines().all(|line| line.len() <= 120), "{page}");
    }
}
