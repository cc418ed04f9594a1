//! Overload hold: nothing is accepted while the established connections wait too long.
//!
//! An established connection that becomes ready waits for one iteration at most, or for several
//! when more are ready than one iteration sees. That time is the loop lag.

use crate::Observation;
use crate::parameters::DELAY_MAX_US;
use crate::parameters::derived::*;

/// The overload hold of one event loop.
#[derive(Clone, Debug)]
pub(crate) struct OverloadHold {
    /// Time since an iteration last saw everything that was ready.
    loop_lag_us: u64,
    active: bool,
    last_accept_us: u64,
}

impl OverloadHold {
    pub fn new(now_us: u64) -> OverloadHold {
        OverloadHold {
            loop_lag_us: 0,
            active: false,
            last_accept_us: now_us,
        }
    }

    pub fn observe(&mut self, iteration: &Observation) {
        if iteration.accepted > 0 {
            self.last_accept_us = iteration.now_us;
        }
        self.loop_lag_us = match iteration.saturated {
            true => self.loop_lag_us + iteration.busy_us,
            false => iteration.busy_us,
        };
        self.active = match self.active {
            true => self.loop_lag_us > LOOP_LAG_RELEASE_US,
            false => self.loop_lag_us > DELAY_MAX_US,
        };
    }

    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Whether nothing has been accepted for too long.
    pub fn is_starved(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.last_accept_us) > STARVATION_TIMEOUT_US
    }
}
