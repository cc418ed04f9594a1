//! The control law of `accept-batch = auto`: how many connections to accept, decided from what the
//! event loop measures.
//!
//! The controller is pure: loop iterations go in, a few numbers come out, without a clock or a
//! system call. So the same code runs in the worker and in [`simulation`](super::simulation), where
//! everything follows from a seed. It does not guess about clients: it knows neither their timeouts
//! nor the size of what they request, only how long its own loop took for what, how many
//! connections wait, and how long some of them had waited.
//!
//! Overload causes three problems, and each has a part of its own. A fourth part is optional.
//!
//! 1. *Batch sizing* (`control/batch.rs`). A batch that is too small wastes wakeups and leaves
//!    connections in the queue (Accept1 of the paper). One that is too large delays the established
//!    connections (AcceptInf). So a batch is measured in time: it takes what remains of
//!    [`ITERATION_TARGET_US`] after the work for the established connections.
//! 2. *Overload hold* (`control/hold.rs`). Too many established connections wait for one another
//!    until their clients time out (CM of the paper). While the loop lag exceeds
//!    [`LOOP_LAG_MAX_US`] nothing is accepted, until it has fallen to half.
//! 3. *Admission* (`control/admission.rs`). A long accept queue hands over connections whose
//!    clients are about to give up. So the backlog is what leaves it in [`QUEUE_DELAY_MAX_US`], and
//!    under overload the kernel admits only a fraction of the SYNs: always those of the same
//!    clients, however often they retransmit, so that an admitted client finds room at once.
//! 4. *Load shedding* (`control/load_shedding.rs`), with `early-reject`. When an overload lasts
//!    longer than [`REJECT_AFTER_US`], connections left in the queue after a batch are rejected at
//!    once, as many as a quarter of the time for everything else allows.
//!
//! Stability: under constant load, batch sizing is a fixed point, because the costs that it divides
//! by do not depend on its decision. The overload hold is a switch with hysteresis on a quantity
//! that the switch moves in the right direction. Admission follows two rates that it does not
//! change, departures and arrivals, and is corrected slowly by the queue length. Load shedding
//! takes a bounded fraction of the time and rejects only what a full batch has left.
//!
//! Sources: Brecht and Ostrowski, sections 6 and 8, for what has to be balanced; Welsh and Culler's
//! SEDA for controlling by measured times instead of counts; Provos, Lever and Tweedie, and Voigt
//! and others, for resetting connections early.

mod admission;
mod batch;
mod hold;
mod load_shedding;
mod period;

pub use admission::{ListenerPolicy, QUEUE_DELAY_MAX_US};
pub use batch::{BATCH_MAX, BATCH_MIN, ITERATION_TARGET_US, LONG_ITERATION_US, WORK_PER_WAIT};
pub use hold::{LOOP_LAG_MAX_US, STARVATION_TIMEOUT_US};
pub use load_shedding::{REJECT_AFTER_US, REJECT_TIME_DIVISOR, RETRY_AFTER_S, retry_after_s};
pub use period::PERIOD_US;

use admission::SynAdmission;
use batch::BatchSizer;
use hold::OverloadHold;
use load_shedding::LoadShedder;
use period::Period;

/// What one iteration of the event loop amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    /// When the iteration ended, on any monotonic clock.
    pub now_us: u64,
    /// Duration of the event wait before it, asleep or not. Of several waits the shortest one did
    /// not sleep.
    pub wait_us: u64,
    /// From the end of that wait to the end of the iteration.
    pub busy_us: u64,
    /// The part of the iteration that accepted connections and served them at once.
    pub accepting_us: u64,
    /// Connections accepted.
    pub accepted: u32,
    /// The part of the iteration that rejected connections.
    pub rejecting_us: u64,
    /// Connections rejected.
    pub rejected: u32,
    /// Whether the accept queue was found empty at the end, or nothing was reported in it.
    pub queue_empty: bool,
    /// Connections pending in the queue at the end.
    pub pending: u32,
    /// Whether `pending` is an estimate, which misses connections that came since the last sample.
    pub is_estimate: bool,
    /// First SYNs that the kernel dropped since the last iteration that left connections pending,
    /// because there was no room or the SYN filter rejected them.
    pub dropped: u32,
    /// Longest time that a sampled first request had waited, in the queue and for its iteration.
    pub oldest_us: u64,
    /// Events of established connections.
    pub events: u32,
    /// Whether more events may be ready than this iteration saw.
    pub saturated: bool,
}

impl Iteration {
    /// Time spent for the established connections.
    fn established_us(&self) -> u64 {
        self.busy_us
            .saturating_sub(self.accepting_us + self.rejecting_us)
    }
}

/// The controller of one event loop.
#[derive(Clone, Debug)]
pub struct Controller {
    batch: BatchSizer,
    hold: OverloadHold,
    batch_size: u32,
    deferred_iterations: u64,
    period: Period,
    admission: SynAdmission,
    shedder: LoadShedder,
}

impl Controller {
    /// A controller at `now_us` for an accept queue of at most `backlog_max`.
    pub fn new(backlog_max: u32, now_us: u64) -> Controller {
        Controller {
            batch: BatchSizer::new(),
            hold: OverloadHold::new(now_us),
            batch_size: BatchSizer::INITIAL_SIZE,
            deferred_iterations: 0,
            period: Period::new(now_us, 0),
            admission: SynAdmission::new(backlog_max, now_us),
            shedder: LoadShedder::new(false, now_us),
        }
    }

    /// Enables or disables load shedding.
    pub fn with_load_shedding(mut self, enabled: bool) -> Controller {
        self.shedder = LoadShedder::new(enabled, self.hold.last_accept_us());
        self
    }

    /// For an accept queue that other workers accept from as well: all SYNs are admitted.
    pub fn with_shared_queue(mut self) -> Controller {
        self.admission.share_queue();
        self
    }

    /// For a SYN filter that remembers rejected SYNs for as long as they may be retransmitted.
    pub fn with_stateful_filter(mut self) -> Controller {
        self.admission.use_stateful_filter();
        self
    }

    /// For connections that are not served when they are accepted, but by `events` later events.
    pub fn with_deferred_service(mut self, events: u32) -> Controller {
        self.batch.defer_service(events);
        self
    }

    /// Size limit of the next batch. 0 accepts nothing in the next iteration.
    pub fn batch_size(&self) -> u32 {
        self.batch_size
    }

    /// Settings for the listeners.
    pub fn listener_policy(&self) -> ListenerPolicy {
        self.admission.policy()
    }

    /// Iterations that accepted nothing because of loop lag.
    pub fn deferred_iterations(&self) -> u64 {
        self.deferred_iterations
    }

    /// Number of connections that may be rejected after the next batch. 0 without load shedding.
    pub fn reject_limit(&self) -> u32 {
        self.shedder.limit()
    }

    /// Whether connections are being rejected.
    pub fn is_rejecting(&self) -> bool {
        self.shedder.is_active()
    }

    /// Whether the listeners have their default settings, so that nothing has to be decided before
    /// a connection comes. Otherwise iterations must follow one another within [`PERIOD_US`],
    /// because a rejected SYN causes none.
    pub fn is_at_rest(&self) -> bool {
        self.admission.is_default()
    }

    /// Whether more connections come than can be served, or did so recently.
    pub fn is_overloaded(&self) -> bool {
        !self.listener_policy().defer
    }

    /// Learns from an iteration that has ended.
    pub fn observe(&mut self, iteration: &Iteration) {
        self.batch.learn_accepting(iteration);
        self.hold.observe(iteration);
        self.batch_size = match self.hold.is_active() {
            true => u32::from(self.hold.is_starved(iteration.now_us)),
            false => self.batch.size(iteration),
        };
        self.batch.learn_deferred(iteration);
        self.deferred_iterations += u64::from(self.batch_size == 0);
        let target_us = self.batch.iteration_target_us();
        self.shedder.learn(iteration, target_us);
        self.end_period_if_due(iteration);
    }

    fn end_period_if_due(&mut self, iteration: &Iteration) {
        self.period.add(iteration);
        self.batch.limit_wait(iteration.wait_us);
        let urgent = self.admission.is_beyond(iteration.pending);
        if !self.period.is_over(urgent) {
            return;
        }
        let next = Period::new(iteration.now_us, iteration.pending);
        let period = std::mem::replace(&mut self.period, next);
        self.batch.set_wait(period.wait_min_us);
        self.admission.adapt(&period);
        self.shedder
            .end_period(&period, self.admission.admits_all());
    }
}

#[cfg(test)]
mod tests;
