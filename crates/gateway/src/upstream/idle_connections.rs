//! Idle keep-alive connections to upstreams.
//!
//! The caller decides what a connection is; only its idle time is known here. The most recently
//! used one is taken first: its upstream is the least likely to have closed it, and surplus ones
//! expire. An upstream can close a connection at any moment; a caller that finds one closed before
//! the first byte of a response asks [`may_retry`](crate::upstream::may_retry).

use std::collections::VecDeque;

/// Limits of idle connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleLimits {
    /// Most idle connections per upstream; 0 keeps none. Each occupies a whole php-fpm process,
    /// which then serves no other client.
    pub connections_max: usize,
    /// Longest idle time. Less than upstreams usually allow (php-fpm has no limit, nginx 75 s,
    /// Apache 5 s).
    pub idle_ms_max: u64,
}

impl Default for IdleLimits {
    fn default() -> Self {
        IdleLimits {
            connections_max: 16,
            idle_ms_max: 4_000,
        }
    }
}

/// The idle connections of an upstream pool.
///
/// ```
/// use headway_gateway::upstream::{IdleConnections, IdleLimits};
///
/// let mut idle = IdleConnections::new(1, IdleLimits::default());
/// assert_eq!(idle.put(0, "first", 10), None);
/// assert_eq!(idle.put(0, "second", 20), None);
/// assert_eq!(idle.take(0), Some("second"));
/// assert_eq!(idle.deadline_ms(), Some(4_010));
/// assert_eq!(idle.expired(4_010), Some("first"));
/// ```
#[derive(Debug)]
pub struct IdleConnections<T> {
    limits: IdleLimits,
    /// By upstream: the connections and when they became idle, the oldest first.
    waiting: Vec<VecDeque<(u64, T)>>,
}

impl<T> IdleConnections<T> {
    /// An empty list for this many upstreams.
    pub fn new(upstreams: usize, limits: IdleLimits) -> IdleConnections<T> {
        IdleConnections {
            limits,
            waiting: (0..upstreams).map(|_| VecDeque::new()).collect(),
        }
    }

    /// Adds an idle connection. The returned one must be closed: the oldest if there are too many,
    /// or this one if none are kept.
    #[must_use = "what comes back is to be closed"]
    pub fn put(&mut self, upstream: usize, connection: T, now_ms: u64) -> Option<T> {
        let waiting = &mut self.waiting[upstream];
        waiting.push_back((now_ms, connection));
        let is_full = waiting.len() > self.limits.connections_max;
        waiting.pop_front_if(|_| is_full).map(|(_, oldest)| oldest)
    }

    /// Takes the most recently used connection to this upstream.
    pub fn take(&mut self, upstream: usize) -> Option<T> {
        self.waiting[upstream].pop_back().map(|(_, newest)| newest)
    }

    /// Removes a connection that the upstream has closed or sent unexpected data over.
    pub fn remove(&mut self, upstream: usize, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let waiting = &mut self.waiting[upstream];
        let at = waiting
            .iter()
            .position(|(_, connection)| is_it(connection))?;
        waiting.remove(at).map(|(_, found)| found)
    }

    /// Takes a connection that has expired; call it until it returns `None`.
    pub fn expired(&mut self, now_ms: u64) -> Option<T> {
        let idle_ms_max = self.limits.idle_ms_max;
        let is_over = |(since_ms, _): &mut (u64, T)| now_ms >= since_ms.saturating_add(idle_ms_max);
        self.waiting
            .iter_mut()
            .find_map(|waiting| waiting.pop_front_if(is_over))
            .map(|(_, connection)| connection)
    }

    /// When the next connection expires.
    pub fn deadline_ms(&self) -> Option<u64> {
        let oldest = self.waiting.iter().filter_map(VecDeque::front);
        oldest
            .map(|(since_ms, _)| since_ms.saturating_add(self.limits.idle_ms_max))
            .min()
    }

    /// Number of idle connections.
    pub fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Number of idle connections to this upstream.
    pub fn count(&self, upstream: usize) -> usize {
        self.waiting[upstream].len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: IdleLimits = IdleLimits {
        connections_max: 2,
        idle_ms_max: 100,
    };

    #[test]
    fn oldest_idle_connection_is_evicted_above_the_limit() {
        let mut idle = IdleConnections::new(2, LIMITS);
        assert_eq!(idle.put(0, 'a', 1), None);
        assert_eq!(idle.put(0, 'b', 2), None);
        assert_eq!(idle.put(1, 'c', 3), None);
        assert_eq!(idle.put(0, 'd', 4), Some('a'));
        assert_eq!((idle.len(), idle.is_empty()), (3, false));
        assert_eq!((idle.count(0), idle.count(1)), (2, 1));
        assert_eq!(
            [idle.take(0), idle.take(0), idle.take(0)],
            [Some('d'), Some('b'), None]
        );
        assert_eq!(idle.take(1), Some('c'));
        assert!(idle.is_empty());
    }

    #[test]
    fn no_idle_connection_is_kept_with_limit_zero() {
        let mut idle = IdleConnections::new(
            1,
            IdleLimits {
                connections_max: 0,
                ..LIMITS
            },
        );
        assert_eq!(idle.put(0, 'a', 1), Some('a'));
        assert_eq!(idle.take(0), None);
    }

    #[test]
    fn idle_connection_is_removed_on_expiry_or_close() {
        let mut idle = IdleConnections::new(2, LIMITS);
        for (upstream, connection, now_ms) in [(0, 'a', 10), (1, 'b', 5), (0, 'c', 50)] {
            assert_eq!(idle.put(upstream, connection, now_ms), None);
        }
        assert_eq!(idle.deadline_ms(), Some(105));
        assert_eq!(idle.expired(104), None);
        assert_eq!(
            (idle.expired(110), idle.expired(110), idle.expired(110)),
            (Some('a'), Some('b'), None)
        );
        assert_eq!(idle.remove(0, |connection| *connection == 'x'), None);
        assert_eq!(idle.remove(0, |connection| *connection == 'c'), Some('c'));
        assert_eq!(idle.deadline_ms(), None);
    }
}
