//! SYN admission: the length of the accept queue, and the fraction of SYNs that the kernel admits.
//!
//! A client whose connection is pending in the accept queue believes that it is connected, so a
//! queue longer than what is served in time makes promises that are not kept. A full queue favours
//! lucky clients: a dropped SYN is retransmitted after 1 s and 2 s (Linux 6.5 and later; before
//! that after 1 s and 3 s), and often gets in when the client is about to give up. So two settings
//! are decided once per period:
//!
//! - *The backlog*: what leaves the queue in [`DELAY_MAX_US`] while it is not empty, plus
//!   headroom for bursts ([`BURST_STANDARD_DEVIATIONS`]). It is the limit for bursts and until the
//!   other setting has taken effect. It grows back when the queue is found empty.
//! - *The admit fraction*, when more connections come than leave: such that the queue stays half
//!   full. It selects clients, not SYNs, so that rejected clients do not get in late and the queue
//!   has room for every admitted one.
//!
//! The fraction follows from two rates and is corrected by the queue length:
//! `(departures + (half - pending) / 4 s) / arrivals`, with 1 s instead of 4 s where the SYN filter
//! is stateful. The arrival rate is what came into the queue divided by the fraction admitted then,
//! so the decision does not depend on earlier decisions: under constant load the queue approaches
//! half as an exponential with the time constant [`SETTLING_TIME_S`], forty periods long. Above
//! [`OVERFLOW_FRACTION`] it is brought back faster.
//!
//! A stateful SYN filter remembers rejected clients, so a new fraction takes
//! effect at once. Without one, a fraction that grows also admits clients rejected in the last two
//! seconds, at their next SYN: late, and three for each one intended. So arrivals are computed with
//! the fractions of one and two seconds ago ([`SynAdmission::arrivals`]), the means are long, and a
//! queue that is about half full leaves the fraction alone unless it differs by
//! [`HALF_FULL_CHANGE_MIN`]. A change of load shows in the queue: it stays full, or it is empty
//! while far fewer connections come than expected.
//!
//! While the queue is full, arrivals are underestimated, because clients that were dropped are not
//! counted. A short preemption fills the queue as well, so only a queue that stays full
//! ([`FULL_DURATION_MIN_S`]) raises the estimate ([`REJECTED_FACTOR_MIN`]).
//!
//! The age of first requests counts as well: if a sampled one had waited longer than a full queue
//! lasts plus [`DELAY_MAX_US`], the limit is halved. It recovers when none has.

use std::collections::VecDeque;

use crate::Settings;
use crate::parameters::derived::*;
use crate::parameters::{
    ADMIT_FRACTION_MIN, ADMIT_GROWTH_MAX, ARRIVAL_WINDOW_CONNECTIONS, BACKLOG_HEADROOM,
    BURST_STANDARD_DEVIATIONS, CHANGE_MIN, DELAY_MAX_US, LOAD_DROP_FACTOR, MEAN_WINDOW,
    QUEUE_LENGTH_MIN, SYN_RETRANSMIT_US,
};
use crate::period::Period;

/// Listener settings that the controller decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListenerPolicy {
    /// Length of the accept queue.
    pub backlog: u32,
    /// Fraction of new connections that is admitted, up to 1.
    pub admit_fraction: f64,
    /// Whether the kernel may hold a connection until its request has arrived. Not under overload:
    /// its place in the queue would be given away meanwhile, and its request is there anyway when
    /// it is accepted.
    pub defer: bool,
}

/// The admission part of the controller.
#[derive(Clone, Debug)]
pub(crate) struct SynAdmission {
    /// Configured length of the accept queue.
    backlog_max: u32,
    policy: ListenerPolicy,
    /// Recent admit fractions with the time from which each was in force. The last one still is.
    fractions: VecDeque<(u64, f64)>,
    /// Departures from the queue while connections are pending.
    departures_per_s: f64,
    /// Periods from which that rate was learned, up to the window.
    periods_learned: f64,
    /// New connections requested by clients, admitted or not.
    arrivals_per_s: f64,
    /// The latest periods in each of which the queue was empty once.
    empty_periods: EmptyPeriods,
    /// Time for which each period has left the queue nearly full.
    full_s: f64,
    /// Fraction of the intended limit that the age of first requests permits.
    delay_scale: f64,
    /// Whether other loops accept from the queue. Then all SYNs are admitted.
    shared: bool,
    /// Whether the SYN filter remembers rejected SYNs.
    stateful: bool,
    last_busy_us: u64,
}

/// Successive periods in each of which the queue was empty once.
#[derive(Clone, Debug, Default)]
struct EmptyPeriods {
    count: u32,
    seconds: f64,
    /// Connections that came, and that were expected.
    came: f64,
    expected: f64,
}

impl EmptyPeriods {
    /// Whether far fewer connections came than expected.
    fn shows_load_drop(&self) -> bool {
        self.expected >= LOAD_DROP_SAMPLE_MIN && self.came * LOAD_DROP_FACTOR < self.expected
    }
}

impl SynAdmission {
    pub fn new(settings: &Settings, now_us: u64) -> SynAdmission {
        let backlog_max = settings.backlog_max;
        SynAdmission {
            backlog_max,
            policy: ListenerPolicy {
                backlog: backlog_max,
                admit_fraction: 1.0,
                defer: true,
            },
            fractions: VecDeque::from([(now_us, 1.0)]),
            departures_per_s: 0.0,
            periods_learned: 0.0,
            arrivals_per_s: 0.0,
            empty_periods: EmptyPeriods::default(),
            full_s: 0.0,
            delay_scale: 1.0,
            shared: settings.is_queue_shared,
            stateful: settings.is_filter_stateful,
            last_busy_us: now_us,
        }
    }

    pub fn policy(&self) -> ListenerPolicy {
        self.policy
    }

    /// Whether all settings have their defaults.
    pub fn is_default(&self) -> bool {
        self.admits_all() && self.policy.defer && self.policy.backlog == self.backlog_max
    }

    /// Whether more connections are pending than may be, so that the decision is urgent.
    pub fn is_queue_too_long(&self, pending: u32) -> bool {
        let limit = match self.periods_learned > 0.0 {
            true => self.queue_limit(),
            // The departure rate is unknown, so only the room counts.
            false => f64::from(self.backlog_max) / 2.0,
        };
        self.admits_all() && f64::from(pending) > limit
    }

    /// Learns from a period, and decides.
    pub fn adapt(&mut self, period: &Period) {
        self.adapt_to_age(period.oldest_us);
        if period.is_busy() {
            self.learn_departures(period);
            self.last_busy_us = period.ended_us;
        }
        self.choose_fraction(period);
        self.full_s = match self.is_full(period) {
            true => self.full_s + period.seconds(),
            false => 0.0,
        };
        self.policy.backlog = match period.is_busy() || !self.admits_all() {
            _ if self.periods_learned == 0.0 => self.policy.backlog,
            true => self.backlog(),
            false => self.policy.backlog.saturating_mul(2).min(self.backlog_max),
        };
        let calm = period.ended_us.saturating_sub(self.last_busy_us) >= RESTORE_AFTER_US;
        self.policy.defer &= !self.is_full(period);
        self.policy.defer |= self.admits_all() && calm;
    }

    /// The backlog for the kernel: a little above the limit, so that random bursts are not
    /// rejected. It stays the same as long as that suffices.
    fn backlog(&self) -> u32 {
        let (limit, current) = (self.queue_limit(), f64::from(self.policy.backlog));
        let factor = self.backlog_factor();
        // The headroom may vanish or double, but the factor changes by half at most.
        let tolerance = (factor - 1.0).min(0.5);
        let suffices = (factor - tolerance) * limit..=(factor + tolerance) * limit;
        match suffices.contains(&current) {
            true => self.policy.backlog,
            false => ((factor * limit) as u32).min(self.backlog_max),
        }
    }

    fn backlog_factor(&self) -> f64 {
        1.0 + match self.stateful && !self.admits_all() {
            true => STATEFUL_BACKLOG_HEADROOM,
            false => BACKLOG_HEADROOM,
        }
    }

    /// Intended limit of the queue: what leaves it within the permitted delay, plus burst headroom.
    fn queue_limit(&self) -> f64 {
        self.queue_limit_scaled(self.delay_scale)
    }

    fn queue_limit_scaled(&self, scale: f64) -> f64 {
        let served = self.departures_per_s * DELAY_MAX_US as f64 / 1e6;
        let burst = BURST_STANDARD_DEVIATIONS * self.departures_per_s.sqrt();
        let headroom = burst.min(BURST_HEADROOM_MAX_S * self.departures_per_s);
        let limit = scale * (served + headroom);
        limit
            .max(QUEUE_LENGTH_MIN.into())
            .min(self.backlog_max.into())
    }

    /// Whether more connections come than leave, as far as the queue shows: it is nearly full, or
    /// would be after one more such period.
    fn is_full(&self, period: &Period) -> bool {
        let (pending, before) = (f64::from(period.pending), f64::from(period.pending_before));
        let soon = pending + (pending - before).max(0.0);
        let known = self.periods_learned > 0.0 && period.is_busy();
        known && pending > self.room() / 2.0 && soon > FULL_FRACTION * self.room()
    }

    /// Room of the queue in the period that has ended, which may be less than the new limit.
    fn room(&self) -> f64 {
        self.queue_limit().min(self.policy.backlog.into())
    }

    /// Whether every SYN is admitted, as far as there is room.
    pub fn admits_all(&self) -> bool {
        self.policy.admit_fraction >= 1.0
    }

    fn adapt_to_age(&mut self, oldest_us: u64) {
        let drain_us = match self.departures_per_s > 0.0 {
            true => {
                let length = self.backlog_factor() * self.queue_limit_scaled(1.0);
                length / self.departures_per_s * 1e6
            }
            false => 0.0,
        };
        let drain_us = (drain_us as u64).clamp(DELAY_MAX_US, QUEUE_DRAIN_MAX_US);
        self.delay_scale = match oldest_us > drain_us + DELAY_MAX_US {
            true => (self.delay_scale / 2.0).max(DELAY_SCALE_MIN),
            false => (self.delay_scale * DELAY_SCALE_GROWTH).min(1.0),
        };
    }

    fn learn_departures(&mut self, period: &Period) {
        let rate = period.departed as f64 / period.seconds();
        if rate > 0.0 && period.ended_us.saturating_sub(self.last_busy_us) >= RESTORE_AFTER_US {
            // The known rate belongs to another load by now.
            self.periods_learned = self.periods_learned.min(if self.admits_all() {
                0.0
            } else {
                STALE_WINDOW_PERIODS
            });
        }
        // A period in which nothing could be accepted does not show a rate, unless it lasts.
        if self.periods_learned == 0.0 && rate == 0.0 {
            return;
        }
        self.periods_learned = (self.periods_learned + 1.0).min(RATE_WINDOW_PERIODS);
        self.departures_per_s += (rate - self.departures_per_s) / self.periods_learned;
    }

    fn choose_fraction(&mut self, period: &Period) {
        if self.periods_learned == 0.0 || self.shared {
            return;
        }
        let (limit, pending) = (self.queue_limit(), f64::from(period.pending));
        let came = period.departed as f64 + pending - f64::from(period.pending_before);
        let came = came.max(0.0);
        if !self.admits_all() {
            self.learn_arrivals(period, came);
        } else if self.is_full(period) && self.full_s > 0.0 {
            // Not after one full period, which a pause may have caused. Clients that found no room
            // count, too.
            self.arrivals_per_s = (came + period.dropped as f64) / period.seconds();
            self.empty_periods = EmptyPeriods::default();
        } else {
            return;
        }
        // With long iterations the queue length goes up and down in each: aim for half of the limit
        // on average, and for room at the maximum.
        let (mean, max) = (period.pending_mean(), f64::from(period.pending_max));
        let correction = (limit / 2.0 - mean) / self.settling_time_s();
        let excess = |pending: f64| (pending - OVERFLOW_FRACTION * limit).max(0.0);
        let haste = excess(mean) / OVERFLOW_SETTLING_TIME_S + excess(max) / (SETTLING_TIME_S / 2.0);
        let correction_min = -CORRECTION_MAX_FRACTION * self.departures_per_s;
        let wanted_per_s = self.departures_per_s + (correction - haste).max(correction_min);
        let wanted = wanted_per_s / self.arrivals_per_s.max(1e-3);
        let mut fraction = self.fraction_for(wanted, period.ended_us);
        if period.emptied && period.rejected > 0 {
            // Every connection was served or rejected, so it is unknown how many more can be.
            fraction = fraction.max(self.policy.admit_fraction * PROBE_FACTOR);
        }
        let max = self.policy.admit_fraction * ADMIT_GROWTH_MAX;
        let fraction = fraction.clamp(ADMIT_FRACTION_MIN, max).min(1.0);
        let is_half_full = HALF_FULL_FRACTIONS.contains(&(mean / limit));
        self.set_fraction(fraction, is_half_full, period.ended_us);
    }

    fn settling_time_s(&self) -> f64 {
        match self.stateful {
            true => STATEFUL_SETTLING_TIME_S,
            false => SETTLING_TIME_S,
        }
    }

    fn set_fraction(&mut self, fraction: f64, is_half_full: bool, now_us: u64) {
        let since_us = self.fractions.back().map_or(0, |(since_us, _)| *since_us);
        let change_min = match now_us.saturating_sub(since_us) >= SETTLED_AFTER_US {
            _ if self.stateful => 0.0,
            _ if is_half_full => HALF_FULL_CHANGE_MIN,
            true => SETTLED_CHANGE_MIN,
            false => CHANGE_MIN,
        };
        let current = self.policy.admit_fraction;
        let differs = (fraction - current).abs() > change_min * current;
        if differs || (fraction >= 1.0) != self.admits_all() {
            self.policy.admit_fraction = fraction;
            self.fractions.push_back((now_us, fraction));
        }
        // Keep the fraction that was in force at the first SYN of clients that now send their
        // third.
        let oldest_us = now_us.saturating_sub(3 * SYN_RETRANSMIT_US);
        while self
            .fractions
            .get(1)
            .is_some_and(|(since_us, _)| *since_us <= oldest_us)
        {
            self.fractions.pop_front();
        }
    }

    fn fraction_at(&self, when_us: u64) -> f64 {
        let mut before = self.fractions.iter().rev();
        let then = before.find(|(since_us, _)| *since_us <= when_us);
        then.or(self.fractions.front())
            .map_or(1.0, |(_, fraction)| *fraction)
    }

    /// The fraction one retransmission ago, and the larger of those one and two ago. A client above
    /// one of them has been rejected that often.
    fn earlier_fractions(&self, now_us: u64) -> (f64, f64) {
        let once = self.fraction_at(now_us.saturating_sub(SYN_RETRANSMIT_US));
        let twice = self.fraction_at(now_us.saturating_sub(2 * SYN_RETRANSMIT_US));
        (once, twice.max(once))
    }

    /// Connections that come with this admit fraction, per new client. A fraction that has grown
    /// also admits clients that were rejected before.
    fn arrivals(&self, fraction: f64, now_us: u64) -> f64 {
        if self.stateful {
            return fraction;
        }
        let (once, twice) = self.earlier_fractions(now_us);
        fraction + (fraction - once).max(0.0) + (fraction - twice).max(0.0)
    }

    /// The admit fraction with which this many connections come per new client.
    fn fraction_for(&self, arrivals: f64, now_us: u64) -> f64 {
        if self.stateful {
            return arrivals;
        }
        let (once, twice) = self.earlier_fractions(now_us);
        let if_twice = (arrivals + once) / 2.0;
        if arrivals <= once {
            arrivals
        } else if if_twice <= twice {
            if_twice
        } else {
            (arrivals + once + twice) / 3.0
        }
    }

    /// Whether the kernel has rejected connections: the queue has been full for longer than a
    /// preemption lasts, and is not left over from a longer one.
    fn has_rejected(&self, period: &Period) -> bool {
        let of_backlog = f64::from(period.pending_max) / f64::from(self.policy.backlog);
        let grows = period.pending >= period.pending_before;
        self.full_s > FULL_DURATION_MIN_S && grows && REJECTING_FRACTIONS.contains(&of_backlog)
    }

    /// Learns the arrival rate from the admitted connections that came.
    fn learn_arrivals(&mut self, period: &Period, came: f64) {
        let middle_us = (period.begun_us + period.ended_us) / 2;
        let per_client = self.arrivals(self.policy.admit_fraction, middle_us);
        let rate = came / period.seconds() / per_client;
        let mut empty = std::mem::take(&mut self.empty_periods);
        if period.emptied {
            empty.count += 1;
            empty.seconds += period.seconds();
            empty.came += came;
            empty.expected += self.arrivals_per_s * per_client * period.seconds();
            if empty.shows_load_drop() {
                self.arrivals_per_s *= (empty.came / empty.expected).max(LOAD_DROP_FRACTION_MIN);
                return;
            }
            if empty.count >= EMPTY_PERIODS_MIN {
                // As many came as expected, and yet the queue is empty: more can be served than
                // known.
                let came_per_s = empty.came / empty.seconds;
                self.departures_per_s = PROBE_FACTOR * self.departures_per_s.max(came_per_s);
            } else {
                self.empty_periods = empty;
            }
        }
        if self.has_rejected(period) {
            // Connections that found no room are missing from those that came, so the rate is
            // higher than measured and than known.
            let max = self.departures_per_s.max(1.0) / ADMIT_FRACTION_MIN;
            let (min, next) = (
                REJECTED_FACTOR_MIN * self.arrivals_per_s,
                REJECTED_FACTOR_MAX * self.arrivals_per_s,
            );
            self.arrivals_per_s = rate.clamp(min, next).min(max);
            return;
        }
        let weight = match self.stateful {
            true => 1.0 / RATE_WINDOW_PERIODS,
            false => (came / ARRIVAL_WINDOW_CONNECTIONS)
                .clamp(1.0 / LONG_MEAN_WINDOW, 1.0 / MEAN_WINDOW as f64),
        };
        self.arrivals_per_s += (rate - self.arrivals_per_s) * weight;
    }
}
