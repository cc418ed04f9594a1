//! `headway merge`: one run directory from those of several machines.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use headway_cli_support::run_output::next_commands;
use headway_cli_support::table::table;
use headway_latency::format::{count, printable, time_us};
use headway_latency::run::merge::{MergeError, merge};
use headway_latency::run::{MergedAgent, Verdict};
use headway_load::session::summary;
use headway_object_storage::Location;
use tempfile::TempDir;

use super::upload::{self, UploadOptions};
use super::{Failure, output};

const EXAMPLES: &str = "\
Examples:
  headway load http://app/ --rate 8000 --agent 0/2 -o run-0     on one machine
  headway load http://app/ --rate 8000 --agent 1/2 -o run-1     on another one, at the same time
  headway merge run-0 run-1 -o all
  headway merge s3://bucket/monday -o all                       all runs that `headway upload` sent there
  headway analyze all

The rows of all runs are kept, so percentiles are those of all requests. Runs of other targets,
settings or versions are an error. A client that did not finish is left out, and the verdict says so.

Exit codes: 0 success; 1 a run cannot be read or does not belong to the others, and with --strict
when the verdict is not valid; 2 usage error.";

/// Merge the run directories of several machines into one
#[derive(Debug, Args)]
#[command(after_help = "Examples: headway merge --help", after_long_help = EXAMPLES)]
pub struct Arguments {
    /// Directories that `headway load -o` wrote, of clients that ran at the same time; or s3://BUCKET/PREFIX
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// The new run directory
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Fail unless the verdict is valid
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    upload: UploadOptions,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let words = std::env::args_os();
    let command: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let storage = arguments.upload.open()?;
    let (runs, _fetched) = fetched(arguments)?;
    let merged = merge(&runs, &arguments.output, &command).map_err(|error| match error {
        MergeError::Open(error) => Failure::from(error),
        MergeError::Write(error) => Failure::from(error),
        other => Failure::Runtime(anyhow!("{other}")),
    })?;
    let description = &merged.description;
    let mut text = summary::render(description, &merged.analysis, super::load::style());
    text += "\nAgents\n";
    let rows: Vec<Vec<String>> = description.agents.iter().map(row).collect();
    let headings = [
        "run",
        "agent",
        "requests",
        "errors",
        "began after",
        "clock",
        "verdict",
    ];
    text += &table(&headings, &rows);
    text += &next_commands(&arguments.output);
    output::print(&text)?;
    if let Some(storage) = &storage {
        upload::send(storage, &arguments.output)?;
    }
    let client = description.client.clone().unwrap_or_default();
    if client.verdict == Verdict::Valid {
        return Ok(());
    }
    if arguments.strict {
        return Err(anyhow!("--strict: the verdict on the merged run is not valid").into());
    }
    for reason in &client.reasons {
        let _ = writeln!(io::stderr(), "headway: warning: {}", printable(reason));
    }
    Ok(())
}

/// The directories, with those in storage brought here; these are removed with the second value.
fn fetched(arguments: &Arguments) -> Result<(Vec<PathBuf>, Vec<TempDir>), Failure> {
    let (mut runs, mut kept) = (Vec::new(), Vec::new());
    let beside = arguments.output.parent().unwrap_or(Path::new(""));
    for run in &arguments.runs {
        let text = run.to_string_lossy();
        if !Location::is_meant(&text) {
            runs.push(run.clone());
            continue;
        }
        let location: Location = text.parse().map_err(Failure::Usage)?;
        let storage = upload::storage(&location)?;
        let place = tempfile::Builder::new()
            .prefix(".headway-runs-")
            .tempdir_in(Path::new(".").join(beside));
        let place =
            place.with_context(|| format!("a directory beside {}", arguments.output.display()))?;
        let brought = storage.download(upload::AGENT, upload::MARK, place.path());
        let (whole, partial) = brought.map_err(|error| anyhow!("{error}; nothing was merged"))?;
        for name in partial {
            let name = printable(&name);
            let text = format!("{location}/{name} is left out, since its upload has not ended");
            let _ = writeln!(io::stderr(), "headway: warning: {text}");
        }
        if whole.is_empty() {
            return Err(anyhow!("{location}: there are no runs").into());
        }
        runs.extend(whole);
        kept.push(place);
    }
    Ok((runs, kept))
}

fn row(agent: &MergedAgent) -> Vec<String> {
    let verdict = match agent.verdict {
        Verdict::Valid => "valid",
        Verdict::Suspect => "suspect",
        Verdict::Invalid => "invalid",
    };
    vec![
        agent.directory.clone(),
        agent
            .index
            .map_or("–".to_owned(), |index| index.to_string()),
        count(agent.requests),
        count(agent.errors),
        time_us(agent.start_delay_ms * 1e3),
        agent.clock.map_or("–".to_owned(), |clock| {
            // A clock which is ahead has a negative offset.
            let ahead = -clock.offset_ns as f64 / 1e3;
            let sign = if ahead < 0.0 { "−" } else { "+" };
            let error = time_us(clock.error_ns as f64 / 1e3);
            format!("{sign}{} ± {error}", time_us(ahead.abs()))
        }),
        verdict.to_owned(),
    ]
}
