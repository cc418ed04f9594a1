//! Which of several back ends is asked, and which are left alone for a while.
//!
//! Health is passive: it is learnt from requests, none are sent for it. A back end that fails some
//! times in a row is *ejected*: it gets nothing until a back-off is over, then one request as a
//! probe, and after each failed probe it waits twice as long. Nothing here is certain knowledge, so
//! when every back end is ejected the one whose time is up first is asked all the same: a refusal
//! nobody tried to avoid would help no client.
//!
//! No clock is read: every call brings the time, in milliseconds of any steady clock.

mod address;
mod health;
mod idle;
mod retry;

use crate::upstream::health::Health;

pub use address::{Address, AddressError};
pub use idle::{Idle, IdleLimits};
pub use retry::{Stage, is_idempotent, may_retry};

/// Most back ends in one group.
pub const BACK_ENDS_MAX: usize = 64;

/// How a back end is chosen among those that are fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// One after the other.
    RoundRobin,
    /// The one with the fewest requests under way, in turns among equals.
    #[default]
    LeastConnections,
}

/// The rules of a group of back ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How a back end is chosen.
    pub choice: Choice,
    /// Most requests under way at one back end.
    pub requests_max: u32,
    /// Most back ends asked for one request, the first included.
    pub attempts_max: u32,
    /// Failures in a row that eject a back end.
    pub failures_max: u32,
    /// Two failures further apart than this are not in a row.
    pub failure_window_ms: u64,
    /// How long the first ejection lasts.
    pub ejection_ms: u64,
    /// The longest that repeated ejections get.
    pub ejection_ms_max: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            choice: Choice::default(),
            requests_max: 128,
            attempts_max: 2,
            failures_max: 3,
            failure_window_ms: 30_000,
            ejection_ms: 1_000,
            ejection_ms_max: 60_000,
        }
    }
}

/// The back ends that have been asked for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried(u64);

impl Tried {
    fn has(self, back_end: usize) -> bool {
        self.0 & 1 << back_end != 0
    }

    /// This one may be asked again: what failed was a connection that had waited, not the back end.
    pub fn forget(&mut self, back_end: usize) {
        self.0 &= !(1 << back_end);
    }

    /// How many there were.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// A back end's promise to serve a request, to be given back by [`Upstream::end`] exactly once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lease that is not ended counts as a request under way forever"]
pub struct Lease {
    back_end: usize,
    is_probe: bool,
}

impl Lease {
    /// Its place in the list of back ends.
    pub fn back_end(&self) -> usize {
        self.back_end
    }
}

/// Why no back end is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Those that are left have as much to do as they may: the request waits or is answered
    /// with 503.
    #[error("every back end has as many requests as it may have")]
    Busy,
    /// As many as the policy allows have been asked: 502, or 504 after a time-out.
    #[error("every back end that may be asked has been")]
    Exhausted,
}

/// How a request ended, as far as it tells something about the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It answered, whatever the status: a program's mistake is not its server's.
    Answered,
    /// It could not be connected to, closed early, was overloaded, broke the protocol, took too
    /// long.
    Failed,
    /// Nothing can be said: the client went away.
    Unknown,
}

/// What is known of one back end, for the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Requests under way.
    pub requests: u32,
    /// Failures in a row since the last ejection.
    pub failures: u32,
    /// Ejections since it answered last.
    pub ejections: u32,
    /// How much longer it is left alone; none if it is not.
    pub ejected_ms: Option<u64>,
}

/// A group of back ends that can all answer the same requests.
///
/// ```
/// use headway_gateway::upstream::{Outcome, Policy, Tried, Upstream};
///
/// let mut group = Upstream::new(2, Policy::default(), 0);
/// let mut tried = Tried::default();
/// let first = group.choose(0, &mut tried).unwrap();
/// group.end(first, 5, Outcome::Failed);
/// let second = group.choose(5, &mut tried).unwrap();
/// assert_eq!(second.back_end(), 1);
/// group.end(second, 9, Outcome::Answered);
/// ```
#[derive(Debug)]
pub struct Upstream {
    policy: Policy,
    back_ends: Vec<BackEnd>,
    /// Where the next search starts.
    next: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct BackEnd {
    requests: u32,
    health: Health,
}

impl Upstream {
    /// A group of so many back ends, at most [`BACK_ENDS_MAX`]; more are left out. `start` is the
    /// first in turn: workers that all began with the same one would send it everything at first.
    pub fn new(count: usize, policy: Policy, start: usize) -> Upstream {
        let count = count.min(BACK_ENDS_MAX);
        Upstream {
            policy,
            back_ends: vec![BackEnd::default(); count],
            next: start % count.max(1),
        }
    }

    /// A back end for a request, other than those that were tried for it.
    ///
    /// # Errors
    /// When there is none.
    pub fn choose(&mut self, now_ms: u64, tried: &mut Tried) -> Result<Lease, Unavailable> {
        let left = self.back_ends.len() as u32 - tried.count().min(self.back_ends.len() as u32);
        if tried.count() >= self.policy.attempts_max || left == 0 {
            return Err(Unavailable::Exhausted);
        }
        let back_end = self
            .fit(now_ms, *tried)
            .or_else(|| self.least_unfit(*tried))
            .ok_or(Unavailable::Busy)?;
        tried.0 |= 1 << back_end;
        self.next = (back_end + 1) % self.back_ends.len();
        let chosen = &mut self.back_ends[back_end];
        chosen.requests += 1;
        Ok(Lease {
            back_end,
            is_probe: chosen.health.begin_probe(now_ms),
        })
    }

    /// The request is over.
    pub fn end(&mut self, lease: Lease, now_ms: u64, outcome: Outcome) {
        let back_end = &mut self.back_ends[lease.back_end];
        back_end.requests = back_end.requests.saturating_sub(1);
        let health = &mut back_end.health;
        match outcome {
            Outcome::Answered => health.answered(),
            Outcome::Failed => health.failed(now_ms, lease.is_probe, &self.policy),
            Outcome::Unknown if lease.is_probe => health.abandon_probe(),
            Outcome::Unknown => {}
        }
    }

    /// What is known of each back end, in order.
    pub fn views(&self, now_ms: u64) -> impl Iterator<Item = View> {
        self.back_ends.iter().map(move |back_end| View {
            requests: back_end.requests,
            failures: back_end.health.failures,
            ejections: back_end.health.ejections,
            ejected_ms: back_end.health.ejected_ms(now_ms),
        })
    }

    /// Those with room that have not been tried, from the one whose turn it is.
    fn open(&self, tried: Tried) -> impl Iterator<Item = usize> {
        let count = self.back_ends.len();
        (0..count)
            .map(move |offset| (self.next + offset) % count)
            .filter(move |at| !tried.has(*at))
            .filter(move |at| self.back_ends[*at].requests < self.policy.requests_max)
    }

    fn fit(&self, now_ms: u64, tried: Tried) -> Option<usize> {
        let mut fit = self
            .open(tried)
            .filter(|at| self.back_ends[*at].health.is_fit(now_ms));
        match self.policy.choice {
            Choice::RoundRobin => fit.next(),
            // The first of equals, which is the one whose turn it is.
            Choice::LeastConnections => fit.min_by_key(|at| self.back_ends[*at].requests),
        }
    }

    /// When none is fit: the one whose ejection is over first.
    fn least_unfit(&self, tried: Tried) -> Option<usize> {
        self.open(tried)
            .min_by_key(|at| self.back_ends[*at].health.ejected_until_ms)
    }
}
