//! Programs that the worker forks itself (`fork-in-server`), as servers did before they had a
//! spawner.
//!
//! The setting exists for measurements (dissertation, Figure 2.5): `fork` copies the page tables
//! and descriptors of the whole server on the loop, and its cost grows with them. The tracer counts
//! the time it blocks. Standard error of such a program is the server's own.

use std::io::stderr;
use std::os::fd::{AsFd, BorrowedFd};

use headway_metrics::calls::{Call, Tracer};
use headway_os::spawn::{self, Limits, SpawnError, SpawnMethod};
use headway_spawner::wire::{ExitStatus, Launch, PROCESSES_DEFAULT};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid,
};

use crate::extensions::OwnProgram;

/// Time between SIGTERM and SIGKILL.
const TERM_TIMEOUT_MS: u64 = 1_000;

/// Forks the process right now. Whether the program can be executed is unknown: if it cannot, the
/// process exits silently.
pub(super) fn fork(
    launch: &Launch,
    input: BorrowedFd<'_>,
    output: BorrowedFd<'_>,
    tracer: &Tracer,
) -> Result<Box<dyn OwnProgram>, SpawnError> {
    #[expect(clippy::disallowed_methods, reason = "the program writes to it")]
    let errors = stderr();
    let program = spawn::Program {
        path: &launch.path,
        arguments: &launch.arguments,
        environment: &launch.environment,
        directory: &launch.directory,
        input,
        output,
        error: errors.as_fd(),
        limits: Limits {
            memory_bytes: launch.memory_bytes_max,
            cpu_s: launch.cpu_s_max,
            processes: match launch.processes_max {
                PROCESSES_DEFAULT => 0,
                limit => limit,
            },
            descriptors: launch.open_files_max,
            process_tag: launch.process_tag,
        },
        domain: None,
    };
    let pid = tracer.call(Call::Fork, || spawn::spawn(&program, SpawnMethod::Fork))?;
    Ok(Box::new(ForkedProgram {
        pid,
        until_ms: u64::MAX,
        terminated: false,
        ended: None,
    }))
}

/// A process that the worker has forked.
struct ForkedProgram {
    pid: Pid,
    /// When the program is killed. `u64::MAX` until its response is complete or rejected.
    until_ms: u64,
    /// SIGTERM has been sent.
    terminated: bool,
    ended: Option<ExitStatus>,
}

impl OwnProgram for ForkedProgram {
    fn release(&mut self, until_ms: u64) {
        self.until_ms = self.until_ms.min(until_ms);
    }

    fn kill(&mut self, now_ms: u64) {
        self.release(now_ms);
        self.tick(now_ms);
    }

    fn poll(&mut self, now_ms: u64, tracer: &Tracer) -> Option<ExitStatus> {
        self.tick(now_ms);
        tracer.call(Call::Reap, || self.poll_end());
        self.take_end()
    }
}

impl ForkedProgram {
    /// Sends the signals that are due.
    fn tick(&mut self, now_ms: u64) {
        if now_ms < self.until_ms {
            return;
        }
        let signals: &[Signal] = match self.terminated {
            false => &[Signal::TERM, Signal::CONT],
            true => &[Signal::KILL],
        };
        for signal in signals {
            // An empty process group is not an error.
            let _ = kill_process_group(self.pid, *signal);
        }
        self.terminated = true;
        self.until_ms = now_ms + TERM_TIMEOUT_MS;
    }

    /// Checks whether the program has exited, without reaping it: the zombie keeps the process ID
    /// reserved.
    fn poll_end(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.pid), options) {
            self.ended = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Some(ExitStatus::Exit(code.unsigned_abs())),
                (None, signal) => Some(ExitStatus::Signal(signal.unwrap_or(0).unsigned_abs())),
            };
        }
    }

    /// Reaps an exited program that is not needed any more, and kills the rest of its group.
    fn take_end(&self) -> Option<ExitStatus> {
        let end = self.ended.filter(|_| self.until_ms < u64::MAX)?;
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
        Some(end)
    }
}
