//! The status page's table of workers.

use std::fmt::Write;

use headway_base::format;
use headway_base::html::escaped;

use super::{Column, begin_table, duration_ms};
use crate::Overview;

const HELP: &str = "A worker process. A replaced worker counts from its own start.";

const COLUMNS: [Column; 9] = [
    Column::text("Worker", "Its number, from 0."),
    Column::number("PID", "Process ID."),
    Column::number("Uptime", "Time since the process began."),
    Column::number("Connections", "Open connections of clients."),
    Column::number("Accepted", "Connections accepted."),
    Column::number("Requests", "Requests received."),
    Column::number("Helpers", "Its helper processes."),
    Column::number(
        "Blocked",
        "Sleeps of its loop outside the event wait. The number to expect is 0.",
    ),
    Column::text(
        "Events, residency",
        "How it waits for events, and how it finds out whether pages are in memory.",
    ),
];

/// One row per worker.
pub(super) fn table(out: &mut String, overview: &Overview) {
    begin_table(out, ("Workers", HELP), &COLUMNS);
    for worker in &overview.workers {
        let counters = &worker.counters;
        let _ = write!(
            out,
            "<tr title=\"{HELP}\"><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><th>{}, {}</th></tr>",
            worker.worker,
            worker.pid,
            duration_ms(worker.uptime_ms),
            format::count(counters.connections_open),
            format::count(counters.connections_accepted),
            format::count(counters.requests_received),
            format::count(counters.helpers),
            format::count(worker.trace.blocked_count()),
            escaped(&worker.events),
            escaped(&worker.residency)
        );
    }
    for number in &overview.unresponsive {
        let _ = write!(
            out,
            "<tr title=\"{HELP}\"><th>{number}</th><td colspan=\"8\">no answer in time</td></tr>"
        );
    }
    out.push_str("</table></div>");
    skew(out, overview);
    out.push_str("</section>");
}

/// Whether one worker has more than its share.
fn skew(out: &mut String, overview: &Overview) {
    let found = overview.skew.all();
    let ratios: Vec<String> = found
        .iter()
        .filter_map(|(name, skew)| Some(format!("{} {:.2}", name.replace('_', " "), (*skew)?)))
        .collect();
    if !ratios.is_empty() {
        let _ = write!(
            out,
            "<p>Busiest worker ÷ average (1 is balanced): {}.</p>",
            ratios.join(", ")
        );
    }
}
