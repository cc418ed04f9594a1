//! The spawner processes: one per worker, started with it and replaced when it dies.
//!
//! When a worker dies, its spawner ends, which ends its handler processes. The next worker gets a
//! new spawner.

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
use super::{MasterError, log_line};

/// A spawner that dies sooner than this after its start is restarted with a delay.
const STABLE_AFTER: Duration = Duration::from_secs(5);
/// Delay of such a restart, so that a failure at startup does not occupy a CPU.
const RESTART_DELAY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct SpawnerSlot {
    running: Option<(Child, Instant)>,
    /// When to start the next one, while one is needed and none is running.
    restart_at: Option<Instant>,
}

/// The spawners of all workers.
#[derive(Default)]
pub(super) struct Spawners {
    /// By the slot of the worker.
    slots: Vec<SpawnerSlot>,
    /// Spawners of ended workers: they end by themselves and are reaped.
    leaving: Vec<Child>,
}

impl Spawners {
    /// Starts a worker's spawner. Returns its process id and the socket for the worker. `None` if it
    /// failed and is retried later.
    pub(super) fn start(
        &mut self,
        number: usize,
        programs: &Programs,
        user: Option<&Account>,
    ) -> Option<(u32, OwnedFd)> {
        while self.slots.len() <= number {
            self.slots.push(SpawnerSlot::default());
        }
        let slot = &mut self.slots[number];
        match spawn(programs, user) {
            Ok((child, socket)) => {
                let pid = child.id();
                let before = slot.running.replace((child, Instant::now()));
                slot.restart_at = None;
                self.leaving.extend(before.map(|(child, _)| child));
                Some((pid, socket))
            }
            Err(error) => {
                log_line(format_args!("{error}; retrying"));
                slot.restart_at = Some(Instant::now() + RESTART_DELAY);
                None
            }
        }
    }

    /// Releases the spawner of a worker that has ended.
    pub(super) fn dismiss(&mut self, number: usize) {
        if let Some(slot) = self.slots.get_mut(number) {
            slot.restart_at = None;
            self.leaving
                .extend(slot.running.take().map(|(child, _)| child));
        }
    }

    /// Checks all spawners, because SIGCHLD does not say which one ended.
    pub(super) fn reap(&mut self, stopping: bool, status: &mut MasterStatus) {
        let has_ended = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)) | Err(_));
        self.leaving.retain_mut(|child| !has_ended(child));
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let Some((child, started)) = &mut slot.running else {
                continue;
            };
            let Ok(Some(exit)) = child.try_wait() else {
                continue;
            };
            let is_young = started.elapsed() < STABLE_AFTER;
            slot.running = None;
            if stopping {
                continue;
            }
            status.spawner_deaths += 1;
            let delay = if is_young {
                RESTART_DELAY
            } else {
                Duration::ZERO
            };
            slot.restart_at = Some(Instant::now() + delay);
            log_line(format_args!(
                "spawner of worker {number} ended: {}; restarting it in {} ms; its running handler processes are lost",
                ended(exit),
                delay.as_millis()
            ));
        }
    }

    /// Workers whose spawner is due for a restart.
    pub(super) fn due(&self, now: Instant) -> Vec<usize> {
        let due = |slot: &SpawnerSlot| slot.restart_at.is_some_and(|at| at <= now);
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| due(slot))
            .map(|(number, _)| number)
            .collect()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|slot| slot.restart_at).min()
    }

    /// Cancels all restarts.
    pub(super) fn cancel_restarts(&mut self) {
        self.slots
            .iter_mut()
            .for_each(|slot| slot.restart_at = None);
    }

    /// Ends all spawners: the workers have ended, so their sockets are closed.
    pub(super) fn end(&mut self, deadline: Instant) {
        (0..self.slots.len()).for_each(|number| self.dismiss(number));
        wait_or_kill(&mut self.leaving, deadline);
    }
}

fn spawn(programs: &Programs, user: Option<&Account>) -> Result<(Child, OwnedFd), MasterError> {
    let (theirs, workers) = Control::pair()?;
    let mut start = Vec::new();
    encode_order(
        &SpawnerOrder::Start {
            version: Version,
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
