//! `headway trace`: on what the system calls of a process sleep.

use std::time::Duration;

use crate::Failure;

mod attach;
mod table;

/// Shows which system calls of a running process sleep, on what, how long, and who waits with it.
///
/// It observes from outside, by BPF, so that static and Go programs and those that already run can be looked at. It
/// stops when the time is up, at an interrupt, or when every traced process has ended, and then prints the result.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Observe this process, its threads and the children it makes from now on; may be given several times.
    #[arg(short = 'p', long = "attach", value_name = "PID", required = true)]
    pids: Vec<u32>,
    /// Stop after so many seconds, fractions allowed; without it, at an interrupt or the end of the processes.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Leave children alone.
    #[arg(long)]
    no_children: bool,
    /// Print one JSON document instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    attach::run(arguments)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
