//! The pinner process: it pins small files in the page cache for all workers, and is replaced when
//! it dies.
//!
//! The master holds both ends of its socket, so that workers, which have copies of one end, need
//! not know about a replacement. The pinner reports what is pinned, for the status page; no process
//! waits for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use headway_metrics::{MasterStatus, Pinned};

use super::children::{Programs, Role, ended};
use super::stopping::wait_or_kill;
use super::{MasterError, log_line, system};

const RESTART_DELAY: Duration = Duration::from_secs(1);

/// The pinner and its socket.
pub(super) struct Pinner {
    ours: OwnedFd,
    theirs: OwnedFd,
    child: Option<Child>,
    pub(super) restart_at: Option<Instant>,
}

impl Pinner {
    /// Starts the process. The workers tell it how much it may pin.
    pub(super) fn start(programs: &Programs) -> Result<Pinner, MasterError> {
        let pair = headway_os::fd_passing::pair().map_err(std::io::Error::from);
        let (ours, theirs) = pair.map_err(system("socket of the pinner"))?;
        let mut pinner = Pinner {
            ours,
            theirs,
            child: None,
            restart_at: None,
        };
        pinner.spawn(programs)?;
        Ok(pinner)
    }

    fn spawn(&mut self, programs: &Programs) -> Result<(), MasterError> {
        let socket = self.theirs.try_clone();
        let child = socket.and_then(|socket| programs.spawn(Role::Pinner, socket));
        self.child = Some(child.map_err(system("start the pinner"))?);
        self.restart_at = None;
        Ok(())
    }

    /// The end on which its reports arrive, and a copy of which workers have.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    /// Reads its reports.
    pub(super) fn read(&self, status: &mut MasterStatus) {
        match headway_files::receive_pinner_statistics(&self.ours) {
            Ok(Some(pinned)) => status.pinned = Some(Pinned::from(pinned)),
            Ok(None) => {}
            Err(error) => log_line(format_args!("pinner: {error}")),
        }
    }

    /// Checks whether the pinner has ended.
    pub(super) fn reap(&mut self, stopping: bool, status: &mut MasterStatus) {
        let Some(Ok(Some(exit))) = self.child.as_mut().map(Child::try_wait) else {
            return;
        };
        self.child = None;
        // The kernel may now evict what was pinned.
        status.pinned = None;
        if stopping {
            return;
        }
        status.pinner_deaths += 1;
        self.restart_at = Some(Instant::now() + RESTART_DELAY);
        let (end, delay) = (ended(exit), RESTART_DELAY.as_millis());
        log_line(format_args!(
            "pinner ended: {end}; restarting it in {delay} ms"
        ));
    }

    /// Starts a replacement when it is due.
    pub(super) fn restart(&mut self, programs: &Programs, now: Instant) {
        if self.restart_at.is_some_and(|at| at <= now)
            && let Err(error) = self.spawn(programs)
        {
            log_line(error);
            self.restart_at = Some(now + RESTART_DELAY);
        }
    }

    /// Closes the socket, so that it ends: the workers have ended already.
    pub(super) fn end(mut self, deadline: Instant) {
        drop((self.ours, self.theirs));
        wait_or_kill(self.child.as_mut(), deadline);
    }
}
