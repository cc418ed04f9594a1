//! A process that is started some time after the server, and replaced when it dies.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use headway_control::{Control, ControlError};

use super::children::{Programs, Role};
use super::stopping::wait_or_kill;
use super::{MasterError, system};

/// The process and its channel.
pub(super) struct Supervised {
    running: Option<(Child, Control)>,
    /// When to start it, while none is running.
    restart_at: Option<Instant>,
}

impl Supervised {
    /// It is due at once.
    pub(super) fn due() -> Supervised {
        Supervised {
            running: None,
            restart_at: Some(Instant::now()),
        }
    }

    pub(super) fn control(&self) -> Option<&Control> {
        self.running.as_ref().map(|(_, control)| control)
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|(child, _)| child.id())
    }

    pub(super) fn restart_at(&self) -> Option<Instant> {
        self.restart_at
    }

    /// From now on it is not replaced when it ends.
    pub(super) fn stop_restarting(&mut self) {
        self.restart_at = None;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.restart_at.is_some_and(|at| at <= now)
    }

    /// Starts it; `send_first` sends its first message. `what` says what failed, in an error.
    pub(super) fn start(
        &mut self,
        programs: &Programs,
        (role, what): (Role, &'static str),
        send_first: impl FnOnce(&Control) -> Result<(), ControlError>,
    ) -> Result<(), MasterError> {
        let (ours, theirs) = Control::pair()?;
        send_first(&ours)?;
        let child = programs.spawn(role, theirs.into_inner());
        self.running = Some((child.map_err(system(what))?, ours));
        self.restart_at = None;
        Ok(())
    }

    /// The status of the process, if it has ended. The caller says when the next one is due.
    pub(super) fn take_end(&mut self) -> Option<ExitStatus> {
        let (child, _) = self.running.as_mut()?;
        let exit = child.try_wait().ok()??;
        self.running = None;
        Some(exit)
    }

    pub(super) fn restart_in(&mut self, delay: Duration) {
        self.restart_at = Some(Instant::now() + delay);
    }

    /// Closes the channel, so that it ends.
    pub(super) fn let_end(self) -> Option<Child> {
        self.running.map(|(child, _)| child)
    }

    /// Closes the channel, so that it ends, and waits.
    pub(super) fn end(self, deadline: Instant) {
        let mut child = self.let_end();
        wait_or_kill(child.as_mut(), deadline);
    }
}
