//! Programs that the worker forks itself (`fork-in-server`), as servers did before they had a
//! spawner.
//!
//! The setting exists for measurements (dissertation, Figure 2.5): `fork` copies the page tables
//! and descriptors of the whole server on the loop, and its cost grows with them. The tracer counts
//! the time it blocks. Standard error of such a program is the server's own.
//!
//! No event reports the exit of such a program. While there is one, the loop polls for it
//! regularly, and whenever its output ends.

use std::os::fd::AsFd;

use headway_http::Status;
use headway_os::spawn::{self, Limits, SpawnMethod};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid,
};

use super::Gateway;
use super::launch::Streamed;
use crate::calls::Call;
use crate::spawner::escape_control;
use crate::spawner::wire::{ExitStatus, Launch, PROCESSES_DEFAULT};
use crate::worker::context::LoopContext;

/// How often exits are polled for.
const POLL_INTERVAL_MS: u64 = 20;
/// Limit of open descriptors in a program, the usual default.
const DESCRIPTORS_MAX: u64 = 1024;
/// Time between SIGTERM and SIGKILL.
const TERM_TIMEOUT_MS: u64 = 1_000;

/// A process that the worker has forked.
pub(super) struct ForkedProgram {
    pid: Pid,
    /// When the program is killed. `u64::MAX` until its response is complete or rejected.
    until_ms: u64,
    /// SIGTERM has been sent.
    terminated: bool,
    ended: Option<ExitStatus>,
}

impl ForkedProgram {
    /// The response is complete: the program may continue until then.
    pub(super) fn release(&mut self, until_ms: u64) {
        self.until_ms = self.until_ms.min(until_ms);
    }

    /// Kills the program: SIGTERM now, SIGKILL later.
    pub(super) fn kill(&mut self, now_ms: u64) {
        self.release(now_ms);
        self.tick(now_ms);
    }

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

impl Gateway {
    /// When exits are polled for next.
    pub(super) fn forked_next_ms(&self, now_ms: u64) -> Option<u64> {
        let mut programs = self.programs.values();
        let any = programs.any(|program| program.forked.is_some());
        any.then_some(now_ms + POLL_INTERVAL_MS)
    }
}

impl Gateway {
    /// Forks the process right now. Whether the program can be executed is unknown: if it cannot,
    /// the process exits silently.
    pub(super) fn fork(
        &mut self,
        context: &mut LoopContext,
        launch: &Launch,
        theirs: &Streamed,
    ) -> Result<ForkedProgram, Status> {
        #[expect(clippy::disallowed_methods, reason = "the program writes to it")]
        let errors = std::io::stderr();
        let null = self.null.as_ref().map(AsFd::as_fd);
        let Some(input) = theirs.input.as_ref().map(AsFd::as_fd).or(null) else {
            return Err(Status::SERVICE_UNAVAILABLE);
        };
        let program = spawn::Program {
            path: &launch.path,
            arguments: &launch.arguments,
            environment: &launch.environment,
            directory: &launch.directory,
            input,
            output: theirs.output.as_fd(),
            error: errors.as_fd(),
            limits: Limits {
                memory_bytes: launch.memory_bytes_max,
                processes: match launch.processes_max {
                    PROCESSES_DEFAULT => 0,
                    limit => limit,
                },
                descriptors: DESCRIPTORS_MAX,
                process_tag: launch.process_tag,
            },
        };
        let begun = std::time::Instant::now();
        let made = context
            .tracer
            .call(Call::Fork, || spawn::spawn(&program, SpawnMethod::Fork));
        match made {
            Ok(pid) => {
                context.counters.handler_processes_started += 1;
                let spawn_us = begun.elapsed().as_micros() as u64;
                context.counters.handler_spawn_us.record(spawn_us);
                Ok(ForkedProgram {
                    pid,
                    until_ms: u64::MAX,
                    terminated: false,
                    ended: None,
                })
            }
            Err(error) => {
                context.counters.handler_process_spawn_failures += 1;
                let name = escape_control(launch.path.as_bytes());
                context.notice(format!("{name}: {error}"));
                Err(Status::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// Polls for exited programs, and kills those whose time is over.
    pub(super) fn reap_forked(&mut self, context: &mut LoopContext) {
        let now_ms = context.now_ms;
        let mut gone = Vec::new();
        for (id, program) in &mut self.programs {
            let Some(forked) = &mut program.forked else {
                continue;
            };
            forked.tick(now_ms);
            context.tracer.call(Call::Reap, || forked.poll_end());
            if let Some(end) = forked.take_end() {
                gone.push((*id, end));
            }
        }
        for (id, end) in gone {
            self.on_program_ended(context, id, end);
        }
    }
}
