//! Telling those who cannot be served: the fourth rule, which is an option.

use super::{Period, ROUND_MOST, Turn, learn_cost};

/// For so long no turn has served all who waited: more come than can be served, and it is no burst,
/// nor the chance by which a server that is nearly busy has a queue for a while. It is when the
/// first whose SYN found no room come again.
pub const REJECT_AFTER_US: u64 = 1_000_000;

/// Part of the time of everything else that turning clients away may take on top.
pub const REJECT_SHARE: u64 = 4;

/// A processor that is taken away while a client is told makes that very dear. No more of it is
/// made up for, which takes a second.
const DEBT_MOST_US: i64 = 250_000;

/// When those who are turned away are to come again, in turn, in seconds. If all were told the same
/// they would come back as they went, together, and fewer of them would find room.
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
    /// When the last turn ended.
    turn_ended_us: u64,
    /// The part of everything else's time that has not been used yet; below zero, what was used too
    /// much.
    credit_us: i64,
    /// How many may be turned away after the next round.
    most: u32,
    /// In this period somebody was left whom nobody could tell.
    untold: bool,
}

impl Surplus {
    pub fn new(enabled: bool, now_us: u64) -> Surplus {
        Surplus {
            enabled,
            active: false,
            served_all_us: now_us,
            cost_ns: REJECT_COST_FIRST_NS,
            turn_ended_us: now_us,
            credit_us: 0,
            most: 0,
            untold: false,
        }
    }

    pub fn most(&self) -> u32 {
        self.most
    }

    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Whether more come than can be served, and how many of them may be told. `turn_us`: as long
    /// as a turn is to be.
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
        self.untold |= self.active && self.most == 0 && !turn.queue_empty;
        self.earn(turn, turn_us);
        self.most =
            match self.active && self.credit_us > 0 {
                true => (self.credit_us as u64 * 1000 / self.cost_ns.max(1))
                    .clamp(1, ROUND_MOST.into()) as u32,
                false => 0,
            };
    }

    /// Reckoned over turns, not for each: a turn may be much shorter than it might be, and the
    /// processor be taken away in the middle of it. Idle time earns, too, for then nobody loses
    /// anything.
    fn earn(&mut self, turn: &Turn, turn_us: u64) {
        let passed_us = turn.now_us.saturating_sub(self.turn_ended_us);
        self.turn_ended_us = turn.now_us;
        let others_us = passed_us.saturating_sub(turn.rejecting_us);
        let earned_us = (others_us / REJECT_SHARE) as i64 - turn.rejecting_us as i64;
        // Those who are here wait for a quarter of a turn at most.
        let turn_us = turn_us.max(turn.busy_us.saturating_sub(turn.rejecting_us));
        let most_us = (turn_us / REJECT_SHARE) as i64;
        self.credit_us = (self.credit_us + earned_us).clamp(-DEBT_MOST_US, most_us);
    }

    /// It ends when for a period nobody had to be told, of all who knock: while some are not heard,
    /// nothing is known of those who wait.
    pub fn end_period(&mut self, period: &Period, hears_all: bool) {
        let untold = std::mem::take(&mut self.untold);
        let had_to_be_told = untold || period.rejected > 0;
        if self.active && hears_all && period.emptied && !had_to_be_told {
            (self.active, self.most) = (false, 0);
        }
    }
}
