//! `headway-lab up` … `headway-lab check`: a slow disk, little memory, a slower CPU and a narrow link around a server
//! under test.
//!
//! A lab outlives the command that made it, as a container does; `down` removes it, also after a
//! crash. `exec` becomes the command, so its streams, signals and exit code are the command's own.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ::headway_lab::{Lab, LabError, Side};
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use headway_latency::format::printable;

use super::Failure;

mod disk;
mod fill;
mod show;
mod up;
mod write;

/// The name of a lab unless one is given.
const USUAL_NAME: &str = "lab";

/// What can be done with a lab.
#[derive(Debug, Subcommand)]
pub enum Action {
    Up(Box<up::Arguments>),
    Fill(fill::Arguments),
    Exec(Exec),
    Disk(disk::Arguments),
    Write(write::Arguments),
    /// Empty the caches of a lab's disk and the memory of its server.
    Cool(Name),
    Status(show::Arguments),
    Down(Down),
    /// Print which parts of a lab you can make on this machine, and what the others need.
    Check,
    /// The disk process of a lab, started by the lab.
    #[command(hide = true)]
    DiskProcess {
        /// The folder of the disk
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct Name {
    /// The lab
    #[arg(value_name = "NAME", default_value = USUAL_NAME)]
    name: String,
}

const EXEC_EXAMPLES: &str = "\
Examples:
  headway-lab exec -- nginx -c /etc/lab.conf           as the server
  headway-lab exec --side client quick -- wrk http://198.18.0.1/
  headway-lab exec -- sh -c 'cat /proc/self/cgroup; ip addr'

The command's exit code is passed on; 126 if it cannot be executed, 127 if it is not found.";

/// Run a command with the memory, quota, CPUs and network of a lab.
#[derive(Debug, Args)]
#[command(after_help = EXEC_EXAMPLES)]
pub struct Exec {
    /// Side of the measurement that the command is on
    #[arg(long, value_enum, default_value = "server")]
    side: SideName,
    #[command(flatten)]
    name: Name,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SideName {
    /// CPUs, memory and quota of the server, and its end of the link
    Server,
    /// CPUs of the client; memory and network of the machine
    Client,
}

const DOWN_EXAMPLES: &str = "\
Examples:
  headway-lab down                   the lab named `lab`
  headway-lab down quick
  headway-lab down --all             every lab, also what a crash has left
  headway-lab down --all --prefix test-

Missing parts are not an error. What is still in use is named and stays, and the exit code is 1.";

/// Remove a lab: end its processes, then undo its parts.
#[derive(Debug, Args)]
#[command(after_help = DOWN_EXAMPLES)]
pub struct Down {
    /// The lab [default: lab]
    #[arg(value_name = "NAME", conflicts_with = "all")]
    name: Option<String>,
    /// All labs of this machine, also unfinished ones
    #[arg(long)]
    all: bool,
    /// With --all: only labs whose names begin with PREFIX
    #[arg(long, value_name = "PREFIX", requires = "all", default_value = "")]
    prefix: String,
}

/// Runs the subcommand. The exit code of `exec` is that of its command.
pub fn run(action: &Action) -> Result<ExitCode, Failure> {
    let done = match action {
        Action::Exec(exec) => return exec.run(),
        Action::Up(up) => up.run(),
        Action::Fill(fill) => fill.run(),
        Action::Disk(disk) => disk.run(),
        Action::Write(write) => write.run(),
        Action::DiskProcess { folder } => Ok(::headway_lab::disk::process_main(folder)?),
        Action::Cool(name) => open(&name.name).and_then(|lab| Ok(lab.drop_caches()?)),
        Action::Status(status) => status.run(),
        Action::Down(down) => down.run(),
        Action::Check => check(),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Returns an existing lab; an invalid name is a usage error.
fn open(name: &str) -> Result<Lab, Failure> {
    Lab::open(name).map_err(failure)
}

fn failure(error: LabError) -> Failure {
    match error {
        LabError::Name(_) | LabError::Value(_) => Failure::Usage(error.to_string()),
        error => Failure::Runtime(error.into()),
    }
}

impl Exec {
    fn run(&self) -> Result<ExitCode, Failure> {
        let side = match self.side {
            SideName::Server => Side::Server,
            SideName::Client => Side::Client,
        };
        ::headway_lab::join_by_name(&self.name.name, side).map_err(failure)?;
        let Some((program, rest)) = self.command.split_first() else {
            return Err(Failure::Usage("give a command after `--`".into()));
        };
        let error = Command::new(program).args(rest).exec();
        // As a shell and env(1) say it.
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => 127,
            _ => 126,
        };
        let error =
            anyhow::Error::from(error).context(format!("executing {}", program.to_string_lossy()));
        super::PROGRAM.failed(&Failure::Runtime(error));
        Ok(ExitCode::from(code))
    }
}

impl Down {
    fn run(&self) -> Result<(), Failure> {
        if !self.all {
            let name = self.name.as_deref().unwrap_or(USUAL_NAME);
            return ::headway_lab::down(name).map_err(failure);
        }
        let mut out = std::io::stdout().lock();
        let mut failed = Vec::new();
        for (name, done) in ::headway_lab::down_all(&self.prefix) {
            match done {
                Ok(()) => writeln!(out, "{name}: removed")?,
                Err(error) => failed.push(error.to_string()),
            }
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(anyhow::anyhow!(failed.join("\n")).into()),
        }
    }
}

fn check() -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    for (part, missing) in ::headway_lab::survey() {
        let word = missing.map_or("yes".to_owned(), |reason| format!("no: {reason}"));
        writeln!(out, "{part:<13} {word}").context("writing to standard output")?;
    }
    if let Some(cause) = ::headway_lab::reclaimer() {
        let what = "caches hold less than a memory limit allows";
        writeln!(out, "{:<13} {what}: {cause}", "note").context("writing to standard output")?;
    }
    Ok(())
}

/// Prints a line for the user at a terminal; none in a pipe.
fn print_line(line: &str) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let _ = writeln!(out, "{}", printable(line));
    }
}
