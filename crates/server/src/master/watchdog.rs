//! The watchdog: replaces a worker that makes no progress, because it is stopped, spins or blocks.
//!
//! The master looks at each worker at a quarter of `worker-timeout`. One that waits for events is well,
//! and is not woken up. Any other is asked for a sign of progress, and answers in its next iteration.
//! Checks are counted and not the time, so that a pause of the whole machine or of the master is one
//! missed check and not the end of every worker.
//!
//! A worker that has missed all checks gets SIGABRT, which leaves a core file where these are
//! enabled, and SIGCONT, without which a stopped process would not handle it. A process in the
//! hands of a debugger handles neither, so SIGKILL follows. The master has not reaped the worker,
//! hence its process number is not used again.

use std::fs;
use std::time::{Duration, Instant};

use headway_config::Config;
use headway_control::ToWorker;
use headway_os::process::waits_for_events;
use rustix::process::{Pid, Signal, kill_process};

use super::worker::WorkerSlot;
use super::{Master, log_error};

/// Checks that a worker misses before it is replaced.
const CHECKS: u32 = 4;
/// Time for a core file between SIGABRT and SIGKILL.
const CORE_TIMEOUT: Duration = Duration::from_secs(2);

/// When workers are checked.
pub(super) struct Watchdog {
    timeout: Duration,
    /// The next check; `None` if the watchdog is off.
    check_at: Option<Instant>,
}

/// What the watchdog knows about one worker process.
#[derive(Default)]
pub(super) struct Progress {
    /// A sign of progress has been requested and has not come.
    is_awaited: bool,
    missed: u32,
    /// When SIGKILL follows SIGABRT.
    kill_at: Option<Instant>,
}

/// What a check leads to.
#[derive(Debug, PartialEq, Eq)]
enum Check {
    Ping,
    Wait,
    Replace,
}

impl Progress {
    /// Records a sign of progress.
    pub(super) fn seen(&mut self) {
        (self.is_awaited, self.missed) = (false, 0);
    }

    fn check(&mut self) -> Check {
        if self.kill_at.is_some() {
            return Check::Wait;
        }
        if !self.is_awaited {
            self.is_awaited = true;
            return Check::Ping;
        }
        self.missed += 1;
        match self.missed {
            CHECKS.. => Check::Replace,
            _ => Check::Wait,
        }
    }
}

impl Watchdog {
    pub(super) fn new(config: &Config) -> Watchdog {
        let timeout = Duration::from_millis(config.worker_timeout_ms);
        Watchdog {
            timeout,
            check_at: (!timeout.is_zero()).then(Instant::now),
        }
    }

    /// The next check or the next SIGKILL.
    pub(super) fn deadline(&self, slots: &[WorkerSlot]) -> Option<Instant> {
        let running = slots.iter().filter_map(|slot| slot.running.as_ref());
        let kills = running.filter_map(|running| running.progress.kill_at);
        kills.chain(self.check_at).min()
    }

    /// Whether a check is due. Checks that were missed meanwhile are not made up for.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.check_at.is_some_and(|at| at <= now);
        if is_due {
            self.check_at = Some(now + self.timeout / CHECKS);
        }
        is_due
    }
}

impl Master<'_> {
    /// Checks the progress of all workers, and replaces those that make none.
    pub(super) fn watch_workers(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        let is_due = self.watchdog.is_due(now);
        for number in 0..self.slots.len() {
            let running = self.slots[number].running.as_mut();
            let Some(running) = running.filter(|running| running.ready) else {
                continue;
            };
            if running.progress.kill_at.is_some_and(|at| at <= now) {
                // From now on it runs no code of ours, although it may take time to end if it
                // waits for a disk. Its successor need not wait for that.
                let _ = running.child.kill();
                self.worker_ended(number, "killed");
                continue;
            }
            let check = match is_due {
                true if is_idle(running.child.id()) => {
                    running.progress.seen();
                    Check::Wait
                }
                true => running.progress.check(),
                false => Check::Wait,
            };
            match check {
                Check::Wait => {}
                Check::Ping => self.send(number, ToWorker::Ping, Vec::new()),
                Check::Replace => self.abort_worker(number, now),
            }
        }
    }

    fn abort_worker(&mut self, number: usize, now: Instant) {
        let worker = self.slots[number].number();
        let Some(running) = &mut self.slots[number].running else {
            return;
        };
        let id = running.child.id();
        running.progress.kill_at = Some(now + CORE_TIMEOUT);
        self.own_status.workers_stuck += 1;
        log_error(format_args!(
            "worker {worker} (process {id}, {}) has made no progress for {} ms; replacing it \
             (worker-timeout)",
            process_state(id),
            self.watchdog.timeout.as_millis()
        ));
        if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            for signal in [Signal::ABORT, Signal::CONT] {
                // It may have ended already.
                let _ = kill_process(pid, signal);
            }
        }
    }
}

/// Whether a worker sleeps in the wait of its loop. A stopped one does not sleep.
fn is_idle(id: u32) -> bool {
    waits_for_events(id) && process_state(id) == "sleeping"
}

/// What a process does (proc_pid_stat(5)).
pub(super) fn process_state(id: u32) -> &'static str {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The name in parentheses may contain anything.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    match state {
        Some('R') => "running",
        Some('S') => "sleeping",
        Some('D') => "waiting for a disk",
        Some('T') => "stopped",
        Some('t') => "stopped by a debugger",
        Some('Z') => "ended",
        _ => "in an unknown state",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_is_replaced_only_after_it_has_missed_all_checks_in_a_row() {
        let mut progress = Progress::default();
        for _ in 0..3 {
            assert_eq!(progress.check(), Check::Ping);
            (1..CHECKS).for_each(|_| assert_eq!(progress.check(), Check::Wait));
            progress.seen();
        }
        assert_eq!(progress.check(), Check::Ping);
        (1..CHECKS).for_each(|_| assert_eq!(progress.check(), Check::Wait));
        assert_eq!(progress.check(), Check::Replace);
    }

    #[test]
    fn pause_of_the_master_is_one_check() {
        let mut watchdog = Watchdog {
            timeout: Duration::from_secs(4),
            check_at: Some(Instant::now()),
        };
        let late = Instant::now() + Duration::from_secs(3600);
        assert!(watchdog.is_due(late));
        assert!(!watchdog.is_due(late));
        assert!(watchdog.is_due(late + Duration::from_secs(1)));
    }
}
