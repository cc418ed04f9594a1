//! Access logs: the same tables, of what a server has written.

use std::path::Path;

use headway_latency::compare::compare;
use headway_latency::format::{count, counted, printable};
use headway_latency::{Analysis, Analyzer, RunDescription};
use headway_log_reader::Summary;

use super::{Arguments, Failure, json, print, print_data, style, text, with_deadlines};

/// Whether this is no directory of a run.
pub fn is_log(path: &Path) -> bool {
    path.as_os_str() == "-" || path.is_file()
}

/// A log and its figures.
struct Log {
    name: String,
    summary: Summary,
    analysis: Analysis,
}

impl Log {
    fn read(path: &Path, arguments: &Arguments) -> Result<Log, Failure> {
        let mut analyzer = with_deadlines(Analyzer::new(&RunDescription::default()), arguments);
        let format = arguments.format.as_ref();
        let summary = headway_log_reader::read(path, format, |row| analyzer.push(row))?;
        Ok(Log {
            name: printable(&path.display().to_string()).into_owned(),
            summary,
            analysis: analyzer.finish(),
        })
    }

    /// What was read, and what was not.
    fn title(&self) -> String {
        let mut text = format!(
            "{} · log of {} · {}\n",
            self.name,
            self.summary.format,
            counted(self.summary.requests, "request", "requests")
        );
        let left_out = [
            (self.summary.untimed, "without a time or a latency"),
            (self.summary.unreadable, "in another format"),
        ];
        for (lines, why) in left_out.iter().filter(|(lines, _)| *lines > 0) {
            text.push_str(&format!("left out: {} lines {why}\n", count(*lines)));
        }
        text
    }
}

/// Prints the tables of a log, or the differences between two.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.export.is_given() || arguments.point.is_some() {
        let message = "--out and --point need a run directory, and this is a log";
        return Err(Failure::Usage(message.into()));
    }
    let first = Log::read(&arguments.run, arguments)?;
    let Some(other) = &arguments.compare else {
        return match arguments.json {
            true => print_data(&json(&first.analysis)?),
            false => print(&(first.title() + &text::tables(&first.analysis, style()))),
        };
    };
    if !is_log(other) {
        return Err(Failure::Usage(format!(
            "{}: a log can be compared with a log only",
            other.display()
        )));
    }
    let second = Log::read(other, arguments)?;
    let differences = compare(&first.analysis, &second.analysis)?;
    if arguments.json {
        return print_data(&json(&serde_json::json!({
            "first": first.analysis, "second": second.analysis, "differences": differences
        }))?);
    }
    let titles = format!("A  {}B  {}", first.title(), second.title());
    print(&(titles + &text::difference_table(&differences, style())))
}
