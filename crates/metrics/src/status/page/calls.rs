//! What the tracer of the event loops has seen: sleeps and system calls.

use std::fmt::Write;

use headway_base::format::{self, time_ns};
use headway_base::html::escaped;
use headway_debox::Report;

use super::{Column, Row, begin_table, card};

const TITLE: &str = "Sleeps outside the event wait";
const HELP: &str =
    "A system call in which an event loop slept. Every client of the worker waited meanwhile.";

const COLUMNS: [Column; 6] = [
    Column::text("System call", "The call of the loop."),
    Column::text("Resource", "For what it waited."),
    Column::text("Kernel function", "Where in the kernel it slept."),
    Column::number("Count", "Sleeps there."),
    Column::number("Total", "Their time together."),
    Column::number("Max", "The longest one."),
];

/// Each place where a loop slept.
pub(super) fn sleeps(out: &mut String, trace: &Report) {
    if trace.sleeps.is_empty() {
        let _ = write!(
            out,
            "<section class=\"wide\" title=\"{HELP}\"><h2>{TITLE}</h2><p>None.</p></section>"
        );
        return;
    }
    begin_table(out, (TITLE, HELP), &COLUMNS);
    for site in &trace.sleeps {
        let symbol = site.symbol.as_deref().unwrap_or("unknown");
        let _ = write!(
            out,
            "<tr title=\"{HELP}\"><th>{}</th><th>{}</th><th><code>{}</code></th><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&site.call),
            site.label,
            escaped(symbol),
            format::count(site.count),
            time_ns(site.total_ns as f64),
            time_ns(site.max_ns as f64)
        );
    }
    out.push_str("</table></div></section>");
}

/// How often each system call was made.
pub(super) fn calls(out: &mut String, trace: &Report) {
    let mut calls: Vec<_> = trace.calls.iter().collect();
    calls.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let mut rows: Vec<Row> = calls
        .into_iter()
        .map(|(call, count)| {
            Row::new(
                call,
                "Times that the event loops made this system call.",
                format::count(*count),
            )
        })
        .collect();
    let waits = format!(
        "{} ({})",
        format::count(trace.waits.count),
        time_ns(trace.waits.total_ns as f64)
    );
    rows.push(Row::new(
        "sleeps in the event wait",
        "Times that a loop slept because nothing was ready, and for how long.",
        waits,
    ));
    rows.push(Row::new(
        "preemptions",
        "Times that the kernel gave the CPU of a loop to another thread.",
        format::count(trace.preemptions.count),
    ));
    card(out, "System calls of the event loops", &rows);
}
