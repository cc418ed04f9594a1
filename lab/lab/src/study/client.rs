//! Programs that a study starts, notes in its journal and waits for, and that end when the study is
//! interrupted.

use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::journal::Journal;
use crate::program::{POLL_INTERVAL, Program};
use crate::servers::Process;
use crate::servers::tree::Stat;

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error("interrupted")]
    Interrupted,
    #[error("{0}")]
    Failed(String),
}

/// A program on its way.
pub(super) struct RunningClient {
    program: Program,
    name: String,
}

impl RunningClient {
    /// Starts it and notes it.
    pub fn start(
        command: &mut Command,
        name: &str,
        journal: &Journal,
    ) -> Result<RunningClient, Stopped> {
        let program = Program::start(command)
            .map_err(|error| Stopped::Failed(format!("starting {name}: {error}")))?;
        let pid = program.pid();
        let started = Stat::of(pid).map_or(0, |stat| stat.started);
        journal.process(Process { pid, started });
        Ok(RunningClient {
            program,
            name: name.to_owned(),
        })
    }

    /// The exit status, if the client has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.program.ended()
    }

    /// Waits for its end, at most until `deadline`.
    pub fn finish(
        &mut self,
        interrupted: &AtomicBool,
        deadline: Instant,
    ) -> Result<ExitStatus, Stopped> {
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            if interrupted.load(Ordering::Relaxed) {
                self.program.end();
                return Err(Stopped::Interrupted);
            }
            if Instant::now() > deadline {
                self.program.end();
                return Err(Stopped::Failed(format!("{} did not end", self.name)));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The last line that it wrote to standard error.
    pub fn last_error_line(&mut self) -> String {
        self.program.last_error_line()
    }
}

/// Runs a program to its end.
pub(super) fn finish(
    command: &mut Command,
    interrupted: &AtomicBool,
    journal: &Journal,
) -> Result<(), Stopped> {
    let mut running = RunningClient::start(command, "headway", journal)?;
    // Files of many gigabytes take their time; only an interruption ends this.
    let far = Instant::now() + Duration::from_secs(24 * 3600);
    let status = running.finish(interrupted, far)?;
    match status.success() {
        true => Ok(()),
        false => Err(Stopped::Failed(running.last_error_line())),
    }
}
