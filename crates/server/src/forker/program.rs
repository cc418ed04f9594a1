//! One program: from its start to the last process of its group. What it has left outside is for
//! the `hunt`.
//!
//! What it refuses: to wait. The end of the process is a readable descriptor (pidfd), its status is
//! looked at without being taken (`WNOWAIT`), and it is reaped only when the worker needs it no
//! more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use headway_os::spawn::{self, Limits, SpawnError, Step, Way};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, pidfd_open,
    waitid, waitpid,
};

use super::present;
use super::wire::{End, Launch};
use super::words::{Ear, Words};

/// Between the polite signal and the last one.
const TERM_PATIENCE: Duration = Duration::from_millis(1000);
/// What programs have always been able to open; more breaks those that use `select`.
const DESCRIPTORS: u64 = 1024;

/// Whether the worker still needs it.
#[derive(Clone, Copy)]
enum Hold {
    /// Its reply is under way.
    Held,
    /// Let go: it may go on until then.
    Released(Instant),
    /// Asked to end: killed then.
    Ending(Instant),
}

/// A program of this fork helper.
pub(super) struct Program {
    pub(super) id: u64,
    name: String,
    pid: Pid,
    process: OwnedFd,
    ear: Option<Ear>,
    hold: Hold,
    /// Its mark, and whether all who bear it end with it: its reply is not wanted, or never came.
    mark: u64,
    unwanted: bool,
    /// It was running when it was asked to end, so that how it ended is nothing to tell.
    asked: bool,
    end: Option<End>,
}

impl Program {
    /// Starts it. `descriptors`: its output, and its input if there is one. `present`: processes
    /// its user has.
    pub(super) fn start(
        id: u64,
        launch: &Launch,
        descriptors: Vec<OwnedFd>,
        null: BorrowedFd<'_>,
        present: u64,
    ) -> Result<Program, SpawnError> {
        let lacking = |errno| SpawnError {
            step: Step::Descriptors,
            errno,
        };
        let mut descriptors = descriptors.into_iter();
        let output = match launch.joined {
            true => None,
            false => Some(descriptors.next().ok_or(lacking(Errno::BADF))?),
        };
        let input = descriptors.next();
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(lacking)?;
        rustix::fs::fcntl_setfl(&ours, OFlags::NONBLOCK).map_err(lacking)?;
        let program = spawn::Program {
            path: &launch.path,
            arguments: &launch.arguments,
            environment: &launch.environment,
            directory: &launch.directory,
            input: input.as_ref().map_or(null, AsFd::as_fd),
            output: output.as_ref().map_or(theirs.as_fd(), AsFd::as_fd),
            error: theirs.as_fd(),
            limits: Limits {
                memory_bytes: launch.memory_bytes_max,
                processes: present::bound(launch.processes_max, present),
                descriptors: DESCRIPTORS,
                mark: launch.mark,
            },
        };
        let pid = spawn::spawn(&program, Way::Vfork)?;
        let process = watch(pid)?;
        Ok(Program {
            id,
            name: launch.path.to_string_lossy().into_owned(),
            pid,
            process,
            ear: Some(Ear::new(ours, launch.joined)),
            hold: Hold::Held,
            mark: launch.mark,
            unwanted: false,
            asked: false,
            end: None,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Readable when it has ended; `None` when that is known.
    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.end.is_none().then(|| self.process.as_fd())
    }

    /// Its standard error, while somebody has it open.
    pub(super) fn words(&self) -> Option<BorrowedFd<'_>> {
        self.ear.as_ref().map(Ear::pipe)
    }

    /// When [`Program::tend`] will have something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.hold {
            Hold::Held => None,
            Hold::Released(until) | Hold::Ending(until) => Some(until),
        }
    }

    /// Passes on what it has said.
    pub(super) fn hear(&mut self, words: &mut Words) {
        let speaker = (self.name.as_str(), self.pid.as_raw_nonzero().get());
        if self
            .ear
            .as_mut()
            .is_some_and(|ear| !ear.hear(speaker, words))
        {
            self.ear = None;
        }
    }

    /// How it ended, told once.
    pub(super) fn note_end(&mut self, words: &mut Words) -> Option<End> {
        if self.end.is_some() {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.pid), options).ok()??;
        let end = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => End::Exit(code.unsigned_abs()),
            (None, Some(signal)) => End::Signal(signal.unsigned_abs()),
            (None, None) => return None,
        };
        self.end = Some(end);
        let (name, pid) = (&self.name, self.pid.as_raw_nonzero());
        match end {
            _ if self.asked => {}
            End::Exit(0) => {}
            End::Exit(code) => words.say(format!("{name}[{pid}]: ended with exit code {code}")),
            End::Signal(signal) => words.say(format!("{name}[{pid}]: ended by signal {signal}")),
        }
        Some(end)
    }

    /// Its reply is complete; it may go on until then.
    pub(super) fn release(&mut self, until: Instant) {
        if let Hold::Held = self.hold {
            self.hold = Hold::Released(until);
        }
    }

    /// Nobody wants what it has begun: it ends, and whoever it has started ends with it, wherever
    /// that one has gone.
    pub(super) fn give_up(&mut self) {
        self.unwanted = true;
        self.kill();
    }

    /// Asks it and its group to end; what does not is killed a little later.
    fn kill(&mut self) {
        if let Hold::Ending(_) = self.hold {
            return;
        }
        self.asked = !is_ending(self.pid);
        self.signal(Signal::TERM);
        // A stopped process would get it when it is woken only.
        self.signal(Signal::CONT);
        self.hold = Hold::Ending(Instant::now() + TERM_PATIENCE);
    }

    /// Ends it and its group at once.
    fn kill_now(&mut self) {
        self.asked |= !is_ending(self.pid);
        self.signal(Signal::KILL);
        self.hold = Hold::Ending(Instant::now() + TERM_PATIENCE);
    }

    /// The worker is gone: it ends at once. The mark whose bearers do so, too, if there is one.
    pub(super) fn end(&mut self) -> Option<u64> {
        self.unwanted |= matches!(self.hold, Hold::Held);
        self.kill_now();
        self.hunted()
    }

    /// The mark whose bearers are to end with it, if they are.
    pub(super) fn hunted(&self) -> Option<u64> {
        (self.unwanted && self.mark > 0).then_some(self.mark)
    }

    /// The signals that are due; whether that was the last one.
    pub(super) fn tend(&mut self, now: Instant) -> bool {
        match self.hold {
            Hold::Released(until) if until <= now => self.kill(),
            Hold::Ending(until) if until <= now => {
                self.kill_now();
                return true;
            }
            _ => {}
        }
        false
    }

    /// Reaps it and ends its group if it has ended and nobody needs it; whether it has gone. What
    /// is to outlive a request that was answered has to leave the group (setsid(2)).
    pub(super) fn leave(&mut self, words: &mut Words) -> bool {
        if self.end.is_none() || matches!(self.hold, Hold::Held) {
            return false;
        }
        // The number is not another's before the process is reaped.
        self.signal(Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
        self.hear(words);
        true
    }

    /// To its group. That there is nobody left in it is no mistake.
    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }
}

/// Whether it ends already, though it is not dead yet: it closes its files before, which may be how
/// the worker knows.
fn is_ending(pid: Pid) -> bool {
    /// PF_EXITING of the kernel's `include/linux/sched.h`, in the ninth field (proc_pid_stat(5)).
    const EXITING: u64 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let flags = stat
        .rsplit_once(") ")
        .and_then(|(_, fields)| fields.split(' ').nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// A descriptor that tells the end of a process. Without one nobody would ever reap it.
fn watch(pid: Pid) -> Result<OwnedFd, SpawnError> {
    pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| {
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
        SpawnError {
            step: Step::Create,
            errno,
        }
    })
}
