//! The engine's state, and what its parts share: the clock, the limits, opening and closing a
//! slot's connection.
//!
//! [`super::event_loop`] is the loop, [`super::arrive`] gives requests their connections, and
//! [`super::exchange`] takes one from its first byte out to its last byte in.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use headway_event::{Deadlines, Events, Interest, Token};
use headway_latency::{Outcome, Row};

use super::EngineError;
use super::bandwidth::ConnectionBandwidth;
use super::counters::Counters;
use super::dial::Dialer;
use super::http2::Http2;
use super::method::Method;
use super::observer::{Epoch, Observer};
use super::part::Part;
use super::plan::{Mode, Plan};
use super::pool::Pool;
use super::requests::RequestBuilder;
use super::response::Response;
use super::schedule::ArrivalTimes;
use super::slot::{ConnectionSlot, Request, Waiting};
use super::timers::Timers;

/// Bytes of one receive. It fits in a second-level cache, and holds most files whole.
const BUFFER_BYTES: usize = 256 * 1024;

/// How long the end of a run waits for responses if its requests have no timeout.
const GRACE_WITHOUT_TIMEOUT: Duration = Duration::from_secs(10);

/// Added to the timeout, which is detected up to a tick late, so that requests in flight at the end
/// of a run time out before they are abandoned.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// What is later than any run.
pub(crate) const NO_DEADLINE_NS: u64 = u64::MAX;

pub(crate) struct Engine<'a> {
    pub plan: &'a Plan,
    pub part: Part,
    pub events: Events,
    epoch: Epoch,
    /// The clock as it was read last.
    pub now_ns: u64,
    pub dialers: Vec<Dialer>,
    pub requests: RequestBuilder,
    pub pool: Pool,
    /// Requests of an open loop that wait for a connection, oldest first.
    pub waiting: VecDeque<Waiting>,
    pub waiting_max: usize,
    /// Clients of a closed loop that have not begun.
    pub ramp_clients: Range<u32>,
    /// Time between the first requests of two clients of a ramp, in nanoseconds.
    ramp_step_ns: u64,
    arrivals: Option<ArrivalTimes>,
    /// The next arrival of an open loop; [`NO_DEADLINE_NS`] when there is none.
    pub arrival_ns: u64,
    pub timers: Timers,
    pub deadlines: Deadlines,
    /// Clients that pause in the middle of a flow.
    pub pausing_flows: u32,
    pub bandwidth: Option<ConnectionBandwidth>,
    pub buffer: Box<[u8]>,
    /// Connections that several slots share, if requests go over HTTP/2.
    pub http2: Option<Box<Http2>>,
    pub counters: Counters<'a>,
    pub limits: RunLimits,
}

/// The instants and counts that end things, in nanoseconds since the epoch.
pub(crate) struct RunLimits {
    pub timeout_ns: u64,
    pub warmup_ns: u64,
    /// From this intended start on, requests belong to the cool-down and are not measured.
    pub measured_ns: u64,
    /// From this intended start on, no request is started.
    pub end_ns: u64,
    /// What is in flight then is abandoned.
    pub abandon_ns: u64,
    grace_ns: u64,
    /// Requests that count which may still be started.
    requests_left: u64,
    /// Set when no further request is started; an open loop still starts those that are due
    /// already.
    pub stopping: bool,
}

impl RunLimits {
    fn new(plan: &Plan, part: Part) -> RunLimits {
        let warmup_ns = whole_ns(plan.warmup);
        let measured_ns = plan.stop.duration.map_or(NO_DEADLINE_NS, |length| {
            warmup_ns.saturating_add(whole_ns(length))
        });
        RunLimits {
            timeout_ns: plan.timeout.map_or(NO_DEADLINE_NS, whole_ns),
            warmup_ns,
            measured_ns,
            end_ns: measured_ns.saturating_add(whole_ns(plan.cooldown)),
            abandon_ns: NO_DEADLINE_NS,
            grace_ns: whole_ns(plan.timeout.map_or(GRACE_WITHOUT_TIMEOUT, |timeout| {
                timeout.saturating_add(TIMEOUT_MARGIN)
            })),
            requests_left: plan
                .stop
                .requests
                .map_or(u64::MAX, |all| part.share_u64(all)),
            stopping: false,
        }
    }

    /// Whether a request is part of the figures.
    pub(super) fn is_measured(&self, intended_ns: u64) -> bool {
        (self.warmup_ns..self.measured_ns).contains(&intended_ns)
    }

    /// A flow goes on after the last request that is started by itself.
    pub(super) fn extend(&mut self, now_ns: u64) {
        if self.stopping {
            self.abandon_ns = now_ns.saturating_add(self.grace_ns);
        }
    }

    pub(super) fn deadline_ns(&self, intended_ns: u64) -> u64 {
        intended_ns.saturating_add(self.timeout_ns)
    }
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        part: Part,
        observer: &'a mut dyn Observer,
        events: Events,
    ) -> Result<Engine<'a>, EngineError> {
        let bandwidth = plan.bandwidth_bits_per_s.map(ConnectionBandwidth::new);
        let receive_buffer_bytes = bandwidth.map(ConnectionBandwidth::receive_buffer_bytes);
        let dialers = plan
            .targets
            .iter()
            .map(|target| Dialer::new(target, receive_buffer_bytes));
        let streams = plan.protocol.streams();
        let (slots_max, waiting_max, ramp_clients, arrivals) = match &plan.mode {
            Mode::Closed { connections } => {
                let clients = part.share(*connections) * streams;
                (clients, 0, 0..clients, None)
            }
            Mode::Open {
                schedule,
                arrivals,
                connections_max,
                waiting_max,
            } => {
                let times = ArrivalTimes::new(schedule, *arrivals, plan.seed, part);
                let slots_max = part.share(*connections_max) * streams;
                let waiting_max = part.share(*waiting_max) as usize;
                (slots_max, waiting_max, 0..0, Some(times))
            }
        };
        let mut engine = Engine {
            plan,
            part,
            events,
            dialers: dialers.collect::<Result<_, _>>()?,
            requests: RequestBuilder::new(plan, part),
            pool: Pool::new(slots_max, plan.targets.len()),
            waiting: VecDeque::with_capacity(waiting_max.min(1_000_000)),
            waiting_max,
            ramp_step_ns: whole_ns(plan.ramp) / clients_of(plan).max(1),
            ramp_clients,
            arrivals,
            arrival_ns: NO_DEADLINE_NS,
            timers: Timers::with_capacity(slots_max.min(65_536) as usize),
            deadlines: Deadlines::new(tick(plan.timeout)),
            pausing_flows: 0,
            bandwidth,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            http2: Http2::of(plan),
            counters: Counters::new(observer),
            limits: RunLimits::new(plan, part),
            now_ns: 0,
            epoch: Epoch::now(),
        };
        let conversation = plan.conversation.as_ref();
        let client = |own: u32| {
            conversation.map(|conversation| conversation.client(part.number(own.into())))
        };
        let slots = engine
            .ramp_clients
            .clone()
            .map(|number| ConnectionSlot::of(client(number)));
        engine.pool.slots.extend(slots);
        Ok(engine)
    }

    /// Starts the clock, at this moment.
    pub(super) fn begin(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.counters.begin(self.epoch);
        self.next_arrival();
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Reads the clock.
    pub(super) fn update_clock(&mut self) -> u64 {
        self.now_ns = self.epoch.instant.elapsed().as_nanos() as u64;
        self.now_ns
    }

    /// When the next client of a closed loop begins; [`NO_DEADLINE_NS`] when all have.
    pub(super) fn next_ramp_client_ns(&self) -> u64 {
        match self.ramp_clients.is_empty() {
            true => NO_DEADLINE_NS,
            false => {
                let number = self.part.number(self.ramp_clients.start.into());
                self.ramp_step_ns * u64::from(number)
            }
        }
    }

    /// Draws the instant of the next arrival, if the run has one.
    pub(super) fn next_arrival(&mut self) {
        let drawn = self.arrivals.as_mut().map(ArrivalTimes::next_ns);
        let exhausted = self.limits.requests_left == 0;
        let due = drawn.filter(|&at_ns| !exhausted && at_ns < self.limits.end_ns);
        self.arrival_ns = due.unwrap_or(NO_DEADLINE_NS);
    }

    /// Counts one more request at this instant. False if the run has enough requests.
    pub(super) fn admit(&mut self, intended_ns: u64) -> bool {
        if self.limits.is_measured(intended_ns) {
            if self.limits.requests_left == 0 {
                return false;
            }
            self.limits.requests_left -= 1;
        }
        self.count_request(intended_ns);
        true
    }

    pub(super) fn count_request(&mut self, intended_ns: u64) {
        self.counters.requests += 1;
        self.counters.measured_unfinished += u64::from(self.limits.is_measured(intended_ns));
    }

    /// Notices the end of the run. Arrivals that are due already stay due.
    pub(super) fn check_end(&mut self) {
        if self.has_cooled_down() {
            self.end_now();
        }
        let enough = self.limits.requests_left == 0;
        if !self.limits.stopping && (enough || self.now_ns >= self.limits.end_ns) {
            self.limits.stopping = true;
            self.limits.abandon_ns = self.now_ns.saturating_add(self.limits.grace_ns);
            self.ramp_clients = 0..0;
        }
    }

    /// The observer wants an end: now, or at once if it says so again.
    pub(super) fn stop(&mut self) {
        if self.limits.stopping {
            self.limits.abandon_ns = self.now_ns;
            return;
        }
        self.end_now();
        self.check_end();
    }

    fn end_now(&mut self) {
        self.limits.end_ns = self.limits.end_ns.min(self.now_ns);
        if self.arrival_ns >= self.limits.end_ns {
            self.arrival_ns = NO_DEADLINE_NS;
        }
    }

    /// The cool-down has nothing left to do: no request of the measured time is due or in flight.
    fn has_cooled_down(&self) -> bool {
        let begun =
            self.now_ns >= self.limits.measured_ns && self.arrival_ns >= self.limits.measured_ns;
        begun && self.counters.measured_unfinished == 0 && self.pausing_flows == 0
    }

    pub(super) fn slot(&mut self, index: u32) -> &mut ConnectionSlot {
        &mut self.pool.slots[index as usize]
    }

    /// Registers this interest, whatever was registered before. False when the kernel has no memory
    /// for it.
    pub(super) fn poll_for(&mut self, index: u32, interest: Interest) -> bool {
        let slot = &mut self.pool.slots[index as usize];
        let Some(socket) = &slot.socket else {
            return false;
        };
        let token = Token::new(0, index, slot.generation);
        let done = match slot.interest {
            Some(present) if present == interest => return true,
            Some(_) => self.events.modify(socket.as_fd(), token, interest),
            None => self.events.add(socket.as_fd(), token, interest),
        };
        if done.is_ok() {
            slot.interest = Some(interest);
        }
        done.is_ok()
    }

    /// Stops polling the slot's connection, even for its end.
    pub(super) fn stop_polling(&mut self, index: u32) {
        let slot = &mut self.pool.slots[index as usize];
        if let (Some(socket), Some(_)) = (&slot.socket, slot.interest.take()) {
            // Only a descriptor that is not registered cannot be removed.
            let _ = self.events.remove(socket.as_fd());
        }
    }

    /// Closes the slot's connection, if it has one.
    pub(super) fn close_connection(&mut self, index: u32) {
        if self.http2.is_some() {
            return self.close_unused(index);
        }
        self.say_goodbye(index);
        let slot = &mut self.pool.slots[index as usize];
        let registered = slot.interest.take().is_some();
        if let Some(socket) = slot.socket.take() {
            if registered {
                self.events.forget(socket.as_fd());
            }
            self.counters.connections -= 1;
        }
    }

    /// The row of a request that had a slot.
    pub(super) fn record(&mut self, index: u32, error: Outcome, now_ns: u64) {
        let slot = &self.pool.slots[index as usize];
        let (request, response) = (&slot.request, &slot.response);
        let (size_bytes, class, connection) = match &slot.client {
            Some(client) => {
                let facts = client.facts();
                (
                    facts.size_bytes,
                    facts.class,
                    self.part.number(index.into()),
                )
            }
            None => {
                let document = &self.plan.work.documents[request.document as usize];
                (document.size_bytes, document.class, slot.connection)
            }
        };
        let complete = matches!(error, Outcome::Ok | Outcome::Status);
        let seen_bytes = response
            .promised_bytes
            .or(complete.then_some(response.body_bytes));
        let row = Row {
            intended_ns: request.intended_ns,
            start_ns: request.start_ns,
            first_byte_ns: request.first_byte_ns,
            end_ns: now_ns,
            size_bytes: size_bytes.or(seen_bytes).unwrap_or(0),
            bytes: response.body_bytes,
            status: response.status,
            error,
            connection,
            ordinal: slot.ordinal,
            class,
            target: request.target,
            warmup: !self.limits.is_measured(request.intended_ns),
            handshake_ns: request.handshake_ns,
        };
        self.counters.push(row);
    }

    /// Writes the row of a request that never had a connection: it ended when it should have
    /// started.
    pub(super) fn record_unsent(&mut self, waiting: Waiting, error: Outcome, now_ns: u64) {
        let document = &self.plan.work.documents[waiting.document as usize];
        let row = Row {
            intended_ns: waiting.intended_ns,
            start_ns: now_ns,
            first_byte_ns: 0,
            end_ns: now_ns,
            size_bytes: document.size_bytes.unwrap_or(0),
            bytes: 0,
            status: 0,
            error,
            connection: Row::NO_CONNECTION,
            ordinal: 0,
            class: document.class,
            target: waiting.target,
            warmup: !self.limits.is_measured(waiting.intended_ns),
            handshake_ns: 0,
        };
        self.counters.push(row);
    }

    /// Assigns a slot its request. It has a connection to the target, or none.
    pub(super) fn begin_request(&mut self, index: u32, request: Request) {
        let verify = self.plan.verify;
        let client = self.pool.slots[index as usize].client.as_ref();
        let is_head = client.map_or(self.plan.method == Method::Head, |one| one.is_head());
        let deadline_ns = self.limits.deadline_ns(request.intended_ns);
        if deadline_ns != NO_DEADLINE_NS {
            self.deadlines
                .set(index as usize, deadline_ns.div_ceil(NS_PER_MS));
        }
        self.counters.in_flight += 1;
        let slot = self.slot(index);
        slot.request = request;
        slot.sent_bytes = 0;
        Response::restart(&mut slot.response, verify);
        slot.response.without_body = is_head;
        if slot.socket.is_some() {
            slot.ordinal += 1;
            self.transmit(index);
        } else {
            self.dial(index);
        }
    }
}

pub(crate) const NS_PER_MS: u64 = 1_000_000;

/// The clients of a closed loop, in all parts.
fn clients_of(plan: &Plan) -> u64 {
    match plan.mode {
        Mode::Closed { connections } => u64::from(connections) * u64::from(plan.protocol.streams()),
        Mode::Open { .. } => 0,
    }
}

/// Resolution of timeouts: a hundredth, between 1 and 64 milliseconds.
fn tick(timeout: Option<Duration>) -> Duration {
    let hundredth = timeout.unwrap_or(GRACE_WITHOUT_TIMEOUT) / 100;
    hundredth.clamp(Duration::from_millis(1), Duration::from_millis(64))
}

pub(super) fn whole_ns(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
