//! The end of the server: signals, the drain of the workers, and its deadline.

use std::process::Child;
use std::time::{Duration, Instant};

use headway_control::ToWorker;

use super::{Master, MasterError, signals};

/// Time for a worker to exit by itself after the drain deadline.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for the log process to write the last lines.
const LOG_EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// A server that is stopping.
pub(super) struct Stopping {
    pub(super) deadline: Instant,
    pub(super) killed: bool,
}

impl Master {
    pub(super) fn handle_stop(&mut self) {
        let signals = signals::drain(&self.signals.stop);
        if signals == 0 {
            return;
        }
        if self.stopping.is_some() || signals > 1 {
            return self.stop(Duration::ZERO);
        }
        self.stop(Duration::from_millis(self.config.drain_timeout_ms));
    }

    /// Has all workers drain. Without time for that they are killed.
    pub(super) fn stop(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        if self.stopping.is_none() && !timeout.is_zero() {
            let timeout_ms = timeout.as_millis() as u64;
            for number in 0..self.slots.len() {
                self.send(number, ToWorker::Drain { timeout_ms }, Vec::new());
            }
        }
        self.slots
            .iter_mut()
            .for_each(|slot| slot.restart_at = None);
        self.spawners.cancel_restarts();
        self.listeners = None;
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
        if let Some(stopping) = self.stopping.as_mut().filter(|stopping| !stopping.killed)
            && stopping.deadline <= now
        {
            stopping.killed = true;
            self.slots
                .iter_mut()
                .filter_map(|slot| slot.running.as_mut())
                .for_each(|running| {
                    let _ = running.child.kill();
                });
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stopping.is_some() && self.slots.iter().all(|slot| slot.running.is_none())
    }

    /// Ends the other children. The workers have ended, so the helpers' sockets are closed and the
    /// log has all lines.
    pub(super) fn end(mut self) -> Result<(), MasterError> {
        let deadline = Instant::now() + EXIT_TIMEOUT;
        self.helpers
            .iter_mut()
            .for_each(|helper| wait_or_kill(&mut helper.child, deadline));
        self.spawners.end(deadline);
        if let Some(pinner) = self.pinner {
            pinner.end(deadline);
        }
        if let Some(log) = &mut self.log {
            log.end(LOG_EXIT_TIMEOUT);
        }
        self.failure.map_or(Ok(()), Err)
    }
}

/// Waits for a child until the deadline, then kills it.
pub(super) fn wait_or_kill(child: &mut Child, deadline: Instant) {
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}
