//! The longest calls that were kept, on a time line.

use headway_base::format::printable;

use super::Style;
use crate::model::{FunctionAt, KeptCall, Trace};
use crate::table::Table;
use crate::units::{NONE, grouped, time, time_or_none};

/// How many frames of a stack fit below a row without burying the table.
const FRAMES_MAX: usize = 12;

/// How many timed kernel functions; a read that waits for a page is twelve deep.
const FUNCTIONS_MAX: usize = 16;

/// No function of the kernel is deeper, and no terminal shows more. A file may say otherwise.
const INDENT_MAX: usize = 60;

/// A function shorter than its call divided by this does not explain the call.
const CALL_DIVISOR: u64 = 10;

/// The column of the waiters, after the times; that of the waits for a CPU comes before it.
const WAITERS_COLUMN: usize = 5;

pub(super) fn table(trace: &Trace, style: &Style) -> String {
    // Waiting for work is no anomaly, however long.
    let idle = |kept: &&KeptCall| kept.label().is_some_and(headway_debox::Label::is_idle);
    let mut chosen: Vec<&KeptCall> = trace.kept.iter().filter(|kept| !idle(kept)).collect();
    if chosen.is_empty() {
        return String::new();
    }
    chosen.sort_by_key(|kept| std::cmp::Reverse(kept.in_band_ns()));
    let all = chosen.len();
    let (longest, _) = style.first(&chosen, "calls");
    let mut longest = longest.to_vec();
    longest.sort_by_key(|kept| kept.start_ns);
    let mut headings = vec![
        "AT",
        "PID",
        "LENGTH",
        "ASLEEP",
        "PREEMPTED",
        "<CALL",
        "<ON",
        "<CALL SITE",
    ];
    let counted_waiters = longest.iter().any(|kept| waiters(kept).is_some());
    if counted_waiters {
        headings.insert(WAITERS_COLUMN, "OTHERS IN/OUT");
    }
    let timed_wakeups = longest.iter().any(|kept| kept.wakeup_ns.is_some());
    if timed_wakeups {
        headings.insert(WAITERS_COLUMN, "RUNNABLE");
    }
    let mut table = Table::new(&headings);
    for kept in &longest {
        let mut cells = row(trace, kept);
        if counted_waiters {
            cells.insert(WAITERS_COLUMN, waiters(kept).unwrap_or_else(|| NONE.into()));
        }
        if timed_wakeups {
            cells.insert(WAITERS_COLUMN, time_or_none(kept.wakeup_ns));
        }
        table.row(cells);
    }
    let title = format!(
        "Longest calls, {} of {} kept",
        longest.len(),
        grouped(all as u64)
    );
    let lines = table.lines(style.width, |text| style.columns(text));
    style.heading(&title) + "\n" + &with_details(trace, &longest, &lines)
}

/// The largest number of other tasks asleep on the same resource at the beginning and end of a
/// sleep of the call, if they were counted.
fn waiters(kept: &KeptCall) -> Option<String> {
    let (entry, exit) = kept.waiters_entry_max().zip(kept.waiters_exit_max())?;
    Some(format!("{}/{}", grouped(entry), grouped(exit)))
}

fn row(trace: &Trace, kept: &KeptCall) -> Vec<String> {
    let pid = trace.programs.get(kept.program).map(|program| program.pid);
    let on = kept.label().map_or(NONE.into(), |label| match kept.lost {
        0 => label.to_string(),
        _ => format!("{label} (and more)"),
    });
    let preempted = match kept.preemptions.total_ns {
        0 => format!("{NONE}   "),
        ns => time(ns),
    };
    vec![
        format!("+{}", time(kept.start_ns.saturating_sub(trace.started_ns))),
        pid.map_or(NONE.into(), |pid| pid.to_string()),
        time(kept.wall_ns),
        time(kept.blocked_ns()),
        preempted,
        kept.call.clone(),
        on,
        trace
            .locations
            .get(kept.location)
            .map_or(NONE.into(), |location| location.description()),
    ]
}

/// Each row's stack and functions below it, where there are some.
fn with_details(trace: &Trace, longest: &[&KeptCall], lines: &str) -> String {
    let mut lines = lines.lines();
    let mut out = String::new();
    out.extend(lines.next().map(|heading| format!("{heading}\n")));
    for (line, kept) in lines.zip(longest) {
        out.push_str(line);
        out.push('\n');
        // The innermost frame is the call site itself, which is in the row.
        for location in kept.stack.iter().skip(1).take(FRAMES_MAX) {
            let description = trace
                .locations
                .get(*location)
                .map_or(NONE.into(), |location| location.description());
            out.push_str(&format!("      ← {}\n", printable(&description)));
        }
        if kept.stack.len() > FRAMES_MAX + 1 {
            out.push_str(&format!(
                "      ← … {} more\n",
                kept.stack.len() - FRAMES_MAX - 1
            ));
        }
        out.push_str(&functions(kept));
    }
    out
}

/// The functions most of the call's time went through, as they called each other.
fn functions(kept: &KeptCall) -> String {
    let matters = |function: &&FunctionAt| function.length_ns >= kept.wall_ns / CALL_DIVISOR;
    let mut chosen: Vec<&FunctionAt> = kept.functions.iter().filter(matters).collect();
    // The longest are around the others, so what is left is one tree.
    chosen.sort_by_key(|function| (std::cmp::Reverse(function.length_ns), function.depth));
    chosen.truncate(FUNCTIONS_MAX);
    chosen.sort_by_key(|function| (function.start_ns, function.depth));
    let line = |function: &&FunctionAt| {
        let indent = usize::from(function.depth).min(INDENT_MAX) * 2;
        let length = time(function.length_ns);
        format!("      → {length:>9}  {:indent$}{}\n", "", function.name)
    };
    let mut out: String = chosen.iter().map(line).collect();
    let rest = kept.functions.len() as u64 + kept.functions_dropped - chosen.len() as u64;
    if rest > 0 {
        out.push_str(&format!("      → … {} shorter ones\n", grouped(rest)));
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::export::tests::kept;
    use crate::model::{FunctionAt, Trace};

    fn function(name: &str, depth: u16, start_ns: u64, length_ns: u64) -> FunctionAt {
        FunctionAt {
            name: name.to_owned(),
            depth,
            start_ns,
            length_ns,
        }
    }

    #[test]
    fn run_queue_waits_have_a_column_when_they_were_measured() {
        let style = crate::show::Style {
            width: 160,
            colour: false,
            rows_max: 0,
        };
        let mut trace = Trace {
            kept: vec![kept("read", 0, None, Vec::new())],
            ..Trace::default()
        };
        assert!(!super::table(&trace, &style).contains("RUNNABLE"));
        trace.kept[0].wakeup_ns = Some(3_210_000);
        let table = super::table(&trace, &style);
        assert!(
            table.contains("RUNNABLE") && table.contains("3.21 ms"),
            "{table}"
        );
    }

    #[test]
    fn functions_that_took_the_time_are_shown_as_they_call_each_other() {
        let mut kept = kept("read", 0, None, Vec::new());
        kept.wall_ns = 1_000_000;
        kept.functions = vec![
            function("__x64_sys_read", 0, 100, 990_000),
            function("fdget_pos", 1, 150, 200),
            function("vfs_read", 1, 500, 980_000),
            function("schedule", 2, 900, 900_000),
        ];
        kept.functions_dropped = 1200;
        let expected = "      →    990 µs  __x64_sys_read\n      →    980 µs    vfs_read\n      →    900 µs      schedule\n      \
                        → … 1,201 shorter ones\n";
        assert_eq!(super::functions(&kept), expected);
        kept.functions[0].depth = u16::MAX;
        assert!(super::functions(&kept).contains(&format!("{:120}__x64_sys_read", "")));
        kept.functions.clear();
        kept.functions_dropped = 0;
        assert_eq!(super::functions(&kept), "");
    }
}
