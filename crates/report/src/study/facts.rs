//! How a study was made: remarks, environments, servers, every run with its client's verdict, and
//! the command.

use std::fmt::Write;

use headway_latency::run::Verdict;
use headway_latency::study::StudyResult;
use headway_latency::study::result::Repeat;

use super::styles::{label, point};
use crate::figure::Table;
use crate::html::escaped;
use crate::section::environment::shell_quoted;
use crate::units::{NONE, bytes, counted, measured};

/// A sentence above everything else if runs cannot be believed or could not be made.
pub(super) fn warning(result: &StudyResult) -> String {
    let all = || {
        result
            .measurements
            .iter()
            .flat_map(|measurement| &measurement.repeats)
    };
    let count = |wanted: fn(&Repeat) -> bool| all().filter(|repeat| wanted(repeat)).count() as u64;
    let measured = |repeat: &Repeat, verdict| repeat.failed.is_none() && repeat.verdict == verdict;
    let invalid = all()
        .filter(|repeat| measured(repeat, Verdict::Invalid))
        .count() as u64;
    let suspect = all()
        .filter(|repeat| measured(repeat, Verdict::Suspect))
        .count() as u64;
    let failed = count(|repeat| repeat.failed.is_some());
    if invalid + suspect + failed == 0 {
        return String::new();
    }
    let parts = [
        (invalid, "invalid"),
        (suspect, "suspect"),
        (failed, "not made"),
    ];
    let counts: Vec<String> = parts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    format!(
        "<p class=\"standing {}\">Of {}: {}. The reasons stand under <em>How it was made</em>.</p>",
        if invalid > 0 { "invalid" } else { "suspect" },
        counted(all().count() as u64, "run"),
        counts.join(", ")
    )
}

/// The author's remarks, and what differs from the paper.
pub(super) fn remarks(result: &StudyResult) -> String {
    let list = |heading: &str, remarks: &[String]| {
        if remarks.is_empty() {
            return String::new();
        }
        let items: String = remarks
            .iter()
            .map(|one| format!("<li>{}</li>", escaped(one)))
            .collect();
        format!("<div><h3>{heading}</h3><ul>{items}</ul></div>")
    };
    let lists =
        list("Remarks", &result.notes) + &list("What differs from the paper", &result.differences);
    if lists.is_empty() {
        lists
    } else {
        format!("<div class=\"remarks\">{lists}</div>")
    }
}

/// The folded part at the end of a study.
pub(super) fn html(result: &StudyResult) -> String {
    let mut out = String::from("<details class=\"made\"><summary>How it was made</summary>");
    if !result.command.is_empty() {
        let _ = write!(
            out,
            "<h3>To repeat it</h3><pre>{}</pre>",
            escaped(&shell_quoted(&result.command))
        );
    }
    let _ = write!(
        out,
        "<h3>Environments</h3><dl>{}</dl>",
        environments(result)
    );
    let _ = write!(out, "<h3>Machine</h3><dl>{}</dl>", machine(result));
    let _ = write!(out, "<h3>Servers</h3>{}", servers(result));
    let _ = write!(
        out,
        "<h3>Runs, each with its client's verdict on itself</h3>{}",
        runs(result)
    );
    out + "</details>"
}

fn fact(out: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value));
    }
}

fn environments(result: &StudyResult) -> String {
    let mut out = String::new();
    for environment in &result.environments {
        fact(&mut out, &environment.name, &environment.summary);
        for missing in &environment.missing {
            fact(&mut out, "missing", missing);
        }
    }
    out
}

fn machine(result: &StudyResult) -> String {
    let machine = &result.machine;
    let mut out = String::new();
    fact(&mut out, "host", &machine.host);
    fact(&mut out, "kernel", &machine.kernel);
    fact(
        &mut out,
        "CPUs",
        &format!("{} × {}", machine.cpus, machine.cpu_model),
    );
    fact(&mut out, "memory", &bytes(machine.memory_bytes as f64));
    fact(&mut out, "headway", &machine.headway_version);
    for (name, value) in &machine.extra {
        fact(&mut out, name, value);
    }
    fact(&mut out, "put together", &result.made);
    out
}

fn servers(result: &StudyResult) -> String {
    let mut table = Table::new(&["server", "kind", "version"]);
    for server in &result.servers {
        let version = match (&server.unavailable, &server.version) {
            (Some(reason), _) => format!("not measured: {reason}"),
            (None, Some(version)) => version.clone(),
            (None, None) => NONE.into(),
        };
        table.rows.push(vec![
            escaped(label(result, &server.name)),
            escaped(&server.kind),
            escaped(&version),
        ]);
    }
    table.html("Servers")
}

fn runs(result: &StudyResult) -> String {
    let mut table = Table::new(&[
        "server",
        "measure",
        "point",
        "repeat",
        "offered/s",
        "verdict",
        "run",
        "reasons",
    ]);
    for measurement in &result.measurements {
        for repeat in &measurement.repeats {
            table.rows.push(vec![
                escaped(label(result, &measurement.server)),
                escaped(&measurement.measure),
                escaped(&point(&measurement.point)),
                repeat.repeat.to_string(),
                repeat.rate_rps.map_or("closed".into(), measured),
                verdict(repeat).into(),
                escaped(&repeat.key),
                escaped(
                    &repeat
                        .failed
                        .iter()
                        .chain(&repeat.reasons)
                        .cloned()
                        .collect::<Vec<_>>()
                        .join("; "),
                ),
            ]);
        }
    }
    table.html("Runs")
}

fn verdict(repeat: &Repeat) -> &'static str {
    match (&repeat.failed, repeat.verdict) {
        (Some(_), _) => "not made",
        (None, Verdict::Valid) => "valid",
        (None, Verdict::Suspect) => "suspect",
        (None, Verdict::Invalid) => "invalid",
    }
}
