//! The status page's table of workers.

use std::fmt::Write;

use headway_base::format;
use headway_base::html::escaped;

use super::duration_ms;
use crate::Overview;

/// One row per worker.
pub(super) fn table(out: &mut String, overview: &Overview) {
    out.push_str(
        "<section class=\"wide\" title=\"The worker processes. A replaced worker counts from its own start.\"><h2>Workers</h2><div class=\"scroll\"><table><tr><th>Worker</th>",
    );
    out.push_str(
        "<td>PID</td><td>Uptime</td><td>Connections</td><td>Accepted</td><td>Requests</td>",
    );
    out.push_str("<td>Helpers</td><td>Blocked</td><th>Events, residency</th></tr>");
    for worker in &overview.workers {
        let counters = &worker.counters;
        let _ = write!(
            out,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><th>{}, {}</th></tr>",
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
            "<tr><th>{number}</th><td colspan=\"8\">no answer in time</td></tr>"
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
