//! Accepts connections: in batches and by shares between workers, rejected at the limit per address
//! or under overload, left in the accept queue when descriptors run out. Also accepts the last
//! connections before the worker ends.

use headway_debox::Call;
use headway_event::{Interest, Token};
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use headway_http::Status;

use super::{Disposition, Worker};
use crate::accept::control::retry_after_s;
use crate::accept::{
    Accepted, AdmissionControl, BalanceDecision, DRAIN_BATCH_MAX, NOT_ACCEPTING, batch_limit,
};
use crate::config::{AcceptBatch, EarlyReject};
use crate::connection::{Connection, Phase};
use crate::control::FromWorker;
use crate::request::Request;
use crate::respond::{self, ResponseContext};

/// While draining, how long a client that has sent nothing yet may take to send a request.
const FIRST_REQUEST_MS: u64 = 1_000;

/// If requests are served during the batch, connections can keep arriving; a batch older than this
/// accepts one more and ends. Long compared with a batch, short compared with what else waits:
/// control messages, deadlines, other connections.
const BATCH_DURATION_MAX_MS: u64 = 250;

/// The end time of a batch that has no time limit.
const NO_DEADLINE_MS: u64 = u64::MAX;

/// While the connection limit is reached and waiting clients are to be rejected, the accept queue
/// is checked at this interval.
const FULL_POLL_MS: u64 = 100;

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
        if self.last_clients.is_some() {
            return;
        }
        self.context.counters.accept_wakeups += 1;
        let Some(limit) = self.batch_share(listener) else {
            return;
        };
        let (taken, left) = self.accept_batch(
            listener,
            limit,
            self.batch_end_ms(self.context.clock.now_ms()),
        );
        match (taken, left) {
            // A lagging loop accepts nothing; another worker may not lag.
            (0, BatchEnd::LimitReached) => self.listeners.mark_undrained(),
            (0, _) => {}
            _ => self
                .listeners
                .pass_on(&mut self.context.events, &self.context.tracer),
        }
    }

    /// The size of the next batch, or `None` if this worker has enough connections and yields to
    /// workers with fewer.
    fn batch_share(&mut self, listener: u32) -> Option<u32> {
        let limit = self.batch_limit();
        let Some(balance) = &mut self.balance else {
            return Some(limit);
        };
        let pending = self.listeners.pending(listener, &self.context.tracer);
        match balance.decide(
            self.context.connections.len() as u32,
            pending,
            self.context.now_ms,
        ) {
            BalanceDecision::Accept(share) => Some(limit.min(share)),
            BalanceDecision::Yield => {
                self.context.counters.accept_yielded += u64::from(self.listeners.are_watched());
                self.listeners.set_yielding(true, &mut self.context.events);
                if let Some(auto) = &mut self.auto {
                    auto.record_left(true);
                }
                None
            }
        }
    }

    /// Publishes the number of connections to the other workers, and resumes accepting after a
    /// yield.
    pub(super) fn maintain_balance(&mut self) {
        let own = self.context.connections.len() as u32;
        if let Some(balance) = &mut self.balance {
            balance.publish(match self.listeners.are_accepting() {
                true => own,
                false => NOT_ACCEPTING,
            });
            if balance.resume(own, self.context.now_ms) {
                self.listeners.set_yielding(false, &mut self.context.events);
            }
        }
    }

    /// Accepts connections for those that have closed (`accept_on_close`): one batch for each, as
    /// the micro-server did. Connections of these batches may close again at once and are counted,
    /// unless the iteration is already long.
    pub(super) fn accept_for_closed(&mut self) {
        let (given, mut batches) = (self.accepts_owed, 0);
        let (listeners, end_ms) = (self.listeners.len(), self.batch_end_ms(self.context.now_ms));
        while self.accepts_owed > 0 && (batches < given || !self.is_past(end_ms)) {
            self.accepts_owed -= 1;
            batches += 1;
            self.context.counters.accept_batches_on_close += 1;
            // Each listener comes first in turn. A worker that is ending has no listeners.
            let first = (self.context.counters.accept_batches_on_close
                % u64::from(listeners.max(1))) as u32;
            for listener in (first..listeners).chain(0..first) {
                if let Some(limit) = self.batch_share(listener) {
                    self.accept_batch(listener, limit, end_ms);
                }
            }
        }
        self.accepts_owed = 0;
    }

    /// The time after which a batch that began at `begun_ms` must end, if its size is unlimited.
    fn batch_end_ms(&self, begun_ms: u64) -> u64 {
        let is_unlimited = self.context.config.accept_batch == AcceptBatch::Most(0)
            || self.context.config.accept_on_close;
        match is_unlimited && self.context.config.eager_read {
            true => begun_ms + BATCH_DURATION_MAX_MS,
            false => NO_DEADLINE_MS,
        }
    }

    fn is_past(&self, moment_ms: u64) -> bool {
        moment_ms != NO_DEADLINE_MS && self.context.clock.now_ms() >= moment_ms
    }

    /// Accepts at most `limit` connections, and only one after `end_ms`. Returns the number
    /// accepted and why the batch ended.
    fn accept_batch(&mut self, listener: u32, limit: u32, end_ms: u64) -> (u32, BatchEnd) {
        let begun = self.auto.as_ref().map(|_| Instant::now());
        // Connections beyond this worker's share belong to other workers.
        let is_whole = limit >= self.batch_limit();
        let (taken, mut left) = self.accept_connections(listener, limit, end_ms);
        if let (Some(auto), Some(begun)) = (&mut self.auto, begun) {
            auto.record_accepted(begun, taken);
            if left == BatchEnd::LimitReached && is_whole && !self.shed_load(listener) {
                left = BatchEnd::QueueEmpty;
            }
        }
        if let Some(auto) = &mut self.auto {
            auto.record_left(left != BatchEnd::QueueEmpty);
        }
        (taken, left)
    }

    /// Rejects connections that a full batch has left in the queue, as many as the controller says.
    /// Returns `false` if none is left.
    fn shed_load(&mut self, listener: u32) -> bool {
        let limit = match self.last_clients {
            // While draining, connections that arrived before the end are served.
            Some(_) => 0,
            None => self.auto.as_ref().map_or(0, AdmissionControl::reject_limit),
        };
        if limit == 0 {
            return true;
        }
        let begun = Instant::now();
        let mut rejected = 0;
        let more = loop {
            if rejected == limit {
                break true;
            }
            self.context.counters.accept_calls += 1;
            match self.listeners.accept(listener, &self.context.tracer) {
                Accepted::Connection(socket, client) => {
                    rejected += 1;
                    self.reject_early(socket, client);
                }
                Accepted::QueueEmpty => break false,
                Accepted::Paused => break true,
                Accepted::Exhausted(error) => {
                    self.pause_after(error);
                    break true;
                }
            }
        };
        if let Some(auto) = &mut self.auto {
            auto.record_rejected(begun, rejected);
        }
        more
    }

    /// Rejects waiting connections while the connection limit is reached, because no batch runs
    /// then. Not done if another worker may accept them.
    pub(super) fn reject_while_full(&mut self) {
        let rejecting = self
            .auto
            .as_ref()
            .is_some_and(|auto| auto.reject_limit() > 0);
        if !rejecting || !self.listeners.is_full() || self.is_shared() {
            return;
        }
        for listener in 0..self.listeners.len() {
            let more = self.shed_load(listener);
            if let Some(auto) = &mut self.auto {
                auto.record_left(more);
            }
        }
    }

    /// When to check the accept queue while the limit is reached; no event reports waiting
    /// connections then.
    pub(super) fn full_next_ms(&self) -> Option<u64> {
        let rejects = self.context.config.early_reject != EarlyReject::Off;
        (rejects && self.listeners.is_full() && !self.is_shared())
            .then_some(self.context.now_ms + FULL_POLL_MS)
    }

    fn is_shared(&self) -> bool {
        self.context.config.workers_per_listener() > 1
    }

    /// Rejects a connection that cannot be served in time, so that the client can try elsewhere or
    /// later.
    fn reject_early(&mut self, socket: OwnedFd, client: SocketAddr) {
        self.context.counters.connections_rejected_overload += 1;
        match self.context.config.early_reject {
            EarlyReject::Reset => {
                // Closing with a linger time of zero sends a reset (socket(7)): no response,
                // nothing left behind. If setting it fails, the client sees an orderly close
                // instead.
                let _ = self.context.tracer.call(Call::SocketOption, || {
                    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))
                });
                self.context.tracer.call(Call::Close, || drop(socket));
            }
            EarlyReject::Status | EarlyReject::Off => {
                let again_s = retry_after_s(self.context.counters.connections_rejected_overload);
                self.answer_unavailable(socket, client, again_s);
            }
        }
    }

    /// The worker consumed the wakeup of a shared listener but left connections in its queue: tell
    /// the master, which tells the other workers.
    pub(super) fn report_undrained(&mut self) {
        if self.listeners.take_undrained() {
            // A full channel is no problem: a worker that does not read its messages is about to be
            // replaced, and then all workers check.
            let _ = self.context.tracer.call(Call::ControlSend, || {
                self.context
                    .control
                    .try_send(&FromWorker::AcceptPending, &[])
            });
        }
    }

    /// Handles the message that another worker has left connections in the shared listeners.
    pub(super) fn poll_listeners(&mut self) {
        self.listeners
            .pass_on(&mut self.context.events, &self.context.tracer);
    }

    /// Gives the controller the length of the accept queue, and applies its decisions to the kernel
    /// if they have changed.
    pub(super) fn maintain_queue(&mut self) {
        let Some(auto) = &mut self.auto else {
            return;
        };
        // The queue is shared, so it drains as many times faster as there are workers.
        let workers = self.context.config.workers_per_listener();
        if auto.is_sample_due() {
            let (pending, dropped) = self.listeners.sample(&self.context.tracer);
            let dropped = auto.record_sample(pending.div_ceil(workers), dropped);
            self.context.counters.accept_syn_dropped += u64::from(dropped);
        }
        let Some((applied, policy)) = auto.end_iteration() else {
            return;
        };
        // A draining worker has reset the listeners for the workers that continue with them.
        if self.context.draining_until_ms.is_some() {
            return;
        }
        if policy.backlog != applied.backlog {
            let length = policy.backlog.saturating_mul(workers);
            let length = length.min(self.context.config.backlog);
            self.listeners.set_backlog(length, &self.context.tracer);
        }
        if policy.admit_fraction != applied.admit_fraction {
            self.context.counters.accept_admission_changes += 1;
            self.listeners.set_admit_fraction(
                policy.admit_fraction,
                self.context.now_ms,
                &self.context.tracer,
            );
        }
        if policy.defer != applied.defer && self.context.config.defer_accept {
            self.listeners.set_defer(policy.defer, &self.context.tracer);
        }
    }

    fn accept_connections(&mut self, listener: u32, limit: u32, end_ms: u64) -> (u32, BatchEnd) {
        let mut taken = 0;
        let left = loop {
            if taken == limit || (taken > 0 && self.is_past(end_ms)) {
                break BatchEnd::LimitReached;
            }
            if self.context.connections.len() >= self.context.config.max_connections as usize {
                self.listeners.set_full(true, &mut self.context.events);
                break BatchEnd::NoRoom;
            }
            self.context.counters.accept_calls += 1;
            match self.listeners.accept(listener, &self.context.tracer) {
                Accepted::Connection(socket, client) => {
                    taken += 1;
                    self.register(socket, client);
                }
                Accepted::QueueEmpty => {
                    self.listeners.drained(listener, &mut self.context.events);
                    break BatchEnd::QueueEmpty;
                }
                Accepted::Paused => break BatchEnd::NoRoom,
                Accepted::Exhausted(error) => {
                    self.pause_after(error);
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
        if !self.addresses.enter(client.ip()) {
            return self.reject_connection(socket, client);
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
        if let Some(balance) = &self.balance {
            balance.publish(open as u32);
        }
        let eager = self.context.config.eager_read;
        self.with_connection(slot, |worker, connection| {
            if eager {
                return worker.receive(connection);
            }
            worker.context.watch(connection, Interest::READ);
            Disposition::Keep
        });
    }

    /// Rejects a connection of an address that is at its limit.
    fn reject_connection(&mut self, socket: OwnedFd, client: SocketAddr) {
        self.context.counters.connections_rejected_per_address += 1;
        self.answer_unavailable(socket, client, respond::RETRY_AFTER_S);
    }

    /// Answers 503 with `Retry-After` and closes.
    fn answer_unavailable(&mut self, socket: OwnedFd, client: SocketAddr, retry_after_s: u64) {
        let mut connection = Connection::new(socket, client, Token(0));
        // The input is read first: closing with unread bytes sends a reset, which could destroy the
        // response.
        let received = self.context.tracer.call(Call::Receive, || {
            rustix::net::recv(
                &connection.socket,
                &mut self.context.scratch[..],
                RecvFlags::DONTWAIT,
            )
        });
        let asked = received.map_or(&[][..], |(count, _)| &self.context.scratch[..count]);
        let context = ResponseContext {
            retry_after_s,
            ..ResponseContext::for_unparsed(
                &self.context.response_settings,
                &self.context.date,
                asked.starts_with(b"HEAD "),
            )
        };
        let response = respond::error(&context, Status::SERVICE_UNAVAILABLE, None, None);
        let request = Request::unparsed(asked);
        connection.outgoing = response;
        connection.outgoing.method = request.method;
        // If the socket does not accept these few bytes, the client gets no response.
        let _ = self.context.transmit(&mut connection);
        self.context.write_log(&connection, &request);
        self.context.tracer.call(Call::Close, || drop(connection));
    }

    fn pause_accepting(&mut self, what: &str, error: Errno) {
        self.context.counters.accept_pauses += 1;
        self.listeners
            .pause(self.context.now_ms, &mut self.context.events);
        if self.context.counters.accept_pauses.is_power_of_two() {
            self.context.notice(format!(
                "{what}: {error}; accepting paused for 100 ms (pause {} so far; raise the descriptor \
                 limit, or lower --max-connections or --file-cache-descriptors)",
                self.context.counters.accept_pauses
            ));
        }
    }

    /// Pauses accepting if a lookup has met a shortage of descriptors.
    pub(super) fn pause_if_short(&mut self) {
        if std::mem::take(&mut self.context.descriptors_short) {
            self.pause_accepting("opening a file", Errno::MFILE);
        }
    }

    /// Pauses accepting because the kernel has refused a connection.
    fn pause_after(&mut self, error: Errno) {
        self.context.counters.accept_errors += 1;
        self.pause_accepting("accept4", error);
        // Connections may never close, so cached files are closed.
        if matches!(error, Errno::MFILE | Errno::NFILE) {
            self.files.evict();
        }
    }

    /// Starts draining: requests in flight are finished, idle connections close, and after the
    /// current accept queue no connection is accepted. The queue is emptied first, because closing
    /// a listener resets its connections.
    pub(super) fn drain(&mut self, timeout_ms: u64) {
        self.context.draining_until_ms = Some(self.context.now_ms + timeout_ms);
        if self.auto.is_some() {
            let (queue, deferred) = (
                self.context.config.backlog,
                self.context.config.defer_accept,
            );
            self.listeners.reset_policy(queue, deferred);
        }
        // The kernel admits one connection more than the backlog. Others arrive while these are
        // accepted, and as many are reset in the end as were accepted instead.
        let queue = self.context.config.backlog.saturating_add(1);
        self.last_clients = Some(queue.saturating_mul(self.listeners.len()));
    }

    /// Accepts the last connections, some per iteration, so that requests in flight continue; then
    /// closes the listeners.
    pub(super) fn accept_last(&mut self) {
        let Some(mut left) = self.last_clients else {
            return;
        };
        let mut more = false;
        for listener in 0..self.listeners.len() {
            let (taken, others) =
                self.accept_batch(listener, self.drain_batch_limit(left), NO_DEADLINE_MS);
            left -= taken;
            more |= others == BatchEnd::LimitReached;
        }
        if more && left > 0 {
            self.last_clients = Some(left);
            return;
        }
        self.last_clients = None;
        self.listeners.close(&mut self.context.events);
        self.close_idle_connections();
    }

    fn batch_limit(&self) -> u32 {
        let fixed = |count| batch_limit(count, self.context.config.max_connections);
        match (self.context.config.accept_batch, &self.auto) {
            (AcceptBatch::Most(count), _) => fixed(count),
            (AcceptBatch::Auto, auto) => {
                auto.as_ref().map_or(fixed(0), AdmissionControl::batch_size)
            }
        }
    }

    /// While draining, a batch is never larger than the connections served meanwhile can bear.
    fn drain_batch_limit(&self, left: u32) -> u32 {
        self.batch_limit().clamp(1, DRAIN_BATCH_MAX).min(left)
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
