//! Output options of `headway trace`: the summary, and files for other programs.

use anyhow::Context;
use clap::Args;
use headway_trace::Trace;
use headway_trace::show::{self, Style};
use rustix::termios::tcgetwinsize;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use super::super::output::print_data;
use super::{Failure, Section};

/// Output options.
#[derive(Debug, Args)]
#[group(skip)]
#[command(next_help_heading = "Output")]
pub struct Arguments {
    /// Write the summary to FILE (`-`: standard output)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the trace as JSON
    #[arg(long)]
    json: bool,
    /// Sections of the summary, in this order
    #[arg(
        long,
        value_name = "SECTION,…",
        value_delimiter = ',',
        default_value = "waits,labels,calls,sites,kept",
        hide_short_help = true
    )]
    show: Vec<Section>,
    /// Show at most N rows per table; 0 = all
    #[arg(long, value_name = "N", default_value_t = 12, hide_short_help = true)]
    top: usize,
    /// Width of the summary [default: that of the terminal]
    #[arg(long, value_name = "COLUMNS", hide_short_help = true)]
    width: Option<usize>,
    /// Save the trace in DIR, for `headway trace report` and `headway report`
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Write each kept call by invocation, as a table (.csv, .parquet) or a figure (.svg)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    history: Vec<PathBuf>,
    /// Write kept calls as a timeline for Perfetto (Chrome trace events)
    #[arg(long, value_name = "FILE")]
    chrome: Option<PathBuf>,
    /// Write off-CPU time as folded stacks, for a flame graph
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
}

impl Arguments {
    /// Checks that the files can be written, before a command runs for an hour.
    pub fn check(&self) -> Result<(), Failure> {
        for path in &self.history {
            if history_of(path).is_none() {
                let path = path.display();
                return Err(Failure::Usage(format!(
                    "--history {path}: use a file name that ends in .csv, .parquet or .svg"
                )));
            }
        }
        let files = self
            .history
            .iter()
            .chain(&self.chrome)
            .chain(&self.folded)
            .chain(&self.output);
        for path in files.filter(|path| *path != Path::new("-")) {
            writable(path)?;
        }
        if let Some(directory) = &self.keep {
            fs::create_dir_all(directory)
                .with_context(|| format!("--keep {}", directory.display()))?;
            let test = tempfile::Builder::new()
                .prefix(".headway-")
                .tempfile_in(directory);
            test.with_context(|| format!("--keep {}", directory.display()))?;
        }
        Ok(())
    }

    /// Whether an output needs every call, so that all are kept unless an option says otherwise.
    pub fn needs_every_call(&self) -> bool {
        !self.history.is_empty()
    }

    /// Writes all outputs. The summary of a command goes to standard error, to keep it apart from
    /// the command's own output; without a command it goes to standard output.
    pub fn write(&self, trace: &Trace, beside_command: bool) -> Result<(), Failure> {
        if let Some(directory) = &self.keep {
            file(
                &directory.join(headway_trace::FILE_NAME),
                trace.json() + "\n",
            )?;
        }
        for path in &self.history {
            if let Some(form) = history_of(path) {
                let content =
                    form(trace).with_context(|| format!("--history {}", path.display()))?;
                file(path, content)?;
            }
        }
        if let Some(path) = &self.chrome {
            file(path, headway_trace::export::chrome(trace))?;
        }
        if let Some(path) = &self.folded {
            file(path, headway_trace::export::folded(trace))?;
        }
        self.summary(trace, beside_command)
    }

    fn summary(&self, trace: &Trace, beside_command: bool) -> Result<(), Failure> {
        let text = |style: &Style| match self.json {
            true => trace.json() + "\n",
            false => show::summary(trace, &self.parts(), style),
        };
        let style = |terminal: Option<usize>| Style {
            width: self.width.or(terminal).unwrap_or(160),
            colour: terminal.is_some()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            rows_max: self.top,
        };
        match &self.output {
            Some(path) if path != Path::new("-") => Ok(file(path, text(&style(None)))?),
            None if beside_command => {
                let mut error = std::io::stderr().lock();
                let width = width_of(&error);
                // A closed standard error is not a failure.
                let _ = error.write_all(format!("\n{}", text(&style(width))).as_bytes());
                Ok(())
            }
            _ => {
                let width = width_of(&std::io::stdout());
                print_data(&text(&style(width)))
            }
        }
    }

    fn parts(&self) -> Vec<show::Part> {
        if self.show.contains(&Section::All) {
            return show::Part::ALL.to_vec();
        }
        let part = |part: &Section| match part {
            Section::Waits => Some(show::Part::Waits),
            Section::Labels => Some(show::Part::Labels),
            Section::Calls => Some(show::Part::Calls),
            Section::Sites => Some(show::Part::Sites),
            Section::Kept => Some(show::Part::Kept),
            Section::Programs => Some(show::Part::Programs),
            Section::All => None,
        };
        self.show.iter().filter_map(part).collect()
    }
}

/// The width of a terminal; `None` if the stream is not one.
fn width_of(stream: &(impl IsTerminal + std::os::fd::AsFd)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let size = tcgetwinsize(stream).ok()?;
    Some(match size.ws_col {
        0 => 80,
        columns => usize::from(columns),
    })
}

/// A function that makes the content of a history file.
type Form = fn(&Trace) -> anyhow::Result<Vec<u8>>;

fn history_of(path: &Path) -> Option<Form> {
    match path.extension()?.to_str()? {
        "csv" => Some(|trace| Ok(headway_trace::export::csv(trace).into_bytes())),
        "parquet" => Some(|trace| Ok(headway_trace::export::parquet(trace)?)),
        "svg" => Some(|trace| Ok(headway_trace::export::svg(trace).into_bytes())),
        _ => None,
    }
}

/// Checks that a file can be written at this path, without changing an existing one.
fn writable(path: &Path) -> Result<(), Failure> {
    let new = !path.exists();
    fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("{}: cannot be written", path.display()))?;
    if new {
        fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn file(path: &Path, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
