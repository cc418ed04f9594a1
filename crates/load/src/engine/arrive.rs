//! Requests that are due, and the connections they get.
//!
//! Closed loop: each slot is a client, which asks again when it has its reply and has thought about
//! it. Open loop: an arrival takes an idle connection to its target, else a free slot, else the
//! place of an idle connection to another target, else it waits in a queue with a bound; beyond
//! that it is an error at once. Nothing here changes an intended start.

use std::time::Duration;

use headway_latency::Outcome;

use super::core::{Engine, NS_PER_MS};
use super::pool::Place;
use super::slot::{Phase, Request, Waiting};

/// Requests taken from the queue in a turn.
const PLACED_PER_TURN_MAX: usize = 64;

/// A closed-loop client whose connection could not be opened waits this long, doubled each time: a
/// server that is down must not be met with a hundred thousand attempts a second.
const RETREAT_FIRST: Duration = Duration::from_millis(10);
const RETREAT_LAST: Duration = Duration::from_secs(1);

impl Engine<'_> {
    /// An arrival of an open loop.
    pub fn arrive(&mut self, intended_ns: u64) {
        let now_ns = self.tell();
        self.lagged(intended_ns);
        if !self.admit(intended_ns) {
            return;
        }
        let waiting = Waiting {
            intended_ns,
            document: self.requests.draw(),
            target: self.requests.deal(),
        };
        if let Some(outcome) = self.hopeless(intended_ns, now_ns) {
            return self.record_unsent(waiting, outcome, now_ns);
        }
        // Nobody overtakes those who wait already.
        if self.waiting.is_empty() && self.place(waiting) {
            return;
        }
        if self.waiting.len() < self.waiting_max {
            self.waiting.push_back(waiting);
            let limits = &mut self.tally.limits;
            limits.connections += 1;
            limits.waiting_peak = limits.waiting_peak.max(self.waiting.len() as u32);
        } else {
            self.tally.limits.waiting += 1;
            self.record_unsent(waiting, Outcome::NoConnection, now_ns);
        }
    }

    /// Something that was due then has the loop's attention now.
    fn lagged(&mut self, due_ns: u64) {
        if self.limits.is_measured(due_ns) {
            self.tally.lag.record_ns(self.now_ns.saturating_sub(due_ns));
        }
    }

    /// What becomes of a request that the loop turns to when its time is over.
    fn hopeless(&self, intended_ns: u64, now_ns: u64) -> Option<Outcome> {
        if self.limits.deadline_ns(intended_ns) <= now_ns {
            return Some(Outcome::TimedOut);
        }
        (self.limits.abandon_ns <= now_ns).then_some(Outcome::Abandoned)
    }

    /// Starts the request if there is a connection for it, or a slot to open one in.
    fn place(&mut self, waiting: Waiting) -> bool {
        let Some(place) = self.pool.place(waiting.target) else {
            return false;
        };
        let index = match place {
            Place::Kept(index) | Place::New(index) => index,
            Place::Taken(index) => {
                self.hang_up(index);
                index
            }
        };
        self.begin_request(
            index,
            Request {
                intended_ns: waiting.intended_ns,
                start_ns: self.now_ns,
                document: waiting.document,
                target: waiting.target,
                ..Request::default()
            },
        );
        true
    }

    /// Gives connections to those who wait, oldest first, and gives up those whose time is over.
    /// True when more could be done at once.
    pub fn serve_waiting(&mut self) -> bool {
        for _ in 0..PLACED_PER_TURN_MAX {
            let Some(&oldest) = self.waiting.front() else {
                return false;
            };
            let now_ns = self.now_ns;
            if let Some(outcome) = self.hopeless(oldest.intended_ns, now_ns) {
                self.record_unsent(oldest, outcome, now_ns);
            } else if !self.place(oldest) {
                return false;
            }
            self.waiting.pop_front();
            if self.tell() >= self.arrival_ns {
                break;
            }
        }
        !self.waiting.is_empty()
    }

    /// A client of a closed loop asks, unless the run is over for it.
    pub fn ask(&mut self, index: u32, intended_ns: u64) {
        self.check_end();
        if self.limits.stopping || !self.admit(intended_ns) {
            self.hang_up(index);
            self.slot(index).phase = Phase::Free;
            return;
        }
        let document = match &mut self.slot(index).client {
            Some(client) => {
                client.choose();
                0
            }
            None => self.requests.draw(),
        };
        let now_ns = self.now_ns;
        let target = match self.slot(index) {
            slot if slot.socket.is_some() => slot.target,
            _ => self.requests.deal(),
        };
        self.begin_request(
            index,
            Request {
                intended_ns,
                start_ns: now_ns,
                document,
                target,
                ..Request::default()
            },
        );
    }

    /// A slot's request has ended so, and its connection is closed unless it can carry another.
    pub fn next_request(&mut self, index: u32, outcome: Outcome) {
        if self.is_open_loop() {
            match self.slot(index).socket {
                Some(_) => self.pool.idle(index),
                None => self.pool.free(index),
            }
            return;
        }
        let pause = self.pause(index, outcome);
        if pause.is_zero() || self.limits.stopping {
            return self.ask(index, self.now_ns);
        }
        let slot = self.slot(index);
        slot.phase = match slot.socket {
            Some(_) => Phase::Idle,
            None => Phase::Resting,
        };
        let due_ns = self.now_ns + pause.as_nanos() as u64;
        self.timers.set(index, due_ns);
    }

    fn pause(&mut self, index: u32, outcome: Outcome) -> Duration {
        let think = self.plan.think.max(self.line_rest(index));
        let slot = self.slot(index);
        let unopened = matches!(
            outcome,
            Outcome::Refused | Outcome::Unreachable | Outcome::NoPort | Outcome::NoDescriptor
        );
        if !unopened {
            slot.failures = 0;
            return think;
        }
        let retreat = RETREAT_FIRST * (1 << slot.failures.min(7));
        slot.failures += 1;
        think.max(retreat.min(RETREAT_LAST))
    }

    /// How long the line of a client with a memory is still busy with its last reply.
    fn line_rest(&mut self, index: u32) -> Duration {
        let (Some(bandwidth), now_ns) = (self.bandwidth, self.now_ns) else {
            return Duration::ZERO;
        };
        let slot = self.slot(index);
        if slot.client.is_none() {
            return Duration::ZERO;
        }
        bandwidth.available(&mut slot.bucket, now_ns);
        Duration::from_nanos(bandwidth.pause_ns(&slot.bucket))
    }

    /// A slot's timer has come up.
    pub fn resume(&mut self, index: u32, due_ns: u64) {
        match self.slot(index).phase {
            Phase::Resting | Phase::Idle => {
                self.tell();
                self.lagged(due_ns);
                self.ask(index, due_ns);
            }
            Phase::Receiving => self.read_on(index),
            Phase::Connecting => self.dial(index),
            Phase::Silent => self.speak(index),
            Phase::Free | Phase::Sending => {}
        }
    }

    /// An idle connection was closed by the server, or can no longer be used.
    pub fn lose_idle(&mut self, index: u32) {
        self.hang_up(index);
        if self.is_open_loop() {
            self.pool.not_idle(index);
            self.pool.free(index);
        } else {
            self.slot(index).phase = Phase::Resting;
        }
    }

    /// Ends everything that is still in flight or waits. Arrivals that are due and have not been
    /// looked at find out by themselves that they are hopeless.
    pub fn abandon(&mut self) {
        self.tell();
        for index in 0..self.pool.slots.len() as u32 {
            if self.slot(index).is_busy() {
                self.finish(index, Outcome::Abandoned, false);
            }
        }
        while let Some(waiting) = self.waiting.pop_front() {
            self.record_unsent(waiting, Outcome::Abandoned, self.now_ns);
        }
    }

    /// The slots whose time-out has passed.
    pub fn time_out(&mut self, expired: &mut Vec<usize>) {
        self.deadlines.expire(self.now_ns / NS_PER_MS, expired);
        for index in expired.drain(..) {
            let index = index as u32;
            let outcome = match self.slot(index).phase {
                Phase::Connecting => Outcome::ConnectTimedOut,
                _ => Outcome::TimedOut,
            };
            if self.slot(index).is_busy() {
                self.tell();
                self.finish(index, outcome, false);
            }
        }
    }

    fn is_open_loop(&self) -> bool {
        matches!(self.plan.mode, super::plan::Mode::Open { .. })
    }
}
