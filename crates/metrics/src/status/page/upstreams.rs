//! The status page's table of upstreams.

use std::fmt::Write;

use headway_base::format;
use headway_base::html::escaped;

use super::duration_ms;
use crate::Upstream;

/// The load and the state of each upstream.
pub(super) fn table(out: &mut String, all: &[Upstream]) {
    if all.is_empty() {
        return;
    }
    out.push_str(
        "<section class=\"wide\" title=\"Each upstream, as all workers see it. One that fails is ejected for a while.\"><h2>Upstreams</h2><div class=\"scroll\"><table><tr><th>Location</th>",
    );
    out.push_str("<th>Upstream</th><td>Active requests</td><td>Idle connections</td>");
    out.push_str("<td>Consecutive failures</td><th>State</th></tr>");
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
            "<tr><th>{}</th><th>{}</th><td>{}</td><td>{}</td><td>{}</td><th>{state}</th></tr>",
            escaped(&one.location),
            escaped(&one.address),
            format::count(one.requests_active),
            format::count(one.idle_connections),
            format::count(one.consecutive_failures),
        );
    }
    out.push_str("</table></div></section>");
}
