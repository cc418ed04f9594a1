//! The kept calls as Chrome's trace-event JSON, which Perfetto and `chrome://tracing` open.
//!
//! Source: "Trace Event Format", the complete (`X`), metadata (`M`) and instant (`i`) events. Times are microseconds
//! since the trace began; fractions keep the nanoseconds.

use serde_json::{Value, json};

use super::{label, place};
use crate::model::{Kept, Program, Trace, file_name};

/// The whole document. Events are in the order of their times.
pub fn chrome(trace: &Trace) -> String {
    let mut events: Vec<Value> = trace.programs.iter().map(name).collect();
    let begin = |program: &Program| (program.started_ns, begun(trace, program));
    let call = |kept: &Kept| (kept.start_ns, event(trace, kept));
    let mut timed: Vec<(u64, Value)> = trace.programs.iter().map(begin).collect();
    timed.extend(trace.kept.iter().map(call));
    timed.sort_by_key(|(start_ns, _)| *start_ns);
    events.extend(timed.into_iter().map(|(_, event)| event));
    let document = json!({
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "command": trace.command.join(" "),
            "kept": trace.policy,
            "started_unix_ns": trace.started_unix_ns.to_string(),
            "version": format!("headway {}", trace.headway),
        },
    });
    document.to_string()
}

fn us(trace: &Trace, at_ns: u64) -> f64 {
    at_ns.saturating_sub(trace.started_ns) as f64 / 1e3
}

fn name(program: &Program) -> Value {
    json!({
        "ph": "M",
        "name": "process_name",
        "pid": program.pid,
        "tid": program.pid,
        "args": { "name": file_name(&program.exe) },
    })
}

fn begun(trace: &Trace, program: &Program) -> Value {
    json!({
        "ph": "i",
        "s": "p",
        "name": format!("begin {}", file_name(&program.exe)),
        "cat": "program",
        "pid": program.pid,
        "tid": program.pid,
        "ts": us(trace, program.started_ns),
        "args": { "command": program.command.join(" ") },
    })
}

fn event(trace: &Trace, kept: &Kept) -> Value {
    let sleeps: Vec<Value> = kept
        .sleeps
        .iter()
        .map(|sleep| {
            json!({
                "label": sleep.label,
                "kernel": sleep.symbol,
                "count": sleep.count,
                "blocked_us": sleep.total_ns as f64 / 1e3,
            })
        })
        .collect();
    json!({
        "ph": "X",
        "name": kept.call,
        "cat": label(kept),
        "pid": trace.programs.get(kept.program).map(|program| program.pid),
        "tid": kept.thread,
        "ts": us(trace, kept.start_ns),
        "dur": kept.wall_ns as f64 / 1e3,
        "args": {
            "site": place(trace, kept),
            "result": kept.result,
            "preempted_us": kept.preemptions.total_ns as f64 / 1e3,
            "sleeps": sleeps,
        },
    })
}
