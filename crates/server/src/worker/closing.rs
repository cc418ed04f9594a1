//! Closes connections, and releases what each of them holds in the parts; the last connections of a
//! worker that ends.

use std::os::fd::AsFd;

use headway_connection::Phase;
use headway_metrics::calls::Call;
use rustix::net::Shutdown;

use super::Worker;
use super::acceptor::Acceptor;

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

    /// Closes idle connections, and the others after their response: the worker ends.
    fn close_idle_connections(&mut self) {
        for slot in self.context.connections.occupied() {
            let Some(connection) = self.context.connections.get(slot) else {
                continue;
            };
            let is_head = matches!(connection.phase, Phase::AwaitHead);
            let silent = is_head && connection.rx_buffer.is_empty();
            match (silent, connection.requests) {
                (false, _) => connection.keep_alive = false,
                // The first request may be on its way.
                (true, 0) => {
                    let deadline_ms = self.context.now_ms + FIRST_REQUEST_MS;
                    self.context.deadlines.set(slot, deadline_ms);
                }
                (true, _) => self.close(slot),
            }
        }
    }

    /// Closes the longest idle connection if the last accepted one is over the limit.
    pub(super) fn close_over_limit(&mut self) {
        let context = &self.context;
        if context.connections.count() <= context.config.max_connections as usize {
            return;
        }
        if let Some(slot) = Acceptor::evictable(context) {
            self.context.counters.connections_evicted_limit += 1;
            self.close(slot);
        }
    }

    /// Closes the longest idle connections, because descriptors have run out, and accepts again if
    /// there were any.
    pub(super) fn close_for_descriptors(&mut self) {
        for _ in 0..EVICTED_PER_PAUSE {
            let Some(slot) = Acceptor::evictable(&self.context) else {
                return;
            };
            self.context.counters.connections_evicted_descriptors += 1;
            self.close(slot);
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
            context.write_log(&connection, request);
        }
        if matches!(connection.phase, Phase::Exchange(_)) {
            self.router.gateway.abandon(context, &mut connection);
        }
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
        if connection.interest.is_some() {
            context.events.forget(connection.socket.as_fd());
        }
        let client = connection.client.ip();
        context.tracer.call(Call::Close, || drop(connection));
        context.counters.connections_closed += 1;
        self.acceptor.on_closed(context, client);
    }
}
