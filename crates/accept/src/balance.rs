//! Accept balancing: which of the workers that share an accept queue accepts a connection.
//!
//! The kernel wakes workers without knowing how many connections they have, and the first one
//! accepts everything that is pending: 16 connections that come at once and stay would all go to
//! one worker. So each worker publishes its number of connections ([`SharedLines`]), and a batch
//! ends at the worker's share of all connections, pending ones included. A worker that has its
//! share while connections are pending *yields*: it does not poll the queue for a moment, or until
//! it has no more than the others. Meanwhile the others are notified
//! ([`super::Listeners::take_undrained`]). If they cannot accept, the moment ends and the worker
//! accepts all the same.
//!
//! Shares are rounded up, so there is always a worker below its share while connections are
//! pending. Workers that accept nothing, because they are full or have ended, have no share
//! ([`NOT_ACCEPTING`]).

use std::sync::atomic::Ordering;

use headway_os::shared_lines::SharedLines;

/// Longest time for which a worker yields, and shortest time until it may yield again.
const YIELD_DURATION_MS_MAX: u64 = 5;

/// Published by a worker that accepts nothing now.
pub const NOT_ACCEPTING: u64 = u64::MAX;

/// One worker's view of all workers.
pub struct Balance {
    /// A line per worker.
    shared: SharedLines,
    worker: usize,
    /// Yielding until then; `None` if not yielding.
    yield_until_ms: Option<u64>,
    /// When the worker may yield again.
    next_yield_ms: u64,
}

/// What a worker does about pending connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceDecision {
    /// Accept at most this many.
    Accept(u32),
    /// Leave the connections to the other workers.
    Yield,
}

impl Balance {
    /// For the worker with this number, which has no connections yet.
    pub fn new(shared: SharedLines, worker: u32) -> Balance {
        let balance = Balance {
            shared,
            worker: worker as usize,
            yield_until_ms: None,
            next_yield_ms: 0,
        };
        balance.publish(0);
        balance
    }

    /// Publishes this worker's number of connections; [`NOT_ACCEPTING`] if the others should leave
    /// none to it.
    pub fn publish(&self, connections: u64) {
        if let Some(line) = self.shared.lines().get(self.worker) {
            line.words[0].store(connections, Ordering::Relaxed);
        }
    }

    /// Whether another worker accepts connections and has fewer than `limit`.
    pub fn another_has_room(&self, limit: u64) -> bool {
        let mut workers = self.published().enumerate();
        workers.any(|(number, connections)| number != self.worker && connections < limit)
    }

    /// Decides for a worker with `own` connections while `pending` ones wait in the queue.
    pub fn decide(&mut self, own: u32, pending: u32, now_ms: u64) -> BalanceDecision {
        if self.yield_until_ms.is_some() {
            return BalanceDecision::Yield;
        }
        self.publish(own.into());
        let (all, workers) = self.totals();
        let share = all.saturating_add(pending).div_ceil(workers);
        if own < share {
            return BalanceDecision::Accept(share - own);
        }
        if pending == 0 || now_ms < self.next_yield_ms {
            return BalanceDecision::Accept(pending.div_ceil(workers).max(1));
        }
        self.yield_until_ms = Some(now_ms + YIELD_DURATION_MS_MAX);
        self.next_yield_ms = now_ms + 2 * YIELD_DURATION_MS_MAX;
        BalanceDecision::Yield
    }

    /// Ends yielding if it is time, and returns whether it ended.
    pub fn resume(&mut self, own: u32, now_ms: u64) -> bool {
        let ends = self
            .yield_until_ms
            .is_some_and(|until| now_ms >= until || self.is_within_share(own));
        if ends {
            self.yield_until_ms = None;
        }
        ends
    }

    /// When yielding ends, if this worker yields.
    pub fn next_ms(&self) -> Option<u64> {
        self.yield_until_ms
    }

    fn is_within_share(&self, own: u32) -> bool {
        let (all, workers) = self.totals();
        own <= all / workers
    }

    /// Connections of all accepting workers, and the number of these workers, at least 1.
    fn totals(&self) -> (u32, u32) {
        let accepting = self.published().filter(|number| *number != NOT_ACCEPTING);
        let (all, workers) = accepting.fold((0_u64, 0), |(all, workers), number| {
            (all.saturating_add(number), workers + 1)
        });
        (u32::try_from(all).unwrap_or(u32::MAX), workers.max(1))
    }

    fn published(&self) -> impl Iterator<Item = u64> {
        let lines = self.shared.lines().iter();
        lines.map(|line| line.words[0].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four() -> Vec<Balance> {
        let shared = SharedLines::new(4).unwrap();
        let again = || {
            let file = rustix::io::fcntl_dupfd_cloexec(&shared, 0).unwrap();
            SharedLines::open(file).unwrap()
        };
        (0..4).map(|worker| Balance::new(again(), worker)).collect()
    }

    #[test]
    fn each_worker_accepts_its_share_in_a_burst() {
        let mut workers = four();
        // The same worker is woken until it yields, then the next one.
        let (mut own, mut pending) = ([0; 4], 18);
        for worker in 0..4 {
            while let BalanceDecision::Accept(limit) =
                workers[worker].decide(own[worker], pending, 0)
            {
                let accepted = limit.min(pending);
                if accepted == 0 {
                    break;
                }
                own[worker] += accepted;
                pending -= accepted;
            }
        }
        assert_eq!((own, pending), ([5, 5, 5, 3], 0));
    }

    #[test]
    fn worker_yields_no_longer_than_its_limit() {
        let mut workers = four();
        workers[0].publish(10);
        assert_eq!(workers[0].decide(10, 1, 100), BalanceDecision::Yield);
        assert_eq!(workers[0].next_ms(), Some(100 + YIELD_DURATION_MS_MAX));
        assert!(!workers[0].resume(10, 100 + YIELD_DURATION_MS_MAX - 1));
        assert!(workers[0].resume(10, 100 + YIELD_DURATION_MS_MAX));
        let decision = workers[0].decide(10, 1, 100 + YIELD_DURATION_MS_MAX);
        assert_eq!(decision, BalanceDecision::Accept(1));
        assert_eq!(workers[0].next_ms(), None);
        let decision = workers[0].decide(11, 1, 100 + 2 * YIELD_DURATION_MS_MAX);
        assert_eq!(decision, BalanceDecision::Yield);
    }

    #[test]
    fn worker_accepts_the_share_of_workers_that_do_not_accept() {
        let mut workers = four();
        (1..4).for_each(|worker| workers[worker].publish(NOT_ACCEPTING));
        assert_eq!(workers[0].decide(10, 4, 0), BalanceDecision::Accept(4));
        workers[1].publish(10);
        assert_eq!(workers[0].decide(10, 4, 0), BalanceDecision::Accept(2));
    }

    #[test]
    fn yielding_ends_when_connections_have_closed() {
        let mut workers = four();
        workers[1].publish(4);
        assert_eq!(workers[0].decide(10, 1, 0), BalanceDecision::Yield);
        workers[0].publish(5);
        assert!(!workers[0].resume(5, 1));
        workers[0].publish(1);
        assert!(workers[0].resume(1, 1));
        assert!(!workers[0].resume(1, 100), "it does not yield any more");
    }
}
