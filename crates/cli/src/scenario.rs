//! `headway scenario`: checks scenario files, and writes them from other formats.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use headway_latency::format::printable;
use headway_load::scenario::{ImportError, Imported, Scenario, from_har, from_openapi};

use super::{Failure, output};

const EXAMPLES: &str = "\
Examples:
  headway scenario from-har shop.har >shop.toml
  headway scenario from-openapi api.json >api.toml
  headway scenario check shop.toml
  headway load https://shop.example/ --scenario shop.toml --rate 50";

/// Check a scenario for load tests, or make one from a recording or an API description
#[derive(Debug, Args)]
#[command(after_help = "Examples: headway scenario --help", after_long_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check a file, and print its steps
    Check {
        /// The scenario
        file: PathBuf,
    },
    /// Print the scenario of a recording (HTTP archive)
    ///
    /// The requests to one host become one flow, with the pauses between them. Cookies and tokens are
    /// left out.
    FromHar {
        /// The archive, as browsers save it
        file: PathBuf,
        /// The host of the requests [default: that of the first request]
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
    },
    /// Print the scenario of an API description (OpenAPI 3, in JSON)
    ///
    /// Each operation becomes a step, with the examples of the description or values made up from its
    /// schemas.
    FromOpenapi {
        /// The description
        file: PathBuf,
        /// Also operations that change something: POST, PUT, PATCH and DELETE
        #[arg(long)]
        writes: bool,
    },
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.action {
        Action::Check { file } => {
            let scenario = Scenario::read(file).map_err(|error| anyhow!("{error}"))?;
            let names = scenario.step_names().into_iter();
            let lines = names.map(|name| format!("{}\n", printable(&name)));
            output::print(&lines.collect::<String>())
        }
        Action::FromHar { file, host } => {
            let text = read(file)?;
            print(file, from_har(&text, host.as_deref()))
        }
        Action::FromOpenapi { file, writes } => print(file, from_openapi(&read(file)?, *writes)),
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file);
    Ok(text.with_context(|| format!("reading {}", file.display()))?)
}

fn print(file: &Path, imported: Result<Imported, ImportError>) -> Result<(), Failure> {
    let Imported { text, notes } =
        imported.map_err(|error| anyhow!("{}: {error}", file.display()))?;
    for note in notes {
        let _ = writeln!(io::stderr(), "headway: note: {note}");
    }
    output::print_data(&text)
}
