//! Load shedding (`early-reject`): connections that cannot be served are rejected early.
//!
//! Load shedding begins when for [`REJECT_AFTER_US`] no iteration has served all pending
//! connections, and ends when for a period all SYNs were admitted and no connection had to be
//! rejected.

use crate::batch_sizing::learn_cost;
use crate::parameters::derived::*;
use crate::parameters::{COST_INITIAL_NS, SHARE_DIVISOR};
use crate::period::Period;
use crate::{Observation, Settings};

/// `Retry-After` of the `nth` rejected client, in seconds: 1, 2 and 3 in turn, as a client would
/// retransmit its SYN. With a single value all would return at the same time, and fewer would find
/// room.
pub fn retry_after_s(nth: u64) -> u64 {
    1 + nth % 3
}

/// The load shedding of one event loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadShedding {
    /// Whether load shedding is configured.
    enabled: bool,
    /// Largest number of rejections in one iteration.
    reject_max: u32,
    /// Whether connections are being rejected.
    active: bool,
    /// When all pending connections were last served.
    served_all_us: u64,
    /// Recent mean cost of a rejection.
    cost_ns: u64,
    /// When the last iteration ended.
    iteration_ended_us: u64,
    /// Unused part of the time for rejections; below zero when too much was used.
    credit_us: i64,
    /// Number of connections that may be rejected after the next batch.
    limit: u32,
    /// Whether a connection was left pending in this period although it should have been rejected.
    left_pending: bool,
}

impl LoadShedding {
    pub fn new(settings: &Settings, now_us: u64) -> LoadShedding {
        LoadShedding {
            enabled: settings.sheds_load,
            reject_max: settings.batch_max,
            active: false,
            served_all_us: now_us,
            cost_ns: COST_INITIAL_NS,
            iteration_ended_us: now_us,
            credit_us: 0,
            limit: 0,
            left_pending: false,
        }
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Decides whether the server is overloaded, and how many connections may be rejected.
    /// `target_us` is the planned duration of an iteration.
    pub fn learn(&mut self, iteration: &Observation, target_us: u64) {
        if !self.enabled {
            return;
        }
        if iteration.rejected > 0 {
            learn_cost(
                &mut self.cost_ns,
                iteration.rejecting_us,
                iteration.rejected,
            );
        } else if iteration.queue_empty {
            self.served_all_us = iteration.now_us;
        }
        let overload_us = iteration.now_us.saturating_sub(self.served_all_us);
        self.active |= overload_us >= REJECT_AFTER_US;
        self.left_pending |= self.active && self.limit == 0 && !iteration.queue_empty;
        self.earn_credit(iteration, target_us);
        self.limit = match self.active && self.credit_us > 0 {
            true => (self.credit_us as u64 * 1000 / self.cost_ns.max(1))
                .clamp(1, self.reject_max.into()) as u32,
            false => 0,
        };
    }

    /// Accounts time over several iterations, because one may be much shorter than planned and the
    /// worker may be preempted in the middle of it. Idle time earns credit, too, because then
    /// rejections delay nothing.
    fn earn_credit(&mut self, iteration: &Observation, target_us: u64) {
        let passed_us = iteration.now_us.saturating_sub(self.iteration_ended_us);
        self.iteration_ended_us = iteration.now_us;
        let other_us = passed_us.saturating_sub(iteration.rejecting_us);
        let earned_us = (other_us / SHARE_DIVISOR) as i64 - iteration.rejecting_us as i64;
        // Established connections wait for a quarter of an iteration at most.
        let iteration_us = target_us.max(iteration.busy_us.saturating_sub(iteration.rejecting_us));
        let max_us = (iteration_us / SHARE_DIVISOR) as i64;
        self.credit_us = (self.credit_us + earned_us).clamp(-DEBT_MAX_US, max_us);
    }

    /// Ends load shedding after a period in which no connection had to be rejected and all SYNs
    /// were admitted: while some are not, it is unknown how many clients wait.
    pub fn end_period(&mut self, period: &Period, admits_all: bool) {
        let left_pending = std::mem::take(&mut self.left_pending);
        let had_to_reject = left_pending || period.rejected > 0;
        if self.active && admits_all && period.emptied && !had_to_reject {
            (self.active, self.limit) = (false, 0);
        }
    }
}
