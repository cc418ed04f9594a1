//! The status page's table of upstreams.

use std::fmt::Write;

use headway_base::format;
use headway_base::html::escaped;

use super::{Column, begin_table, duration_ms};
use crate::Upstream;

const HELP: &str = "An upstream, as all workers see it. One that fails is ejected for a while.";

const COLUMNS: [Column; 6] = [
    Column::text("Location", "The location whose requests it gets."),
    Column::text("Upstream", "Its address."),
    Column::number("Active requests", "Requests that it has not answered yet."),
    Column::number("Idle connections", "Open connections for later requests."),
    Column::number("Consecutive failures", "Failures since it last answered."),
    Column::text(
        "State",
        "Whether it gets requests. On probation: it was ejected before.",
    ),
];

/// The load and the state of each upstream.
pub(super) fn table(out: &mut String, all: &[Upstream]) {
    if all.is_empty() {
        return;
    }
    begin_table(out, ("Upstreams", HELP), &COLUMNS);
    for one in all {
        let state = match one.ejected {
            0 if one.ejections > 0 => "on probation".to_owned(),
            0 => "in use".to_owned(),
            workers => format!(
                "ejected by {} worker{} for {}",
                format::count(workers),
                if workers == 1 { "" } else { "s" },
                duration_ms(one.ejection_remaining_ms)
            ),
        };
        let _ = write!(
            out,
            "<tr title=\"{HELP}\"><th>{}</th><th>{}</th><td>{}</td><td>{}</td><td>{}</td><th>{state}</th></tr>",
            escaped(&one.location),
            escaped(&one.address),
            format::count(one.requests_active),
            format::count(one.idle_connections),
            format::count(one.consecutive_failures),
        );
    }
    out.push_str("</table></div></section>");
}
