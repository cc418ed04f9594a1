//! The kept calls as Chrome's trace-event JSON, which Perfetto and `chrome://tracing` open.
//!
//! Source: "Trace Event Format", the complete (`X`), metadata (`M`) and instant (`i`) events. Times
//! are microseconds since the trace began; fractions keep the nanoseconds.

use serde_json::{Value, json};

use super::{label, location};
use crate::model::{FunctionAt, KeptCall, Program, SleepAt, Trace, file_name};

/// The whole document. Events are in the order of their times.
pub fn chrome(trace: &Trace) -> String {
    let mut events: Vec<Value> = trace.programs.iter().map(name).collect();
    let begin = |program: &Program| (program.started_ns, begun(trace, program));
    let call = |kept: &KeptCall| (kept.start_ns, event(trace, kept));
    let mut timed: Vec<(u64, Value)> = trace.programs.iter().map(begin).collect();
    timed.extend(trace.kept.iter().map(call));
    timed.extend(trace.kept.iter().flat_map(|kept| functions(trace, kept)));
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

fn event(trace: &Trace, kept: &KeptCall) -> Value {
    let sleeps: Vec<Value> = kept.sleeps.iter().map(slept).collect();
    json!({
        "ph": "X",
        "name": kept.call,
        "cat": label(kept),
        "pid": trace.programs.get(kept.program).map(|program| program.pid),
        "tid": kept.thread,
        "ts": us(trace, kept.start_ns),
        "dur": kept.wall_ns as f64 / 1e3,
        "args": {
            "site": location(trace, kept),
            "result": kept.result,
            "preempted_us": kept.preemptions.total_ns as f64 / 1e3,
            "sleeps": sleeps,
        },
    })
}

/// The kernel functions of a call, which viewers draw below it. They are clipped to the call, since
/// their clock differs slightly.
fn functions(trace: &Trace, kept: &KeptCall) -> Vec<(u64, Value)> {
    let pid = trace.programs.get(kept.program).map(|program| program.pid);
    let within = |ns: u64| ns.clamp(kept.start_ns, kept.start_ns + kept.wall_ns);
    let event = |function: &FunctionAt| {
        let start_ns = within(function.start_ns);
        let end_ns = within(function.start_ns + function.length_ns);
        let value = json!({
            "ph": "X",
            "name": function.name,
            "cat": "kernel",
            "pid": pid,
            "tid": kept.thread,
            "ts": us(trace, start_ns),
            "dur": (end_ns - start_ns) as f64 / 1e3,
        });
        (start_ns, value)
    };
    kept.functions.iter().map(event).collect()
}

/// A sleep. Unknown waiters and lines are left out, so that they do not read as 0.
fn slept(sleep: &SleepAt) -> Value {
    let mut value = json!({
        "label": sleep.label,
        "kernel": sleep.symbol,
        "count": sleep.count,
        "blocked_us": sleep.total_ns as f64 / 1e3,
    });
    let waiters = [
        ("waiters_entry_max", sleep.waiters_entry_max),
        ("waiters_exit_max", sleep.waiters_exit_max),
    ];
    for (name, count) in waiters {
        if let Some(count) = count {
            value[name] = count.into();
        }
    }
    if let Some(line) = sleep.source_line() {
        value["line"] = line.into();
    }
    value
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;
    use serde_json::{Value, json};

    use crate::export::tests::kept;
    use crate::model::{FunctionAt, SleepAt, Trace};

    #[test]
    fn functions_are_inside_their_call_when_their_clock_is_another() {
        let mut call = kept("read", 5_000, None, Vec::new());
        call.start_ns = 5_000;
        call.wall_ns = 1_000;
        let function = |depth, start_ns, length_ns| FunctionAt {
            name: format!("f{depth}"),
            depth,
            start_ns,
            length_ns,
        };
        call.functions = vec![function(0, 4_900, 1_300), function(1, 5_200, 300)];
        let trace = Trace {
            kept: vec![call],
            ..Trace::default()
        };
        let document: Value = serde_json::from_str(&super::chrome(&trace)).expect("JSON");
        let events = document["traceEvents"].as_array().expect("a list");
        let locations: Vec<_> = (events.iter())
            .map(|event| {
                (
                    event["name"].clone(),
                    event["ts"].clone(),
                    event["dur"].clone(),
                )
            })
            .collect();
        let expected = [("read", 5.0, 1.0), ("f0", 5.0, 1.0), ("f1", 5.2, 0.3)];
        assert_eq!(
            locations,
            expected.map(|(name, ts, dur)| (json!(name), json!(ts), json!(dur)))
        );
    }

    #[test]
    fn waiters_are_absent_when_they_were_not_counted() {
        let counted = SleepAt {
            label: Label::Pipe,
            waiters_entry_max: Some(0),
            waiters_exit_max: Some(3),
            ..SleepAt::default()
        };
        let uncounted = SleepAt {
            label: Label::Pipe,
            ..SleepAt::default()
        };
        let trace = Trace {
            kept: vec![kept("read", 0, None, vec![counted, uncounted])],
            ..Trace::default()
        };
        let document: Value = serde_json::from_str(&super::chrome(&trace)).expect("JSON");
        let sleeps = &document["traceEvents"][0]["args"]["sleeps"];
        assert_eq!(sleeps[0]["waiters_entry_max"], json!(0));
        assert_eq!(sleeps[0]["waiters_exit_max"], json!(3));
        let names = sleeps[1].as_object().expect("an object");
        assert!(
            !names.keys().any(|name| name.contains("waiters")),
            "{names:?}"
        );
    }
}
