//! Decides how many connections to accept, and rejects the others: shares between workers, the
//! limit per address, overload, shortage of descriptors. `batch` accepts them, `refusals` answers
//! those without room, `room` says which idle connections close for new ones.

mod batch;
mod refusals;
mod room;

pub(super) use batch::Batch;

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use headway_accept::{
    Accepted, AddressBoard, Addresses, AdmissionControl, Balance, BalanceDecision, DRAIN_BATCH_MAX,
    Listeners, NOT_ACCEPTING, batch_limit,
};
use headway_config::{AcceptBatch, Config, EarlyReject, ErrorLevel, ListenerMode};
use headway_connection::{CONNECTION, Connection};
use headway_control::FromWorker;
use headway_event::Ready;
use headway_metrics::calls::Call;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::context::LoopContext;
use refusals::Refusals;

/// If requests are served during the batch, connections can keep arriving; a batch older than this
/// accepts one more and ends. Long compared with a batch, short compared with what else waits:
/// control messages, deadlines, other connections.
const BATCH_DURATION_MAX_MS: u64 = 250;

/// The end time of a batch that has no time limit.
const NO_DEADLINE_MS: u64 = u64::MAX;

/// First requests, of which one is checked for a client that has already disconnected.
const DISCONNECT_CHECK_INTERVAL: u64 = 16;

/// While the connection limit is reached and waiting clients are to be rejected, the accept queue
/// is checked at this interval.
const FULL_POLL_MS: u64 = 100;

/// The listeners of a worker, and what decides how many connections it accepts.
pub(super) struct Acceptor {
    pub listeners: Listeners,
    /// For each listener the number of its address.
    of_listeners: Vec<u32>,
    /// The number of connections per client address.
    addresses: Addresses,
    /// Decides the accept batch, unless a number is configured.
    pub auto: Option<AdmissionControl>,
    /// Knows how many connections the other workers have, if all accept from one queue.
    balance: Option<Balance>,
    /// Rejected connections that are not closed yet.
    refusals: Refusals,
    /// Connections closed since the last accept batch on their behalf (`accept_on_close`).
    accepts_owed: u32,
    /// While draining: how many connections may still be accepted before the listeners close.
    pub last_clients: Option<u32>,
}

impl Acceptor {
    pub(super) fn new(
        config: &Config,
        worker: u32,
        (mut listeners, of_listeners): (Listeners, Vec<u32>),
        balance: Option<Balance>,
        board: Option<AddressBoard>,
    ) -> Self {
        Self {
            addresses: Addresses::new(config.max_connections_per_address, board, worker),
            auto: admission_control(config, &mut listeners),
            listeners,
            of_listeners,
            balance,
            refusals: Refusals::default(),
            accepts_owed: 0,
            last_clients: None,
        }
    }

    /// Tells the controller what the wait for events has brought.
    pub(super) fn begin_iteration(&mut self, ready: &[Ready]) {
        let Some(auto) = &mut self.auto else { return };
        let crowded = ready.len() >= headway_event::EVENTS_PER_WAIT_MAX;
        let clients = ready
            .iter()
            .filter(|event| event.token.kind() == CONNECTION);
        let watched = self.listeners.are_watched();
        auto.begin_iteration(clients.count() as u32, crowded, watched);
    }

    /// What each iteration ends with: balance, and the state of the accept queue.
    pub(super) fn maintain(&mut self, context: &mut LoopContext) {
        self.look_for_room(context);
        self.hold_crowded(context);
        self.maintain_balance(context);
        self.report_listeners(context);
        self.reject_while_full(context);
        self.maintain_queue(context);
        self.refusals.expire(context);
    }

    /// Pauses the listeners which have too many waiting clients, and returns the first of these listeners.
    fn hold_crowded(&mut self, context: &mut LoopContext) -> Option<u32> {
        let crowded = context.first_crowded_listener();
        if self.listeners.hold(crowded, &mut context.events) {
            context.counters.tls_accept_pauses += u64::from(crowded.is_some());
        }
        crowded
    }

    /// The latest time at which the acceptor has something to do.
    pub(super) fn next_ms(&self, context: &LoopContext) -> Option<u64> {
        let due = [
            self.listeners.next_ms(),
            self.refusals.next_ms(),
            self.balance.as_ref().and_then(Balance::next_ms),
            self.auto
                .as_ref()
                .and_then(|auto| auto.next_ms(context.now_ms)),
            self.full_next_ms(context),
            self.room_next_ms(context),
        ];
        due.into_iter().flatten().min()
    }

    /// Whether no client waits to be accepted, and none has to take its rejection.
    pub(super) fn is_done(&self) -> bool {
        self.last_clients.is_none() && self.refusals.is_empty()
    }

    /// Counts a connection whose address a PROXY header has named; `false` at the limit.
    pub(super) fn enter_behind_proxy(&mut self, connection: &mut Connection) -> bool {
        let Some(behind) = &mut connection.behind_proxy else {
            return true;
        };
        let address = behind.sender.ip();
        let has_room = behind.is_trusted || self.addresses.enter(address);
        behind.counted = (has_room && !behind.is_trusted).then_some(address);
        has_room
    }

    /// Accounts for a connection that has closed.
    pub(super) fn on_closed(&mut self, context: &mut LoopContext, client: Option<IpAddr>) {
        if let Some(client) = client {
            self.addresses.leave(client);
        }
        self.set_full(context, false);
        self.accepts_owed += u32::from(context.config.research.accept_on_close);
    }

    /// The size of the next batch, or `None` if this worker has enough connections and yields to
    /// workers with fewer.
    fn batch_share(&mut self, context: &mut LoopContext, listener: u32) -> Option<u32> {
        let limit = self.batch_limit(context);
        let Some(balance) = &mut self.balance else {
            return Some(limit);
        };
        let pending = self.listeners.pending(listener, &context.tracer);
        match balance.decide(context.connections.count() as u32, pending, context.now_ms) {
            BalanceDecision::Accept(share) => Some(limit.min(share)),
            BalanceDecision::Yield => {
                context.counters.accept_yielded += u64::from(self.listeners.are_watched());
                self.listeners.set_yielding(true, &mut context.events);
                if let Some(auto) = &mut self.auto {
                    auto.record_pending(true);
                }
                None
            }
        }
    }

    /// Publishes the number of connections to the other workers, and resumes accepting after a
    /// yield.
    fn maintain_balance(&mut self, context: &mut LoopContext) {
        let own = context.connections.count() as u32;
        if let Some(balance) = &mut self.balance {
            balance.publish(match self.listeners.are_accepting() {
                true => own.into(),
                false => NOT_ACCEPTING,
            });
            if balance.resume(own, context.now_ms) {
                self.listeners.set_yielding(false, &mut context.events);
            }
        }
    }

    /// The time after which a batch that began at `begun_ms` must end, if its size is unlimited.
    fn batch_end_ms(context: &LoopContext, begun_ms: u64) -> u64 {
        let is_unlimited = context.config.accept_batch == AcceptBatch::Most(0)
            || context.config.research.accept_on_close;
        let research = &context.config.research;
        match is_unlimited && research.eager_read && !research.original_limits {
            true => begun_ms + BATCH_DURATION_MAX_MS,
            false => NO_DEADLINE_MS,
        }
    }

    fn is_past(context: &LoopContext, moment_ms: u64) -> bool {
        moment_ms != NO_DEADLINE_MS && context.clock.now_ms() >= moment_ms
    }

    /// Rejects connections that a full batch has left in the queue, as many as the controller says.
    /// Returns `false` if none is left.
    fn shed_load(&mut self, context: &mut LoopContext, listener: u32) -> bool {
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
        self.pause_if_short(context);
        let more = loop {
            if rejected == limit {
                break true;
            }
            context.counters.accept_calls += 1;
            match self.listeners.accept(listener, &context.tracer) {
                Accepted::Connection(socket, client) => {
                    rejected += 1;
                    match context.handshake_timeout_ms(listener) {
                        None => self.refusals.reject_early(context, socket, client),
                        Some(_) => {
                            context.counters.connections_rejected_overload += 1;
                            Refusals::reset(context, socket);
                        }
                    }
                }
                Accepted::QueueEmpty => break false,
                Accepted::Paused => break true,
                Accepted::Exhausted(error) => {
                    self.pause_after(context, error);
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
    fn reject_while_full(&mut self, context: &mut LoopContext) {
        let rejecting = self
            .auto
            .as_ref()
            .is_some_and(|auto| auto.reject_limit() > 0);
        if !rejecting || !self.listeners.is_full() || Acceptor::is_shared(context) {
            return;
        }
        for listener in 0..self.listeners.count() {
            let more = self.shed_load(context, listener);
            if let Some(auto) = &mut self.auto {
                auto.record_pending(more);
            }
        }
    }

    /// When to check the accept queue while the limit is reached; no event reports waiting
    /// connections then.
    fn full_next_ms(&self, context: &LoopContext) -> Option<u64> {
        let rejects = context.config.early_reject != EarlyReject::Off;
        (rejects && self.listeners.is_full() && !Acceptor::is_shared(context))
            .then_some(context.now_ms + FULL_POLL_MS)
    }

    fn is_shared(context: &LoopContext) -> bool {
        context.config.workers_per_listener() > 1
    }

    /// Reports to the master what happened to the listeners: an error, or that the worker consumed
    /// the wakeup of a shared listener but left connections in its queue. The master notifies the
    /// other workers of those.
    fn report_listeners(&mut self, context: &mut LoopContext) {
        if let Some(text) = self.listeners.take_notice() {
            context.notice(ErrorLevel::Error, text);
        }
        if self.listeners.take_undrained() {
            // A full channel is no problem: a worker that does not read its messages is about to be
            // replaced, and then all workers check.
            let _ = context.tracer.call(Call::ControlSend, || {
                context.control.try_send(&FromWorker::AcceptPending, &[])
            });
        }
    }

    /// Handles the message that another worker has left connections in the shared listeners.
    pub(super) fn poll_listeners(&mut self, context: &mut LoopContext) {
        self.listeners.pass_on(&mut context.events, &context.tracer);
    }

    /// Gives the controller the length of the accept queue, and applies its decisions to the kernel
    /// if they have changed.
    fn maintain_queue(&mut self, context: &mut LoopContext) {
        let Some(auto) = &mut self.auto else {
            return;
        };
        // The queue is shared, so it drains as many times faster as there are workers.
        let workers = context.config.workers_per_listener();
        if auto.is_sample_due() {
            let (pending, dropped) = self.listeners.sample(&context.tracer);
            let dropped = auto.record_sample(pending.div_ceil(workers), dropped);
            context.counters.accept_syn_dropped += u64::from(dropped);
        }
        let Some((applied, policy)) = auto.end_iteration() else {
            return;
        };
        // A draining worker has reset the listeners for the workers that continue with them.
        if context.draining_until_ms.is_some() {
            return;
        }
        if policy.backlog != applied.backlog {
            let length = policy.backlog.saturating_mul(workers);
            let length = length.min(context.config.backlog);
            self.listeners.set_backlog(length, &context.tracer);
        }
        if policy.admit_fraction != applied.admit_fraction {
            context.counters.accept_admission_changes += 1;
            self.listeners.set_admit_fraction(
                policy.admit_fraction,
                context.now_ms,
                &context.tracer,
            );
        }
        if policy.defer != applied.defer && context.config.defer_accept {
            self.listeners.set_defer(policy.defer, &context.tracer);
        }
    }

    fn pause_accepting(&mut self, context: &mut LoopContext, what: &str, error: Errno) {
        context.counters.accept_pauses += 1;
        self.listeners.pause(context.now_ms, &mut context.events);
        if matches!(error, Errno::MFILE | Errno::NFILE) {
            context.evict_idle = true;
            self.refusals.clear(context);
        }
        if context.counters.accept_pauses.is_power_of_two() {
            context.notice(ErrorLevel::Error, format!(
                "{what}: {error}; accepting paused for 100 ms (pause {} so far; raise the descriptor \
                 limit, or lower --max-connections or --file-cache-descriptors)",
                context.counters.accept_pauses
            ));
        }
    }

    /// Pauses accepting if a lookup has met a shortage of descriptors.
    pub(super) fn pause_if_short(&mut self, context: &mut LoopContext) {
        if std::mem::take(&mut context.descriptors_short) {
            self.pause_accepting(context, "opening a file", Errno::MFILE);
        }
    }

    /// Pauses accepting because the kernel has refused a connection.
    fn pause_after(&mut self, context: &mut LoopContext, error: Errno) {
        context.counters.accept_errors += 1;
        self.pause_accepting(context, "accept4", error);
        // Connections may never close, so cached files are closed.
        if matches!(error, Errno::MFILE | Errno::NFILE) {
            context.evict_files = true;
        }
    }

    fn batch_limit(&self, context: &LoopContext) -> u32 {
        let fixed = |count| batch_limit(count, context.config.max_connections);
        match (context.config.accept_batch, &self.auto) {
            (AcceptBatch::Most(0), _) if context.config.research.original_limits => u32::MAX,
            (AcceptBatch::Most(count), _) => fixed(count),
            (AcceptBatch::Auto, auto) => {
                auto.as_ref().map_or(fixed(0), AdmissionControl::batch_size)
            }
        }
    }

    /// While draining, a batch is never larger than the connections served meanwhile can bear.
    fn drain_batch_limit(&self, context: &LoopContext, left: u32) -> u32 {
        self.batch_limit(context)
            .clamp(1, DRAIN_BATCH_MAX)
            .min(left)
    }

    /// Whether the client of a first request that has just been received has given up.
    ///
    /// A client that has waited too long closes its connection, yet its request can still be
    /// received. So a sample of the first requests is checked; all are checked when more clients
    /// arrive than can be handled and some have waited long, because a response to a disconnected
    /// client then costs other clients' time. A client that has closed only its sending side looks
    /// the same. Therefore a closed client is dropped only after it has waited so long that giving
    /// up is the likelier reason.
    pub(super) fn client_has_abandoned(
        &mut self,
        context: &mut LoopContext,
        connection: &Connection,
    ) -> bool {
        let first = connection.requests == 0 && !connection.header_partial;
        let sampled = context.counters.requests_received % DISCONNECT_CHECK_INTERVAL
            == DISCONNECT_CHECK_INTERVAL - 1;
        let suspected = self
            .auto
            .as_ref()
            .is_some_and(AdmissionControl::may_be_abandoned);
        if !first || !(sampled || suspected) {
            return false;
        }
        context.counters.first_requests_sampled += 1;
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = context.tracer.call(Call::Receive, || {
            rustix::net::recv(&connection.socket, &mut [0; 1], flags)
        });
        let gone = !matches!(peeked, Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR));
        context.counters.first_requests_disconnected += u64::from(gone);
        let Some(auto) = &mut self.auto else {
            return false;
        };
        if !gone && !sampled {
            return false;
        }
        let waited_ms = context.tracer.call(Call::SocketOption, || {
            headway_os::socket::last_data_ms(connection.socket.as_fd()).unwrap_or(0)
        });
        let departed = auto.is_abandoned(gone, waited_ms);
        context.counters.first_requests_abandoned += u64::from(departed);
        departed
    }
}

/// The decision on the accept batch, unless a number is configured.
fn admission_control(config: &Config, listeners: &mut Listeners) -> Option<AdmissionControl> {
    if config.accept_batch != AcceptBatch::Auto {
        return None;
    }
    // The controller works with this worker's share of the queue length that the kernel grants.
    let queue = config.backlog.min(headway_os::listen::backlog_max());
    let queue = queue.div_ceil(config.workers_per_listener());
    let settings = headway_admission::Settings {
        backlog_max: queue,
        batch_max: headway_event::EVENTS_PER_WAIT_MAX as u32,
        sheds_load: config.early_reject != EarlyReject::Off,
        is_queue_shared: config.listeners != ListenerMode::Reuseport,
        is_filter_stateful: listeners.enable_stateful_filter(),
        // With eager reads the request has usually arrived. Without eager writes the response waits
        // for the next event.
        deferred_events: match config.research.eager_read {
            true => 0,
            false => 2 - u32::from(config.research.eager_write),
        },
    };
    Some(AdmissionControl::new(&settings, config.defer_accept))
}
