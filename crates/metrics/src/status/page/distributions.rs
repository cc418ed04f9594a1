//! Cards of the status page that come from histograms: turns of the loops, helper jobs, accept batches.

use std::fmt::Write;

use headway_base::format;

use super::{Row, card};
use crate::{Counters, Histogram, RequestStage};

/// How connections are accepted (Brecht and Ostrowski, section 6).
pub(super) fn accepting(out: &mut String, counters: &Counters) {
    let share = |part: u64, of: u64| match of {
        0 => "–".into(),
        of => format!("{:.1} %", 100.0 * part as f64 / of as f64),
    };
    let mean = |of: &Histogram| of.mean().map_or("–".into(), |mean| format!("{mean:.2}"));
    let (accepted, rejected) = (
        counters.connections_accepted,
        counters.connections_rejected_per_address,
    );
    let successful = accepted.saturating_add(rejected);
    let rows = [
        Row::new(
            "successful accept calls",
            "Share of the accept calls that returned a connection. The last call of a batch often finds none.",
            share(successful, counters.accept_calls),
        ),
        Row::new(
            "connections per accept batch",
            "Mean number of connections accepted per wakeup of a listener.",
            mean(&counters.accept_batch_connections),
        ),
        Row::new(
            "open connections at accept, mean",
            "Mean number of open connections when one was accepted.",
            mean(&counters.connections_at_accept),
        ),
    ];
    card(out, "Accept statistics", &rows);
}

/// How long the loops computed, which holds up clients as a sleep does.
pub(super) fn loop_times(out: &mut String, counters: &Counters) {
    let of = [
        (
            "turn",
            "Time of a turn of an event loop, from the end of one wait for events to the next.",
            &counters.loop_turn_us,
        ),
        (
            "wait of a ready event",
            "Loop lag: time that a ready event waited for those before it.",
            &counters.loop_lag_us,
        ),
    ];
    let mut rows = times(of);
    if let Some((stage, us)) = counters.loop_longest_turn.stage() {
        rows.push(Row::new(
            "most of the longest turn",
            "The stage that took most of the longest turn so far, and its time. The metrics have all stages of it.",
            format!("{stage}, {}", format::time_us(us as f64)),
        ));
    }
    card(out, "Turns of the event loops", &rows);
}

/// How long requests were in each stage. One without requests is left out.
pub(super) fn request_stages(out: &mut String, counters: &Counters) {
    let mut rows = Vec::new();
    for (stage, help) in [
        (
            RequestStage::Queue,
            "Time that requests waited for a slot of their location.",
        ),
        (
            RequestStage::Lookup,
            "Time until the file or the handler of a request was known, and its body was there.",
        ),
        (
            RequestStage::Upstream,
            "Time until the header of the response of a program or an upstream was there.",
        ),
        (
            RequestStage::Send,
            "Time from the header of a response until its last byte was in the socket.",
        ),
    ] {
        let durations = counters.request_stages.of(stage);
        for (quantile, name) in [(0.5, "p50"), (0.99, "p99")] {
            if let Some(us) = durations.quantile_us(quantile) {
                let shown = format::time_us(us);
                rows.push(Row::new(format!("{}, {name}", stage.as_str()), help, shown));
            }
        }
    }
    if !rows.is_empty() {
        card(out, "Requests by stage", &rows);
    }
}

/// How long jobs waited for a helper, and how long they took.
pub(super) fn helper_times(out: &mut String, counters: &Counters) {
    let of = [
        (
            "waiting",
            "Time that a job waited for a helper.",
            &counters.helper_wait_us,
        ),
        (
            "service",
            "Time that a helper took for a job, such as a read from the disk.",
            &counters.helper_service_us,
        ),
    ];
    card(out, "Helper job times", &times(of));
}

fn times(of: [(&str, &'static str, &Histogram); 2]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, help, times) in of {
        for (quantile, name) in [(0.5, "p50"), (0.95, "p95"), (0.99, "p99"), (1.0, "max")] {
            let shown = times
                .quantile(quantile)
                .map_or("–".into(), |us| format::time_us(us as f64));
            rows.push(Row::new(format!("{what}, {name}"), help, shown));
        }
    }
    rows
}

/// The distribution of ready events per wakeup (Figure 1 of the 2006 paper). A loop that never
/// blocks finds few; one that blocked finds many.
pub(super) fn ready_events(out: &mut String, histogram: &Histogram) {
    const WIDTH: f64 = 300.0;
    const HEIGHT: f64 = 120.0;
    let Some(mean) = histogram.mean() else {
        return card(
            out,
            "Ready events per wakeup",
            &[Row::new(
                "wakeups",
                "Wakeups of the event loops.",
                "0".into(),
            )],
        );
    };
    let top = (histogram.max().max(2) as f64 + 1.0).log2();
    let x = |value: u64| (value as f64 + 1.0).log2() / top * WIDTH;
    let mut path = format!("M0 {HEIGHT}");
    let mut below = 0;
    for (upper, count) in histogram.buckets() {
        below = count.saturating_add(below);
        let height = HEIGHT - below as f64 / histogram.count() as f64 * HEIGHT;
        let _ = write!(path, "H{:.1}V{height:.1}", x(upper.min(histogram.max())));
    }
    let _ = write!(
        out,
        "<section title=\"How many events were ready when a loop woke up. A loop that blocked finds many.\">\
         <h2>Ready events per wakeup</h2><svg viewBox=\"-28 -8 344 152\" role=\"img\" \
         aria-label=\"cumulative distribution of ready events per wakeup\">\
         <path class=\"axis\" d=\"M0 0V{HEIGHT}H{WIDTH}\"/><path class=\"curve\" d=\"{path}H{WIDTH}\"/>\
         <text x=\"-4\" y=\"4\" text-anchor=\"end\">1</text>\
         <text x=\"-4\" y=\"{HEIGHT}\" text-anchor=\"end\">0</text>"
    );
    let next = |tick: &u64| tick.checked_mul(if *tick < 16 { 2 } else { 4 });
    let ticks = std::iter::successors(Some(1), next);
    for tick in ticks.take_while(|tick| *tick <= histogram.max().max(2)) {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"136\" text-anchor=\"middle\">{tick}</text>",
            x(tick)
        );
    }
    let (count, max) = (
        format::count(histogram.count()),
        format::count(histogram.max()),
    );
    let _ = write!(
        out,
        "</svg><p>Cumulative share of {count} wakeups; mean {mean:.2}, maximum {max}.</p></section>"
    );
}
