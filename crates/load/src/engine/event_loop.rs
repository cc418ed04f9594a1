//! The loop: what is due, then what has come, then the wait.
//!
//! Order within an iteration: arrivals and timers first, because a late one is the client's own
//! fault and appears as lag; then timeouts, then events. Arrivals are checked again between events,
//! so that a thousand responses delay no arrival by more than two of them. Every step has a limit.
//!
//! Before an arrival is due the loop does not sleep but polls ([`SPIN_NS`]): a sleeping thread is
//! woken late, by the timer slack and by the way out of an idle state, and that would be the pacing
//! error.

use std::io;
use std::time::Duration;

use headway_event::Ready;

use super::core::{Engine, NO_DEADLINE_NS, NS_PER_MS};
use super::observer::{Control, Stage};

/// How long before something is due the loop polls instead of sleeping.
const SPIN_NS: u64 = 100_000;

/// How often the observer is asked.
const TICK_NS: u64 = 100 * NS_PER_MS;

/// The most arrivals, timers and new clients handled per iteration, each.
const DUE_PER_ITERATION_MAX: usize = 64;

/// Arrivals taken between two events.
const DUE_PER_EVENT_MAX: usize = 2;

/// What the loop came to.
pub(crate) struct LoopTimes {
    /// Time without anything to do.
    pub idle_ns: u64,
    /// Whether the observer asked for the end.
    pub stopped: bool,
}

impl Engine<'_> {
    /// Runs to the end.
    pub(super) fn run_until_done(&mut self) -> io::Result<LoopTimes> {
        let mut ready = Vec::with_capacity(headway_event::EVENTS_PER_WAIT_MAX);
        let mut expired = Vec::with_capacity(self.pool.slots.capacity());
        let mut times = LoopTimes {
            idle_ns: 0,
            stopped: false,
        };
        let mut tick_ns = TICK_NS;
        loop {
            self.update_clock();
            if self.now_ns >= tick_ns {
                tick_ns = self.now_ns + TICK_NS;
                times.stopped |= self.tick();
            }
            let mut hurry = self.start_due();
            self.time_out(&mut expired);
            hurry |= self.serve_waiting();
            self.check_end();
            if self.limits.stopping && self.is_done() {
                return Ok(times);
            }
            self.counters.flush_early();
            times.idle_ns += self.wait(&mut ready, tick_ns, hurry)?;
            self.take(&ready);
        }
    }

    /// Starts what is due. True when there was more than an iteration may take.
    fn start_due(&mut self) -> bool {
        let mut more = self.arrive_due(DUE_PER_ITERATION_MAX);
        for _ in 0..DUE_PER_ITERATION_MAX {
            if self.next_ramp_client_ns() > self.now_ns {
                break;
            }
            let Some(index) = self.ramp_clients.next() else {
                break;
            };
            let now_ns = self.update_clock();
            self.start_request(index, now_ns);
        }
        more |= self.next_ramp_client_ns() <= self.now_ns;
        for _ in 0..DUE_PER_ITERATION_MAX {
            match self.timers.expire(self.now_ns) {
                Some((index, due_ns)) => self.resume(index, due_ns),
                None => return more,
            }
        }
        true
    }

    fn arrive_due(&mut self, most: usize) -> bool {
        for _ in 0..most {
            if self.arrival_ns > self.now_ns {
                return false;
            }
            let intended_ns = self.arrival_ns;
            self.arrive(intended_ns);
            self.next_arrival();
        }
        true
    }

    fn take(&mut self, ready: &[Ready]) {
        for &event in ready {
            self.on_event(event);
            if !self.waiting.is_empty() {
                self.serve_waiting();
            }
            self.arrive_due(DUE_PER_EVENT_MAX);
        }
    }

    fn is_done(&mut self) -> bool {
        let waited_for = self.counters.in_flight > 0 || !self.waiting.is_empty();
        if waited_for && self.now_ns >= self.limits.abandon_ns {
            self.abandon();
        }
        let is_idle = self.counters.in_flight == 0 && self.waiting.is_empty();
        is_idle && self.arrival_ns == NO_DEADLINE_NS && !self.waits_for_flows()
    }

    /// Whether flows that pause have further requests before the end.
    fn waits_for_flows(&self) -> bool {
        self.pausing_flows > 0 && self.now_ns < self.limits.end_ns
    }

    /// True when the observer wants the end.
    fn tick(&mut self) -> bool {
        let stage = if self.limits.stopping {
            Stage::Draining
        } else if self.now_ns < self.limits.warmup_ns {
            Stage::Warmup
        } else if self.now_ns >= self.limits.measured_ns {
            Stage::Cooldown
        } else {
            Stage::Measuring
        };
        let stop = self
            .counters
            .tick(self.now_ns, stage, self.waiting.len() as u32)
            == Control::Stop;
        self.update_clock();
        if stop {
            self.stop();
        }
        stop
    }

    /// Waits for events until something is due. Returns the idle time, including polling.
    fn wait(&mut self, ready: &mut Vec<Ready>, tick_ns: u64, hurry: bool) -> io::Result<u64> {
        // What is ready already is work, not waiting: look before counting any time as idle.
        self.events.wait_precise(ready, Duration::ZERO)?;
        if !ready.is_empty() || hurry {
            return Ok(0);
        }
        let begun_ns = self.update_clock();
        let exact_ns = self
            .arrival_ns
            .min(self.next_ramp_client_ns())
            .min(self.timers.next_ns().unwrap_or(NO_DEADLINE_NS));
        let coarse_ns = self.coarse_ns(tick_ns);
        while ready.is_empty() && self.now_ns < exact_ns.min(coarse_ns) {
            let exact_sleep_ns = exact_ns.saturating_sub(SPIN_NS);
            let until_ns = exact_sleep_ns.min(coarse_ns);
            let sleep = Duration::from_nanos(until_ns.saturating_sub(self.now_ns));
            if exact_sleep_ns > coarse_ns {
                // A millisecond later will do, and this is one call less.
                self.events.wait(ready, Some(sleep))?;
            } else {
                self.events.wait_precise(ready, sleep)?;
            }
            self.update_clock();
        }
        Ok(self.now_ns - begun_ns)
    }

    /// The next instant that may be met a little late.
    fn coarse_ns(&self, tick_ns: u64) -> u64 {
        let timeout_ns = self
            .deadlines
            .next_ms()
            .map_or(NO_DEADLINE_NS, |ms| ms.saturating_mul(NS_PER_MS));
        let waiting_ns = self.waiting.front().map_or(NO_DEADLINE_NS, |oldest| {
            self.limits.deadline_ns(oldest.intended_ns)
        });
        let is_pausing = self.counters.in_flight == 0 && self.waits_for_flows();
        let end_ns = match self.limits.stopping && !is_pausing {
            true => self.limits.abandon_ns,
            false => self.limits.end_ns,
        };
        tick_ns.min(timeout_ns).min(waiting_ns).min(end_ns)
    }
}
