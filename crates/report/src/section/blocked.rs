//! Blocked calls of the server beside slow requests, for runs that were traced.

use super::Section;
use headway_latency::breakdown::SLOW_SHARE;

use crate::blocked::Blocked;
use crate::figure::Table;
use crate::html::{escaped, shortened};
use crate::subject::Subject;
use crate::units::{counted, grouped, percent, time};

/// The section; `None` if no run has a trace.
pub(crate) fn section(subjects: &[Subject]) -> Option<Section> {
    let parts: Vec<String> = subjects
        .iter()
        .filter_map(|subject| Some(part(subject, subject.chosen()?.blocked.as_ref()?)))
        .collect();
    (!parts.is_empty()).then(|| Section {
        id: "blocked",
        title: "Blocked calls in slow requests",
        lead: format!(
            "Calls of the traced processes that slept, joined with the requests in flight at that \
             time. Slow means the slowest {} of the requests. A label that is much more frequent \
             in slow requests than in all requests may be the cause of their delay; a label that \
             is equally frequent in both is not.",
            percent(1.0 - SLOW_SHARE)
        ),
        parts,
    })
}

fn part(subject: &Subject, blocked: &Blocked) -> String {
    let mut out = format!(
        "<h3>{}</h3><p>{}</p>",
        escaped(&subject.name),
        escaped(&summary(blocked))
    );
    if !blocked.labels.is_empty() {
        out.push_str(&labels(blocked).html("Labels"));
    }
    if !blocked.longest.is_empty() {
        out.push_str("<p>The calls that fell into most slow requests:</p>");
        out.push_str(&calls(blocked).html("Blocked calls"));
    }
    out
}

fn summary(blocked: &Blocked) -> String {
    if blocked.calls == 0 {
        return "The trace has no blocked call: nothing slept outside the event wait, or no call was \
         recorded.".into();
    }
    if !blocked.overlap {
        return format!(
            "{} in the trace, none while a request was in flight: the trace may be from another \
             time or another clock.",
            counted(blocked.calls, "blocked call")
        );
    }
    format!(
        "{} in the trace; {} of {} requests took {} or longer.",
        counted(blocked.calls, "blocked call"),
        grouped(blocked.slow),
        grouped(blocked.requests),
        time(blocked.slow_ns as f64)
    )
}

fn labels(blocked: &Blocked) -> Table {
    let mut table = Table::new(&[
        "label",
        "blocked calls",
        "time in them",
        "slow requests met",
        "of the slow",
        "of all requests",
    ]);
    for label in &blocked.labels {
        table.rows.push(vec![
            escaped(&shortened(&label.label, 60)),
            grouped(label.calls),
            time(label.asleep_ns as f64),
            grouped(label.slow),
            percent(share(label.slow, blocked.slow)),
            percent(share(label.requests, blocked.requests)),
        ]);
    }
    table
}

fn calls(blocked: &Blocked) -> Table {
    let mut table = Table::new(&[
        "at",
        "call",
        "label",
        "length",
        "slow requests",
        "call site",
    ]);
    for call in &blocked.longest {
        let at = call.start_ns.max(0) as f64;
        table.rows.push(vec![
            format!("+{}", time(at)),
            escaped(&shortened(&call.call, 60)),
            escaped(&shortened(&call.label, 60)),
            time(call.wall_ns as f64),
            grouped(call.slow),
            escaped(&shortened(&call.site, 60)),
        ]);
    }
    table
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
