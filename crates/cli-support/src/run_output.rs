//! The options of a measurement that say where its result goes, and what surrounds a run.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args;
use headway_load::cli_types::Url;
use headway_load::session::RunContext;

use crate::{Failure, signals};

/// Where the result of a measurement goes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputOptions {
    /// Keep every request in a new directory, for analyze and report
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// The name of the server in tables and reports, for example 'nginx 1.22'
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub label: Option<String>,
    /// Keep the metrics of a Headway server after the run: the URL of its status page
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub server_status: Option<Url>,
    /// Fail unless the verdict is valid
    #[arg(long)]
    pub strict: bool,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Signals, terminal and status page of a run.
pub fn run_context(output: &OutputOptions, name: &str) -> Result<RunContext, Failure> {
    let terminal = io::stderr().is_terminal() && !output.quiet;
    Ok(RunContext {
        // A second signal ends the process; what is on disk by then is readable.
        interrupt: signals::caught_once(signals::STOP)?,
        progress: terminal.then(|| name.to_owned()),
        whole_only: false,
        server_status: output.server_status.clone(),
        view: None,
        outputs: Vec::new(),
    })
}

/// What to do with a run directory.
pub fn next_commands(directory: &Path) -> String {
    let run = directory.display();
    format!("\nDetails: headway analyze {run}\nCharts:  headway report {run} -o report.html\n")
}
