//! What the tracer of the event loops has seen: sleeps and system calls.

use std::fmt::Write;

use headway_base::format::{self, time_ns};
use headway_base::html::escaped;
use headway_debox::Report;

use super::{Row, card};

/// Each place where a loop slept.
pub(super) fn sleeps(out: &mut String, trace: &Report) {
    out.push_str("<section class=\"wide\" title=\"Each system call in which an event loop slept. Every client of the worker waited meanwhile.\"><h2>Sleeps outside the event wait</h2>");
    if trace.sleeps.is_empty() {
        out.push_str("<p>None.</p></section>");
        return;
    }
    out.push_str("<div class=\"scroll\"><table><tr><th>System call</th><th>Resource</th><th>Kernel function</th>");
    out.push_str("<td>Count</td><td>Total</td><td>Max</td></tr>");
    for site in &trace.sleeps {
        let symbol = site.symbol.as_deref().unwrap_or("unknown");
        let _ = write!(
            out,
            "<tr><th>{}</th><th>{}</th><th><code>{}</code></th><td>{}</td><td>{}</td><td>{}</td></tr>",
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
