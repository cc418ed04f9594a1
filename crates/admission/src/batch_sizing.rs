//! Batch sizing: how many connections fit into what an iteration leaves.
//!
//! An iteration takes [`ITERATION_TARGET_US`], or [`WORK_PER_WAIT`] times as long as the event wait
//! where that is more, as with select and very many connections. Where the established connections
//! alone fill it, a batch may still take a quarter of their time, less the nearer that is to
//! [`DELAY_MAX_US`]: connections with many requests must not keep new ones out. Where new
//! connections are served in a later iteration, their expected work is part of their cost.

use crate::parameters::derived::*;
use crate::parameters::{
    COST_INITIAL_NS, DELAY_MAX_US, FEW_CONNECTIONS, ITERATION_MAX_US, ITERATION_TARGET_US,
    MEAN_WINDOW, SHARE_DIVISOR, WORK_PER_WAIT,
};
use crate::{Observation, Settings};

/// Batch size before the first iteration.
pub(crate) const INITIAL_SIZE: u32 = (ITERATION_TARGET_US * 1000 / COST_INITIAL_NS) as u32;

/// The batch sizing of one event loop.
#[derive(Clone, Debug)]
pub(crate) struct BatchSizing {
    batch_max: u32,
    /// Recent mean cost of accepting a connection.
    cost_ns: u64,
    long_cost: LongTermCost,
    /// Set where connections are not served when they are accepted.
    deferred: Option<DeferredService>,
    /// Cost of an event wait that finds events at once.
    wait_us: u64,
}

impl BatchSizing {
    pub fn new(settings: &Settings) -> BatchSizing {
        let events = settings.deferred_events;
        BatchSizing {
            batch_max: settings.batch_max,
            cost_ns: COST_INITIAL_NS,
            long_cost: LongTermCost::default(),
            deferred: (events > 0).then_some(DeferredService {
                events,
                event_ns: COST_INITIAL_NS,
                accepted: 0,
            }),
            wait_us: 0,
        }
    }

    /// Learns the cost of accepting from an iteration.
    pub fn learn_accepting(&mut self, iteration: &Observation) {
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
    pub fn learn_deferred(&mut self, iteration: &Observation) {
        if let Some(deferred) = &mut self.deferred {
            deferred.learn(iteration);
        }
    }

    /// Size of the next batch.
    pub fn size(&self, iteration: &Observation) -> u32 {
        let target_us = self.iteration_target_us();
        let (deferred_ns, last_us) = self
            .deferred
            .map_or((0, 0), DeferredService::connection_ns_and_last_us);
        // The connections of the previous batch have been counted in that batch already.
        let established_us = iteration.established_us().saturating_sub(last_us);
        let fits_in = |us: u64| us * 1000 / (self.cost_ns + deferred_ns).max(1);
        let minimum = match established_us > target_us / 2 {
            true => 1,
            false => fits_in(ITERATION_MAX_US).clamp(1, FEW_CONNECTIONS),
        };
        let room = fits_in(target_us.saturating_sub(established_us));
        let share_us = established_us * DELAY_MAX_US.saturating_sub(established_us)
            / (SHARE_DIVISOR * DELAY_MAX_US);
        let share = fits_in(share_us).min(self.long_cost.fits_in(share_us));
        room.max(share).clamp(minimum, u64::from(self.batch_max)) as u32
    }

    /// Planned duration of an iteration.
    pub fn iteration_target_us(&self) -> u64 {
        (WORK_PER_WAIT * self.wait_us).clamp(ITERATION_TARGET_US, ITERATION_MAX_US)
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
    fn learn(&mut self, iteration: &Observation) {
        self.accepted = iteration.accepted;
        if iteration.events == 0 {
            return;
        }
        let cost_ns = iteration.established_us() * 1000 / u64::from(iteration.events);
        let steps = |count: u64| self.event_ns * count / EVENT_COST_DIVISOR;
        let minimum = steps(EVENT_COST_DIVISOR - 3);
        let maximum = steps(EVENT_COST_DIVISOR + 1) + 1;
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
            us: COST_INITIAL_NS as f64 / 1e3,
            connections: 1.0,
        }
    }
}

impl LongTermCost {
    fn learn(&mut self, us: u64, connections: u32) {
        self.us += (us as f64 - self.us) / LONG_MEAN_WINDOW;
        self.connections += (f64::from(connections) - self.connections) / LONG_MEAN_WINDOW;
    }

    /// Number of connections that can be accepted in this time.
    fn fits_in(self, us: u64) -> u64 {
        (us as f64 * self.connections / self.us.max(1e-3)) as u64
    }
}

/// Updates a mean cost. It rounds up, because otherwise the mean would never come down the last
/// steps.
pub(crate) fn learn_cost(mean_ns: &mut u64, us: u64, connections: u32) {
    let cost_ns = us * 1000 / u64::from(connections);
    *mean_ns = (*mean_ns * (MEAN_WINDOW - 1) + cost_ns).div_ceil(MEAN_WINDOW);
}
