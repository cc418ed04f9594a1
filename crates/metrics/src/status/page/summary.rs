//! The head of the status page: whether the event loops ever blocked, and warnings.

use std::fmt::Write;

use headway_base::format::{self, time_ns};
use headway_base::html::escaped;
use headway_debox::TraceLevel;

use super::duration_ms;
use crate::{Overview, Snapshot};

/// The first line and what qualifies it.
pub(super) fn blocking_summary(out: &mut String, total: &Snapshot, overview: &Overview) {
    let trace = &total.trace;
    let blocked = trace.blocked_count();
    let calls = format::count(trace.calls.values().copied().fold(0, u64::saturating_add));
    let time = duration_ms(overview.master.uptime_ms);
    let (class, title, detail) = match (&trace.level, blocked) {
        (TraceLevel::Off { why }, _) => (
            "unknown",
            "The event loops are not traced".into(),
            format!("Cannot tell whether they blocked: {why}"),
        ),
        (_, 0) if trace.lost_records > 0 => (
            "unknown",
            "The event loops blocked 0 times, as far as recorded".into(),
            format!("{calls} system calls in {time}."),
        ),
        (_, 0) => (
            "good",
            "The event loops blocked 0 times".into(),
            format!(
                "{calls} system calls in {time}. This page names every sleep outside the event wait."
            ),
        ),
        (_, blocked) => (
            "bad",
            format!(
                "The event loops blocked {} time{}",
                format::count(blocked),
                if blocked == 1 { "" } else { "s" }
            ),
            format!(
                "{} in total, in {calls} system calls over {time}. The table below names the calls.",
                time_ns(trace.blocked_ns() as f64)
            ),
        ),
    };
    let _ = write!(
        out,
        "<header class=\"{class}\"><h1>{title}</h1><p>{}</p>",
        escaped(&detail)
    );
    if trace.lost_records > 0 {
        let lost = format::count(trace.lost_records);
        let _ = write!(
            out,
            "<p class=\"warn\">{lost} trace records were lost, so sleeps may be missing.</p>"
        );
    }
    if let TraceLevel::SwitchesOnly { why } = &trace.level {
        let _ = write!(
            out,
            "<p class=\"warn\">The kernel functions of sleeps are unknown: {}</p>",
            escaped(why)
        );
    }
    if let Some(error) = &overview.master.log_error {
        let lost = format::count(overview.master.log_lines_lost);
        let error = escaped(error);
        let _ = write!(
            out,
            "<p class=\"warn\">Access log: {error}; {lost} lines lost.</p>"
        );
    }
    if let Some(error) = &overview.master.span_error {
        let lost = format::count(overview.master.spans_dropped);
        let error = escaped(error);
        let _ = write!(
            out,
            "<p class=\"warn\">OTLP: {error}; {lost} spans lost.</p>"
        );
    }
    if let Some(error) = &overview.master.reload_error {
        let error = escaped(error);
        let _ = write!(
            out,
            "<p class=\"warn\">The last reload failed: {error}. The configuration before is in use.</p>"
        );
    }
    out.push_str("</header>");
}
