//! Admission control: how many connections an event loop accepts, decided from what it measures.
//!
//! The controller is pure: it has no clock and makes no system call. The loop tells it what each
//! iteration amounted to ([`Controller::observe`]) and does what it decides
//! ([`Controller::decision`]). So the same code runs in a server and in [`simulation`], where
//! everything follows from a seed. It does not guess about clients: it knows neither their timeouts
//! nor the size of what they request, only how long its own loop took for what, how many
//! connections wait, and how long some of them had waited.
//!
//! Overload causes three problems, and each has a part of its own. A fourth part is optional.
//!
//! 1. *Batch sizing* (`batch_sizing.rs`). A batch that is too small wastes wakeups and leaves
//!    connections in the queue (Accept1 of the paper). One that is too large delays the established
//!    connections (AcceptInf). So a batch is measured in time: it takes what remains of
//!    [`ITERATION_TARGET_US`](parameters::ITERATION_TARGET_US) after the work for the established
//!    connections.
//! 2. *Overload hold* (`overload_hold.rs`). Too many established connections wait for one another
//!    until their clients time out (CM of the paper). While the loop lag exceeds
//!    [`DELAY_MAX_US`](parameters::DELAY_MAX_US) nothing is accepted, until it has fallen to half.
//! 3. *SYN admission* (`syn_admission.rs`). A long accept queue hands over connections whose
//!    clients are about to give up. So the backlog is what leaves it in the same time, and under
//!    overload the kernel admits only a fraction of the SYNs: always those of the same clients,
//!    however often they retransmit, so that an admitted client finds room at once.
//! 4. *Load shedding* (`load_shedding.rs`). When an overload lasts, connections left in the queue
//!    after a batch are rejected at once, as many as a quarter of the time for everything else
//!    allows.
//!
//! All numbers are in [`parameters`].
//!
//! ```
//! use headway_admission::{Controller, Observation, Settings};
//! let mut controller = Controller::new(&Settings::new(1024, 1024), 0);
//! // Accepting 25 connections took 1 ms of an iteration of 3 ms.
//! controller.observe(&Observation {
//!     now_us: 3_000,
//!     busy_us: 3_000,
//!     accepting_us: 1_000,
//!     accepted: 25,
//!     queue_empty: true,
//!     ..Observation::default()
//! });
//! assert!(controller.decision().batch_size > 25);
//! ```
//!
//! Stability: under constant load, batch sizing is a fixed point, because the costs that it divides
//! by do not depend on its decision. The overload hold is a switch with hysteresis on a quantity
//! that the switch moves in the right direction. SYN admission follows two rates that it does not
//! change, departures and arrivals, and is corrected slowly by the queue length. Load shedding
//! takes a bounded fraction of the time and rejects only what a full batch has left.
//!
//! Sources: Brecht and Ostrowski, sections 6 and 8, for what has to be balanced; Welsh and Culler's
//! SEDA for controlling by measured times instead of counts; Provos, Lever and Tweedie, and Voigt
//! and others, for resetting connections early.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod batch_sizing;
mod load_shedding;
mod overload_hold;
pub mod parameters;
mod period;
pub mod simulation;
mod syn_admission;

pub use load_shedding::retry_after_s;
pub use syn_admission::ListenerPolicy;

use batch_sizing::BatchSizing;
use load_shedding::LoadShedding;
use overload_hold::OverloadHold;
use period::Period;
use syn_admission::SynAdmission;

/// What the controller must know about the server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Configured length of the accept queue.
    pub backlog_max: u32,
    /// Largest batch, however cheap connections are: the number of events that one wait returns.
    pub batch_max: u32,
    /// Whether connections that cannot be served are rejected (load shedding).
    pub sheds_load: bool,
    /// Whether other workers accept from the queue as well. Then all SYNs are admitted.
    pub is_queue_shared: bool,
    /// Whether the SYN filter remembers rejected SYNs for as long as they may be retransmitted.
    pub is_filter_stateful: bool,
    /// Later events until an accepted connection's first request is answered. 0 if it is served
    /// when it is accepted.
    pub deferred_events: u32,
}

impl Settings {
    /// Without load shedding, for a queue of this worker alone, a stateless filter, and connections
    /// that are served when they are accepted.
    pub fn new(backlog_max: u32, batch_max: u32) -> Settings {
        Settings {
            backlog_max,
            batch_max,
            sheds_load: false,
            is_queue_shared: false,
            is_filter_stateful: false,
            deferred_events: 0,
        }
    }
}

/// What one iteration of the event loop amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
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

impl Observation {
    /// Time spent for the established connections.
    fn established_us(&self) -> u64 {
        self.busy_us
            .saturating_sub(self.accepting_us + self.rejecting_us)
    }
}

/// What the loop should do in the next iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Size limit of the accept batch. 0 accepts nothing, because of loop lag.
    pub batch_size: u32,
    /// Number of connections left by the batch that may be rejected. 0 without load shedding.
    pub reject_limit: u32,
    /// Settings for the listeners.
    pub listeners: ListenerPolicy,
    /// Whether connections are being rejected.
    pub is_rejecting: bool,
    /// Whether the listeners have their default settings, so that nothing has to be decided before
    /// a connection comes. Otherwise iterations must follow one another within
    /// [`PERIOD_US`](parameters::PERIOD_US), because a rejected SYN causes none.
    pub is_at_rest: bool,
}

impl Decision {
    /// Whether more connections come than can be served, or did so recently.
    pub fn is_overloaded(&self) -> bool {
        !self.listeners.defer
    }
}

/// The controller of one event loop.
#[derive(Clone, Debug)]
pub struct Controller {
    batch: BatchSizing,
    hold: OverloadHold,
    admission: SynAdmission,
    shedding: LoadShedding,
    period: Period,
    batch_size: u32,
}

impl Controller {
    /// A controller that begins at `now_us`.
    pub fn new(settings: &Settings, now_us: u64) -> Controller {
        Controller {
            batch: BatchSizing::new(settings),
            hold: OverloadHold::new(now_us),
            admission: SynAdmission::new(settings, now_us),
            shedding: LoadShedding::new(settings, now_us),
            period: Period::new(now_us, 0),
            batch_size: batch_sizing::INITIAL_SIZE,
        }
    }

    /// Learns from an iteration that has ended.
    pub fn observe(&mut self, iteration: &Observation) {
        self.batch.learn_accepting(iteration);
        self.hold.observe(iteration);
        self.batch_size = match self.hold.is_active() {
            true => u32::from(self.hold.is_starved(iteration.now_us)),
            false => self.batch.size(iteration),
        };
        self.batch.learn_deferred(iteration);
        let target_us = self.batch.iteration_target_us();
        self.shedding.learn(iteration, target_us);
        self.end_period_if_due(iteration);
    }

    /// What to do next, as far as is known.
    pub fn decision(&self) -> Decision {
        Decision {
            batch_size: self.batch_size,
            reject_limit: self.shedding.limit(),
            listeners: self.admission.policy(),
            is_rejecting: self.shedding.is_active(),
            is_at_rest: self.admission.is_default(),
        }
    }

    fn end_period_if_due(&mut self, iteration: &Observation) {
        self.period.add(iteration);
        self.batch.limit_wait(iteration.wait_us);
        let urgent = self.admission.is_queue_too_long(iteration.pending);
        if !self.period.is_over(urgent) {
            return;
        }
        let next = Period::new(iteration.now_us, iteration.pending);
        let period = std::mem::replace(&mut self.period, next);
        self.batch.set_wait(period.wait_min_us);
        self.admission.adapt(&period);
        self.shedding
            .end_period(&period, self.admission.admits_all());
    }
}

#[cfg(test)]
mod tests;
