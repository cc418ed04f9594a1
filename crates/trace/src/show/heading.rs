//! What was traced and how it ended, how much of it was seen, and what is missing.

use std::fmt::Write as _;

use headway_debox::Rung;

use super::Style;
use crate::model::{Outcome, Trace, Way, file_name};
use crate::table::{Table, cut};
use crate::units::{plural, time, time_words};

/// The lines above the tables.
pub(super) fn lines(trace: &Trace, style: &Style) -> String {
    let what = if trace.command.is_empty() {
        programs_words(trace)
    } else {
        trace.command.join(" ")
    };
    let how = match trace.outcome {
        Some(Outcome::Exit(code)) => format!(", exit code {code}"),
        Some(Outcome::Signal(signal)) => format!(", killed by signal {signal}"),
        None => String::new(),
    };
    let mut out = style.heading(&cut(&what, style.width));
    let _ = writeln!(
        out,
        "\n{} in {}, {}{how}",
        plural(trace.calls(), "call", "calls"),
        plural(trace.processes() as u64, "process", "processes"),
        time_words(trace.length_ns()),
    );
    out + &wrapped(&sight(trace), "", style.width)
}

/// Distinct names of programs, the first few.
fn programs_words(trace: &Trace) -> String {
    let mut names: Vec<&str> = Vec::new();
    for program in &trace.programs {
        let name = file_name(&program.exe);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.truncate(6);
    names.join(", ")
}

/// The rung of the privilege ladder, of the program that saw least.
fn sight(trace: &Trace) -> String {
    let rungs = || trace.programs.iter().map(|program| &program.rung);
    let way = match trace.way {
        Way::Preload => "in band, by a preloaded library",
        Way::Attach => "out of band, by BPF",
    };
    let sees = if trace.programs.is_empty() {
        "nothing was recorded"
    } else if rungs().any(|rung| matches!(rung, Rung::Off { .. })) {
        "calls are timed, sleeps are not seen"
    } else if rungs().any(|rung| matches!(rung, Rung::SwitchesOnly { .. })) {
        "sleeps are counted and timed, not located"
    } else {
        "sleeps are counted, timed and located in the kernel"
    };
    let waiters = match trace.way {
        Way::Preload if trace.has_waiters() => "; waiters are counted beside, by BPF",
        _ => "",
    };
    let functions = match trace.has_functions() {
        true => "; kernel functions are timed beside, by function_graph, which makes calls longer",
        false => "",
    };
    format!("seen {way}: {sees}{waiters}{functions}")
}

/// One line a sentence, wrapped.
pub(super) fn missing(trace: &Trace, style: &Style) -> String {
    if trace.missing.is_empty() {
        return "Nothing is missing: no record was lost, and no program escaped.\n".to_owned();
    }
    let mut out = style.heading("What is missing") + "\n";
    for text in &trace.missing {
        out.push_str(&wrapped(text, "- ", style.width));
    }
    out
}

/// A paragraph behind a mark, below which its other lines hang.
pub(super) fn wrapped(text: &str, mark: &str, width: usize) -> String {
    let indent = mark.chars().count();
    let mut out = mark.to_owned();
    let mut column = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > width {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        }
        if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
    out
}

/// The programs, by the order they began.
pub(super) fn programs(trace: &Trace, style: &Style) -> String {
    let mut table = Table::new(&["PID", "PARENT", "BEGAN", "LASTED", "CALLS", "<COMMAND"]);
    let (rows, more) = style.first(&trace.programs, "programs");
    for program in rows {
        let lasted = program
            .ended_ns
            .map(|end| end.saturating_sub(program.started_ns));
        table.row(vec![
            program.pid.to_string(),
            program.ppid.to_string(),
            format!(
                "+{}",
                time(program.started_ns.saturating_sub(trace.started_ns))
            ),
            crate::units::time_or_none(lasted),
            crate::units::counted(program.calls),
            program.command.join(" "),
        ]);
    }
    if table.is_empty() {
        return String::new();
    }
    style.heading("Programs") + "\n" + &table.lines(style.width, |text| style.columns(text)) + &more
}

#[cfg(test)]
mod tests {
    use crate::export::tests::kept;
    use crate::model::{FunctionAt, Trace};

    #[test]
    fn way_is_told_when_functions_were_timed_beside() {
        let mut trace = Trace {
            kept: vec![kept("read", 0, None, Vec::new())],
            ..Trace::default()
        };
        assert!(!super::sight(&trace).contains("function_graph"));
        trace.kept[0].functions.push(FunctionAt {
            name: "vfs_read".to_owned(),
            depth: 0,
            start_ns: 0,
            length_ns: 80,
        });
        assert!(super::sight(&trace).contains("function_graph"));
    }

    #[test]
    fn paragraph_hangs_when_it_is_longer_than_the_line() {
        let text = super::wrapped("one two three four", "- ", 12);
        assert_eq!(text, "- one two\n  three four\n");
    }
}
