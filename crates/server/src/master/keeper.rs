//! The keeper as the master sees it: one process that keeps small files in the page cache for all
//! workers, replaced when it dies.
//!
//! The master holds both ends of its socket, so that workers, who have copies of one, need not be
//! told of a successor. It hears from it what is kept, for the status page; nobody waits for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use super::children::{Programs, Role, ended};
use super::{MasterError, say, system, wait_or_kill};
use crate::tally::{Kept, MasterTally};

const RESTART_DELAY: Duration = Duration::from_secs(1);

/// The keeper and its socket.
pub(super) struct Keeper {
    ours: OwnedFd,
    theirs: OwnedFd,
    child: Option<Child>,
    pub(super) restart_at: Option<Instant>,
}

impl Keeper {
    /// Starts it. How much it keeps the workers say.
    pub(super) fn start(programs: &Programs) -> Result<Keeper, MasterError> {
        let pair = headway_os::rights::pair().map_err(std::io::Error::from);
        let (ours, theirs) = pair.map_err(system("a socket for the keeper"))?;
        let mut keeper = Keeper {
            ours,
            theirs,
            child: None,
            restart_at: None,
        };
        keeper.spawn(programs)?;
        Ok(keeper)
    }

    fn spawn(&mut self, programs: &Programs) -> Result<(), MasterError> {
        let socket = self.theirs.try_clone();
        let child = socket.and_then(|socket| programs.spawn(Role::Keeper, socket));
        self.child = Some(child.map_err(system("start the keeper"))?);
        self.restart_at = None;
        Ok(())
    }

    /// Where it can be heard, and what workers have.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    /// Takes what it has told.
    pub(super) fn listen(&self, tally: &mut MasterTally) {
        match headway_files::told_by_keeper(&self.ours) {
            Ok(Some(kept)) => tally.kept = Some(Kept::from(kept)),
            Ok(None) => {}
            Err(error) => say(format_args!("the keeper: {error}")),
        }
    }

    /// Looks whether it has ended.
    pub(super) fn reap(&mut self, stopping: bool, tally: &mut MasterTally) {
        let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) else {
            return;
        };
        self.child = None;
        // What it kept the kernel may give up again.
        tally.kept = None;
        if stopping {
            return;
        }
        tally.keeper_deaths += 1;
        self.restart_at = Some(Instant::now() + RESTART_DELAY);
        let (end, delay) = (ended(status), RESTART_DELAY.as_millis());
        say(format_args!(
            "the keeper of small files ended: {end}; a new one starts in {delay} ms"
        ));
    }

    /// Starts another when it is due.
    pub(super) fn restart(&mut self, programs: &Programs, now: Instant) {
        if self.restart_at.is_some_and(|at| at <= now)
            && let Err(error) = self.spawn(programs)
        {
            say(error);
            self.restart_at = Some(now + RESTART_DELAY);
        }
    }

    /// The workers are gone, so without our ends its socket has ended.
    pub(super) fn end(self, deadline: Instant) {
        drop((self.ours, self.theirs));
        if let Some(mut child) = self.child {
            wait_or_kill(&mut child, deadline);
        }
    }
}
