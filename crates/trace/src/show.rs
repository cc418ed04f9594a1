//! The summary of a trace as text: a sentence, then the waits, the calls, the call sites, the
//! longest calls, and what is missing.
//!
//! The tables only arrange what a [`Trace`] holds. The forms are those of the dissertation's Tables
//! 2.1, 2.4 and 2.5 and of its section 2.5.5.

mod calls;
mod heading;
mod kept;
mod labels;
mod sentence;
mod sites;

use headway_base::format::printable_text;

use crate::model::Trace;

pub use sentence::sentence;

/// The style of the text.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Columns of the terminal.
    pub width: usize,
    /// Whether headings may be set in bold.
    pub colour: bool,
    /// Limit of rows per table; 0 for all.
    pub rows_max: usize,
}

/// A part of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What the sleeps waited for: time, label, kernel function (the paper's Table 2.5).
    Waits,
    /// Sleeps by label and call (Table 2.4).
    Labels,
    /// Time of each call as a program would measure it and in band (Table 2.1).
    Calls,
    /// Time of each call site (section 2.5.5).
    Sites,
    /// The longest of the calls that were kept, in the order they happened.
    Kept,
    /// Programs that were traced.
    Programs,
}

impl Part {
    /// Every part, in the order they are shown.
    pub const ALL: [Part; 6] = [
        Part::Waits,
        Part::Labels,
        Part::Calls,
        Part::Sites,
        Part::Kept,
        Part::Programs,
    ];

    /// The name of the section on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Waits => "waits",
            Part::Labels => "labels",
            Part::Calls => "calls",
            Part::Sites => "sites",
            Part::Kept => "kept",
            Part::Programs => "programs",
        }
    }
}

impl Style {
    /// A heading, made visible.
    pub(crate) fn heading(&self, text: &str) -> String {
        if self.colour {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// The heading of a table's columns.
    pub(crate) fn columns(&self, text: &str) -> String {
        if self.colour {
            format!("\x1b[2m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// The rows that are shown, and a line about the others.
    pub(crate) fn first<'t, T>(&self, rows: &'t [T], what: &str) -> (&'t [T], String) {
        let most = if self.rows_max == 0 {
            rows.len()
        } else {
            self.rows_max
        };
        if rows.len() <= most {
            return (rows, String::new());
        }
        let rest = rows.len() - most;
        (
            &rows[..most],
            format!("… and {rest} more {what} (--top 0 shows all)\n"),
        )
    }
}

/// The summary.
pub fn summary(trace: &Trace, parts: &[Part], style: &Style) -> String {
    let mut out = heading::lines(trace, style);
    out.push_str(&heading::wrapped(&sentence(trace), "", style.width));
    for part in parts {
        let section = match part {
            Part::Waits => labels::waits(trace, style),
            Part::Labels => labels::by_call(trace, style),
            Part::Calls => calls::table(trace, style),
            Part::Sites => sites::table(trace, style),
            Part::Kept => kept::table(trace, style),
            Part::Programs => heading::programs(trace, style),
        };
        if !section.is_empty() {
            out.push('\n');
            out.push_str(&section);
        }
    }
    out.push('\n');
    out.push_str(&heading::missing(trace, style));
    // It also goes to files and standard error, past the printing of standard output.
    printable_text(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use crate::export::tests::kept;
    use crate::model::{CodeLocation, Program, Trace};

    #[test]
    fn names_from_outside_have_no_control_characters_in_any_part() {
        const NAME: &str = "a\x1b]0;title\x07\r\n- forged\u{9b}2J";
        let location = CodeLocation {
            function: Some(NAME.to_owned()),
            file: Some(NAME.to_owned()),
            line: Some(7),
            module: NAME.to_owned(),
            ..CodeLocation::default()
        };
        let mut call = kept("read", 0, None, Vec::new());
        (call.call, call.stack) = (NAME.to_owned(), vec![0, 0]);
        let trace = Trace {
            command: vec!["ls".to_owned(), NAME.to_owned()],
            programs: vec![Program {
                pid: 7,
                ppid: 0,
                image: 0,
                exe: NAME.to_owned(),
                command: vec![NAME.to_owned()],
                started_ns: 0,
                ended_ns: None,
                level: headway_debox::TraceLevel::Stacks,
                sees_faults: true,
                calls: 1,
            }],
            locations: vec![location],
            kept: vec![call],
            missing: vec![format!("{NAME} was not traced")],
            ..Trace::default()
        };
        let style = super::Style {
            width: 200,
            colour: false,
            rows_max: 0,
        };
        let text = super::summary(&trace, &super::Part::ALL, &style);
        let raw = |c: char| c.is_control() && c != '\n';
        assert!(!text.contains(raw), "{text:?}");
        assert!(!text.contains("\n- forged"), "{text}");
        assert!(text.contains(r"a\x1b]0;title\x07"), "{text}");
        assert!(!crate::export::folded(&trace).contains(raw));
    }
}
