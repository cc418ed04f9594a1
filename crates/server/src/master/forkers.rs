//! The fork helpers as the master sees them: one a worker, started with it, replaced when it dies.
//!
//! A worker's death ends its fork helper, and that ends its programs; the next worker gets the next
//! one.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use super::children::{Programs, Role, ended};
use super::{MasterError, say, wait_or_kill};
use crate::control::Control;
use crate::tally::MasterTally;

/// A fork helper that dies sooner than this after its start died young.
const YOUNG: Duration = Duration::from_secs(5);
/// Then the next one waits for so long, so that a fault at start does not burn a processor.
const DELAY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Place {
    running: Option<(Child, Instant)>,
    /// When to start the next one, while there should be one and is none.
    restart_at: Option<Instant>,
}

/// All of them.
pub(super) struct Forkers {
    /// By worker; empty where no location needs one.
    places: Vec<Place>,
    /// Those whose worker has gone: they end by themselves and are reaped.
    leaving: Vec<Child>,
}

impl Forkers {
    /// None yet; for so many workers, or for no worker if none is needed.
    pub(super) fn new(workers: usize, needed: bool) -> Forkers {
        let count = if needed { workers } else { 0 };
        Forkers {
            places: (0..count).map(|_| Place::default()).collect(),
            leaving: Vec::new(),
        }
    }

    /// Starts one for a worker: its process, and the socket for the worker. `None` if none is
    /// needed, or if it could not be started and is tried again later.
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
                place.restart_at = Some(Instant::now() + DELAY);
                None
            }
        }
    }

    /// Its worker has gone.
    pub(super) fn dismiss(&mut self, number: usize) {
        if let Some(place) = self.places.get_mut(number) {
            place.restart_at = None;
            self.leaving
                .extend(place.running.take().map(|(child, _)| child));
        }
    }

    /// Looks at all of them: a signal says that some ended, not which.
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
            let young = started.elapsed() < YOUNG;
            place.running = None;
            if stopping {
                continue;
            }
            tally.fork_helper_deaths += 1;
            let delay = if young { DELAY } else { Duration::ZERO };
            place.restart_at = Some(Instant::now() + delay);
            say(format_args!(
                "the fork helper of worker {number} ended: {}; a new one starts in {} ms, programs under way are lost",
                ended(status),
                delay.as_millis()
            ));
        }
    }

    /// Workers whose fork helper is due.
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

    /// Nobody needs them any more.
    pub(super) fn cease(&mut self) {
        self.places
            .iter_mut()
            .for_each(|place| place.restart_at = None);
    }

    /// The workers are gone, so the sockets have ended.
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
        .map_err(super::system("start a fork helper"))?;
    Ok((child, workers.into_inner()))
}
