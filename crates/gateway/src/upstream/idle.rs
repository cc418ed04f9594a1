//! Connections to back ends that wait for their next request.
//!
//! What a connection is, the caller decides; here it is only known how long it has waited. The one
//! that was used last is used next: the back end is the least likely to have closed it, and those
//! that are too many grow old and go. A back end can close one at any moment, so that whoever takes
//! one and finds it closed before the first byte of a reply asks
//! [`may_retry`](crate::upstream::may_retry).

use std::collections::VecDeque;

/// How many connections wait, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleLimits {
    /// Most connections that wait for one back end; 0 keeps none. Each occupies a whole process of
    /// php-fpm, which then answers nobody else.
    pub connections_max: usize,
    /// Longest wait. Below what back ends usually allow (php-fpm has no limit, nginx 75 s, Apache 5
    /// s).
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

/// The waiting connections of a group of back ends.
///
/// ```
/// use headway_gateway::upstream::{Idle, IdleLimits};
///
/// let mut idle = Idle::new(1, IdleLimits::default());
/// assert_eq!(idle.put(0, "first", 10), None);
/// assert_eq!(idle.put(0, "second", 20), None);
/// assert_eq!(idle.take(0), Some("second"));
/// assert_eq!(idle.deadline_ms(), Some(4_010));
/// assert_eq!(idle.expired(4_010), Some("first"));
/// ```
#[derive(Debug)]
pub struct Idle<T> {
    limits: IdleLimits,
    /// For each back end, with the time since when it waits, the oldest first.
    waiting: Vec<VecDeque<(u64, T)>>,
}

impl<T> Idle<T> {
    /// For so many back ends.
    pub fn new(back_ends: usize, limits: IdleLimits) -> Idle<T> {
        Idle {
            limits,
            waiting: (0..back_ends).map(|_| VecDeque::new()).collect(),
        }
    }

    /// A connection begins to wait. The one that is returned is to be closed: another that has
    /// waited longest, or this one if none is kept.
    #[must_use = "what comes back is to be closed"]
    pub fn put(&mut self, back_end: usize, connection: T, now_ms: u64) -> Option<T> {
        let waiting = &mut self.waiting[back_end];
        waiting.push_back((now_ms, connection));
        let is_full = waiting.len() > self.limits.connections_max;
        waiting.pop_front_if(|_| is_full).map(|(_, oldest)| oldest)
    }

    /// The connection to this back end that was used last.
    pub fn take(&mut self, back_end: usize) -> Option<T> {
        self.waiting[back_end].pop_back().map(|(_, newest)| newest)
    }

    /// A connection that its back end has closed or sent something over: it waits no longer.
    pub fn remove(&mut self, back_end: usize, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let waiting = &mut self.waiting[back_end];
        let at = waiting
            .iter()
            .position(|(_, connection)| is_it(connection))?;
        waiting.remove(at).map(|(_, found)| found)
    }

    /// A connection that has waited too long; to be asked again until there is none.
    pub fn expired(&mut self, now_ms: u64) -> Option<T> {
        let idle_ms_max = self.limits.idle_ms_max;
        let is_over = |(since_ms, _): &mut (u64, T)| now_ms >= since_ms.saturating_add(idle_ms_max);
        self.waiting
            .iter_mut()
            .find_map(|waiting| waiting.pop_front_if(is_over))
            .map(|(_, connection)| connection)
    }

    /// When the next one will have waited too long.
    pub fn deadline_ms(&self) -> Option<u64> {
        let oldest = self.waiting.iter().filter_map(VecDeque::front);
        oldest
            .map(|(since_ms, _)| since_ms.saturating_add(self.limits.idle_ms_max))
            .min()
    }

    /// How many wait, for the status page.
    pub fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// How many of them are connected to this back end.
    pub fn count(&self, back_end: usize) -> usize {
        self.waiting[back_end].len()
    }

    /// Whether none waits.
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
    fn oldest_goes_when_too_many_wait() {
        let mut idle = Idle::new(2, LIMITS);
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
    fn none_is_kept_when_none_may_be() {
        let mut idle = Idle::new(
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
    fn connections_go_when_their_time_is_up_or_their_back_end_closed_them() {
        let mut idle = Idle::new(2, LIMITS);
        for (back_end, connection, now_ms) in [(0, 'a', 10), (1, 'b', 5), (0, 'c', 50)] {
            assert_eq!(idle.put(back_end, connection, now_ms), None);
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
