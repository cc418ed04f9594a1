//! Requests that are due, and the connections they get.
//!
//! Closed loop: each slot is a client, which asks again when it has its response and has thought
//! about it. Open loop: an arrival takes an idle connection to its target, else a free slot, else
//! the place of an idle connection to another target, else it waits in a queue with a bound; beyond
//! that it is an error at once. Nothing here changes an intended start.
//!
//! A follow-up of a flow is due when the response before it is whole and the client has paused. In an open
//! loop the flow has its slot until then.

use std::time::Duration;

use headway_latency::Outcome;

use super::core::{Engine, NS_PER_MS};
use super::pool::Assigned;
use super::slot::{Phase, Request, Waiting};

/// Requests taken from the queue per loop iteration.
const ASSIGNED_PER_ITERATION_MAX: usize = 64;

/// Delay after a failed connection attempt in a closed loop, doubled each time: a server that is
/// down must not get a hundred thousand attempts per second.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

impl Engine<'_> {
    /// An arrival of an open loop.
    pub(super) fn arrive(&mut self, intended_ns: u64) {
        let now_ns = self.update_clock();
        self.record_lag(intended_ns);
        if !self.admit(intended_ns) {
            return;
        }
        let waiting = Waiting {
            intended_ns,
            document: self.requests.draw(),
            target: self.requests.next_target(),
        };
        if let Some(outcome) = self.past_deadline(intended_ns, now_ns) {
            return self.record_unsent(waiting, outcome, now_ns);
        }
        // Requests that wait already go first.
        if self.waiting.is_empty() && self.assign(waiting) {
            return;
        }
        if self.waiting.len() < self.waiting_max {
            self.waiting.push_back(waiting);
            let limits = &mut self.counters.limits;
            limits.connections += 1;
            limits.waiting_peak = limits.waiting_peak.max(self.waiting.len() as u32);
        } else {
            self.counters.limits.waiting += 1;
            self.record_unsent(waiting, Outcome::NoConnection, now_ns);
        }
    }

    /// Something that was due then has the loop's attention now.
    fn record_lag(&mut self, due_ns: u64) {
        if self.limits.is_measured(due_ns) {
            self.counters
                .lag
                .record_ns(self.now_ns.saturating_sub(due_ns));
        }
    }

    /// What becomes of a request that the loop turns to when its time is over.
    fn past_deadline(&self, intended_ns: u64, now_ns: u64) -> Option<Outcome> {
        if self.limits.deadline_ns(intended_ns) <= now_ns {
            return Some(Outcome::TimedOut);
        }
        (self.limits.abandon_ns <= now_ns).then_some(Outcome::Abandoned)
    }

    /// Starts the request if there is a connection for it, or a slot to open one in.
    fn assign(&mut self, waiting: Waiting) -> bool {
        let Some(assigned) = self.pool.assign(waiting.target) else {
            return false;
        };
        let index = match assigned {
            Assigned::Idle(index) | Assigned::New(index) => index,
            Assigned::Evicted(index) => {
                self.close_connection(index);
                index
            }
        };
        self.choose(index, waiting.document);
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

    /// The client of a slot chooses its next request, if clients differ.
    fn choose(&mut self, index: u32, document: u32) {
        let Some(conversation) = &self.plan.conversation else {
            return;
        };
        let number = self.part.number(index.into());
        let slot = &mut self.pool.slots[index as usize];
        if slot.client.is_none() {
            // An open loop makes its slots as it needs them.
            slot.client = Some(conversation.client(number));
            slot.response.has_reader = true;
        }
        if let Some(client) = &mut slot.client {
            client.choose(document);
        }
    }

    /// Assigns connections to waiting requests, oldest first, and ends those past their deadline.
    /// Returns true if more could be done at once.
    pub(super) fn serve_waiting(&mut self) -> bool {
        for _ in 0..ASSIGNED_PER_ITERATION_MAX {
            let Some(&oldest) = self.waiting.front() else {
                return false;
            };
            let now_ns = self.now_ns;
            if let Some(outcome) = self.past_deadline(oldest.intended_ns, now_ns) {
                self.record_unsent(oldest, outcome, now_ns);
            } else if !self.assign(oldest) {
                return false;
            }
            self.waiting.pop_front();
            if self.update_clock() >= self.arrival_ns {
                break;
            }
        }
        !self.waiting.is_empty()
    }

    /// A client of a closed loop asks, unless the run is over for it.
    pub(super) fn start_request(&mut self, index: u32, intended_ns: u64) {
        self.check_end();
        if std::mem::take(&mut self.slot(index).pauses_in_flow) {
            self.pausing_flows -= 1;
        }
        let continues = self.continues(index);
        if !self.may_start(intended_ns, continues) {
            if let Some(client) = &mut self.slot(index).client {
                client.leave();
            }
            if self.is_open_loop() {
                return self.end_flow(index);
            }
            self.close_connection(index);
            self.slot(index).phase = Phase::Free;
            return;
        }
        let document = match continues {
            true => self.slot(index).request.document,
            false => self.requests.draw(),
        };
        self.choose(index, document);
        let now_ns = self.now_ns;
        let target = match self.slot(index) {
            slot if slot.socket.is_some() => slot.target,
            _ => self.requests.next_target(),
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
    pub(super) fn next_request(&mut self, index: u32, outcome: Outcome) {
        let continues = self.continues(index);
        if self.is_open_loop() && !continues {
            return self.end_flow(index);
        }
        let pause = self.pause(index, outcome);
        if pause.is_zero() || (self.limits.stopping && !continues) {
            return self.start_request(index, self.now_ns);
        }
        self.pausing_flows += u32::from(continues);
        let slot = self.slot(index);
        slot.pauses_in_flow = continues;
        slot.phase = match slot.socket {
            Some(_) => Phase::Idle,
            None => Phase::Paused,
        };
        let due_ns = self.now_ns + pause.as_nanos() as u64;
        self.timers.set(index, due_ns);
    }

    /// Whether the slot's client is in the middle of a flow.
    fn continues(&mut self, index: u32) -> bool {
        let client = &self.slot(index).client;
        client.as_ref().is_some_and(|client| client.continues())
    }

    /// Whether a request is started. A follow-up belongs to the flow that was counted.
    fn may_start(&mut self, intended_ns: u64, continues: bool) -> bool {
        if continues {
            let goes_on = intended_ns < self.limits.end_ns;
            if goes_on {
                self.count_request(intended_ns);
                self.limits.extend(self.now_ns);
            }
            return goes_on;
        }
        !self.limits.stopping && self.admit(intended_ns)
    }

    /// A slot of an open loop is free for other requests.
    fn end_flow(&mut self, index: u32) {
        let is_connected = match &self.http2 {
            Some(http2) => http2.has_connection(index),
            None => self.slot(index).socket.is_some(),
        };
        match is_connected {
            true => self.pool.idle(index),
            false => self.pool.free(index),
        }
    }

    fn pause(&mut self, index: u32, outcome: Outcome) -> Duration {
        let think = self.plan.think.max(self.line_busy_for(index));
        let slot = self.slot(index);
        let own = slot.client.as_ref().map(|client| client.pause());
        let think = think.max(own.unwrap_or_default());
        let unopened = matches!(
            outcome,
            Outcome::Refused
                | Outcome::Unreachable
                | Outcome::NoPort
                | Outcome::NoDescriptor
                | Outcome::Tls
        );
        if !unopened {
            slot.failures = 0;
            return think;
        }
        let backoff = BACKOFF_MIN * (1 << slot.failures.min(7));
        slot.failures += 1;
        think.max(backoff.min(BACKOFF_MAX))
    }

    /// How long the line of a client with a memory is still busy with its last response.
    fn line_busy_for(&mut self, index: u32) -> Duration {
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
    pub(super) fn resume(&mut self, index: u32, due_ns: u64) {
        match self.slot(index).phase {
            Phase::Paused | Phase::Idle => {
                self.update_clock();
                self.record_lag(due_ns);
                self.start_request(index, due_ns);
            }
            Phase::Receiving => self.read_on(index),
            Phase::Connecting => self.dial(index),
            Phase::FirstPause => self.end_first_pause(index),
            Phase::Free | Phase::Handshaking | Phase::Sending => {}
        }
    }

    /// An idle connection was closed by the server, or can no longer be used.
    pub(super) fn close_idle(&mut self, index: u32) {
        self.close_connection(index);
        if self.is_open_loop() && !self.slot(index).pauses_in_flow {
            self.pool.not_idle(index);
            self.pool.free(index);
        } else {
            self.slot(index).phase = Phase::Paused;
        }
    }

    /// Ends everything that is still in flight or waits. Arrivals that are due and have not been
    /// looked at find out by themselves that they are past their deadline.
    pub(super) fn abandon(&mut self) {
        self.update_clock();
        for index in 0..self.pool.slots.len() as u32 {
            if self.slot(index).is_busy() {
                self.finish(index, Outcome::Abandoned, false);
            }
        }
        while let Some(waiting) = self.waiting.pop_front() {
            self.record_unsent(waiting, Outcome::Abandoned, self.now_ns);
        }
    }

    /// Ends the requests whose timeout has passed.
    pub(super) fn time_out(&mut self, expired: &mut Vec<usize>) {
        self.deadlines.expire(self.now_ns / NS_PER_MS, expired);
        for index in expired.drain(..) {
            let index = index as u32;
            let outcome = match self.slot(index).is_opening() {
                true => Outcome::ConnectTimedOut,
                false => Outcome::TimedOut,
            };
            if self.slot(index).is_busy() {
                self.update_clock();
                self.finish(index, outcome, false);
            }
        }
    }

    pub(super) fn is_open_loop(&self) -> bool {
        matches!(self.plan.mode, super::plan::Mode::Open { .. })
    }
}
