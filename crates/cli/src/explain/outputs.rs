//! Files that `headway explain` writes beside its answer, and its line while it runs.

use anyhow::Context;
use clap::Args;
use headway_explain::{Collector, Report};
use rustix::termios::tcgetwinsize;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Failure;

/// Output options.
#[derive(Debug, Args)]
#[group(skip)]
#[command(next_help_heading = "Output")]
pub struct Outputs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the answer as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write requests and threads on one timeline, for Perfetto (Chrome trace events)
    #[arg(long, value_name = "FILE")]
    chrome: Option<PathBuf>,
    /// Write the time of requests as folded stacks, for a flame graph
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
    /// Hash the parts of all paths, with a key that is not kept
    #[arg(long)]
    pub anonymize: bool,
}

impl Outputs {
    /// Whether requests and times of threads have to be kept.
    pub fn needs_timeline(&self) -> bool {
        self.chrome.is_some()
    }

    /// Checks that the files can be written, before the observation.
    pub fn check(&self) -> Result<(), Failure> {
        let files = [&self.html, &self.chrome, &self.folded];
        for path in files.into_iter().flatten() {
            let is_new = !path.exists();
            let opened = fs::OpenOptions::new().append(true).create(true).open(path);
            opened.with_context(|| format!("{}: cannot be written", path.display()))?;
            if is_new {
                fs::remove_file(path).with_context(|| path.display().to_string())?;
            }
        }
        Ok(())
    }

    /// Writes the files.
    pub fn write(&self, report: &Report, collector: &Collector) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            file(path, &super::page::page(report))?;
        }
        if let Some(path) = &self.folded {
            file(path, &collector.folded(&report.server))?;
        }
        if let Some(path) = &self.chrome {
            let timeline = collector.chrome(&report.server);
            file(path, &timeline.unwrap_or_default())?;
        }
        Ok(())
    }
}

fn file(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// How often the figures of the line are computed.
const GLANCE: Duration = Duration::from_secs(1);

/// A line on a terminal, rewritten.
pub struct Progress {
    name: Option<String>,
    glance: String,
    glanced: Instant,
}

impl Progress {
    pub fn new(name: &str) -> Progress {
        let shown = std::io::stderr().is_terminal();
        Progress {
            name: shown.then(|| headway_base::format::printable(name).into_owned()),
            glance: String::new(),
            glanced: Instant::now(),
        }
    }

    /// What has been seen up to now: how many requests, and the largest cause of late ones.
    pub fn show(&mut self, collector: &Collector, left: Duration) {
        let Some(name) = &self.name else { return };
        if self.glanced.elapsed() >= GLANCE {
            self.glance = collector
                .glance()
                .map_or_else(String::new, |text| format!("; {text}"));
            self.glanced = Instant::now();
        }
        let requests = headway_base::format::counted(collector.answered(), "request", "requests");
        let line = format!(
            "explain: {name}: {} s left, {requests}{}",
            left.as_secs(),
            self.glance
        );
        let columns =
            tcgetwinsize(std::io::stderr()).map_or(80, |size| usize::from(size.ws_col.max(20)));
        // A line that wraps could not be rewritten.
        let line: String = line.chars().take(columns - 1).collect();
        drop(write!(std::io::stderr(), "\r\x1b[K{line}"));
    }

    pub fn end(&self) {
        if self.name.is_some() {
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
    }
}
