//! One program, from its start to the last process of its group. The `orphan_reaper` takes care of
//! processes outside the group.
//!
//! Nothing here blocks. A pidfd becomes readable at exit, the status is read without reaping
//! (`WNOWAIT`), and the process is reaped only when the worker does not need it any more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use headway_os::spawn::{self, Limits, SpawnError, SpawnMethod, SpawnStage};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, pidfd_open,
    waitid, waitpid,
};

use super::nproc_limit;
use super::stderr_relay::{StderrReader, StderrRelay};
use super::wire::{ExitStatus, Launch};

/// Time between SIGTERM and SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_millis(1000);

/// Whether the worker still needs a program.
#[derive(Clone, Copy)]
enum ProgramPhase {
    /// The response is in progress.
    InProgress,
    /// The response is complete; the program may continue until then.
    Released(Instant),
    /// SIGTERM was sent; the program is killed then.
    Terminating(Instant),
}

/// What all programs of a spawner have in common.
#[derive(Clone, Copy)]
pub(super) struct Confines<'s> {
    /// The input of a program without one.
    pub(super) null: BorrowedFd<'s>,
    /// The number of processes of their user.
    pub(super) processes: u64,
    /// What they are under.
    pub(super) domain: Option<BorrowedFd<'s>>,
}

/// A program of this spawner.
pub(super) struct Program {
    pub(super) id: u64,
    name: String,
    pid: Pid,
    process: OwnedFd,
    stderr: Option<StderrReader>,
    phase: ProgramPhase,
    /// The process tag, and whether all tagged processes are to be killed because the response is
    /// not wanted.
    process_tag: u64,
    kill_descendants: bool,
    /// The program was running when it was killed, so its exit status is not worth a message.
    was_killed: bool,
    end: Option<ExitStatus>,
}

impl Program {
    /// Starts a program. `descriptors`: its output, and its input if there is one.
    pub(super) fn start(
        id: u64,
        launch: &Launch,
        descriptors: Vec<OwnedFd>,
        confines: Confines<'_>,
    ) -> Result<Program, SpawnError> {
        let lacking = |errno| SpawnError {
            step: SpawnStage::Descriptors,
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
            input: input.as_ref().map_or(confines.null, AsFd::as_fd),
            output: output.as_ref().map_or(theirs.as_fd(), AsFd::as_fd),
            error: theirs.as_fd(),
            limits: Limits {
                memory_bytes: launch.memory_bytes_max,
                cpu_s: launch.cpu_s_max,
                processes: nproc_limit::limit_for(launch.processes_max, confines.processes),
                descriptors: launch.open_files_max,
                process_tag: launch.process_tag,
            },
            domain: confines.domain,
        };
        let pid = spawn::spawn(&program, SpawnMethod::Vfork)?;
        let process = watch(pid)?;
        Ok(Program {
            id,
            name: launch.path.to_string_lossy().into_owned(),
            pid,
            process,
            stderr: Some(StderrReader::new(ours, launch.joined)),
            phase: ProgramPhase::InProgress,
            process_tag: launch.process_tag,
            kill_descendants: false,
            was_killed: false,
            end: None,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The process, readable when it has exited; `None` once that is known.
    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.end.is_none().then(|| self.process.as_fd())
    }

    /// The standard error of the program, while some process has it open.
    pub(super) fn stderr(&self) -> Option<BorrowedFd<'_>> {
        self.stderr.as_ref().map(StderrReader::pipe)
    }

    /// When [`Program::tick`] will have something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            ProgramPhase::InProgress => None,
            ProgramPhase::Released(until) | ProgramPhase::Terminating(until) => Some(until),
        }
    }

    /// Relays what the program has written to standard error.
    pub(super) fn read(&mut self, stderr_relay: &mut StderrRelay) {
        let source = (self.name.as_str(), self.pid.as_raw_nonzero().get());
        if self
            .stderr
            .as_mut()
            .is_some_and(|stderr| !stderr.read(source, stderr_relay))
        {
            self.stderr = None;
        }
    }

    /// How the program ended, reported once.
    pub(super) fn on_exit(&mut self, stderr_relay: &mut StderrRelay) -> Option<ExitStatus> {
        if self.end.is_some() {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.pid), options).ok()??;
        let end = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ExitStatus::Exit(code.unsigned_abs()),
            (None, Some(signal)) => ExitStatus::Signal(signal.unsigned_abs()),
            (None, None) => return None,
        };
        self.end = Some(end);
        let (name, pid) = (&self.name, self.pid.as_raw_nonzero());
        match end {
            _ if self.was_killed => {}
            ExitStatus::Exit(0) => {}
            ExitStatus::Exit(code) => {
                stderr_relay.log(format!("{name}[{pid}]: exited with code {code}"))
            }
            ExitStatus::Signal(signal) => {
                stderr_relay.log(format!("{name}[{pid}]: killed by signal {signal}"))
            }
        }
        Some(end)
    }

    /// Releases a program whose response is complete; it may continue until then.
    pub(super) fn release(&mut self, until: Instant) {
        if let ProgramPhase::InProgress = self.phase {
            self.phase = ProgramPhase::Released(until);
        }
    }

    /// Kills a program whose response is not wanted, and all its descendants, wherever they are.
    pub(super) fn abandon(&mut self) {
        self.kill_descendants = true;
        self.kill();
    }

    /// Sends SIGTERM to the group; SIGKILL follows a little later.
    fn kill(&mut self) {
        if let ProgramPhase::Terminating(_) = self.phase {
            return;
        }
        self.was_killed = !is_ending(self.pid);
        self.signal(Signal::TERM);
        // A stopped process handles the signal only when it is continued.
        self.signal(Signal::CONT);
        self.phase = ProgramPhase::Terminating(Instant::now() + TERM_TIMEOUT);
    }

    /// Kills the program and its group at once.
    fn kill_now(&mut self) {
        self.was_killed |= !is_ending(self.pid);
        self.signal(Signal::KILL);
        self.phase = ProgramPhase::Terminating(Instant::now() + TERM_TIMEOUT);
    }

    /// The worker has gone: kills it at once. Returns the tag of the processes to kill as well, if
    /// it has one.
    pub(super) fn end(&mut self) -> Option<u64> {
        self.kill_descendants |= matches!(self.phase, ProgramPhase::InProgress);
        self.kill_now();
        self.take_tag()
    }

    /// The tag of the processes to kill, if there is one.
    pub(super) fn take_tag(&self) -> Option<u64> {
        (self.kill_descendants && self.process_tag > 0).then_some(self.process_tag)
    }

    /// Sends the signals that are due; returns whether the last one was sent.
    pub(super) fn tick(&mut self, now: Instant) -> bool {
        match self.phase {
            ProgramPhase::Released(until) if until <= now => self.kill(),
            ProgramPhase::Terminating(until) if until <= now => {
                self.kill_now();
                return true;
            }
            _ => {}
        }
        false
    }

    /// Reaps the program and kills its group if it has exited and is not needed any more; returns
    /// whether it has been removed. A process that is to outlive its request has to leave the group
    /// (setsid(2)).
    pub(super) fn take_if_done(&mut self, stderr_relay: &mut StderrRelay) -> bool {
        if self.end.is_none() || matches!(self.phase, ProgramPhase::InProgress) {
            return false;
        }
        // The process ID cannot be reused before the process is reaped.
        self.signal(Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
        self.read(stderr_relay);
        true
    }

    /// Signals the program's group. An empty group is not an error.
    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }
}

/// Whether the process is exiting already: it closes its files first, which may be how the worker
/// noticed.
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

/// Opens a pidfd. Without one the process would never be reaped.
fn watch(pid: Pid) -> Result<OwnedFd, SpawnError> {
    pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| {
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
        SpawnError {
            step: SpawnStage::Create,
            errno,
        }
    })
}
