//! Batch sizing: how many connections fit into what an iteration leaves.
//!
//! An iteration takes [`ITERATION_TARGET_US`], or [`WORK_PER_WAIT`] times as long as the event wait
//! where that is more, as with select and very many connections. Where the established connections
//! alone fill it, a batch may still take a quarter of their time, less the nearer that is to
//! [`LOOP_LAG_MAX_US`]: connections with many requests must not keep new ones out. Where new
//! connections are served in a later iteration, their expected work is part of their cost.

use super::Iteration;
use super::hold::LOOP_LAG_MAX_US;

/// Target duration of an iteration. An event wait and the cache misses of a change of work cost
/// some microseconds, so a thousand times as much leaves nothing to gain.
pub const ITERATION_TARGET_US: u64 = 4_000;

/// Ratio of work to event-wait overhead; 19 keeps the overhead at 5 %.
pub const WORK_PER_WAIT: u64 = 19;

/// Longest iteration that is planned to make up for expensive event waits.
pub const LONG_ITERATION_US: u64 = 60_000;

/// Smallest batch, where the established connections leave half of the iteration and the batch fits
/// into [`LONG_ITERATION_US`]. With a CPU quota a connection looks expensive because time passes
/// between the slices; batches of two would cost as much in waits as in connections.
pub const BATCH_MIN: u64 = 16;

/// Largest batch, however cheap connections are: the number of events that one wait returns.
pub const BATCH_MAX: u32 = 1024;

/// A batch may take 1/ACCEPT_TIME_DIVISOR of the time for the established connections, where that
/// is short compared with [`LOOP_LAG_MAX_US`].
const ACCEPT_TIME_DIVISOR: u64 = 4;

/// Assumed cost of a connection before the first one: accepting it and answering from memory takes
/// some tens of microseconds.
const INITIAL_COST_NS: u64 = 50_000;

/// Batches in the mean cost. It follows a change of load within a second, but no single slow batch.
const COST_WINDOW_BATCHES: u64 = 8;

/// Batches in the long-term cost, which is the same with and without a CPU quota.
const LONG_COST_WINDOW_BATCHES: f64 = 64.0;

/// The batch sizing of one event loop.
#[derive(Clone, Debug)]
pub(super) struct BatchSizer {
    /// Recent mean cost of accepting a connection.
    cost_ns: u64,
    long_cost: LongTermCost,
    /// Set where connections are not served when they are accepted.
    deferred: Option<DeferredService>,
    /// Cost of an event wait that finds events at once.
    wait_us: u64,
}

impl BatchSizer {
    /// Batch size before the first iteration.
    pub const INITIAL_SIZE: u32 = (ITERATION_TARGET_US * 1000 / INITIAL_COST_NS) as u32;

    pub fn new() -> BatchSizer {
        BatchSizer {
            cost_ns: INITIAL_COST_NS,
            long_cost: LongTermCost::default(),
            deferred: None,
            wait_us: 0,
        }
    }

    pub fn defer_service(&mut self, events: u32) {
        self.deferred = Some(DeferredService {
            events,
            event_ns: INITIAL_COST_NS,
            accepted: 0,
        });
    }

    /// Learns the cost of accepting from an iteration.
    pub fn learn_accepting(&mut self, iteration: &Iteration) {
        if iteration.accepted > 0 {
            learn_cost(
                &mut self.cost_ns,
                iteration.accepting_us,
                iteration.accepted,
            );
            self.long_cost
                .learn(iteration.accepting_us, iteration.accepted);
        }
    }

    /// Learns the cost of deferred service from an iteration, after the size of the next batch has
    /// been decided.
    pub fn learn_deferred(&mut self, iteration: &Iteration) {
        if let Some(deferred) = &mut self.deferred {
            deferred.learn(iteration);
        }
    }

    /// Size of the next batch.
    pub fn size(&self, iteration: &Iteration) -> u32 {
        let target_us = self.iteration_target_us();
        let (deferred_ns, last_us) = self
            .deferred
            .map_or((0, 0), DeferredService::connection_ns_and_last_us);
        // The connections of the previous batch have been counted in that batch already.
        let established_us = iteration.established_us().saturating_sub(last_us);
        let fits_in = |us: u64| us * 1000 / (self.cost_ns + deferred_ns).max(1);
        let minimum = match established_us > target_us / 2 {
            true => 1,
            false => fits_in(LONG_ITERATION_US).clamp(1, BATCH_MIN),
        };
        let room = fits_in(target_us.saturating_sub(established_us));
        let share_us = established_us * LOOP_LAG_MAX_US.saturating_sub(established_us)
            / (ACCEPT_TIME_DIVISOR * LOOP_LAG_MAX_US);
        let share = fits_in(share_us).min(self.long_cost.fits_in(share_us));
        room.max(share).clamp(minimum, u64::from(BATCH_MAX)) as u32
    }

    /// Planned duration of an iteration.
    pub fn iteration_target_us(&self) -> u64 {
        (WORK_PER_WAIT * self.wait_us).clamp(ITERATION_TARGET_US, LONG_ITERATION_US)
    }

    /// Lowers the wait cost to this one if it is smaller.
    pub fn limit_wait(&mut self, wait_us: u64) {
        self.wait_us = self.wait_us.min(wait_us);
    }

    /// Sets the wait cost to the smallest one of a period.
    pub fn set_wait(&mut self, wait_us: u64) {
        self.wait_us = wait_us;
    }
}

/// Cost of accepted connections in later iterations.
#[derive(Clone, Copy, Debug)]
struct DeferredService {
    /// Events until a connection's first request is answered.
    events: u32,
    /// Cost of an event that at most a quarter of all iterations stay below. With a CPU quota, time
    /// between the slices belongs to no event.
    event_ns: u64,
    /// Connections accepted in the last iteration.
    accepted: u32,
}

impl DeferredService {
    fn learn(&mut self, iteration: &Iteration) {
        self.accepted = iteration.accepted;
        if iteration.events == 0 {
            return;
        }
        let cost_ns = iteration.established_us() * 1000 / u64::from(iteration.events);
        let (minimum, maximum) = (self.event_ns * 29 / 32, self.event_ns * 33 / 32 + 1);
        self.event_ns = cost_ns.clamp(minimum, maximum);
    }

    /// Cost of one connection, and of those of the last iteration together.
    fn connection_ns_and_last_us(self) -> (u64, u64) {
        let connection_ns = self.event_ns * u64::from(self.events);
        (
            connection_ns,
            connection_ns * u64::from(self.accepted) / 1000,
        )
    }
}

/// Time of many batches divided by the connections that they accepted. With a CPU quota a batch
/// inside one slice looks cheap and one between two slices looks a hundred times as expensive,
/// while the other work with which it is compared has taken many slices.
#[derive(Clone, Copy, Debug)]
struct LongTermCost {
    us: f64,
    connections: f64,
}

impl Default for LongTermCost {
    fn default() -> LongTermCost {
        LongTermCost {
            us: INITIAL_COST_NS as f64 / 1e3,
            connections: 1.0,
        }
    }
}

impl LongTermCost {
    fn learn(&mut self, us: u64, connections: u32) {
        self.us += (us as f64 - self.us) / LONG_COST_WINDOW_BATCHES;
        self.connections += (f64::from(connections) - self.connections) / LONG_COST_WINDOW_BATCHES;
    }

    /// Number of connections that can be accepted in this time.
    fn fits_in(self, us: u64) -> u64 {
        (us as f64 * self.connections / self.us.max(1e-3)) as u64
    }
}

/// Updates a mean cost. It rounds up, because otherwise the mean would never come down the last
/// steps.
pub(super) fn learn_cost(mean_ns: &mut u64, us: u64, connections: u32) {
    let cost_ns = us * 1000 / u64::from(connections);
    *mean_ns = (*mean_ns * (COST_WINDOW_BATCHES - 1) + cost_ns).div_ceil(COST_WINDOW_BATCHES);
}
