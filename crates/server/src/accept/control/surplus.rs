//! Telling those who cannot be served: the fourth rule, which is an option.

use super::{Period, ROUND_MOST, Turn, learn_cost};

/// For so long no turn has served all who waited: more come than can be served, and it is no burst, nor the chance by which a
/// server that is nearly busy has a queue for a while. It is when the first whose SYN found no room come again.
pub const REJECT_AFTER_US: u64 = 1_000_000;

/// Part of a turn's time that turning clients away may take on top.
pub const REJECT_SHARE: u64 = 4;

/// When those who are turned away are to come again, in turn, in seconds. If all were told the same they would come back as they
/// went, together, and fewer of them would find room.
pub const RETRY_AFTER_S: [u64; 3] = [1, 2, 3];

/// When the `nth` of them is.
pub fn retry_after_s(nth: u64) -> u64 {
    RETRY_AFTER_S[nth as usize % RETRY_AFTER_S.len()]
}

/// What turning a client away costs before any has been: as much as taking one.
const REJECT_COST_FIRST_NS: u64 = 50_000;

/// The fourth rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surplus {
    /// It is wanted.
    enabled: bool,
    /// Clients are being turned away.
    active: bool,
    /// When all who waited were served last.
    served_all_us: u64,
    /// What turning a client away has cost lately.
    cost_ns: u64,
    /// How many may be turned away after the next round.
    most: u32,
}

impl Surplus {
    pub fn new(enabled: bool, now_us: u64) -> Surplus {
        Surplus {
            enabled,
            active: false,
            served_all_us: now_us,
            cost_ns: REJECT_COST_FIRST_NS,
            most: 0,
        }
    }

    pub fn most(&self) -> u32 {
        self.most
    }

    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Whether more come than can be served, and how many of them may be told. `turn_us`: as long as a turn is to be.
    pub fn learn(&mut self, turn: &Turn, turn_us: u64) {
        if !self.enabled {
            return;
        }
        if turn.rejected > 0 {
            learn_cost(&mut self.cost_ns, turn.rejecting_us, turn.rejected);
        } else if turn.queue_empty {
            self.served_all_us = turn.now_us;
        }
        let for_us = turn.now_us.saturating_sub(self.served_all_us);
        self.active |= for_us >= REJECT_AFTER_US;
        // Of a turn that the others make longer, too.
        let turn_us = turn_us.max(turn.busy_us.saturating_sub(turn.rejecting_us));
        let room_us = turn_us / REJECT_SHARE;
        self.most = match self.active {
            true => (room_us * 1000 / self.cost_ns.max(1)).clamp(1, ROUND_MOST.into()) as u32,
            false => 0,
        };
    }

    /// It ends when for a period nobody had to be told, of all who knock: while some are not heard, nothing is known of those who wait.
    pub fn end_period(&mut self, period: &Period, hears_all: bool) {
        if self.active && hears_all && period.emptied && period.rejected == 0 {
            (self.active, self.most) = (false, 0);
        }
    }
}
