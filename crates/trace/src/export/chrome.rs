//! The kept calls as Chrome's trace-event JSON, which Perfetto and `chrome://tracing` open.
//!
//! Source: "Trace Event Format", the complete (`X`), metadata (`M`) and instant (`i`) events. Times are microseconds
//! since the trace began; fractions keep the nanoseconds.

use serde_json::{Value, json};

use super::{label, place};
use crate::model::{Kept, Program, SleepAt, Trace, file_name};

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
            "site": place(trace, kept),
            "result": kept.result,
            "preempted_us": kept.preemptions.total_ns as f64 / 1e3,
            "sleeps": sleeps,
        },
    })
}

/// A sleep. Waiters are left out where nobody counted them, so that none reads as 0; so is a line that is not known.
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
    if let Some(line) = sleep.line_words() {
        value["line"] = line.into();
    }
    value
}

#[cfg(test)]
mod tests {
    use debox::Label;
    use serde_json::{Value, json};

    use crate::export::tests::kept;
    use crate::model::{SleepAt, Trace};

    #[test]
    fn waiters_are_absent_when_nobody_counted_them() {
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
