//! Accepts connections in batches, as many as the [`Acceptor`] decides, and the last ones before the
//! worker ends. What is over the limits stays in the accept queue.
//!
//! A batch is a value: the worker takes connections from it one by one and lets each begin before
//! the next is accepted.

use std::iter::Chain;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Instant;

use headway_accept::Accepted;
use headway_connection::Connection;
use headway_control::Drain;

use super::refusals::Refusals;
use super::{Acceptor, NO_DEADLINE_MS};
use crate::worker::context::LoopContext;

/// Why a batch ended, and so whether connections may be left in the accept queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchEnd {
    QueueEmpty,
    /// Connections may be left.
    LimitReached,
    /// There is no slot or no descriptor for another connection.
    NoRoom,
}

/// A batch in progress: at most `limit` connections, and only one after `end_ms`.
pub(in crate::worker) struct Batch {
    listener: u32,
    limit: u32,
    end_ms: u64,
    begun: Option<Instant>,
    /// Otherwise connections are left to other workers.
    is_whole: bool,
    taken: u32,
    end: BatchEnd,
}

/// The batches for connections that have closed (`accept_on_close`): one for each and from every
/// listener, as the micro-server did. Connections of these batches may close again at once and are
/// counted, unless the iteration is already long.
pub(in crate::worker) struct OwedBatches {
    given: u32,
    begun: u32,
    end_ms: u64,
    listeners: Chain<Range<u32>, Range<u32>>,
}

/// What is left of the last connections.
pub(in crate::worker) struct LastBatches {
    left: u32,
    has_more: bool,
}

impl Acceptor {
    /// Begins a batch of a ready listener, unless this worker yields to others.
    pub(in crate::worker) fn begin_batch(
        &mut self,
        context: &mut LoopContext,
        listener: u32,
    ) -> Option<Batch> {
        // While draining, connections are accepted at the end of each iteration.
        if self.last_clients.is_some() {
            return None;
        }
        context.counters.accept_wakeups += 1;
        let limit = self.batch_share(context, listener)?;
        let end_ms = Acceptor::batch_end_ms(context, context.clock.now_ms());
        Some(self.batch(context, listener, limit, end_ms))
    }

    fn batch(&self, context: &LoopContext, listener: u32, limit: u32, end_ms: u64) -> Batch {
        Batch {
            listener,
            limit,
            end_ms,
            begun: self.auto.as_ref().map(|_| Instant::now()),
            is_whole: limit >= self.batch_limit(context),
            taken: 0,
            end: BatchEnd::LimitReached,
        }
    }

    /// Accepts and registers the next connection of a batch, and returns its slot; `None` at the
    /// end of the batch. If there is then one more than the limit, an idle one has to close.
    pub(in crate::worker) fn accept_next(
        &mut self,
        context: &mut LoopContext,
        batch: &mut Batch,
    ) -> Option<usize> {
        loop {
            self.pause_if_short(context);
            if batch.taken == batch.limit
                || (batch.taken > 0 && Acceptor::is_past(context, batch.end_ms))
            {
                batch.end = BatchEnd::LimitReached;
                return None;
            }
            // While draining, clients that have arrived before the end are accepted.
            let crowded = self.hold_crowded(context);
            if self.last_clients.is_none() && crowded.is_some_and(|from| batch.listener >= from) {
                batch.end = BatchEnd::NoRoom;
                return None;
            }
            if !self.has_room(context) {
                batch.end = self.end_without_room(context, batch.listener);
                return None;
            }
            context.counters.accept_calls += 1;
            batch.end = match self.listeners.accept(batch.listener, &context.tracer) {
                Accepted::Connection(socket, client) => {
                    batch.taken += 1;
                    match self.register(context, batch.listener, socket, client) {
                        Some(slot) => return Some(slot),
                        None => continue,
                    }
                }
                Accepted::QueueEmpty => {
                    self.listeners.drained(batch.listener, &mut context.events);
                    BatchEnd::QueueEmpty
                }
                Accepted::Paused => BatchEnd::NoRoom,
                Accepted::Exhausted(error) => {
                    self.pause_after(context, error);
                    BatchEnd::NoRoom
                }
            };
            return None;
        }
    }

    /// There is no room for the next connection of a batch, if there is one.
    fn end_without_room(&mut self, context: &mut LoopContext, listener: u32) -> BatchEnd {
        if self.listeners.pending(listener, &context.tracer) == 0 {
            self.listeners.drained(listener, &mut context.events);
            return BatchEnd::QueueEmpty;
        }
        self.set_full(context, true);
        BatchEnd::NoRoom
    }

    /// Registers a new connection, unless its address has too many.
    fn register(
        &mut self,
        context: &mut LoopContext,
        listener: u32,
        socket: OwnedFd,
        client: SocketAddr,
    ) -> Option<usize> {
        let handshake_ms = context.handshake_timeout_ms(listener);
        let proxies = &context.config.proxies;
        let is_proxy = !proxies.networks.is_empty() && proxies.networks.contains(client.ip());
        let awaits_header = is_proxy && proxies.proxy_protocol;
        if !is_proxy && !self.addresses.enter(client.ip()) {
            match handshake_ms {
                None => self.refusals.reject_address(context, socket, client),
                Some(_) => {
                    context.counters.connections_rejected_per_address += 1;
                    Refusals::reset(context, socket);
                }
            }
            return None;
        }
        context.counters.connections_accepted += 1;
        let address = self.of_listeners.get(listener as usize).copied();
        let slot = context.connections.insert(|token| {
            let mut connection = Connection::new(socket, client, token);
            connection.listener = address.unwrap_or(0);
            if handshake_ms.is_some() {
                connection.begin_tls();
            }
            if is_proxy {
                connection.come_from_proxy(awaits_header);
            }
            connection
        });
        let first_ms = handshake_ms.unwrap_or(context.config.header_timeout_ms);
        context.deadlines.set(slot, context.now_ms + first_ms);
        let open = context.connections.count() as u64;
        context.counters.connections_at_accept.record(open);
        if let Some(balance) = &self.balance {
            balance.publish(open);
        }
        Some(slot)
    }

    /// Accounts for a batch whose last connection has begun, and rejects what is too much.
    pub(in crate::worker) fn end_batch(&mut self, context: &mut LoopContext, batch: &mut Batch) {
        let taken = u64::from(batch.taken);
        context.counters.accept_batch_connections.record(taken);
        if let (Some(auto), Some(begun)) = (&mut self.auto, batch.begun) {
            auto.record_accepted(begun, batch.taken);
            if batch.end == BatchEnd::LimitReached
                && batch.is_whole
                && !self.shed_load(context, batch.listener)
            {
                batch.end = BatchEnd::QueueEmpty;
            }
        }
        if let Some(auto) = &mut self.auto {
            auto.record_pending(batch.end != BatchEnd::QueueEmpty);
        }
    }

    /// Lets the other workers accept what a ready listener may still have.
    pub(in crate::worker) fn pass_on(&mut self, context: &mut LoopContext, batch: &Batch) {
        match (batch.taken, batch.end) {
            // A lagging loop accepts nothing; another worker may not lag.
            (0, BatchEnd::LimitReached) => self.listeners.mark_undrained(),
            (0, _) => {}
            _ => self.listeners.pass_on(&mut context.events, &context.tracer),
        }
    }

    /// The batches for connections that have closed.
    pub(in crate::worker) fn owed_batches(&self, context: &LoopContext) -> OwedBatches {
        OwedBatches {
            given: self.accepts_owed,
            begun: 0,
            end_ms: Acceptor::batch_end_ms(context, context.now_ms),
            listeners: (0..0).chain(0..0),
        }
    }

    /// Begins the next of these batches.
    pub(in crate::worker) fn begin_owed(
        &mut self,
        context: &mut LoopContext,
        owed: &mut OwedBatches,
    ) -> Option<Batch> {
        loop {
            for listener in owed.listeners.by_ref() {
                if let Some(limit) = self.batch_share(context, listener) {
                    return Some(self.batch(context, listener, limit, owed.end_ms));
                }
            }
            let is_due = self.accepts_owed > 0
                && (owed.begun < owed.given || !Acceptor::is_past(context, owed.end_ms));
            if !is_due {
                self.accepts_owed = 0;
                return None;
            }
            self.accepts_owed -= 1;
            owed.begun += 1;
            context.counters.accept_batches_on_close += 1;
            // Each listener comes first in turn. A worker that is ending has no listeners.
            let listeners = self.listeners.count();
            let turn = context.counters.accept_batches_on_close;
            let first = (turn % u64::from(listeners.max(1))) as u32;
            owed.listeners = (first..listeners).chain(0..first);
        }
    }

    /// Starts draining: requests in flight are finished, idle connections close, and after the
    /// current accept queue no connection is accepted. The queue is emptied first, because closing
    /// a listener resets its connections.
    pub(in crate::worker) fn drain(&mut self, context: &mut LoopContext, drain: Drain) {
        context.draining_until_ms = Some(context.now_ms + drain.timeout_ms);
        context.drain_idle_ms = drain.idle_ms;
        let (backlog, deferred) = (context.config.backlog, context.config.defer_accept);
        if self.auto.is_some() {
            self.listeners
                .reset_policy(backlog, deferred, &context.tracer);
        }
        // The kernel admits one connection more than the backlog. Others arrive while these are
        // accepted, and as many are reset in the end as were accepted instead.
        let queue = backlog.saturating_add(1);
        self.last_clients = Some(queue.saturating_mul(self.listeners.count()));
    }

    /// The last connections, of which some are accepted per iteration, so that requests in flight
    /// continue.
    pub(in crate::worker) fn last_batches(&self) -> Option<LastBatches> {
        self.last_clients.map(|left| LastBatches {
            left,
            has_more: false,
        })
    }

    /// Begins a batch of the last connections.
    pub(in crate::worker) fn begin_last(
        &self,
        context: &LoopContext,
        listener: u32,
        last: &LastBatches,
    ) -> Batch {
        let limit = self.drain_batch_limit(context, last.left);
        self.batch(context, listener, limit, NO_DEADLINE_MS)
    }

    /// Closes the listeners after the last connections, and returns whether that is now.
    pub(in crate::worker) fn end_last(
        &mut self,
        context: &mut LoopContext,
        last: &LastBatches,
    ) -> bool {
        if last.has_more && last.left > 0 {
            self.last_clients = Some(last.left);
            return false;
        }
        self.last_clients = None;
        self.listeners.close(&mut context.events);
        true
    }
}

impl LastBatches {
    /// Accounts for a batch.
    pub(in crate::worker) fn count(&mut self, batch: &Batch) {
        self.left -= batch.taken;
        self.has_more |= batch.end == BatchEnd::LimitReached;
    }
}
