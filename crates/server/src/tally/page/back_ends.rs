//! The status page's table of the servers behind this one.

use std::fmt::Write;

use super::{duration_ms, escaped, grouped};
use crate::tally::BackEnd;

/// Which servers behind this one answer, and which are left alone for a while.
pub(super) fn table(out: &mut String, all: &[BackEnd]) {
    if all.is_empty() {
        return;
    }
    out.push_str(
        "<section class=\"wide\"><h2>Back ends</h2><div class=\"scroll\"><table><tr><th>Location</th>",
    );
    out.push_str("<th>Back end</th><td>Requests now</td><td>Idle connections</td>");
    out.push_str("<td>Failures in a row</td><th>State</th></tr>");
    for one in all {
        let state = match one.left_alone {
            0 if one.ejections > 0 => "on trial".to_owned(),
            0 => "in use".to_owned(),
            workers => format!(
                "left alone by {} worker{} for {} more",
                grouped(workers),
                if workers == 1 { "" } else { "s" },
                duration_ms(one.left_alone_ms)
            ),
        };
        let _ = write!(
            out,
            "<tr><th>{}</th><th>{}</th><td>{}</td><td>{}</td><td>{}</td><th>{state}</th></tr>",
            escaped(&one.location),
            escaped(&one.address),
            grouped(one.requests),
            grouped(one.idle),
            grouped(one.failures),
        );
    }
    out.push_str("</table></div></section>");
}
