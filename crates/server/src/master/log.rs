//! The log process: it is started before the workers and replaced when it dies.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use headway_config::LogConfig;
use headway_control::{Control, FromLog, Received, ToLog, ToWorker};
use headway_metrics::MasterStatus;

use super::children::{Programs, RESTART_DELAY, Role, ended};
use super::reload::Generation;
use super::{Master, MasterError, announce, log_error, log_warn, signals, timespec};

/// Time for the log process to open its file.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The log process and its channel.
pub(super) struct Log {
    config: LogConfig,
    running: Option<(Child, Control)>,
    pub(super) restart_at: Option<Instant>,
}

impl Log {
    /// Starts the log process of a configuration, if it has one, and waits until it has opened its file.
    pub(super) fn start_of(generation: &Generation) -> Result<Option<Log>, MasterError> {
        let Some(config) = &generation.config.log else {
            return Ok(None);
        };
        let failed = |why: String| MasterError::Log {
            user: announce::as_user(&generation.config),
            why,
        };
        let mut log = Log {
            config: config.clone(),
            running: None,
            restart_at: None,
        };
        log.spawn(&generation.programs)?;
        let control = &log.running.as_ref().expect("just started").1;
        if !answers_within(control, START_TIMEOUT) {
            log.end(Duration::ZERO);
            return Err(failed("the log process does not answer".into()));
        }
        match control.receive::<FromLog>()? {
            Some((FromLog::Ready, _)) => Ok(Some(log)),
            Some((FromLog::Failed { why } | FromLog::Dropped { why, .. }, _)) => {
                log.end(Duration::from_secs(1));
                Err(failed(why))
            }
            None => Err(failed("the log process ended at startup".into())),
        }
    }

    fn spawn(&mut self, programs: &Programs) -> Result<(), MasterError> {
        let (ours, theirs) = Control::pair()?;
        ours.send(
            &ToLog::Start {
                log: self.config.clone(),
            },
            &[],
        )?;
        let child = programs
            .spawn(Role::Log, theirs.into_inner())
            .map_err(|error| MasterError::System {
                what: "start the log process",
                error,
            })?;
        self.running = Some((child, ours));
        self.restart_at = None;
        Ok(())
    }

    pub(super) fn control(&self) -> Option<&Control> {
        self.running.as_ref().map(|(_, control)| control)
    }

    /// The process and the socket, for the next program.
    pub(super) fn handed(&self) -> Option<(u32, Option<BorrowedFd<'_>>)> {
        let (child, control) = self.running.as_ref()?;
        Some((child.id(), Some(control.as_fd())))
    }

    /// A socket for a worker's lines. While no log process runs, the other end is closed at once,
    /// and the worker buffers its lines until it gets another socket.
    pub(super) fn socket(&self, worker: u32) -> Result<OwnedFd, MasterError> {
        let (ours, theirs) = Control::pair()?;
        if let Some(control) = self.control() {
            let _ = control.try_send(&ToLog::Worker { worker }, &[theirs.as_fd()]);
        }
        Ok(ours.into_inner())
    }

    pub(super) fn reopen(&self) {
        if let Some(control) = self.control()
            && !matches!(control.try_send(&ToLog::Reopen, &[]), Ok(true))
        {
            log_warn("cannot have the log process reopen its file: its channel is full");
        }
    }

    /// Reads messages of the log process; `false` when its channel is closed.
    pub(super) fn read(&mut self, status: &mut MasterStatus) -> bool {
        while let Some(control) = self.control() {
            match control.try_receive::<FromLog>() {
                Ok(Received::Message(FromLog::Ready, _)) => status.log_error = None,
                Ok(Received::Message(FromLog::Dropped { lines, why }, _)) => {
                    log_error(format_args!(
                        "access log: {why}; {lines} lines lost, continuing to serve"
                    ));
                    status.log_lines_lost += lines;
                    status.log_error = Some(why);
                }
                Ok(Received::Message(FromLog::Failed { why }, _)) => {
                    log_error(format_args!(
                        "access log: {why}; continuing with the old file"
                    ));
                    status.log_error = Some(why);
                }
                Ok(Received::WouldBlock) => return true,
                Ok(Received::Closed) | Err(_) => return false,
            }
        }
        true
    }

    /// Reaps the process after its channel was closed, and schedules a replacement.
    pub(super) fn died(&mut self, status: &mut MasterStatus) {
        let Some((mut child, _)) = self.running.take() else {
            return;
        };
        super::stopping::wait_or_kill([&mut child], Instant::now());
        let end = match child.try_wait() {
            Ok(Some(status)) => ended(status),
            Ok(None) => "its channel is closed".to_owned(),
            Err(error) => error.to_string(),
        };
        let delay = RESTART_DELAY.as_millis();
        log_error(format_args!(
            "log process ended: {end}; restarting it in {delay} ms"
        ));
        status.log_deaths += 1;
        self.restart_at = Some(Instant::now() + RESTART_DELAY);
    }

    /// Starts a replacement when it is due; `true` if the workers need new sockets.
    pub(super) fn restart(&mut self, programs: &Programs, now: Instant) -> bool {
        if self.restart_at.is_none_or(|at| at > now) {
            return false;
        }
        match self.spawn(programs) {
            Ok(()) => true,
            Err(error) => {
                log_error(error);
                self.restart_at = Some(now + RESTART_DELAY);
                false
            }
        }
    }

    /// Closes the channel to the log process. It writes what the workers left it, and ends.
    pub(super) fn let_end(self) -> Option<Child> {
        self.running.map(|(child, _)| child)
    }

    /// Ends the log process: it writes what the workers left it, for at most `timeout`.
    pub(super) fn end(&mut self, timeout: Duration) {
        if let Some((mut child, control)) = self.running.take() {
            drop(control);
            super::stopping::wait_or_kill([&mut child], Instant::now() + timeout);
        }
    }
}

impl Master<'_> {
    pub(super) fn read_log(&mut self) {
        if let Some(log) = &mut self.log
            && !log.read(&mut self.own_status)
        {
            log.died(&mut self.own_status);
        }
    }

    pub(super) fn send_log_sockets(&mut self) {
        for number in 0..self.slots.len() {
            let slot = &self.slots[number];
            // A reload may have changed the log.
            let log = self.log.as_ref().filter(|log| slot.writes_to(&log.config));
            if let Some(Ok(socket)) = log.map(|log| log.socket(slot.number() as u32)) {
                self.send(number, ToWorker::Log, vec![socket]);
            }
        }
    }

    pub(super) fn handle_reopen(&mut self) {
        signals::drain(&self.signals.reopen);
        self.reopen_log();
    }

    pub(super) fn reopen_log(&self) {
        if let Some(log) = &self.log {
            log.reopen();
        }
    }
}

/// Waits for a message.
pub(super) fn answers_within(control: &Control, timeout: Duration) -> bool {
    let mut polled = [PollFd::new(control, PollFlags::IN)];
    loop {
        match poll(&mut polled, Some(&timespec(timeout))) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
