//! Programs that a study starts and waits for, and that end when the study is interrupted.
//!
//! Each has a process group of its own: Ctrl-C at a terminal must reach the study, which then ends them one by one and leaves a
//! directory to go on from.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::journal::Journal;
use crate::servers::Process;
use crate::servers::tree::Stat;

/// Between two looks at a child.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// What a child gets to end by itself after SIGINT.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error("interrupted")]
    Interrupted,
    #[error("{0}")]
    Failed(String),
}

/// A program on its way. Dropped, it is ended.
pub(super) struct Running {
    child: Child,
    name: String,
    words: Option<thread::JoinHandle<String>>,
}

impl Running {
    /// Starts it and notes it; what it writes to standard error is kept for the reason of a failure.
    pub fn start(command: &mut Command, name: &str, journal: &Journal) -> Result<Running, Stopped> {
        let spawned = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child =
            spawned.map_err(|error| Stopped::Failed(format!("starting {name}: {error}")))?;
        let pid = child.id() as i32;
        let started = Stat::of(pid).map_or(0, |stat| stat.started);
        journal.process(Process { pid, started });
        let words = child.stderr.take().map(|mut stderr| {
            thread::spawn(move || {
                let mut text = Vec::new();
                // A pipe that breaks has said what it had to say.
                let _ = stderr.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        Ok(Running {
            child,
            name: name.to_owned(),
            words,
        })
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
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
                self.end();
                return Err(Stopped::Interrupted);
            }
            if Instant::now() > deadline {
                self.end();
                return Err(Stopped::Failed(format!("{} did not end", self.name)));
            }
            thread::sleep(LOOK);
        }
    }

    /// The last line that it wrote to standard error.
    pub fn last_words(&mut self) -> String {
        let text = self.words.take().and_then(|words| words.join().ok());
        let text = text.unwrap_or_default();
        let last = text.lines().rfind(|line| !line.trim().is_empty());
        last.unwrap_or("it said nothing").trim().to_owned()
    }

    /// SIGINT, then SIGKILL.
    pub fn end(&mut self) {
        if self.ended().is_some() {
            return;
        }
        // A process that has just ended is what is wanted.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.ended().is_some() {
                return;
            }
            thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a program to its end.
pub(super) fn finish(
    command: &mut Command,
    interrupted: &AtomicBool,
    journal: &Journal,
) -> Result<(), Stopped> {
    let mut running = Running::start(command, "headway", journal)?;
    // Files of many gigabytes take their time; only an interruption ends this.
    let far = Instant::now() + Duration::from_secs(24 * 3600);
    let status = running.finish(interrupted, far)?;
    match status.success() {
        true => Ok(()),
        false => Err(Stopped::Failed(running.last_words())),
    }
}
