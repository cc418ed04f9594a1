//! Statistics of a period of several iterations. Admission, and the end of load shedding, are
//! decided from them.

use crate::Observation;
use crate::parameters::derived::*;
use crate::parameters::{FEW_CONNECTIONS, PERIOD_US};

/// What the iterations of a period amounted to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    pub begun_us: u64,
    pub ended_us: u64,
    /// Connections that left the queue, accepted or rejected.
    pub departed: u64,
    pub rejected: u64,
    /// Whether the queue was found empty at least once.
    pub emptied: bool,
    iterations: u32,
    /// Whether the last iteration only estimated how many connections are pending.
    is_estimate: bool,
    /// Pending connections at the beginning, at the end, at most, and summed over all iterations.
    pub pending_before: u32,
    pub pending: u32,
    pub pending_max: u32,
    pending_sum: u64,
    pub dropped: u64,
    pub oldest_us: u64,
    pub wait_min_us: u64,
}

impl Period {
    pub fn new(begun_us: u64, pending: u32) -> Period {
        Period {
            begun_us,
            ended_us: begun_us,
            departed: 0,
            rejected: 0,
            emptied: false,
            iterations: 0,
            is_estimate: false,
            pending_before: pending,
            pending,
            pending_max: 0,
            pending_sum: 0,
            dropped: 0,
            oldest_us: 0,
            wait_min_us: u64::MAX,
        }
    }

    pub fn add(&mut self, iteration: &Observation) {
        self.ended_us = iteration.now_us;
        self.departed += u64::from(iteration.accepted) + u64::from(iteration.rejected);
        self.rejected += u64::from(iteration.rejected);
        self.emptied |= iteration.queue_empty;
        self.iterations += 1;
        self.is_estimate = iteration.is_estimate;
        self.pending = iteration.pending;
        self.pending_max = self.pending_max.max(iteration.pending);
        self.pending_sum += u64::from(iteration.pending);
        self.dropped += u64::from(iteration.dropped);
        self.oldest_us = self.oldest_us.max(iteration.oldest_us);
        self.wait_min_us = self.wait_min_us.min(iteration.wait_us);
    }

    /// Whether connections were always pending, or would have been without rejections. Then the
    /// rate of departures is what the server can do.
    pub fn is_busy(&self) -> bool {
        !self.emptied || self.rejected > 0
    }

    pub fn is_over(&self, urgent: bool) -> bool {
        let passed_us = self.ended_us.saturating_sub(self.begun_us);
        let few =
            !self.emptied && (self.departed < FEW_CONNECTIONS || self.iterations < ITERATIONS_MIN);
        match passed_us {
            // A connection missed by the estimate of one period would be counted in the next.
            0..PERIOD_MAX_US if self.is_estimate => false,
            0..PERIOD_MIN_US => false,
            PERIOD_MIN_US..PERIOD_US => urgent && !few,
            PERIOD_US..PERIOD_MAX_US => !few,
            _ => true,
        }
    }

    /// Mean number of pending connections at the end of an iteration.
    pub fn pending_mean(&self) -> f64 {
        self.pending_sum as f64 / f64::from(self.iterations.max(1))
    }

    pub fn seconds(&self) -> f64 {
        self.ended_us.saturating_sub(self.begun_us).max(1) as f64 / 1e6
    }
}
