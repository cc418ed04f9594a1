//! `headway lab`: the controlled environment for a server under test.

use std::path::PathBuf;

use clap::Subcommand;

use super::Failure;

/// A controlled environment for a server under test.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The disk process of a lab, started by the lab.
    #[command(hide = true)]
    DiskProcess {
        /// The folder of the disk.
        folder: PathBuf,
    },
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::DiskProcess { folder } => Ok(lab::disk::process_main(folder)?),
    }
}
