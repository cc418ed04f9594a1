//! `headway trace`: a command or running processes under DeBox, and what their system calls waited
//! for.
//!
//! The command's streams and exit code are left alone, as time(1) and strace(1) do: the summary
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
mod watch;

const EXAMPLES: &str = "\
Examples:
  headway trace -- tar czf /tmp/src.tgz src           what tar, and the gzip it starts, waited for
  headway trace --waiters -- make -j8                 and how many others waited for the same lock, file or futex
  headway trace --functions -- git status             and which kernel functions took the time of each (root)
  headway trace --slower-than 1ms -- ./server         keep only calls above 1 ms, each with its time and place
  headway trace --stacks --folded out.folded -- make  stacks of the time asleep, for a flame graph
  headway trace --history fork.svg --call fork,clone,vfork -- make
                                                      each call's time by invocation
  headway trace --chrome out.json -- git status       a time line for Perfetto (ui.perfetto.dev)
  headway trace --react stack --when slower-than=10ms,label=journal -- ./server
                                                      print the stack when a call waits 10 ms for the journal
  headway trace -p 1234 --duration 10s                 what a running process waits for, and who waits with it
  headway trace --live --attach -- ./static-server    the same while it happens, of a program without libc
  headway trace --keep run -- wget -q http://host/    run/trace.json, for `headway report run`
  headway trace report run                            the same summary again

The program's standard output, standard error, signals and exit code are its own; the summary goes to standard
error (with -p and `report` to standard output), or to FILE with -o. LENGTHs are written 500us, 1ms, 2s. Labels: page-io, inode-lock, futex, pipe … (an unknown
one lists them all).

Exit codes: the command's own; 128 + N if signal N killed it; 126 if it cannot be executed, 127 if it is not found;
1 if headway failed, 2 for wrong use.";

const USAGE: &str = "headway trace [OPTIONS] -- COMMAND…
       headway trace [OPTIONS] -p PID…
       headway trace report DIR";

/// Runs a command and shows what its system calls waited for: time, faults, sleeps with their
/// reasons.
#[derive(Debug, Args)]
#[group(skip)]
#[command(after_help = EXAMPLES, override_usage = USAGE, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    policy: policy::Arguments,
    #[command(flatten)]
    outputs: outputs::Arguments,
    #[command(flatten)]
    run: run::Arguments,
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
    /// Shows a kept trace again
    Report(Saved),
}

/// What `trace report` takes.
#[derive(Debug, Args)]
pub struct Saved {
    /// A directory with trace.json, or with the *.debox files of a trace; or a trace.json itself
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    outputs: outputs::Arguments,
}

/// A part of the summary, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
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
/// The process beside `--functions`.
pub use functions::guard;

/// Runs the command, or shows a kept trace. The exit code is that of the command.
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
