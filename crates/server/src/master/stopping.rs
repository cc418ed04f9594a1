//! The end of the server: signals, the drain of the workers, and its deadline.

use std::process::Child;
use std::time::{Duration, Instant};

use headway_control::{Drain, ToWorker};

use super::service::Service;
use super::watchdog::process_state;
use super::{Master, MasterError, log_warn, signals};

/// Time for a worker to exit by itself after the drain deadline.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for the log process to write the last lines.
const LOG_EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for a process to end after SIGKILL. One which waits for a dead disk does not end at all
/// (D in ps(1)), and must not keep the server from ending.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// A server that is stopping.
pub(super) struct Stopping {
    /// When the workers are killed, and then when those are left that have not ended.
    pub(super) deadline: Instant,
    killed: bool,
}

impl Master<'_> {
    pub(super) fn handle_stop(&mut self) {
        let signals = signals::drain(&self.signals.stop);
        if signals == 0 {
            return;
        }
        if self.stopping.is_some() || signals > 1 {
            return self.stop(Duration::ZERO);
        }
        self.stop(Duration::from_millis(self.current.config.drain_timeout_ms));
    }

    /// Has all workers drain. Without time for that they are killed.
    pub(super) fn stop(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        if self.stopping.is_none() && !timeout.is_zero() {
            let timeout_ms = timeout.as_millis() as u64;
            for number in 0..self.slots.len() {
                let drain = ToWorker::Drain(Drain::within(timeout_ms));
                self.send(number, drain, Vec::new());
            }
        }
        self.slots
            .iter_mut()
            .for_each(|slot| slot.restart_at = None);
        self.companions.cancel_restarts();
        if let Some(acme) = &mut self.acme {
            acme.process.stop_restarting();
        }
        if let Some(spans) = &mut self.spans {
            spans.process.stop_restarting();
        }
        self.cancel_upgrade();
        if !self.goes_back() {
            self.inherited.borrow_mut().forget();
            self.predecessors.stop(timeout);
        }
        self.listeners = None;
        self.reading = None;
        if let Some(reload) = self.reload.take() {
            self.abandon(reload);
        }
        Service::stopping();
        let extra = if timeout.is_zero() {
            Duration::ZERO
        } else {
            EXIT_TIMEOUT
        };
        self.stopping = Some(Stopping {
            deadline: deadline + extra,
            killed: false,
        });
    }

    pub(super) fn enforce_deadline(&mut self, now: Instant) {
        let stopping = self.stopping.as_mut();
        let Some(stopping) = stopping.filter(|stopping| stopping.deadline <= now) else {
            return;
        };
        let was_killed = std::mem::replace(&mut stopping.killed, true);
        stopping.deadline = now + KILL_TIMEOUT;
        for number in 0..self.slots.len() {
            let Some(running) = &mut self.slots[number].running else {
                continue;
            };
            if was_killed {
                warn_of_survivor(&running.child);
                self.worker_ended(number, "killed");
            } else {
                // It may have ended already.
                let _ = running.child.kill();
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        let are_gone = self.goes_back() || self.predecessors.are_gone();
        let no_worker = self.slots.iter().all(|slot| slot.running.is_none());
        self.stopping.is_some() && no_worker && are_gone
    }

    /// Ends the other children. The workers have ended, so the helpers' sockets are closed and the
    /// log has all lines.
    pub(super) fn end(mut self) -> Result<(), MasterError> {
        let goes_back = self.goes_back();
        let deadline = Instant::now() + EXIT_TIMEOUT;
        let helpers = self.helpers.iter_mut().map(|helper| &mut helper.child);
        wait_or_kill(helpers, deadline);
        self.companions.end(deadline);
        if let Some(store) = self.store {
            store.end(deadline);
        }
        if let Some(acme) = self.acme {
            acme.process.end(deadline);
        }
        if let Some(spans) = self.spans {
            spans.process.end(deadline);
        }
        for log in self.log.iter_mut().chain(&mut self.retired_logs) {
            log.end(LOG_EXIT_TIMEOUT);
        }
        wait_or_kill(&mut self.ending, Instant::now() + LOG_EXIT_TIMEOUT);
        if !goes_back {
            self.predecessors.end();
        }
        self.failure.map_or(Ok(()), Err)
    }
}

/// Waits for children until the deadline, then kills those which are left.
pub(super) fn wait_or_kill<'c>(
    children: impl IntoIterator<Item = &'c mut Child>,
    deadline: Instant,
) {
    let mut left: Vec<&mut Child> = children.into_iter().collect();
    wait_until(&mut left, deadline);
    for child in &mut left {
        let _ = child.kill();
    }
    wait_until(&mut left, Instant::now() + KILL_TIMEOUT);
    left.into_iter().for_each(|child| warn_of_survivor(child));
}

/// Waits for children until the deadline, and leaves those which have not ended in the list.
fn wait_until(left: &mut Vec<&mut Child>, deadline: Instant) {
    loop {
        left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if left.is_empty() || deadline <= Instant::now() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn warn_of_survivor(child: &Child) {
    let id = child.id();
    log_warn(format_args!(
        "process {id} ({}) has not ended {} ms after SIGKILL; ending without it",
        process_state(id),
        KILL_TIMEOUT.as_millis()
    ));
}
