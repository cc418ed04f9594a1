//! Chooses among several upstreams, and ejects failing ones for a while.
//!
//! Health checks are passive: they use the outcome of requests, and send none of their own. An
//! upstream that fails several times in a row is *ejected*: it gets no requests until a back-off is
//! over, then one request as a probe. Each failed probe doubles the back-off. If all upstreams are
//! ejected, the one whose back-off ends first is used anyway, because refusing requests would help
//! no client.
//!
//! No clock is read: every call passes the time in milliseconds of any monotonic clock.

use super::health::Health;

/// Most upstreams in one pool.
pub const UPSTREAMS_MAX: usize = 64;

/// How one of the available upstreams is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadBalancing {
    /// One upstream after the other.
    RoundRobin,
    /// The upstream with the fewest requests in progress; round-robin among equals.
    #[default]
    LeastConnections,
}

/// The rules of an upstream pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamPolicy {
    /// How an upstream is chosen.
    pub load_balancing: LoadBalancing,
    /// Most requests in progress per upstream.
    pub requests_max: u32,
    /// Most upstreams tried for one request, including the first.
    pub attempts_max: u32,
    /// Failures in a row that eject an upstream.
    pub failures_max: u32,
    /// Failures further apart than this are not in a row.
    pub failure_window_ms: u64,
    /// Duration of the first ejection.
    pub ejection_ms: u64,
    /// Longest duration of repeated ejections.
    pub ejection_ms_max: u64,
}

impl Default for UpstreamPolicy {
    fn default() -> Self {
        UpstreamPolicy {
            load_balancing: LoadBalancing::default(),
            requests_max: 128,
            attempts_max: 2,
            failures_max: 3,
            failure_window_ms: 30_000,
            ejection_ms: 1_000,
            ejection_ms_max: 60_000,
        }
    }
}

/// The upstreams that have been tried for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TriedUpstreams(u64);

impl TriedUpstreams {
    fn has(self, upstream: usize) -> bool {
        self.0 & 1 << upstream != 0
    }

    /// Allows this upstream to be tried again: an idle connection failed, not the upstream.
    pub fn forget(&mut self, upstream: usize) {
        self.0 &= !(1 << upstream);
    }

    /// How many have been tried.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// The use of an upstream by one request, to be returned with [`UpstreamSelector::end`] exactly
/// once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lease that is not ended counts as a request under way forever"]
pub struct Lease {
    upstream: usize,
    is_probe: bool,
}

impl Lease {
    /// The index of the upstream.
    pub fn upstream(&self) -> usize {
        self.upstream
    }
}

/// Why no upstream was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The remaining upstreams are at their limit of requests: the request waits or gets 503.
    #[error("every upstream is at its limit of requests")]
    Busy,
    /// As many as the policy allows have been tried: 502, or 504 after a timeout.
    #[error("no upstream is left to try")]
    Exhausted,
}

/// How a request ended, as far as it concerns the upstream's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamOutcome {
    /// The upstream answered, whatever the status: an error of the application is not an error of
    /// its server.
    Answered,
    /// Connection refused, closed early, overloaded, protocol violation or timeout.
    Failed,
    /// Nothing is known: the client left.
    Unknown,
}

/// The status of one upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamView {
    /// Requests in progress.
    pub requests: u32,
    /// Failures in a row since the last ejection.
    pub failures: u32,
    /// Ejections since the last answer.
    pub ejections: u32,
    /// Remaining time of the ejection; `None` if it is not ejected.
    pub ejected_ms: Option<u64>,
}

/// Chooses among upstreams that can all answer the same requests.
///
/// ```
/// use headway_gateway::upstream::{UpstreamOutcome, UpstreamPolicy, TriedUpstreams, UpstreamSelector};
///
/// let mut selector = UpstreamSelector::new(2, UpstreamPolicy::default(), 0);
/// let mut tried = TriedUpstreams::default();
/// let first = selector.choose(0, &mut tried).unwrap();
/// selector.end(first, 5, UpstreamOutcome::Failed);
/// let second = selector.choose(5, &mut tried).unwrap();
/// assert_eq!(second.upstream(), 1);
/// selector.end(second, 9, UpstreamOutcome::Answered);
/// ```
#[derive(Debug)]
pub struct UpstreamSelector {
    policy: UpstreamPolicy,
    upstreams: Vec<UpstreamState>,
    /// Where the next search starts.
    next: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct UpstreamState {
    requests: u32,
    health: Health,
}

impl UpstreamSelector {
    /// A selector for this many upstreams, at most [`UPSTREAMS_MAX`]; more are ignored. `start` is
    /// the first one used; it should differ between workers, so that they do not all start with the
    /// same upstream.
    pub fn new(count: usize, policy: UpstreamPolicy, start: usize) -> UpstreamSelector {
        let count = count.min(UPSTREAMS_MAX);
        UpstreamSelector {
            policy,
            upstreams: vec![UpstreamState::default(); count],
            next: start % count.max(1),
        }
    }

    /// Chooses an upstream for a request, other than those already tried for it.
    ///
    /// # Errors
    /// When none is available.
    pub fn choose(
        &mut self,
        now_ms: u64,
        tried: &mut TriedUpstreams,
    ) -> Result<Lease, Unavailable> {
        let left = self.upstreams.len() as u32 - tried.count().min(self.upstreams.len() as u32);
        if tried.count() >= self.policy.attempts_max || left == 0 {
            return Err(Unavailable::Exhausted);
        }
        let upstream = self
            .fit(now_ms, *tried)
            .or_else(|| self.first_available(*tried))
            .ok_or(Unavailable::Busy)?;
        tried.0 |= 1 << upstream;
        self.next = (upstream + 1) % self.upstreams.len();
        let chosen = &mut self.upstreams[upstream];
        chosen.requests += 1;
        Ok(Lease {
            upstream,
            is_probe: chosen.health.begin_probe(now_ms),
        })
    }

    /// Ends a request.
    pub fn end(&mut self, lease: Lease, now_ms: u64, outcome: UpstreamOutcome) {
        let upstream = &mut self.upstreams[lease.upstream];
        upstream.requests = upstream.requests.saturating_sub(1);
        let health = &mut upstream.health;
        match outcome {
            UpstreamOutcome::Answered => health.answered(),
            UpstreamOutcome::Failed => health.failed(now_ms, lease.is_probe, &self.policy),
            UpstreamOutcome::Unknown if lease.is_probe => health.abandon_probe(),
            UpstreamOutcome::Unknown => {}
        }
    }

    /// The status of each upstream, in order.
    pub fn views(&self, now_ms: u64) -> impl Iterator<Item = UpstreamView> {
        self.upstreams.iter().map(move |upstream| UpstreamView {
            requests: upstream.requests,
            failures: upstream.health.failures,
            ejections: upstream.health.ejections,
            ejected_ms: upstream.health.ejected_ms(now_ms),
        })
    }

    /// Upstreams below their limit that have not been tried, starting with the next in turn.
    fn open(&self, tried: TriedUpstreams) -> impl Iterator<Item = usize> {
        let count = self.upstreams.len();
        (0..count)
            .map(move |offset| (self.next + offset) % count)
            .filter(move |at| !tried.has(*at))
            .filter(move |at| self.upstreams[*at].requests < self.policy.requests_max)
    }

    fn fit(&self, now_ms: u64, tried: TriedUpstreams) -> Option<usize> {
        let mut fit = self
            .open(tried)
            .filter(|at| self.upstreams[*at].health.is_available(now_ms));
        match self.policy.load_balancing {
            LoadBalancing::RoundRobin => fit.next(),
            // The first of equals, which is the next in turn.
            LoadBalancing::LeastConnections => fit.min_by_key(|at| self.upstreams[*at].requests),
        }
    }

    /// If all are ejected: the one whose ejection ends first.
    fn first_available(&self, tried: TriedUpstreams) -> Option<usize> {
        self.open(tried)
            .min_by_key(|at| self.upstreams[*at].health.ejected_until_ms)
    }
}
