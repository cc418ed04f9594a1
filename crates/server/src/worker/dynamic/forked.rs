//! Programs that the worker makes itself, by `fork`: what servers did before they had a helper for
//! it.
//!
//! Here to be measured (dissertation, Figure 2.5): `fork` copies the page tables and descriptors of
//! the whole server, on the loop, and the time it takes grows with them. The trace counts it where
//! it waits. What such a program says on standard error goes there straight.
//!
//! Its end is not told by an event: the loop asks, as long as there is one, some times a second and
//! when its output has ended.

use std::os::fd::AsFd;

use headway_debox::Call;
use headway_http::Status;
use headway_os::spawn::{self, Limits, Way};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid,
};

use super::Dynamic;
use super::start::Streamed;
use crate::forker::harmless;
use crate::forker::wire::{End, Launch, PROCESSES_UNSAID};
use crate::worker::Worker;

/// How often it is asked which programs have ended.
const ASK_EVERY_MS: u64 = 20;
/// What programs have always been able to open.
const DESCRIPTORS: u64 = 1024;
/// Between the polite signal and the last one.
const TERM_PATIENCE_MS: u64 = 1_000;

/// A process of the worker's own.
pub(super) struct Forked {
    pid: Pid,
    /// Its reply is complete, or not wanted: it may go on until then. `u64::MAX` before.
    until_ms: u64,
    /// It has been asked to end.
    asked: bool,
    ended: Option<End>,
}

impl Forked {
    /// Its reply is complete: it may go on for a while.
    pub(super) fn release(&mut self, until_ms: u64) {
        self.until_ms = self.until_ms.min(until_ms);
    }

    /// It is to end.
    pub(super) fn kill(&mut self, now_ms: u64) {
        self.release(now_ms);
        self.tend(now_ms);
    }

    /// The signals that are due.
    fn tend(&mut self, now_ms: u64) {
        if now_ms < self.until_ms {
            return;
        }
        let signals: &[Signal] = match self.asked {
            false => &[Signal::TERM, Signal::CONT],
            true => &[Signal::KILL],
        };
        for signal in signals {
            // That there is nobody left in the group is no mistake.
            let _ = kill_process_group(self.pid, *signal);
        }
        self.asked = true;
        self.until_ms = now_ms + TERM_PATIENCE_MS;
    }

    /// Looks whether it has ended, without reaping it: that keeps its number.
    fn look(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.pid), options) {
            self.ended = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Some(End::Exit(code.unsigned_abs())),
                (None, signal) => Some(End::Signal(signal.unwrap_or(0).unsigned_abs())),
            };
        }
    }

    /// It has ended and nobody needs it: what is left of it goes, too.
    fn leave(&self) -> Option<End> {
        let end = self.ended.filter(|_| self.until_ms < u64::MAX)?;
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
        Some(end)
    }
}

impl Dynamic {
    /// When the worker's own programs are asked about next.
    pub(super) fn forked_next_ms(&self, now_ms: u64) -> Option<u64> {
        let mut programs = self.programs.values();
        let any = programs.any(|program| program.forked.is_some());
        any.then_some(now_ms + ASK_EVERY_MS)
    }
}

impl Worker {
    /// Makes the process here and now. It is not known whether its program can be executed: if it
    /// cannot, the process ends and says nothing.
    pub(super) fn fork(&mut self, launch: &Launch, theirs: &Streamed) -> Result<Forked, Status> {
        let Some(dynamic) = &self.dynamic else {
            return Err(Status::INTERNAL_SERVER_ERROR);
        };
        let errors = std::io::stderr();
        let program = spawn::Program {
            path: &launch.path,
            arguments: &launch.arguments,
            environment: &launch.environment,
            directory: &launch.directory,
            input: theirs
                .input
                .as_ref()
                .map_or(dynamic.null.as_fd(), AsFd::as_fd),
            output: theirs.output.as_fd(),
            error: errors.as_fd(),
            limits: Limits {
                memory_bytes: launch.memory_bytes_max,
                processes: match launch.processes_max {
                    PROCESSES_UNSAID => 0,
                    said => said,
                },
                descriptors: DESCRIPTORS,
                mark: launch.mark,
            },
        };
        let begun = std::time::Instant::now();
        let made = self
            .tracer
            .call(Call::Fork, || spawn::spawn(&program, Way::Fork));
        match made {
            Ok(pid) => {
                self.counters.programs_started += 1;
                let spawn_us = begun.elapsed().as_micros() as u64;
                self.counters.program_spawn_us.record(spawn_us);
                Ok(Forked {
                    pid,
                    until_ms: u64::MAX,
                    asked: false,
                    ended: None,
                })
            }
            Err(error) => {
                self.counters.programs_not_started += 1;
                let name = harmless(launch.path.as_bytes());
                self.notice(format!("{name}: {error}"));
                Err(Status::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// Asks which of the worker's own programs have ended, and ends those whose time is over.
    pub(super) fn reap_forked(&mut self) {
        let now_ms = self.now_ms;
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        let mut gone = Vec::new();
        for (id, program) in &mut dynamic.programs {
            let Some(forked) = &mut program.forked else {
                continue;
            };
            forked.tend(now_ms);
            self.tracer.call(Call::Reap, || forked.look());
            if let Some(end) = forked.leave() {
                gone.push((*id, end));
            }
        }
        for (id, end) in gone {
            self.note_end(id, end);
        }
    }
}
