//! The head of the summary (the command, how it ended, how it was traced), and what is missing.

use std::fmt::Write as _;

use headway_base::format::printable;
use headway_debox::TraceLevel;

use super::Style;
use crate::model::{Outcome, Trace, TraceMethod, file_name};
use crate::table::{Table, cut};
use crate::units::{counted, time, time_unpadded};

/// The lines above the tables.
pub(super) fn lines(trace: &Trace, style: &Style) -> String {
    let what = if trace.command.is_empty() {
        program_names(trace)
    } else {
        trace.command.join(" ")
    };
    let how = match trace.outcome {
        Some(Outcome::Exit(code)) => format!(", exit code {code}"),
        Some(Outcome::Signal(signal)) => format!(", killed by signal {signal}"),
        None => String::new(),
    };
    let mut out = style.heading(&cut(&printable(&what), style.width));
    let _ = writeln!(
        out,
        "\n{} in {}, {}{how}",
        counted(trace.calls(), "call", "calls"),
        counted(trace.processes() as u64, "process", "processes"),
        time_unpadded(trace.length_ns()),
    );
    out.push_str(&wrapped(&visibility(trace), "", style.width));
    out
}

/// What a preloaded library cannot count in any program, and the way around it. How many calls that
/// are is not known: of `ls -l` it is most of them.
const LIBC_CALLS: &str = "Calls made inside libc (stdio, readdir, getaddrinfo, the loader) are counted only when they \
                          sleep. Calls made past libc, or by a rare function of it (such as capset), are not counted. \
                          To count every call, use --attach (root).";

/// Distinct names of programs, the first few.
fn program_names(trace: &Trace) -> String {
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

/// How the records were made and what they show, for the program that showed least.
fn visibility(trace: &Trace) -> String {
    let levels = || trace.programs.iter().map(|program| &program.level);
    let method = match trace.method {
        TraceMethod::Preload => "in band, by a preloaded library",
        TraceMethod::Attach => "out of band, by BPF",
    };
    let sees = if trace.programs.is_empty() {
        "nothing was recorded"
    } else if levels().any(|level| matches!(level, TraceLevel::Off { .. })) {
        "calls are timed, sleeps are not visible"
    } else if levels().any(|level| matches!(level, TraceLevel::SwitchesOnly { .. })) {
        "sleeps are counted and timed, but not located"
    } else {
        "sleeps are counted, timed and located in the kernel"
    };
    let waiters = match trace.method {
        TraceMethod::Preload if trace.has_waiters() => "; waiters are counted by BPF",
        _ => "",
    };
    let functions = match trace.has_functions() {
        true => "; kernel functions are timed by function_graph, which makes calls longer",
        false => "",
    };
    format!("Traced {method}: {sees}{waiters}{functions}.")
}

/// A list of what the trace does not show.
pub(super) fn missing(trace: &Trace, style: &Style) -> String {
    let always = (trace.method == TraceMethod::Preload).then_some(LIBC_CALLS);
    if trace.missing.is_empty() && always.is_none() {
        return "Nothing is missing: no record was lost, and every program was traced.\n"
            .to_owned();
    }
    let mut out = style.heading("What is missing") + "\n";
    for text in (trace.missing.iter().map(String::as_str)).chain(always) {
        out.push_str(&wrapped(text, "- ", style.width));
    }
    out
}

/// A paragraph with a mark before its first line and a hanging indent.
pub(super) fn wrapped(text: &str, mark: &str, width: usize) -> String {
    let indent = mark.chars().count();
    let mut out = mark.to_owned();
    let mut column = indent;
    for word in text.split_whitespace() {
        let word = printable(word);
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
        out.push_str(&word);
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
            crate::units::grouped(program.calls),
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
    fn method_is_shown_when_functions_were_timed() {
        let mut trace = Trace {
            kept: vec![kept("read", 0, None, Vec::new())],
            ..Trace::default()
        };
        assert!(!super::visibility(&trace).contains("function_graph"));
        trace.kept[0].functions.push(FunctionAt {
            name: "vfs_read".to_owned(),
            depth: 0,
            start_ns: 0,
            length_ns: 80,
        });
        assert!(super::visibility(&trace).contains("function_graph"));
    }

    #[test]
    fn summary_says_what_a_preloaded_library_leaves_out() {
        let style = super::Style {
            width: 400,
            colour: false,
            rows_max: 0,
        };
        let text = |method| {
            let trace = Trace {
                method,
                ..Trace::default()
            };
            super::missing(&trace, &style)
        };
        let preload = text(super::TraceMethod::Preload);
        assert!(
            preload.contains("inside libc") && preload.contains("--attach"),
            "{preload}"
        );
        assert!(!preload.contains("Nothing is missing"), "{preload}");
        assert!(text(super::TraceMethod::Attach).contains("Nothing is missing"));
    }

    #[test]
    fn paragraph_has_a_hanging_indent_when_it_is_longer_than_the_line() {
        let text = super::wrapped("one two three four", "- ", 12);
        assert_eq!(text, "- one two\n  three four\n");
    }
}
