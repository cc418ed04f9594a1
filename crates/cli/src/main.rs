//! The `headway` command: one file per sub-command, glue only; the libraries do the work.
//!
//! Exit codes: 0 success, 1 failure, 2 usage error.
#![forbid(unsafe_code)]

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

mod serve;
mod backend;
mod trace;
mod fileset;
mod load;
mod profile;
mod specweb99;
mod report;
mod analyze;
mod lab;
mod study;
mod schedule;
mod counters;
mod children;
mod signals;
mod documents;
mod groups;
mod output;
mod plain_errors;
mod reference;
mod usage;
mod version;

/// A web server that never blocks on disk I/O, with tools to load-test and trace servers
#[derive(Debug, Parser)]
#[command(name = "headway", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Arguments>),
    Backend(Box<backend::Arguments>),
    Trace(Box<trace::Arguments>),
    Fileset(fileset::Arguments),
    Load(Box<load::Arguments>),
    Profile(Box<profile::Arguments>),
    Specweb99(Box<specweb99::Arguments>),
    Report(report::Arguments),
    Analyze(analyze::Arguments),
    Lab(Box<lab::Arguments>),
    Study(study::Arguments),
    Schedule(Box<schedule::Arguments>),
    Counters(counters::Arguments),
    /// Print the version, and what this kernel offers
    Version,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// An existing directory.
        directory: PathBuf,
    },
    /// Writes the generated pages of the guide.
    #[command(hide = true)]
    Reference {
        /// The root of a checkout.
        root: PathBuf,
    },
    /// Beside `trace --functions`: removes the kernel's tracer if that command is killed.
    #[command(hide = true)]
    TraceGuard {
        /// The trace instance.
        place: PathBuf,
    },
    /// Beside `counters run`: restores the machine's settings if that command is killed.
    #[command(hide = true)]
    CountersGuard {
        /// Where the changed settings are recorded.
        directory: PathBuf,
    },
    /// A command of `trace --attach` that waits until it is observed.
    #[command(hide = true)]
    TraceGate {
        /// The gate.
        fifo: PathBuf,
        /// The command that the gate becomes.
        #[arg(last = true)]
        command: Vec<std::ffi::OsString>,
    },
}

/// Why a command did not do its work.
#[derive(Debug)]
enum Failure {
    /// A usage error: exit code 2.
    Usage(String),
    /// The command line is right, the work failed: exit code 1.
    Runtime(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Runtime(error.into())
    }
}

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    if let Some(child) = first.and_then(|word| children::by_name(&word)) {
        return exit_code(child());
    }
    let arguments = match parsed() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let done = match arguments.command {
        // The exit code is that of the traced command.
        Command::Trace(arguments) => {
            return trace::run(&arguments).unwrap_or_else(|failure| failed(&failure));
        }
        Command::TraceGate { fifo, command } => {
            return trace::gate(&fifo, &command).unwrap_or_else(|failure| failed(&failure));
        }
        Command::TraceGuard { place } => {
            return trace::guard(&place).unwrap_or_else(|failure| failed(&failure));
        }
        Command::Lab(arguments) => {
            return lab::run(&arguments).unwrap_or_else(|failure| failed(&failure));
        }
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Backend(arguments) => backend::run(&arguments),
        Command::Fileset(arguments) => fileset::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Specweb99(arguments) => specweb99::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Study(arguments) => study::run(&arguments),
        Command::Schedule(arguments) => schedule::run(&arguments),
        Command::Counters(arguments) => counters::run(&arguments),
        Command::Analyze(arguments) => analyze::run(&arguments),
        Command::Version => version::run(),
        Command::Reference { root } => reference::write(&root, Arguments::command()),
        Command::Completions { shell } => documents::completions(shell, Arguments::command()),
        Command::Man { directory } => documents::man(&directory, Arguments::command()),
        Command::CountersGuard { directory } => counters::guard(&directory),
    };
    exit_code(done)
}

/// The command line; or the exit code, when help or an error has been printed.
fn parsed() -> Result<Arguments, ExitCode> {
    let command = Arguments::command();
    let help = groups::help(&command);
    let command = command.override_help(help).arg_required_else_help(true);
    let matches = command.try_get_matches();
    let parsed = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let command = std::env::args().nth(1);
        usage::explain(error, command.as_deref())
    })
}

fn exit_code(done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failed(&failure),
    }
}

/// Says what failed and how.
fn failed(failure: &Failure) -> ExitCode {
    let (code, text) = match failure {
        Failure::Usage(text) => (2, text.clone()),
        Failure::Runtime(error) => (1, sentence(error)),
    };
    // If standard error is closed, the exit code still says it.
    plain_errors::plain(&text)
        .lines()
        .for_each(|line| drop(writeln!(std::io::stderr(), "headway: {line}")));
    ExitCode::from(code)
}

/// An error and its causes in one line; a cause that the error before it ends with is not said
/// twice.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}
