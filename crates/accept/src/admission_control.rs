//! Admission control of a worker: measures loop iterations and listeners for the controller, and
//! reports the listener settings that it wants.
//!
//! All decisions are in [`headway_admission`], which has no clock and makes no system call.

use std::time::{Duration, Instant};

use headway_admission::parameters::PERIOD_US;
use headway_admission::parameters::derived::{
    ABANDONED_AFTER_US, CHECK_ALL_US, SAMPLE_INTERVAL_US,
};
use headway_admission::{Controller, Decision, ListenerPolicy, Observation, Settings};
use headway_metrics::Counters;

// The simulation supposes that the SYN filter remembers for as long as it does.
const _: () = assert!(
    (headway_os::syn_filter::MEMORY_S * 1e6) as u64
        == headway_admission::simulation::FILTER_MEMORY_US
);

/// The controller of a worker with `accept-batch = auto`, and its measurements.
pub struct AdmissionControl {
    controller: Controller,
    /// What it decided after the last iteration.
    decision: Decision,
    /// Iterations that accepted nothing because of loop lag.
    deferred_iterations: u64,
    /// Settings that the kernel was last given.
    applied: ListenerPolicy,
    /// When the listeners were last sampled.
    sampled_at: Option<Instant>,
    /// Pending connections and dropped segments in that sample.
    sampled_pending: u32,
    sampled_dropped: u32,
    /// Connections that have left the queue since.
    departed: u32,
    /// Pending connections as far as known: departures since the last sample are subtracted,
    /// arrivals are not seen.
    pending: u32,
    /// Whether the listeners use `TCP_DEFER_ACCEPT` unless the controller objects.
    deferring: bool,
    /// Whether the SYN filter remembers rejected SYNs.
    stateful: bool,
    clock: Instant,
    ended: Instant,
    begun: Instant,
    iteration: Observation,
    /// Whether connections may be pending that the event wait has not reported.
    may_be_unreported: bool,
    /// When a first request that had waited for long was last seen.
    long_wait: Option<Instant>,
}

impl AdmissionControl {
    /// `deferring`: the listeners use `TCP_DEFER_ACCEPT`.
    pub fn new(settings: &Settings, deferring: bool) -> AdmissionControl {
        let now = Instant::now();
        let controller = Controller::new(settings, 0);
        let decision = controller.decision();
        AdmissionControl {
            // The listeners have their defaults when a worker begins.
            applied: decision.listeners,
            controller,
            decision,
            deferred_iterations: 0,
            sampled_at: None,
            sampled_pending: 0,
            sampled_dropped: 0,
            departed: 0,
            pending: 0,
            deferring,
            stateful: settings.is_filter_stateful,
            clock: now,
            ended: now,
            begun: now,
            iteration: Observation::default(),
            may_be_unreported: false,
            long_wait: None,
        }
    }

    /// Begins an iteration after the event wait, which has reported `events` of established
    /// connections. `saturated`: more may be ready. `watched`: the wait covers the listeners.
    pub fn begin_iteration(&mut self, events: u32, saturated: bool, watched: bool) {
        self.begun = Instant::now();
        self.may_be_unreported = saturated || !watched;
        self.iteration = Observation {
            wait_us: (self.begun - self.ended).as_micros() as u64,
            events,
            saturated,
            is_estimate: true,
            queue_empty: true,
            ..Observation::default()
        };
    }

    /// Size limit of the next accept batch.
    pub fn batch_size(&self) -> u32 {
        self.decision.batch_size
    }

    /// Number of connections left by a batch that may still be rejected in this iteration.
    pub fn reject_limit(&self) -> u32 {
        self.decision
            .reject_limit
            .saturating_sub(self.iteration.rejected)
    }

    /// Whether more connections come than can be served, or did so recently.
    pub fn is_overloaded(&self) -> bool {
        self.decision.is_overloaded()
    }

    /// Whether clients of first requests that are read now may have disconnected.
    pub fn may_be_abandoned(&self) -> bool {
        let duration = Duration::from_micros(CHECK_ALL_US);
        let recently = |seen: Instant| self.begun.saturating_duration_since(seen) < duration;
        self.is_overloaded() && self.long_wait.is_some_and(recently)
    }

    /// Latest time of the next iteration, if it matters.
    pub fn next_ms(&self, now_ms: u64) -> Option<u64> {
        (!self.decision.is_at_rest).then_some(now_ms + PERIOD_US / 1_000)
    }

    /// Records a batch that began at `begun` and accepted this many connections.
    pub fn record_accepted(&mut self, begun: Instant, accepted: u32) {
        self.iteration.accepted += accepted;
        self.depart(accepted);
        self.iteration.accepting_us += begun.elapsed().as_micros() as u64;
    }

    /// Records rejections that began at `begun`.
    pub fn record_rejected(&mut self, begun: Instant, rejected: u32) {
        self.iteration.rejected += rejected;
        self.depart(rejected);
        self.iteration.rejecting_us += begun.elapsed().as_micros() as u64;
    }

    fn depart(&mut self, connections: u32) {
        self.departed += connections;
        self.pending = self.pending.saturating_sub(connections);
    }

    /// Records whether connections are still pending at a listener, as far as known.
    pub fn record_pending(&mut self, pending: bool) {
        self.may_be_unreported = false;
        self.iteration.queue_empty &= !pending;
    }

    /// Records how long a first request had waited when it was read, and whether its client had
    /// closed its side. Returns whether the request counts as abandoned and needs no answer.
    pub fn is_abandoned(&mut self, closed: bool, waited_ms: u32) -> bool {
        let waited_us = u64::from(waited_ms) * 1_000;
        self.iteration.oldest_us = self.iteration.oldest_us.max(waited_us);
        if waited_us >= ABANDONED_AFTER_US / 2 {
            self.long_wait = Some(self.begun);
        }
        self.is_overloaded() && closed && waited_us > ABANDONED_AFTER_US
    }

    /// Whether the listeners should be sampled: connections may be pending, and the last sample is
    /// old enough.
    pub fn is_sample_due(&self) -> bool {
        match self.sampled_at {
            // The first sample is the base of the drop count.
            None => true,
            Some(sampled) => {
                let interval = Duration::from_micros(SAMPLE_INTERVAL_US);
                self.may_be_pending() && self.begun - sampled >= interval
            }
        }
    }

    fn may_be_pending(&self) -> bool {
        !self.iteration.queue_empty || self.may_be_unreported
    }

    /// Records a sample of the listeners: pending connections, and segments dropped so far. Returns
    /// the number of drops since the last sample.
    pub fn record_sample(&mut self, pending: u32, dropped: u32) -> u32 {
        let (mut since, interval) = match self.sampled_at.replace(self.begun) {
            None => (0, Duration::ZERO),
            Some(sampled) => (
                dropped.wrapping_sub(self.sampled_dropped),
                self.begun - sampled,
            ),
        };
        if self.deferring && self.applied.defer {
            // Of a deferred connection the kernel drops the last segment of the handshake, and
            // counts that.
            let came = (self.departed + pending).saturating_sub(self.sampled_pending);
            since = since.saturating_sub(came);
        }
        (self.sampled_pending, self.sampled_dropped, self.departed) = (pending, dropped, 0);
        self.pending = pending;
        self.may_be_unreported = false;
        self.iteration.is_estimate = false;
        self.iteration.queue_empty = pending == 0;
        // Scale drops of a longer interval down to one period.
        let fraction = PERIOD_US as f64 / interval.as_micros().max(PERIOD_US.into()) as f64;
        self.iteration.dropped = (f64::from(since) * fraction) as u32;
        since
    }

    /// Ends the iteration. Returns the listener settings in force and the wanted ones if they
    /// differ.
    pub fn end_iteration(&mut self) -> Option<(ListenerPolicy, ListenerPolicy)> {
        let now = Instant::now();
        self.iteration.now_us = (now - self.clock).as_micros() as u64;
        self.iteration.busy_us = (now - self.begun).as_micros() as u64;
        self.ended = now;
        // Without a report the queue is as it was.
        self.iteration.queue_empty &= !self.may_be_unreported;
        self.pending = match self.iteration.queue_empty {
            true => 0,
            false => self.pending.max(1),
        };
        self.iteration.pending = self.pending;
        self.iteration.is_estimate &= !self.iteration.queue_empty;
        self.controller.observe(&self.iteration);
        self.decision = self.controller.decision();
        self.deferred_iterations += u64::from(self.decision.batch_size == 0);
        let (wanted, applied) = (self.decision.listeners, self.applied);
        if applied == wanted {
            return None;
        }
        self.applied = wanted;
        Some((applied, wanted))
    }

    /// Writes the controller's state into the counters.
    pub fn gauges(&self, counters: &mut Counters) {
        let is_limited = self.decision.listeners.admit_fraction < 1.0;
        counters.accept_batch_size = u64::from(self.decision.batch_size);
        counters.accept_backlog = u64::from(self.applied.backlog);
        counters.accept_pending = u64::from(self.pending);
        counters.accept_deferred_iterations = self.deferred_iterations;
        counters.accept_admission_limited = u64::from(is_limited);
        counters.accept_syn_filter_stateful = u64::from(self.stateful);
        counters.early_reject_active = u64::from(self.decision.is_rejecting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE_INTERVAL: Duration = Duration::from_micros(SAMPLE_INTERVAL_US);

    fn new_control(deferring: bool) -> AdmissionControl {
        AdmissionControl::new(&Settings::new(1024, 1024), deferring)
    }

    #[test]
    fn deferred_handshakes_do_not_count_as_drops() {
        for (deferring, dropped) in [(true, 20), (false, 130)] {
            let mut control = new_control(deferring);
            control.begin_iteration(0, false, true);
            control.record_sample(10, 1_000);
            control.record_accepted(Instant::now(), 70);
            control.record_rejected(Instant::now(), 30);
            assert_eq!(control.record_sample(20, 1_130), dropped);
        }
    }

    #[test]
    fn departed_connections_are_not_pending_when_there_was_no_sample_since() {
        let mut control = new_control(true);
        let state = |control: &AdmissionControl| {
            let iteration = &control.iteration;
            (iteration.pending, iteration.is_estimate)
        };
        control.begin_iteration(0, false, true);
        control.record_sample(100, 0);
        control.end_iteration();
        assert_eq!(state(&control), (100, false));
        control.begin_iteration(0, false, true);
        control.record_accepted(Instant::now(), 30);
        control.record_rejected(Instant::now(), 5);
        control.record_pending(true);
        control.end_iteration();
        assert_eq!(state(&control), (65, true));
        control.begin_iteration(0, false, true);
        control.record_pending(false);
        control.end_iteration();
        assert_eq!(state(&control), (0, false));
    }

    /// Admission control after a second in which the queue was never empty and nearly full.
    fn overloaded() -> AdmissionControl {
        let mut control = new_control(true);
        for step in 1..=50 {
            control.controller.observe(&Observation {
                now_us: step * 20_000,
                busy_us: 19_000,
                accepting_us: 5_000,
                accepted: 20,
                pending: 1_000,
                ..Observation::default()
            });
        }
        control.decision = control.controller.decision();
        control
    }

    #[test]
    fn first_request_is_abandoned_when_its_client_closed_and_it_waited_long_under_overload() {
        let mut control = overloaded();
        assert!(control.is_overloaded());
        assert!(!control.is_abandoned(false, 499) && !control.may_be_abandoned());
        assert!(control.is_abandoned(true, 1_001) && control.may_be_abandoned());
        assert!(!control.is_abandoned(true, 1_000), "it may still read");
        assert!(!control.is_abandoned(false, 5_000), "it is connected");
        assert_eq!(control.iteration.oldest_us, 5_000_000, "the age counts");
        let mut control = new_control(true);
        assert!(!control.is_abandoned(true, 5_000), "no overload");
        assert_eq!(control.iteration.oldest_us, 5_000_000);
    }

    #[test]
    fn listeners_are_sampled_when_connections_may_be_pending() {
        let mut control = new_control(false);
        control.begin_iteration(0, false, true);
        assert!(control.is_sample_due(), "the first sample");
        assert_eq!(control.record_sample(0, 70), 0);
        std::thread::sleep(SAMPLE_INTERVAL);
        control.begin_iteration(0, false, true);
        assert!(!control.is_sample_due(), "nothing was reported");
        control.record_pending(false);
        assert!(!control.is_sample_due());
        control.record_pending(true);
        assert!(control.is_sample_due());
        assert_eq!(control.record_sample(3, 75), 5);
        control.record_pending(true);
        assert!(!control.is_sample_due(), "it was just done");
        std::thread::sleep(SAMPLE_INTERVAL);
        control.begin_iteration(0, false, false);
        assert!(control.is_sample_due(), "the wait did not cover listeners");
        control.begin_iteration(0, true, true);
        assert!(control.is_sample_due(), "the wait had no room to report");
        control.record_pending(false);
        assert!(!control.is_sample_due());
    }
}
