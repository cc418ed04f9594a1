//! Load shedding (`early-reject`): connections that cannot be served are rejected early.
//!
//! Load shedding begins when for [`REJECT_AFTER_US`] no iteration has served all pending
//! connections, and ends when for a period all SYNs were admitted and no connection had to be
//! rejected.

use super::batch::{BATCH_MAX, learn_cost};
use super::{Iteration, Period};

/// Time without an iteration that served all pending connections after which load shedding begins.
/// That is longer than a burst, and when the first SYNs that found no room are retransmitted.
pub const REJECT_AFTER_US: u64 = 1_000_000;

/// Rejecting may take 1/REJECT_TIME_DIVISOR of the time for everything else.
pub const REJECT_TIME_DIVISOR: u64 = 4;

/// Largest time debt. A preemption during a rejection makes that very expensive; no more of it is
/// made up for, which takes a second.
const DEBT_MAX_US: i64 = 250_000;

/// Values of `Retry-After` for rejected clients, in turn, in seconds. With a single value they
/// would all return at the same time, and fewer of them would find room.
pub const RETRY_AFTER_S: [u64; 3] = [1, 2, 3];

/// `Retry-After` of the `nth` rejected client.
pub fn retry_after_s(nth: u64) -> u64 {
    RETRY_AFTER_S[nth as usize % RETRY_AFTER_S.len()]
}

/// Assumed cost of a rejection before the first one: that of accepting.
const INITIAL_REJECT_COST_NS: u64 = 50_000;

/// The load shedding of one event loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadShedder {
    /// Whether load shedding is configured.
    enabled: bool,
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

impl LoadShedder {
    pub fn new(enabled: bool, now_us: u64) -> LoadShedder {
        LoadShedder {
            enabled,
            active: false,
            served_all_us: now_us,
            cost_ns: INITIAL_REJECT_COST_NS,
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
    pub fn learn(&mut self, iteration: &Iteration, target_us: u64) {
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
            true => (self.credit_us as u64 * 1000 / self.cost_ns.max(1)).clamp(1, BATCH_MAX.into())
                as u32,
            false => 0,
        };
    }

    /// Accounts time over several iterations, because one may be much shorter than planned and the
    /// worker may be preempted in the middle of it. Idle time earns credit, too, because then
    /// rejections delay nothing.
    fn earn_credit(&mut self, iteration: &Iteration, target_us: u64) {
        let passed_us = iteration.now_us.saturating_sub(self.iteration_ended_us);
        self.iteration_ended_us = iteration.now_us;
        let other_us = passed_us.saturating_sub(iteration.rejecting_us);
        let earned_us = (other_us / REJECT_TIME_DIVISOR) as i64 - iteration.rejecting_us as i64;
        // Established connections wait for a quarter of an iteration at most.
        let iteration_us = target_us.max(iteration.busy_us.saturating_sub(iteration.rejecting_us));
        let max_us = (iteration_us / REJECT_TIME_DIVISOR) as i64;
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
