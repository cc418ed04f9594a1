//! What is asked of the simulated server, and what it costs.

/// What is asked of the server, and what it costs.
#[derive(Clone, Debug)]
pub struct Workload {
    /// New connections a second, or requests where they are `pooled`: each rate from its second on,
    /// ascending.
    pub rates: Vec<(f64, f64)>,
    /// Requests on a connection, one after the other.
    pub requests: u32,
    /// Processor time of taking a client.
    pub accept_us: u64,
    /// Processor time of a request.
    pub request_us: u64,
    /// Processor time of turning a client away, accepting it included.
    pub reject_us: u64,
    /// Processor time of a wait for events.
    pub wait_us: u64,
    /// And for each open connection, in nanoseconds: what select and poll take, and epoll does not.
    pub wait_open_ns: u64,
    /// Connections that are open and silent all the time.
    pub idle: u32,
    /// The kernel's accept queue.
    pub queue: u32,
    /// Whether clients are kept back until they speak (`TCP_DEFER_ACCEPT`).
    pub deferred: bool,
    /// From the answer to a SYN until the server has the last segment of the handshake.
    pub trip_us: u64,
    /// From having a connection to sending a request on it: the client has other things to do.
    pub lag_us: u64,
    /// Whether an unanswered SYN is repeated every second (Linux 6.5 and later), or after 1 s and 3
    /// s.
    pub linear_syns: bool,
    /// Whether the kernel remembers whom it did not hear ([`headway_os::porter`]), which needs a privilege.
    pub remembers: bool,
    /// Open connections at most.
    pub connections_max: u32,
    /// Whether a client is read from and answered as soon as it is taken.
    pub eager: bool,
    /// From a reply to the next request of the same client.
    pub pause_us: u64,
    /// Whether requests come at `rates`, instead of clients: each takes a connection that is silent
    /// and has requests left, or else opens one, as a balancer's or a browser's do.
    pub pooled: bool,
    /// Where the processor is lent: this much of each so much longer period, in microseconds.
    pub lent: Option<(u64, u64)>,
    /// By what share the processor is slower or faster at most, by chance: from one 40 ms to the
    /// next, and a quarter of it from second to second.
    pub unsteady: f64,
    /// Whether those who are done come again, and how soon. Without, each comes once, at `rates`.
    pub returning: Option<Returning>,
    /// How long all of it lasts.
    pub seconds: f64,
    /// Clients that come before this are served like all, and left out of the times of good
    /// replies.
    pub timed_from_s: f64,
}

impl Default for Workload {
    /// A small file from memory on a slow processor, one request a connection, at half of what the
    /// server can do.
    fn default() -> Workload {
        Workload {
            rates: vec![(0.0, 3_125.0)],
            requests: 1,
            accept_us: 60,
            request_us: 100,
            reject_us: 90,
            wait_us: 20,
            wait_open_ns: 0,
            idle: 0,
            queue: 1024,
            deferred: true,
            trip_us: 200,
            lag_us: 2_000,
            linear_syns: true,
            remembers: false,
            connections_max: 15_000,
            eager: true,
            pause_us: 1_000,
            pooled: false,
            lent: None,
            unsteady: 0.0,
            returning: None,
            seconds: 12.0,
            timed_from_s: 0.0,
        }
    }
}

impl Workload {
    /// Connections a second that keep the processor busy all the time, if nothing else did; where
    /// they are pooled, requests.
    pub fn capacity(&self) -> f64 {
        let lent = self.lent.map_or(1.0, |(slice_us, period_us)| {
            slice_us as f64 / period_us as f64
        });
        let connections =
            1e6 / (self.accept_us + u64::from(self.requests) * self.request_us) as f64;
        let each = if self.pooled { self.requests } else { 1 };
        lent * connections * f64::from(each)
    }

    /// The same at one rate throughout.
    pub fn at(&self, rate: f64) -> Workload {
        Workload {
            rates: vec![(0.0, rate)],
            ..self.clone()
        }
    }

    pub(super) fn rate(&self, now_us: u64) -> f64 {
        let now_s = now_us as f64 / 1e6;
        let begun = self.rates.iter().rev().find(|(from_s, _)| *from_s <= now_s);
        begun.map_or(0.0, |(_, rate)| *rate)
    }
}

/// A closed loop: always the same clients, and none is replaced while it waits. All have come for
/// the first time within `think_us`.
#[derive(Clone, Debug)]
pub struct Returning {
    /// How many.
    pub clients: u32,
    /// From its last reply, or from giving up, until a client comes again: by chance, this in the
    /// mean.
    pub think_us: u64,
    /// From being turned away until it comes again: these in turn, one at least.
    pub told_us: Vec<u64>,
}
