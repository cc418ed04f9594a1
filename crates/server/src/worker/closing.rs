//! Closes connections, and releases what each of them holds in the parts; the last connections of a
//! worker that ends.

use std::os::fd::AsFd;

use headway_connection::{Connection, Phase};
use headway_control::FromWorker;
use headway_metrics::calls::Call;
use rustix::net::Shutdown;

use super::acceptor::Acceptor;
use super::receiving::LINGER_TIMEOUT_MS;
use super::snapshot::snapshot;
use super::start::WorkerError;
use super::{Disposition, Worker};

/// Idle connections that close when descriptors run out: the reserve takes the first ones, new
/// connections get the others.
const EVICTED_PER_PAUSE: usize = 32;

/// While draining, how long a client that has sent nothing yet may take to send a request.
const FIRST_REQUEST_MS: u64 = 1_000;

impl Worker {
    /// Accepts the last connections before the worker ends, some per iteration.
    pub(super) fn accept_last(&mut self) {
        let Some(mut last) = self.acceptor.last_batches() else {
            return;
        };
        for listener in 0..self.acceptor.listeners.count() {
            let batch = self.acceptor.begin_last(&self.context, listener, &last);
            last.count(&self.run_batch(batch));
        }
        if self.acceptor.end_last(&mut self.context, &last) {
            self.close_idle_connections();
        }
    }

    /// What a worker does last: it reports its counters, and that it has drained.
    pub(super) fn end(&mut self) -> Result<(), WorkerError> {
        // Also log requests aborted by the drain deadline.
        for slot in self.context.connections.occupied() {
            self.close(slot);
        }
        self.context.flush_log();
        self.context.flush_spans();
        let snapshot = Box::new(snapshot(self));
        self.context.send_snapshot(0, snapshot);
        Ok(self.context.control.send(&FromWorker::Drained, &[])?)
    }

    /// Closes idle connections, and the others after their response: the worker ends.
    fn close_idle_connections(&mut self) {
        for slot in self.context.connections.occupied() {
            let since_ms = self.context.connections.waiting_since_ms(slot);
            self.with_connection(slot, |worker, connection| match since_ms {
                _ if connection.http2.is_some() => worker.end_http2(connection),
                Some(since_ms) => worker.end_silent(connection, since_ms),
                // Its header may have promised that the connection stays open.
                None if worker.context.drain_idle_ms > 0 => Disposition::Keep,
                None => {
                    connection.keep_alive = false;
                    Disposition::Keep
                }
            });
        }
    }

    /// Ends a connection that has waited for a request since `since_ms`, while draining.
    fn end_silent(&mut self, connection: &mut Connection, since_ms: u64) -> Disposition {
        if let Some(disposition) = self.receive_late(connection) {
            return disposition;
        }
        let context = &mut self.context;
        if connection.requests == 0 {
            // The first request may be on its way.
            context.set_timeout(connection, FIRST_REQUEST_MS.max(context.drain_idle_ms));
            return Disposition::Keep;
        }
        if context.drain_idle_ms > 0 {
            context.set_timeout(connection, context.drain_idle_ms);
            return Disposition::Keep;
        }
        // The client may still be reading the last response while it sends its next request.
        let is_recent = context.now_ms < since_ms + LINGER_TIMEOUT_MS;
        context.linger_close(connection, is_recent)
    }

    /// Receives from a connection that is about to close because it is silent. A request that has
    /// arrived meanwhile is answered: closing with unread input would also destroy the response before it
    /// (RFC 9112, 9.6). Returns `None` if the connection is still silent.
    pub(super) fn receive_late(&mut self, connection: &mut Connection) -> Option<Disposition> {
        let answered = connection.requests;
        let disposition = self.receive(connection);
        let is_silent = connection.waits_for_request() && connection.requests == answered;
        let is_open = disposition == Disposition::Keep;
        (!is_silent || !is_open).then_some(disposition)
    }

    /// Closes the connection that has been silent longest. Returns `false` if none may be closed.
    fn close_longest_silent(&mut self) -> bool {
        while let Some(slot) = Acceptor::evictable(&self.context) {
            self.with_connection(slot, |worker, connection| {
                let late = worker.receive_late(connection);
                late.unwrap_or(Disposition::Close)
            });
            if self.context.connections.get(slot).is_none() {
                return true;
            }
        }
        false
    }

    /// Closes the longest idle connection if the last accepted one is over the limit.
    pub(super) fn close_over_limit(&mut self) {
        let context = &self.context;
        if context.connections.count() > context.config.max_connections as usize
            && self.close_longest_silent()
        {
            self.context.counters.connections_evicted_limit += 1;
        }
    }

    /// Closes the longest idle connections, because descriptors have run out, and accepts again if
    /// there were any.
    pub(super) fn close_for_descriptors(&mut self) {
        for _ in 0..EVICTED_PER_PAUSE {
            if !self.close_longest_silent() {
                return;
            }
            self.context.counters.connections_evicted_descriptors += 1;
            self.acceptor.listeners.end_pause(self.context.now_ms);
        }
    }

    /// Closes a connection and releases what it holds.
    pub(super) fn close(&mut self, slot: usize) {
        let context = &mut self.context;
        let Some(mut connection) = context.connections.remove(slot) else {
            return;
        };
        // Log an aborted response with the bytes that were sent.
        if connection.outgoing.status != 0
            && let Some(request) = connection.phase.request()
        {
            context.end_request(&connection, request);
        }
        if matches!(connection.phase, Phase::Exchange(_)) {
            self.router.gateway.abandon(context, &mut connection);
        }
        context.end_tls(&mut connection);
        context.forget_handshake(&connection);
        if connection.handed_off {
            // Another process may hold a copy of this socket, so closing ours would not end the
            // connection.
            let _ = context.tracer.call(Call::Shutdown, || {
                rustix::net::shutdown(&connection.socket, Shutdown::Both)
            });
            // A program may have set SO_LINGER, which would make close block (socket(7)).
            let _ = context.tracer.call(Call::SocketOption, || {
                rustix::net::sockopt::set_socket_linger(&connection.socket, None)
            });
        }
        if connection.phase.waits_for_a_helper() {
            context.pool.leave(connection.token.0);
        }
        context.deadlines.clear(slot);
        if connection.interest.is_some() && connection.stream.is_none() {
            context.events.forget(connection.socket.as_fd());
        }
        let streams = connection
            .http2
            .take()
            .map_or_else(Vec::new, |one| one.streams);
        if let Some(of) = connection.stream.take() {
            context.sessions_due.push((of.parent, connection.token));
            drop(of);
            context.counters.http2_streams_closed += 1;
            return;
        }
        let client = connection.counted_address();
        context.tracer.call(Call::Close, || drop(connection));
        context.counters.connections_closed += 1;
        self.acceptor.on_closed(context, client);
        for stream in streams {
            if let Some(slot) = self.context.connections.find(stream) {
                self.close(slot);
            }
        }
    }
}
