//! The load on the simulated server, and its costs.

/// The load on the simulated server, and its costs.
#[derive(Clone, Debug)]
pub struct Workload {
    /// New connections per second, or requests where they are `pooled`: each rate from its second
    /// on, ascending.
    pub rates: Vec<(f64, f64)>,
    /// Requests per connection, one after the other.
    pub requests: u32,
    /// CPU time to accept a connection.
    pub accept_us: u64,
    /// CPU time of a request.
    pub request_us: u64,
    /// CPU time to reject a connection, accepting it included.
    pub reject_us: u64,
    /// CPU time of an event wait.
    pub wait_us: u64,
    /// CPU time of an event wait per open connection, in nanoseconds: for select and poll, not for
    /// epoll.
    pub wait_open_ns: u64,
    /// Connections that are open and idle all the time.
    pub idle: u32,
    /// Largest length of the kernel's accept queue.
    pub backlog: u32,
    /// Whether the kernel holds connections until their request has arrived (`TCP_DEFER_ACCEPT`).
    pub deferred: bool,
    /// Time from the SYN-ACK until the server has the last segment of the handshake.
    pub trip_us: u64,
    /// Time from a connection's handshake to its first request.
    pub lag_us: u64,
    /// Whether an unanswered SYN is retransmitted every second (Linux 6.5 and later), or after 1 s
    /// and 3 s.
    pub linear_syns: bool,
    /// Whether the SYN filter remembers rejected clients, which needs a privilege.
    pub stateful_filter: bool,
    /// Limit of open connections.
    pub connections_max: u32,
    /// Whether a connection is read and answered as soon as it is accepted.
    pub eager: bool,
    /// Time from a response to the next request of the same client.
    pub pause_us: u64,
    /// Whether `rates` are of requests instead of clients: each uses an idle connection with
    /// requests left, or opens one, as those of a load balancer or a browser do.
    pub pooled: bool,
    /// A CPU quota: the slice of each period, both in microseconds.
    pub cpu_quota: Option<(u64, u64)>,
    /// Largest random change of the CPU speed: by this fraction from one 40 ms to the next, and by
    /// a quarter of it from second to second.
    pub cpu_jitter: f64,
    /// Whether clients return, and how soon. Without it, each comes once, at `rates`.
    pub returning: Option<ReturningClients>,
    /// Duration of the simulation.
    pub seconds: f64,
    /// Requests that begin before this are left out of the response times.
    pub timed_from_s: f64,
}

impl Default for Workload {
    /// A small file from memory on a slow CPU, one request per connection, at half of the capacity.
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
            backlog: 1024,
            deferred: true,
            trip_us: 200,
            lag_us: 2_000,
            linear_syns: true,
            stateful_filter: false,
            connections_max: 15_000,
            eager: true,
            pause_us: 1_000,
            pooled: false,
            cpu_quota: None,
            cpu_jitter: 0.0,
            returning: None,
            seconds: 12.0,
            timed_from_s: 0.0,
        }
    }
}

impl Workload {
    /// Connections per second that keep the CPU busy all the time if nothing else does; requests
    /// where they are pooled.
    pub fn capacity(&self) -> f64 {
        let quota = self.cpu_quota.map_or(1.0, |(slice_us, period_us)| {
            slice_us as f64 / period_us as f64
        });
        let connections =
            1e6 / (self.accept_us + u64::from(self.requests) * self.request_us) as f64;
        let each = if self.pooled { self.requests } else { 1 };
        quota * connections * f64::from(each)
    }

    /// The workload at one constant rate.
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

/// A closed loop: always the same clients, and none is replaced while it waits. All come for the
/// first time within `think_us`.
#[derive(Clone, Debug)]
pub struct ReturningClients {
    /// Number of clients.
    pub clients: u32,
    /// Mean random time from a client's last response or timeout until it returns.
    pub think_us: u64,
    /// Times from a rejection until the client returns, used in turn; at least one.
    pub retry_after_us: Vec<u64>,
}
