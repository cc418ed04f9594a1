//! The processes that each worker has beside it: its spawner and its handshake process. They start with
//! the worker and are replaced when they die.
//!
//! When a worker dies, its spawner ends, which ends its handler processes, and so does its handshake
//! process. The next worker gets new ones.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use headway_config::Account;
use headway_control::Control;
use headway_metrics::MasterStatus;
use headway_os::codec::Version;
use headway_os::fd_passing::{Wait, send_with_descriptors};
use headway_spawner::wire::{SpawnerOrder, encode_order};
use rustix::io::IoSlice;

use super::children::{Programs, Role, ended};
use super::stopping::wait_or_kill;
use super::tls::Keys;
use super::{MasterError, log_error};

/// A process that dies sooner than this after its start is restarted with a delay.
const STABLE_AFTER: Duration = Duration::from_secs(5);
/// Delay of such a restart, so that a failure at startup does not occupy a CPU.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// A kind of companion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Companion {
    Spawner,
    Handshakes,
}

impl Companion {
    const ALL: [Companion; 2] = [Companion::Spawner, Companion::Handshakes];

    fn name(self) -> &'static str {
        match self {
            Companion::Spawner => "spawner",
            Companion::Handshakes => "handshake process",
        }
    }

    /// What is lost with it.
    fn loss(self) -> &'static str {
        match self {
            Companion::Spawner => "its running handler processes are lost",
            Companion::Handshakes => "its handshakes in progress are lost",
        }
    }

    fn deaths(self, status: &mut MasterStatus) -> &mut u64 {
        match self {
            Companion::Spawner => &mut status.spawner_deaths,
            Companion::Handshakes => &mut status.handshake_process_deaths,
        }
    }
}

#[derive(Default)]
struct Slot {
    running: Option<(Child, Instant)>,
    /// When to start the next one, while one is needed and none is running.
    restart_at: Option<Instant>,
}

/// The companions of all workers.
#[derive(Default)]
pub(super) struct Companions {
    /// By the slot of the worker, and by the kind.
    slots: Vec<[Slot; Companion::ALL.len()]>,
    /// Those of ended workers: they end by themselves and are reaped.
    leaving: Vec<Child>,
}

impl Companions {
    /// Starts a worker's companion. Returns its process id and the socket for the worker. `None` if it
    /// failed and is retried later.
    pub(super) fn start(
        &mut self,
        kind: Companion,
        number: usize,
        spawn: impl FnOnce() -> Result<(Child, OwnedFd), MasterError>,
    ) -> Option<(u32, OwnedFd)> {
        while self.slots.len() <= number {
            self.slots.push(Default::default());
        }
        let slot = &mut self.slots[number][kind as usize];
        match spawn() {
            Ok((child, socket)) => {
                let pid = child.id();
                let before = slot.running.replace((child, Instant::now()));
                slot.restart_at = None;
                self.leaving.extend(before.map(|(child, _)| child));
                Some((pid, socket))
            }
            Err(error) => {
                log_error(format_args!("{error}; retrying"));
                slot.restart_at = Some(Instant::now() + RESTART_DELAY);
                None
            }
        }
    }

    /// Releases the companions of a worker that has ended.
    pub(super) fn dismiss(&mut self, number: usize) {
        for slot in self.slots.get_mut(number).into_iter().flatten() {
            slot.restart_at = None;
            self.leaving
                .extend(slot.running.take().map(|(child, _)| child));
        }
    }

    /// Checks all, because SIGCHLD does not say which one ended.
    pub(super) fn reap(&mut self, stopping: bool, status: &mut MasterStatus) {
        let has_ended = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)) | Err(_));
        self.leaving.retain_mut(|child| !has_ended(child));
        for (number, slots) in self.slots.iter_mut().enumerate() {
            for (kind, slot) in Companion::ALL.into_iter().zip(slots) {
                slot.reap(kind, number, stopping, status);
            }
        }
    }

    /// Those due for a restart, with the slots of their workers.
    pub(super) fn due(&self, now: Instant) -> Vec<(Companion, usize)> {
        let due = |slot: &Slot| slot.restart_at.is_some_and(|at| at <= now);
        let all = self.slots.iter().enumerate().flat_map(|(number, slots)| {
            let kinds = Companion::ALL.into_iter().zip(slots);
            kinds.map(move |(kind, slot)| (kind, number, slot))
        });
        all.filter(|(_, _, slot)| due(slot))
            .map(|(kind, number, _)| (kind, number))
            .collect()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let slots = self.slots.iter().flatten();
        slots.filter_map(|slot| slot.restart_at).min()
    }

    /// All processes.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        let running = self.slots.iter().flatten();
        let running = running.filter_map(|slot| slot.running.as_ref());
        let running = running.map(|(child, _)| child.id());
        running.chain(self.leaving.iter().map(Child::id))
    }

    /// Cancels all restarts.
    pub(super) fn cancel_restarts(&mut self) {
        let slots = self.slots.iter_mut().flatten();
        slots.for_each(|slot| slot.restart_at = None);
    }

    /// Ends all: the workers have ended, so their sockets are closed.
    pub(super) fn end(&mut self, deadline: Instant) {
        (0..self.slots.len()).for_each(|number| self.dismiss(number));
        wait_or_kill(&mut self.leaving, deadline);
    }
}

impl Slot {
    fn reap(&mut self, kind: Companion, number: usize, stopping: bool, status: &mut MasterStatus) {
        let Some((child, started)) = &mut self.running else {
            return;
        };
        let Ok(Some(exit)) = child.try_wait() else {
            return;
        };
        let is_young = started.elapsed() < STABLE_AFTER;
        self.running = None;
        if stopping {
            return;
        }
        // Its worker has ended, and is reaped next.
        if exit.success() {
            self.restart_at = Some(Instant::now() + RESTART_DELAY);
            return;
        }
        *kind.deaths(status) += 1;
        let delay = match is_young {
            true => RESTART_DELAY,
            false => Duration::ZERO,
        };
        self.restart_at = Some(Instant::now() + delay);
        log_error(format_args!(
            "{} of worker {number} ended: {}; restarting it in {} ms; {}",
            kind.name(),
            ended(exit),
            delay.as_millis(),
            kind.loss()
        ));
    }
}

/// Starts a spawner.
pub(super) fn spawner(
    programs: &Programs,
    (user, is_json): (Option<&Account>, bool),
) -> Result<(Child, OwnedFd), MasterError> {
    let (theirs, workers) = Control::pair()?;
    let mut start = Vec::new();
    encode_order(
        &SpawnerOrder::Start {
            version: Version,
            json: is_json,
            user: user.cloned(),
        },
        &mut start,
    );
    send_with_descriptors(workers.as_fd(), &[IoSlice::new(&start)], &[], Wait::Never)
        .map_err(|error| super::system("start a spawner")(error.into()))?;
    let child = programs
        .spawn(Role::Spawner, theirs.into_inner())
        .map_err(super::system("start a spawner"))?;
    Ok((child, workers.into_inner()))
}

/// Starts a handshake process.
pub(super) fn handshakes(
    programs: &Programs,
    keys: &Keys,
) -> Result<(Child, OwnedFd), MasterError> {
    let system = super::system("start a handshake process");
    let (theirs, workers) = Control::pair()?;
    let workers = workers.into_inner();
    let descriptors = keys.of_process().map_err(&system)?;
    headway_tls::process::start(&workers, &descriptors).map_err(&system)?;
    let child = programs.spawn(Role::Handshakes, theirs.into_inner());
    Ok((child.map_err(&system)?, workers))
}
