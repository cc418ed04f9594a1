//! One worker's place in the master: the process, its channel, and what comes after it dies.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::control::{Control, ToWorker};
use crate::tally::Snapshot;

/// Messages kept for a worker that does not read; one that does not read this many is stuck.
const OUTBOX_MAX: usize = 256;
/// A worker that dies sooner than this after its start died young.
const YOUNG: Duration = Duration::from_secs(5);
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// A worker process and its channel.
pub(super) struct Running {
    pub(super) child: Child,
    /// `None` once the channel has failed or ended: the process is about to be reaped.
    control: Option<Control>,
    outbox: VecDeque<(ToWorker, Vec<OwnedFd>)>,
    started: Instant,
    pub(super) ready: bool,
}

/// One worker's place. The number stays, the processes may change.
pub(super) struct Place {
    pub(super) running: Option<Running>,
    /// When to start the next process, while none is running.
    pub(super) restart_at: Option<Instant>,
    delay: Duration,
    /// The last numbers the master saw of the running process.
    pub(super) last: Option<Snapshot>,
    /// What the last process said about why it could not go on.
    pub(super) why: Option<String>,
}

impl Place {
    pub(super) fn new() -> Place {
        Place {
            running: None,
            restart_at: None,
            delay: FIRST_DELAY,
            last: None,
            why: None,
        }
    }

    pub(super) fn started(&mut self, child: Child, control: Control) {
        self.restart_at = None;
        self.why = None;
        self.running = Some(Running {
            child,
            control: Some(control),
            outbox: VecDeque::new(),
            started: Instant::now(),
            ready: false,
        });
    }

    /// The process is gone. Says how long to wait before the next one: not at all after a long
    /// life, twice as long each time after a short one, so that a fault at start does not burn a
    /// processor.
    pub(super) fn died(&mut self, now: Instant) -> Duration {
        let young = self
            .running
            .take()
            .is_none_or(|gone| now - gone.started < YOUNG);
        let delay = if young { self.delay } else { Duration::ZERO };
        self.delay = if young {
            (self.delay * 2).min(LONGEST_DELAY)
        } else {
            FIRST_DELAY
        };
        self.restart_at = Some(now + delay);
        delay
    }

    pub(super) fn is_ready(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.ready)
    }
}

impl Running {
    pub(super) fn control(&self) -> Option<&Control> {
        self.control.as_ref()
    }

    /// What to poll for: always words from the worker, and room for ours when some wait.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.control
            .as_ref()
            .map(|control| (control.as_fd(), !self.outbox.is_empty()))
    }

    /// Sends, or keeps the message until there is room. `false`: the worker is stuck or gone.
    pub(super) fn send(&mut self, message: ToWorker, descriptors: Vec<OwnedFd>) -> bool {
        // However often the others leave clients to a worker that is slow, it need look once.
        if message == ToWorker::Look && self.outbox.iter().any(|(kept, _)| *kept == message) {
            return true;
        }
        self.outbox.push_back((message, descriptors));
        self.flush() && self.outbox.len() <= OUTBOX_MAX
    }

    /// Sends what was kept, in order.
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

    /// The channel is of no more use; without it the process has no purpose.
    pub(super) fn cut(&mut self, kill: bool) {
        self.control = None;
        if kill {
            // It may have ended already, which is as good.
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
    fn delays_double_up_to_a_bound_when_a_worker_keeps_dying_young() {
        let (mut place, mut delays) = (Place::new(), Vec::new());
        for _ in 0..8 {
            place.started(child(), Control::pair().unwrap().0);
            let _ = place.running.as_mut().unwrap().child.wait();
            delays.push(place.died(Instant::now()).as_millis());
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn the_next_worker_comes_at_once_when_the_last_lived_long() {
        let mut place = Place::new();
        place.delay = LONGEST_DELAY;
        place.started(child(), Control::pair().unwrap().0);
        let _ = place.running.as_mut().unwrap().child.wait();
        assert_eq!(place.died(Instant::now() + YOUNG * 2), Duration::ZERO);
        assert_eq!(place.delay, FIRST_DELAY);
    }

    #[test]
    fn messages_wait_in_order_when_the_worker_does_not_read() {
        let (ours, theirs) = Control::pair().unwrap();
        let mut place = Place::new();
        place.started(child(), ours);
        let running = place.running.as_mut().unwrap();
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
