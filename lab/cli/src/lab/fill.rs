//! `headway-lab fill`: files onto the disk of a lab, without its delays.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use headway_load::fileset::{Amount, Shape};

use super::{Failure, Name, open, print_line};
use crate::signals;

const EXAMPLES: &str = "\
Examples:
  headway-lab fill --fileset 1.5GB             a SPECweb99 file set in the disk's directory `set`
  headway-lab fill --many-files 300000         300,000 small files there
  headway-lab fill quick -- cp -r /srv/www .   run a command in the top directory of the disk

The disk has no delays while it is filled. Afterwards nothing of it is cached, and it has the \
delays of its model again.
Ctrl-C ends the command and restores the delays. A second Ctrl-C ends at once and leaves the \
disk fast; restore it with `headway-lab disk model`.

Exit codes: 0 success, 1 failure, 2 usage error.";

/// Put files on the disk of a lab, without its delays.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    files: Files,
    /// A command that writes files into its working directory, after `--`
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["fileset", "many_files"])]
    command: Vec<OsString>,
}

/// Which files are made.
#[derive(Debug, clap::Args)]
pub struct Files {
    /// Create a SPECweb99 file set of SIZE in the directory `set` of the disk
    #[arg(long, value_name = "SIZE")]
    fileset: Option<Amount>,
    /// Create N files of 512 bytes to 16 KiB there, 100 in a directory
    #[arg(long, value_name = "N", conflicts_with = "fileset")]
    many_files: Option<u64>,
}

impl Files {
    /// The set that was asked for, if one was.
    pub fn shape(&self) -> Result<Option<Shape>, Failure> {
        let shape = match (self.fileset, self.many_files) {
            (Some(size), _) => Shape::specweb99(size.0),
            (None, Some(count)) => Shape::many_files(count),
            (None, None) => return Ok(None),
        };
        shape
            .map(Some)
            .map_err(|error| Failure::Usage(error.to_string()))
    }
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let shape = self.files.shape()?;
        if shape.is_some() {
            ::headway_lab::require_headway()?;
        } else if self.command.is_empty() {
            let why = "give --fileset SIZE, --many-files N or -- COMMAND";
            return Err(Failure::Usage(why.into()));
        }
        let lab = open(&self.name.name)?;
        // After an interrupt the disk still gets its delays back. The terminal interrupts the
        // command itself; a second Ctrl-C does not wait for it.
        let interrupted = signals::caught_once(signals::STOP_OR_HANGUP)?;
        lab.load(|directory| match (&shape, self.command.split_first()) {
            (Some(shape), _) => {
                let set = directory.join("set");
                fileset(&set, shape, &interrupted, &mut |line| print_line(line))
            }
            (None, Some((program, rest))) => command(directory, program, rest),
            (None, None) => Ok(()),
        })?;
        match interrupted.load(Ordering::Relaxed) {
            true => Err(anyhow::anyhow!(
                "interrupted; the disk keeps what is on it, and has its model's delays"
            )
            .into()),
            false => Ok(()),
        }
    }
}

/// Interval between checks of the process that writes the files.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A file set, by a process of its own that ends when the flag becomes true; Ctrl-C at a terminal
/// does not reach it. At a terminal it shows its progress.
pub fn fileset(
    directory: &Path,
    shape: &Shape,
    interrupted: &AtomicBool,
    print_line: &mut dyn FnMut(&str),
) -> Result<(), Failure> {
    let (option, number) = match shape {
        Shape::ManyFiles { count } => ("--count", u64::from(*count)),
        other => ("--size", other.page_bytes()),
    };
    let mut maker = Command::new(::headway_lab::headway())
        .args([
            "fileset",
            "create",
            "--profile",
            &shape.profile().to_string(),
        ])
        .args([option, &number.to_string()])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .context("executing headway fileset create")?;
    let status = loop {
        if let Some(status) = maker.try_wait()? {
            break status;
        }
        if interrupted.load(Ordering::Relaxed) {
            maker.kill()?;
            maker.wait()?;
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    if !status.success() {
        return Err(anyhow::anyhow!("making the file set: {status}").into());
    }
    print_line(&format!(
        "{}: {} files, {}",
        directory.display(),
        shape.files(),
        Amount(shape.bytes())
    ));
    Ok(())
}

fn command(directory: &Path, program: &OsString, rest: &[OsString]) -> Result<(), Failure> {
    let shown = program.to_string_lossy().into_owned();
    let status = Command::new(program)
        .args(rest)
        .current_dir(directory)
        .status()
        .with_context(|| format!("executing {shown}"))?;
    std::io::stdout().flush()?;
    match status.success() {
        true => Ok(()),
        false => Err(anyhow::anyhow!("{shown}: {status}").into()),
    }
}
