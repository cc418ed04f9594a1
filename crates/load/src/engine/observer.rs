//! What receives the requests of a run while it lasts, and the results of the run.
//!
//! The observer runs on the engine's thread: what it does delays requests, and shows as lag. It
//! should hand the rows over and return.

use std::time::{Instant, SystemTime};

use headway_latency::{Histogram, Outcome, Row};

/// Receives every request, and may stop the run.
pub trait Observer {
    /// The run begins: rows count their times from this moment.
    fn begin(&mut self, _epoch: Epoch) {}

    /// Rows of requests that have ended, in the order in which they ended. The observer takes them
    /// and leaves an empty vector with room for as many, so that nothing is allocated. Called when
    /// a batch is full, before every [`Observer::tick`], and once at the end.
    fn rows(&mut self, batch: &mut Vec<Row>);

    /// Called about ten times per second.
    fn tick(&mut self, _live: &Live) -> Control {
        Control::Continue
    }
}

/// The moment from which a run counts, on two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Epoch {
    /// `CLOCK_MONOTONIC`, which rows are relative to.
    pub instant: Instant,
    /// The calendar's, read at the same moment.
    pub wall: SystemTime,
}

impl Epoch {
    /// This moment.
    pub fn now() -> Epoch {
        Epoch {
            instant: Instant::now(),
            wall: crate::meeting::wall_clock(),
        }
    }
}

/// What the observer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Continue the run.
    Continue,
    /// Start no further request and wait for those in flight. Said again: abandon them now.
    Stop,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Requests are marked as warm-up.
    Warmup,
    /// Requests count.
    Measuring,
    /// Cool-down: requests are started but not measured, so that earlier ones meet the same load.
    Cooldown,
    /// No request is started any more; responses are waited for.
    Draining,
}

/// A run as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// Since the epoch.
    pub now_ns: u64,
    /// The stage of the run.
    pub stage: Stage,
    /// Requests started so far, warm-up included.
    pub started: u64,
    /// Requests that have ended, warm-up and errors included.
    pub done: u64,
    /// Requests that did not end with [`Outcome::Ok`].
    pub errors: u64,
    /// Requests on a connection, or on one that is being opened.
    pub in_flight: u32,
    /// Requests that wait for a connection (open loop).
    pub waiting: u32,
    /// Descriptors of connections that are open.
    pub connections: u32,
    /// Bytes received, heads included.
    pub bytes: u64,
}

/// The results of a run besides its rows: how the client itself performed.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The moment from which the rows count.
    pub epoch: Epoch,
    /// From the epoch to the last row.
    pub elapsed_ns: u64,
    /// Requests that were due, whether or not they could be started: one row each.
    pub requests: u64,
    /// How the requests ended, by [`Outcome::code`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// Requests that started later than [`LATE_NS`] after their intended start; those of the
    /// warm-up are not counted.
    pub late_starts: u64,
    /// The loop's own lag, of every arrival and every timer: from the moment at which something was
    /// due to the moment at which the loop turned to it. Waiting for a connection is not in it, nor
    /// is the warm-up.
    pub lag: Histogram,
    /// The loop's time outside its event wait, over `elapsed_ns`.
    pub busy_share: f64,
    /// User and system time of the thread. An open loop polls before arrivals, so this is high even
    /// when there is little to do. `busy_share` counts polling as idle, and waiting for a CPU as
    /// busy.
    pub cpu_ns: u64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Connections that were opened.
    pub connections_opened: u64,
    /// The largest number of connections open at once.
    pub connections_peak: u32,
    /// Requests sent again on a new connection, because a kept one was closed under them before a
    /// byte of the response. Each is one row, which began with its first start.
    pub retried: u64,
    /// Keep-alive connections on which the server sent bytes without a request.
    pub unsolicited: u64,
    /// TLS handshakes.
    pub handshakes: Handshakes,
    /// The client's own limits that were met.
    pub limits: LimitsMet,
    /// The first connection that could not be opened.
    pub failure: Option<Failure>,
    /// The first `Server` field seen.
    pub server: Option<String>,
    /// Whether the observer stopped it.
    pub stopped: bool,
}

impl Measured {
    /// Adds what another loop of the same run measured. Of shares it keeps the larger one.
    pub fn absorb(&mut self, other: &Measured) {
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.requests += other.requests;
        let outcomes = self.outcomes.iter_mut().zip(&other.outcomes);
        outcomes.for_each(|(own, other)| *own += other);
        self.late_starts += other.late_starts;
        self.lag.merge(&other.lag);
        self.busy_share = self.busy_share.max(other.busy_share);
        self.cpu_ns += other.cpu_ns;
        self.bytes += other.bytes;
        self.connections_opened += other.connections_opened;
        self.connections_peak += other.connections_peak;
        self.retried += other.retried;
        self.unsolicited += other.unsolicited;
        self.handshakes.done += other.handshakes.done;
        self.handshakes.resumed += other.handshakes.resumed;
        let or = |own: &Option<String>, other: &Option<String>| own.clone().or(other.clone());
        self.handshakes.protocol = or(&self.handshakes.protocol, &other.handshakes.protocol);
        self.limits.ports += other.limits.ports;
        self.limits.descriptors += other.limits.descriptors;
        self.limits.connections += other.limits.connections;
        self.limits.waiting += other.limits.waiting;
        self.limits.waiting_peak += other.limits.waiting_peak;
        self.failure = self.failure.take().or(other.failure.clone());
        self.server = or(&self.server, &other.server);
        self.stopped |= other.stopped;
    }
}

/// TLS handshakes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshakes {
    /// Those that were completed.
    pub done: u64,
    /// Those of them which resumed an earlier session.
    pub resumed: u64,
    /// Version and cipher suite of the first one.
    pub protocol: Option<String>,
}

/// From this lag on, a start is late: 1 ms.
pub(super) const LATE_NS: u64 = 1_000_000;

/// The client's own limits, and how often each was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsMet {
    /// No local port was free on a source address (another one may have had one).
    pub ports: u64,
    /// No descriptor was free.
    pub descriptors: u64,
    /// An arrival found all connections busy, and waited.
    pub connections: u64,
    /// An arrival found the queue full.
    pub waiting: u64,
    /// The largest number of requests that waited at once.
    pub waiting_peak: u32,
}

/// A connection that could not be opened, as text: `connect(127.0.0.1:80): Connection refused`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What its request was recorded as.
    pub outcome: Outcome,
    /// What was tried, on what, and why it failed.
    pub message: String,
}
