//! How many connections are observed: fewer at a high rate, since the kernel reports requests on the server's
//! time. Then the ends of calls are seen for a part of the time, too, unless connections are as short as requests.

use std::time::Duration;

/// Events of requests per second from which on fewer connections are observed. A request has two.
const EVENTS_PER_S_MAX: f64 = 10_000.0;

/// New connections are rare if fewer than one of this number of requests opens one. Then the p99 does not depend on
/// them.
const RARE: f64 = 1000.0;

/// At a high rate the ends of calls are seen in one of this many periods.
const CALLS_ONE_IN: u32 = 10;

/// How many times the number of observed connections is halved at most.
const HALVINGS_MAX: u32 = 12;

/// The share of connections that is observed.
pub struct Sampling {
    /// Every connection is observed (`--every-request`).
    every: bool,
    /// One in two to this power.
    pub halvings: u32,
    /// Events that were lost until now.
    lost: u64,
    /// Connections that were established until now.
    established: u64,
    /// Periods at a high rate.
    periods: u32,
    sees_calls: bool,
    /// How long the ends of calls were seen.
    pub calls_seen: Duration,
}

/// What happened in a period.
pub struct Period {
    pub length: Duration,
    /// Events of observed requests.
    pub events: u64,
    /// Since the beginning: events that were lost, and connections that were established.
    pub lost: u64,
    pub established: u64,
}

impl Sampling {
    pub fn new(every: bool) -> Sampling {
        Sampling {
            every,
            halvings: 0,
            lost: 0,
            established: 0,
            periods: 0,
            sees_calls: true,
            calls_seen: Duration::ZERO,
        }
    }

    /// Returns whether fewer connections are to be observed from now on, and whether the ends of calls are to be seen.
    pub fn adapt(&mut self, period: &Period) -> (bool, bool) {
        let requests = period.events as f64 / 2.0 * self.one_in() as f64;
        let established = period.established - self.established;
        let has_lost = period.lost > self.lost;
        (self.lost, self.established) = (period.lost, period.established);
        if self.sees_calls {
            self.calls_seen += period.length;
        }
        if self.every {
            return (false, true);
        }
        let rate = period.events as f64 / period.length.as_secs_f64();
        let excess = (rate / EVENTS_PER_S_MAX).log2().ceil().max(0.0) as u32;
        let halvings = (self.halvings + excess.max(u32::from(has_lost))).min(HALVINGS_MAX);
        let has_changed = halvings != self.halvings;
        self.halvings = halvings;
        self.periods += u32::from(halvings > 0);
        self.sees_calls = halvings == 0
            || established as f64 * RARE > requests
            || self.periods.is_multiple_of(CALLS_ONE_IN);
        (has_changed, self.sees_calls)
    }

    /// Observes one connection in this many.
    pub fn one_in(&self) -> u64 {
        1 << self.halvings
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{HALVINGS_MAX, Period, Sampling};

    /// A second.
    fn period(events: u64, lost: u64, established: u64) -> Period {
        Period {
            length: Duration::from_secs(1),
            events,
            lost,
            established,
        }
    }

    #[test]
    fn as_many_connections_are_left_out_as_the_rate_demands() {
        let mut sampling = Sampling::new(false);
        let mut narrows = |events| {
            let narrows = sampling.adapt(&period(events, 0, 0)).0;
            (narrows, sampling.one_in())
        };
        assert_eq!(narrows(0), (false, 1));
        assert_eq!(narrows(10_000), (false, 1));
        assert_eq!(narrows(80_000), (true, 8));
        assert_eq!(narrows(9_000), (false, 8));
        assert_eq!(narrows(10_001), (true, 16));
        assert_eq!(narrows(u64::MAX), (true, 1 << HALVINGS_MAX));
        assert_eq!(narrows(u64::MAX), (false, 1 << HALVINGS_MAX));
    }

    #[test]
    fn half_of_the_connections_are_left_out_after_a_loss() {
        let mut sampling = Sampling::new(false);
        assert!(sampling.adapt(&period(10, 3, 0)).0);
        assert!(!sampling.adapt(&period(10, 3, 0)).0);
        assert_eq!(sampling.one_in(), 2);
    }

    #[test]
    fn no_connection_is_left_out_if_every_request_is_wanted() {
        let mut sampling = Sampling::new(true);
        assert_eq!(sampling.adapt(&period(1_000_000, 0, 0)), (false, true));
        assert_eq!(sampling.adapt(&period(0, 7, 0)), (false, true));
        assert_eq!(sampling.one_in(), 1);
        assert_eq!(sampling.calls_seen, Duration::from_secs(2));
    }

    #[test]
    fn ends_of_calls_are_seen_now_and_then_at_a_high_rate_unless_connections_are_short() {
        let mut sampling = Sampling::new(false);
        assert_eq!(sampling.adapt(&period(20_000, 0, 0)), (true, false));
        let mut sees = || sampling.adapt(&period(9_000, 0, 0)).1;
        let seen: Vec<bool> = (0..20).map(|_| sees()).collect();
        assert_eq!(seen.iter().filter(|seen| **seen).count(), 2, "{seen:?}");
        assert!(seen[8] && seen[18]);
        let mut sampling = Sampling::new(false);
        sampling.adapt(&period(20_000, 0, 0));
        // A ninth of the requests come on connections of their own.
        assert!((1..20).all(|count| sampling.adapt(&period(9_000, 0, count * 1000)).1));
        assert_eq!(sampling.calls_seen, Duration::from_secs(19));
    }
}
