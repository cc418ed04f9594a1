//! `headway trace`: traces a command or running processes with DeBox, and shows what their system
//! calls waited for.
//!
//! The command's streams and exit code stay unchanged, as time(1) and strace(1) do: the summary
//! goes to standard error or to a file, never to standard output unless asked.

use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;

mod attach;
mod functions;
mod lines;
mod outputs;
mod policy;
mod run;
mod saved;
mod targets;
mod watch;

const SHORT_EXAMPLES: &str = "\
Examples:
  headway trace -- tar czf /tmp/src.tgz src        what tar, and the gzip it starts, waited for
  headway trace -p nginx --duration 10             what running processes wait for (root)
  headway trace --chrome out.json -- git status    a timeline for Perfetto (ui.perfetto.dev)
`--help` has more options and examples.";

const EXAMPLES: &str = "\
Examples:
  headway trace -- tar czf /tmp/src.tgz src        what tar, and the gzip it starts, waited for
  headway trace --waiters -- make -j8              how many others waited for the same resource
  headway trace --functions -- git status          kernel functions that took the time (root)
  headway trace --slower-than 1ms -- ./server      keep only calls that took longer than 1 ms
  headway trace --stacks --folded out.folded -- make
                                                   off-CPU stacks, for a flame graph
  headway trace --history fork.svg --call fork,clone,vfork -- make
                                                   the time of each call, by invocation
  headway trace --chrome out.json -- git status    a timeline for Perfetto (ui.perfetto.dev)
  headway trace --react stack --when slower-than=10ms,label=journal -- ./server
                                                   print the stack when a call waits for the journal
  headway trace -p nginx --duration 10             all running processes named nginx, for 10 seconds
  headway trace -p \"$(pidof nginx)\"                the same processes by their ids, until Ctrl-C
  headway trace --live --attach -- ./static-server a live view of a program without libc
  headway trace --keep run -- wget -q http://host/ save run/trace.json, for `headway report run`
  headway trace report run                         show the saved trace again

The program keeps its standard output, standard error, signals and exit code. The summary goes to
standard error (with -p and `report` to standard output), or to FILE with -o.
A TIME is written 500us, 1ms or 2s; a bare number is seconds. An unknown LABEL lists all labels.

Calls made inside libc (stdio, readdir, getaddrinfo) are counted only when they sleep. To count
every call, use --attach (root).

Exit code: that of the command; 128 + N if signal N ended it; 126 if it cannot be executed, 127 if
it is not found. Otherwise 0 success, 1 failure, 2 usage error.";

const USAGE: &str = "headway trace [OPTIONS] -- COMMAND…
       headway trace [OPTIONS] -p PID|NAME…
       headway trace report DIR";

/// Show what the system calls of a program waited for
#[derive(Debug, Args)]
#[group(skip)]
#[command(after_help = SHORT_EXAMPLES, after_long_help = EXAMPLES, override_usage = USAGE, disable_help_subcommand = true, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    run: run::Arguments,
    #[command(flatten)]
    outputs: outputs::Arguments,
    #[command(flatten)]
    policy: policy::Arguments,
    /// The command and its arguments, after `--`
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present = "pids",
        conflicts_with = "pids"
    )]
    command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a saved trace again
    Report(Saved),
}

/// The arguments of `trace report`.
#[derive(Debug, Args)]
pub struct Saved {
    /// A directory with trace.json, or with the *.debox files of a trace; or a trace.json itself
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    outputs: outputs::Arguments,
}

/// A section of the summary, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Section {
    /// What the sleeps waited for: time, label, kernel function
    Waits,
    /// Sleeps by label and call
    Labels,
    /// Time by call, measured by the program and in band
    Calls,
    /// Time by call site
    Sites,
    /// The longest calls that were kept
    Kept,
    /// The programs that ran
    Programs,
    /// All of these
    All,
}

/// The process behind the gate of `--attach`.
pub use attach::gate;
/// The process that guards the tracer of `--functions`.
pub use functions::guard;

/// Runs the command, or shows a saved trace. The exit code is that of the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        Some(Action::Report(saved)) => saved::run(saved).map(|()| ExitCode::SUCCESS),
        None => {
            arguments.run.check()?;
            arguments.outputs.check()?;
            match (arguments.run.pids.is_empty(), arguments.run.attach) {
                (false, _) => attach::processes(arguments),
                (true, true) => attach::command(arguments),
                (true, false) => run::run(arguments),
            }
        }
    }
}
