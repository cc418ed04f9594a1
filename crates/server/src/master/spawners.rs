//! The spawners as the master sees them: one per worker, started with it and replaced when it dies.
//!
//! When a worker dies, its spawner exits, which ends its programs; the next worker gets a new
//! spawner.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use super::children::{Programs, Role, ended};
use super::{MasterError, say, wait_or_kill};
use crate::control::Control;
use crate::tally::MasterTally;

/// A spawner that dies sooner than this after its start failed early.
const EARLY_FAILURE: Duration = Duration::from_secs(5);
/// Delay before the next start after an early failure, so that a permanent fault does not use up a
/// CPU.
const RESTART_DELAY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Place {
    running: Option<(Child, Instant)>,
    /// When to start the next one, while there should be one and is none.
    restart_at: Option<Instant>,
}

/// All spawners.
pub(super) struct Spawners {
    /// By worker; empty if no location needs one.
    places: Vec<Place>,
    /// Spawners whose worker has gone: they exit by themselves and are reaped.
    leaving: Vec<Child>,
}

impl Spawners {
    /// Creates the table for this many workers, or an empty one if no spawner is needed.
    pub(super) fn new(workers: usize, needed: bool) -> Spawners {
        let count = if needed { workers } else { 0 };
        Spawners {
            places: (0..count).map(|_| Place::default()).collect(),
            leaving: Vec::new(),
        }
    }

    /// Starts a spawner for a worker. Returns its process and the socket for the worker; `None` if
    /// none is needed, or if it could not be started and is retried later.
    pub(super) fn start(&mut self, number: usize, programs: &Programs) -> Option<(u32, OwnedFd)> {
        let place = self.places.get_mut(number)?;
        match spawn(programs) {
            Ok((child, socket)) => {
                let pid = child.id();
                let before = place.running.replace((child, Instant::now()));
                place.restart_at = None;
                self.leaving.extend(before.map(|(child, _)| child));
                Some((pid, socket))
            }
            Err(error) => {
                say(format_args!("{error}; it is tried again"));
                place.restart_at = Some(Instant::now() + RESTART_DELAY);
                None
            }
        }
    }

    /// The worker of this spawner has gone.
    pub(super) fn dismiss(&mut self, number: usize) {
        if let Some(place) = self.places.get_mut(number) {
            place.restart_at = None;
            self.leaving
                .extend(place.running.take().map(|(child, _)| child));
        }
    }

    /// Checks all spawners: a signal says that some exited, not which.
    pub(super) fn reap(&mut self, stopping: bool, tally: &mut MasterTally) {
        let gone = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)) | Err(_));
        self.leaving.retain_mut(|child| !gone(child));
        for (number, place) in self.places.iter_mut().enumerate() {
            let Some((child, started)) = &mut place.running else {
                continue;
            };
            let Ok(Some(status)) = child.try_wait() else {
                continue;
            };
            let young = started.elapsed() < EARLY_FAILURE;
            place.running = None;
            if stopping {
                continue;
            }
            tally.spawner_deaths += 1;
            let delay = if young { RESTART_DELAY } else { Duration::ZERO };
            place.restart_at = Some(Instant::now() + delay);
            say(format_args!(
                "the spawner of worker {number} ended: {}; a new one starts in {} ms, programs under way are lost",
                ended(status),
                delay.as_millis()
            ));
        }
    }

    /// Workers whose spawner is due to be started.
    pub(super) fn due(&self, now: Instant) -> Vec<usize> {
        let due = |place: &Place| place.restart_at.is_some_and(|at| at <= now);
        let places = self.places.iter().enumerate();
        places
            .filter(|(_, place)| due(place))
            .map(|(number, _)| number)
            .collect()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.places
            .iter()
            .filter_map(|place| place.restart_at)
            .min()
    }

    /// No spawner is needed any more.
    pub(super) fn cease(&mut self) {
        self.places
            .iter_mut()
            .for_each(|place| place.restart_at = None);
    }

    /// Waits for the spawners to exit; their workers have gone, so their sockets are closed.
    pub(super) fn end(&mut self, deadline: Instant) {
        (0..self.places.len()).for_each(|number| self.dismiss(number));
        self.leaving
            .iter_mut()
            .for_each(|child| wait_or_kill(child, deadline));
    }
}

fn spawn(programs: &Programs) -> Result<(Child, OwnedFd), MasterError> {
    let (theirs, workers) = Control::pair()?;
    let child = programs
        .spawn(Role::Fork, theirs.into_inner())
        .map_err(super::system("start a spawner"))?;
    Ok((child, workers.into_inner()))
}
