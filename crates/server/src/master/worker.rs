//! One worker of the master: its process, its channel, and its restart.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use headway_config::LogConfig;
use headway_control::{Control, ToWorker};
use headway_metrics::Snapshot;

use super::reload::Generation;
use super::watchdog::Progress;

/// Messages queued for a worker that does not read. With more than this many it counts as stuck.
const OUTBOX_MAX: usize = 256;
/// A worker that dies sooner than this after its start is restarted with a delay.
const STABLE_AFTER: Duration = Duration::from_secs(5);
const RESTART_DELAY_MIN: Duration = Duration::from_millis(100);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(5);

/// A worker process and its channel.
pub(super) struct WorkerProcess {
    pub(super) child: Child,
    /// `None` after the channel has failed or was closed: the process is about to be reaped.
    control: Option<Control>,
    outbox: VecDeque<(ToWorker, Vec<OwnedFd>)>,
    started: Instant,
    pub(super) ready: bool,
    pub(super) progress: Progress,
}

/// Which worker a slot is for.
pub(super) struct Assignment {
    pub(super) generation: Rc<Generation>,
    /// The number of the worker among those of its generation.
    pub(super) number: usize,
    /// When the process is killed that drains because a reload has replaced it.
    pub(super) retires_at: Option<Instant>,
}

/// One worker, whose process may change. A slot without a worker is free.
pub(super) struct WorkerSlot {
    pub(super) worker: Option<Assignment>,
    pub(super) running: Option<WorkerProcess>,
    /// When to start the next process, while none is running.
    pub(super) restart_at: Option<Instant>,
    delay: Duration,
    /// Last snapshot of the running process.
    pub(super) last: Option<Snapshot>,
    /// Error that the last process reported before it ended.
    pub(super) why: Option<String>,
    /// Processes that have ended for the master and may not have ended for the kernel.
    ended: Vec<Child>,
}

impl WorkerSlot {
    pub(super) fn new() -> WorkerSlot {
        WorkerSlot {
            worker: None,
            running: None,
            restart_at: None,
            delay: RESTART_DELAY_MIN,
            last: None,
            why: None,
            ended: Vec::new(),
        }
    }

    pub(super) fn started(&mut self, child: Child, control: Control) {
        self.restart_at = None;
        self.why = None;
        self.running = Some(WorkerProcess {
            child,
            control: Some(control),
            outbox: VecDeque::new(),
            started: Instant::now(),
            ready: false,
            progress: Progress::default(),
        });
    }

    /// Records that the process has ended, and returns the delay of the next one: none after a long
    /// life, twice as long each time after a short one, so that a failure at startup does not
    /// occupy a CPU.
    pub(super) fn died(&mut self, now: Instant) -> Duration {
        let ended = self.running.take();
        let is_young = ended
            .as_ref()
            .is_none_or(|ended| now - ended.started < STABLE_AFTER);
        self.ended.extend(ended.map(|ended| ended.child));
        let delay = if is_young { self.delay } else { Duration::ZERO };
        self.delay = if is_young {
            (self.delay * 2).min(RESTART_DELAY_MAX)
        } else {
            RESTART_DELAY_MIN
        };
        self.restart_at = Some(now + delay);
        delay
    }

    /// Reaps processes that have ended.
    pub(super) fn reap_ended(&mut self) {
        self.ended
            .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Processes that have not been reaped.
    pub(super) fn ended_pids(&self) -> impl Iterator<Item = u32> {
        self.ended.iter().map(Child::id)
    }

    /// Gives a free slot a worker.
    pub(super) fn assign(&mut self, generation: Rc<Generation>, number: usize) {
        self.delay = RESTART_DELAY_MIN;
        self.worker = Some(Assignment {
            generation,
            number,
            retires_at: None,
        });
    }

    /// Ends the assignment, once the process has ended.
    pub(super) fn free(&mut self) {
        self.worker = None;
        (self.restart_at, self.why, self.last) = (None, None, None);
    }

    /// The number of the worker among those of its configuration.
    pub(super) fn number(&self) -> usize {
        self.worker.as_ref().map_or(0, |worker| worker.number)
    }

    /// The process ID of its worker; 0 if none runs.
    pub(super) fn pid(&self) -> u32 {
        let running = self.running.as_ref();
        running.map_or(0, |running| running.child.id())
    }

    /// Whether its worker belongs to this generation.
    pub(super) fn is_of(&self, generation: &Rc<Generation>) -> bool {
        let worker = self.worker.as_ref();
        worker.is_some_and(|worker| Rc::ptr_eq(&worker.generation, generation))
    }

    /// Whether its worker writes to this log.
    pub(super) fn writes_to(&self, log: &LogConfig) -> bool {
        let worker = self.worker.as_ref();
        worker.is_some_and(|worker| worker.generation.config.log.as_ref() == Some(log))
    }

    /// Whether a reload has replaced its worker, which drains.
    pub(super) fn is_retiring(&self) -> bool {
        let worker = self.worker.as_ref();
        worker.is_some_and(|worker| worker.retires_at.is_some())
    }

    pub(super) fn is_ready(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.ready)
    }
}

impl WorkerProcess {
    pub(super) fn control(&self) -> Option<&Control> {
        self.control.as_ref()
    }

    /// What to poll for: always messages of the worker, and room if messages are queued for it.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.control
            .as_ref()
            .map(|control| (control.as_fd(), !self.outbox.is_empty()))
    }

    /// Sends a message, or queues it until there is room. `false`: the worker is stuck or has
    /// ended.
    pub(super) fn send(&mut self, message: ToWorker, descriptors: Vec<OwnedFd>) -> bool {
        // A slow worker needs to poll only once, however many workers leave connections to it.
        if message == ToWorker::PollListeners
            && self.outbox.iter().any(|(queued, _)| *queued == message)
        {
            return true;
        }
        self.outbox.push_back((message, descriptors));
        self.flush() && self.outbox.len() <= OUTBOX_MAX
    }

    /// Sends queued messages, in order.
    pub(super) fn flush(&mut self) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        while let Some((message, descriptors)) = self.outbox.front() {
            let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            match control.try_send(message, &borrowed) {
                Ok(true) => drop(self.outbox.pop_front()),
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Closes the channel, without which the process has no purpose.
    pub(super) fn cut(&mut self, kill: bool) {
        self.control = None;
        if kill {
            // It may have ended already.
            let _ = self.child.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child() -> Child {
        std::process::Command::new("true").spawn().unwrap()
    }

    #[test]
    fn restart_delay_doubles_up_to_its_limit_when_workers_die_early() {
        let (mut slot, mut delays) = (WorkerSlot::new(), Vec::new());
        for _ in 0..8 {
            slot.started(child(), Control::pair().unwrap().0);
            let _ = slot.running.as_mut().unwrap().child.wait();
            delays.push(slot.died(Instant::now()).as_millis());
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn worker_restarts_at_once_after_a_long_run() {
        let mut slot = WorkerSlot::new();
        slot.delay = RESTART_DELAY_MAX;
        slot.started(child(), Control::pair().unwrap().0);
        let _ = slot.running.as_mut().unwrap().child.wait();
        assert_eq!(slot.died(Instant::now() + STABLE_AFTER * 2), Duration::ZERO);
        assert_eq!(slot.delay, RESTART_DELAY_MIN);
    }

    #[test]
    fn control_messages_are_queued_in_order_when_the_worker_does_not_read() {
        let (ours, theirs) = Control::pair().unwrap();
        let mut slot = WorkerSlot::new();
        slot.started(child(), ours);
        let running = slot.running.as_mut().unwrap();
        let mut sent = 0;
        while running.outbox.is_empty() {
            assert!(running.send(ToWorker::Snapshot { id: sent }, Vec::new()));
            sent += 1;
        }
        while running.send(ToWorker::Snapshot { id: sent }, Vec::new()) {
            sent += 1;
        }
        for expected in 0..sent {
            running.flush();
            let (message, _) = theirs.receive::<ToWorker>().unwrap().unwrap();
            assert_eq!(message, ToWorker::Snapshot { id: expected });
        }
        let _ = running.child.wait();
    }
}
