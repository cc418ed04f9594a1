//! Accepts connections in batches, as many as the [`Acceptor`](super::acceptor::Acceptor) says, and
//! the last ones before the worker ends. What is over the limits stays in the accept queue.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use headway_event::Interest;

use super::acceptor::{Acceptor, NO_DEADLINE_MS};
use super::{Disposition, Worker};
use crate::accept::Accepted;
use crate::connection::{Connection, Phase};

/// While draining, how long a client that has sent nothing yet may take to send a request.
const FIRST_REQUEST_MS: u64 = 1_000;

/// Why a batch ended, and so whether connections may be left in the accept queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchEnd {
    QueueEmpty,
    /// Connections may be left.
    LimitReached,
    /// There is no slot or no descriptor for another connection.
    NoRoom,
}

impl Worker {
    /// Handles a ready listener: accepts one batch.
    pub(super) fn accept(&mut self, listener: u32) {
        // While draining, connections are accepted at the end of each iteration.
        if self.acceptor.last_clients.is_some() {
            return;
        }
        self.context.counters.accept_wakeups += 1;
        let Some(limit) = self.acceptor.batch_share(&mut self.context, listener) else {
            return;
        };
        let now_ms = self.context.clock.now_ms();
        let end_ms = Acceptor::batch_end_ms(&self.context, now_ms);
        let (taken, left) = self.accept_batch(listener, limit, end_ms);
        match (taken, left) {
            // A lagging loop accepts nothing; another worker may not lag.
            (0, BatchEnd::LimitReached) => self.acceptor.listeners.mark_undrained(),
            (0, _) => {}
            _ => self
                .acceptor
                .listeners
                .pass_on(&mut self.context.events, &self.context.tracer),
        }
    }

    /// Accepts connections for those that have closed (`accept_on_close`): one batch for each, as
    /// the micro-server did. Connections of these batches may close again at once and are counted,
    /// unless the iteration is already long.
    pub(super) fn accept_for_closed(&mut self) {
        let (given, mut batches) = (self.acceptor.accepts_owed, 0);
        let listeners = self.acceptor.listeners.len();
        let end_ms = Acceptor::batch_end_ms(&self.context, self.context.now_ms);
        while self.acceptor.accepts_owed > 0
            && (batches < given || !Acceptor::is_past(&self.context, end_ms))
        {
            self.acceptor.accepts_owed -= 1;
            batches += 1;
            self.context.counters.accept_batches_on_close += 1;
            // Each listener comes first in turn. A worker that is ending has no listeners.
            let first = (self.context.counters.accept_batches_on_close
                % u64::from(listeners.max(1))) as u32;
            for listener in (first..listeners).chain(0..first) {
                if let Some(limit) = self.acceptor.batch_share(&mut self.context, listener) {
                    self.accept_batch(listener, limit, end_ms);
                }
            }
        }
        self.acceptor.accepts_owed = 0;
    }

    /// Accepts at most `limit` connections, and only one after `end_ms`. Returns the number
    /// accepted and why the batch ended.
    fn accept_batch(&mut self, listener: u32, limit: u32, end_ms: u64) -> (u32, BatchEnd) {
        let begun = self.acceptor.auto.as_ref().map(|_| Instant::now());
        // Connections beyond this worker's share belong to other workers.
        let is_whole = limit >= self.acceptor.batch_limit(&self.context);
        let (taken, mut left) = self.accept_connections(listener, limit, end_ms);
        if let (Some(auto), Some(begun)) = (&mut self.acceptor.auto, begun) {
            auto.record_accepted(begun, taken);
            if left == BatchEnd::LimitReached
                && is_whole
                && !self.acceptor.shed_load(&mut self.context, listener)
            {
                left = BatchEnd::QueueEmpty;
            }
        }
        if let Some(auto) = &mut self.acceptor.auto {
            auto.record_pending(left != BatchEnd::QueueEmpty);
        }
        (taken, left)
    }

    fn accept_connections(&mut self, listener: u32, limit: u32, end_ms: u64) -> (u32, BatchEnd) {
        let mut taken = 0;
        let left = loop {
            self.acceptor.pause_if_short(&mut self.context);
            if taken == limit || (taken > 0 && Acceptor::is_past(&self.context, end_ms)) {
                break BatchEnd::LimitReached;
            }
            if self.context.connections.len() >= self.context.config.max_connections as usize {
                self.acceptor
                    .listeners
                    .set_full(true, &mut self.context.events);
                break BatchEnd::NoRoom;
            }
            self.context.counters.accept_calls += 1;
            match self
                .acceptor
                .listeners
                .accept(listener, &self.context.tracer)
            {
                Accepted::Connection(socket, client) => {
                    taken += 1;
                    self.register(socket, client);
                }
                Accepted::QueueEmpty => {
                    self.acceptor
                        .listeners
                        .drained(listener, &mut self.context.events);
                    break BatchEnd::QueueEmpty;
                }
                Accepted::Paused => break BatchEnd::NoRoom,
                Accepted::Exhausted(error) => {
                    self.acceptor.pause_after(&mut self.context, error);
                    break BatchEnd::NoRoom;
                }
            }
        };
        self.context
            .counters
            .accept_batch_connections
            .record(u64::from(taken));
        (taken, left)
    }

    /// Registers a new connection and reads from it at once, unless eager reads are off: the
    /// request has usually arrived with it, and then the event mechanism need not know the socket.
    fn register(&mut self, socket: OwnedFd, client: SocketAddr) {
        if !self.acceptor.addresses.enter(client.ip()) {
            return Acceptor::reject_connection(&mut self.context, socket, client);
        }
        self.context.counters.connections_accepted += 1;
        let slot = self
            .context
            .connections
            .insert(|token| Connection::new(socket, client, token));
        self.context.deadlines.set(
            slot,
            self.context.now_ms + self.context.config.header_timeout_ms,
        );
        let open = self.context.connections.len() as u64;
        self.context.counters.connections_at_accept.record(open);
        if let Some(balance) = &self.acceptor.balance {
            balance.publish(open as u32);
        }
        let eager = self.context.config.research.eager_read;
        self.with_connection(slot, |worker, connection| {
            if eager {
                return worker.receive(connection);
            }
            worker.context.watch(connection, Interest::READ);
            Disposition::Keep
        });
    }

    /// Starts draining: requests in flight are finished, idle connections close, and after the
    /// current accept queue no connection is accepted. The queue is emptied first, because closing
    /// a listener resets its connections.
    pub(super) fn drain(&mut self, timeout_ms: u64) {
        self.context.draining_until_ms = Some(self.context.now_ms + timeout_ms);
        if self.acceptor.auto.is_some() {
            let (queue, deferred) = (
                self.context.config.backlog,
                self.context.config.defer_accept,
            );
            self.acceptor.listeners.reset_policy(queue, deferred);
        }
        // The kernel admits one connection more than the backlog. Others arrive while these are
        // accepted, and as many are reset in the end as were accepted instead.
        let queue = self.context.config.backlog.saturating_add(1);
        self.acceptor.last_clients = Some(queue.saturating_mul(self.acceptor.listeners.len()));
    }

    /// Accepts the last connections, some per iteration, so that requests in flight continue; then
    /// closes the listeners.
    pub(super) fn accept_last(&mut self) {
        let Some(mut left) = self.acceptor.last_clients else {
            return;
        };
        let mut more = false;
        for listener in 0..self.acceptor.listeners.len() {
            let limit = self.acceptor.drain_batch_limit(&self.context, left);
            let (taken, others) = self.accept_batch(listener, limit, NO_DEADLINE_MS);
            left -= taken;
            more |= others == BatchEnd::LimitReached;
        }
        if more && left > 0 {
            self.acceptor.last_clients = Some(left);
            return;
        }
        self.acceptor.last_clients = None;
        self.acceptor.listeners.close(&mut self.context.events);
        self.close_idle_connections();
    }

    fn close_idle_connections(&mut self) {
        for slot in self.context.connections.occupied() {
            let Some(connection) = self.context.connections.get(slot) else {
                continue;
            };
            let silent = matches!(connection.phase, Phase::Head) && connection.rx_buffer.is_empty();
            match (silent, connection.requests) {
                (false, _) => connection.keep_alive = false,
                // The first request may be on its way.
                (true, 0) => self
                    .context
                    .deadlines
                    .set(slot, self.context.now_ms + FIRST_REQUEST_MS),
                (true, _) => self.close(slot),
            }
        }
    }
}
