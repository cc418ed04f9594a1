//! The worker: one thread with one event loop, which waits for events only.
//!
//! An iteration of the loop waits for events; handles them in order (new connections, input, helper
//! results, control messages from the master); runs the connections in the run queue, whose write
//! quantum was used up; checks deadlines; and passes queued jobs to helpers. Every system call goes
//! through the tracer, which counts each voluntary sleep outside the event wait. That count proves
//! that the loop never blocked.
//!
//! The loop makes no call that may block: no blocking open or read, no `fork`, no name resolution,
//! no locks, no writes to standard error (a terminal can be stopped). Messages for the log go to
//! the master as [`FromWorker::Notice`].
//!
//! This file composes the parts. `steps` says which step a connection takes next, `router` which
//! handler answers a request; every other part owns its state and does not know the worker.

mod acceptor;
mod application;
mod buffers;
mod closing;
mod context;
mod cors;
mod deliver;
mod error_responses;
mod files;
pub(crate) mod gateway;
mod handler;
mod helpers;
mod http2;
mod listings;
mod log;
mod memory;
mod messages;
mod receiving;
mod redirect;
mod router;
mod sending;
mod snapshot;
mod spans;
mod start;
mod steps;
mod tls;
mod tokens;
mod turn;

use std::time::Duration;

use headway_accept::LISTENER;
use headway_connection::CONNECTION;
use headway_control::{FromWorker, Received, ToWorker};
use headway_event::Ready;
use headway_metrics::calls::Call;

use acceptor::{Acceptor, Batch};
use context::LoopContext;
use helpers::{Helpers, RING_PASSES_MAX, RING_SLOT};
use log::Log;
use router::Router;
use snapshot::snapshot;
use spans::Spans;
pub(crate) use start::run_worker;
use start::setup;
pub use start::{WorkerError, worker_main};
use tokens::{CONTROL, DIRECT_PROCESS, HANDSHAKES, HELPER, PROGRAM, SPAWNER, STORE, UPSTREAM_CONN};
use turn::{Stage, Turn};

/// Whether a connection stays open after a step.
#[derive(PartialEq, Eq)]
enum Disposition {
    Keep,
    Close,
}

/// The parts of a worker.
struct Worker {
    number: u32,
    /// What the parts share.
    context: LoopContext,
    acceptor: Acceptor,
    router: Router,
    helpers: Helpers,
    turn: Turn,
}

/// The loop.
impl Worker {
    fn run(&mut self) -> Result<(), WorkerError> {
        start::prepare(&mut self.context)?;
        self.context.control.send(&FromWorker::Ready, &[])?;
        let mut ready = Vec::new();
        self.maintain();
        while !self.is_drained() {
            let timeout = self.timeout();
            let (tracer, events) = (&self.context.tracer, &mut self.context.events);
            let waited = tracer.call(Call::EventWait, || events.wait(&mut ready, timeout));
            setup("cannot wait for events", waited)?;
            self.turn.begin(self.context.tick());
            self.context.sender.begin_round();
            self.acceptor.begin_iteration(&ready);
            let count = ready.len() as u64;
            self.context.counters.ready_events.record(count);
            let gateway = &mut self.router.gateway;
            gateway.check_idle_upstreams(&mut self.context, &ready);
            for event in &ready {
                self.turn.record_lag(&mut self.context.counters);
                if !self.dispatch(event)? {
                    return Ok(());
                }
                self.apply_settled();
                self.serve_sessions();
                self.accept_for_closed();
                self.end_stage(Stage::of(event.token.kind()));
            }
            self.run_queued();
            self.run_suspects();
            self.apply_settled();
            self.serve_sessions();
            self.end_stage(Stage::Queued);
            self.maintain();
            let now_us = self.context.clock.now_us();
            self.turn.end(now_us, &mut self.context.counters);
        }
        self.end()
    }

    fn end_stage(&mut self, stage: Stage) {
        let (crypto_ns, sending_us) = (
            std::mem::take(&mut self.context.crypto_ns),
            std::mem::take(&mut self.context.sending_us),
        );
        let now_us = self.context.clock.now_us();
        self.turn.end_part(Stage::Crypto, crypto_ns / 1000);
        self.turn.end_part(Stage::Send, sending_us);
        self.turn.end_stage(stage, now_us);
    }

    /// Handles one ready descriptor. Returns `false` if the master is gone and the worker must end.
    fn dispatch(&mut self, event: &Ready) -> Result<bool, WorkerError> {
        let (gateway, context) = (&mut self.router.gateway, &mut self.context);
        match event.token.kind() {
            LISTENER => self.accept(event.token.slot()),
            CONNECTION => {
                if let Some(slot) = context.connections.find(event.token) {
                    self.with_connection(slot, |worker, connection| {
                        worker.on_event(connection, event)
                    });
                }
            }
            HELPER => self.on_helper(event.token.slot()),
            PROGRAM => gateway.on_program(context, event),
            SPAWNER => gateway.on_spawner(context),
            DIRECT_PROCESS => gateway.on_direct(context, event.token),
            UPSTREAM_CONN => gateway.on_upstream_conn(context, event),
            STORE => self.router.files.on_store(context),
            HANDSHAKES => self.on_handshake_process(),
            CONTROL => return self.on_control_messages(),
            _ => {}
        }
        Ok(true)
    }

    /// Does the periodic work at the end of each iteration.
    fn maintain(&mut self) {
        self.accept_last();
        self.acceptor.pause_if_short(&mut self.context);
        if std::mem::take(&mut self.context.evict_files) {
            self.router.files.evict();
        }
        if std::mem::take(&mut self.context.evict_idle) {
            self.close_for_descriptors();
        }
        if !self.context.routes.is_empty() {
            self.router.gateway.maintain(&mut self.context);
            self.apply_settled();
        }
        self.router.files.maintain(&self.context);
        self.context.maintain_tls();
        self.acceptor.listeners.resume(
            self.context.now_ms,
            &mut self.context.events,
            &self.context.tracer,
        );
        self.expire_deadlines();
        self.accept_for_closed();
        // Last of what submits jobs, so that none waits for the next wakeup.
        self.maintain_helpers();
        self.apply_settled();
        self.context.maintain_log();
        self.context.maintain_spans();
        self.acceptor.maintain(&mut self.context);
    }

    /// The longest time that the next wait may take.
    fn timeout(&self) -> Option<Duration> {
        let context = &self.context;
        // A deadline may have ended a stream after the sessions were served.
        let is_due = !context.run_queue.is_empty()
            || !context.sessions_due.is_empty()
            || !context.suspects.waiting.is_empty();
        if is_due || self.acceptor.last_clients.is_some() {
            return Some(Duration::ZERO);
        }
        let due = [
            context.deadlines.next_ms(),
            context.pool.next_ms(context.now_ms),
            context.log.as_ref().and_then(Log::next_ms),
            context.spans.as_ref().and_then(Spans::next_ms),
            context.draining_until_ms,
            self.acceptor.next_ms(context),
            self.router.gateway.next_ms(context),
            self.router.files.next_ms(),
            self.helpers.next_ms(),
        ];
        let next = due.into_iter().flatten().min()?;
        Some(Duration::from_millis(next.saturating_sub(context.now_ms)))
    }

    fn is_drained(&self) -> bool {
        let nobody = self.context.connections.count() == 0 && self.acceptor.is_done();
        let until_ms = self.context.draining_until_ms;
        until_ms.is_some_and(|until_ms| nobody || self.context.now_ms >= until_ms)
    }

    /// Handles all pending messages of the master. Returns `false` if the master is gone.
    fn on_control_messages(&mut self) -> Result<bool, WorkerError> {
        loop {
            let (context, gateway) = (&mut self.context, &mut self.router.gateway);
            let received = context.tracer.call(Call::ControlReceive, || {
                context.control.try_receive::<ToWorker>()
            })?;
            let (order, mut descriptors) = match received {
                Received::Message(order, descriptors) => (order, descriptors),
                Received::WouldBlock => return Ok(true),
                Received::Closed => return Ok(false),
            };
            match (order, descriptors.pop()) {
                (ToWorker::Helper { pid }, Some(socket)) => {
                    self.helpers.attach(context, socket, pid);
                }
                (ToWorker::Helper { .. }, None) => self.helpers.lost(context),
                (ToWorker::Spawner { pid }, Some(socket)) => {
                    gateway.attach_spawner(context, socket, pid);
                }
                (ToWorker::Handshakes, Some(socket)) => self.attach_handshakes(socket),
                (ToWorker::Log, Some(socket)) => context.reconnect_log(socket),
                (ToWorker::Spans, Some(socket)) => context.connect_spans(socket),
                (ToWorker::Store, Some(socket)) => self.router.files.attach_store(context, socket),
                (ToWorker::Snapshot { id }, _) => {
                    let snapshot = Box::new(snapshot(self));
                    self.context.send_snapshot(id, snapshot);
                }
                (ToWorker::Ping, _) => self.context.send_pong(),
                (ToWorker::PollListeners, _) => self.acceptor.poll_listeners(context),
                (ToWorker::Drain(drain), _) => self.acceptor.drain(context, drain),
                // The socket was lost because descriptors have run out. Nothing asks for one of
                // these again, so another worker must take over.
                (ToWorker::Log | ToWorker::Handshakes | ToWorker::Spawner { .. }, None) => {
                    return Err(WorkerError::SocketLost);
                }
                // A helper whose socket was lost is requested again, and without that of the store process
                // the worker stores on its own. No other message is sent after the start.
                _ => {}
            }
        }
    }
}

/// What concerns several parts at once: new connections and helpers' results.
impl Worker {
    /// Handles a ready listener: accepts one batch.
    fn accept(&mut self, listener: u32) {
        if let Some(batch) = self.acceptor.begin_batch(&mut self.context, listener) {
            let batch = self.run_batch(batch);
            self.acceptor.pass_on(&mut self.context, &batch);
        }
    }

    /// Accepts connections for those that have closed.
    fn accept_for_closed(&mut self) {
        let mut owed = self.acceptor.owed_batches(&self.context);
        while let Some(batch) = self.acceptor.begin_owed(&mut self.context, &mut owed) {
            self.run_batch(batch);
        }
    }

    /// Accepts the connections of a batch, and lets each begin.
    fn run_batch(&mut self, mut batch: Batch) -> Batch {
        while let Some(slot) = self.acceptor.accept_next(&mut self.context, &mut batch) {
            self.close_over_limit();
            self.with_connection(slot, Worker::on_accepted);
        }
        self.acceptor.end_batch(&mut self.context, &mut batch);
        batch
    }

    /// Delivers the results of a helper.
    fn on_helper(&mut self, index: u32) {
        let mut results = self.helpers.receive(&mut self.context, index);
        for done in results.drain(..) {
            self.on_job_done(done);
        }
        self.helpers.results = results;
    }

    /// Passes queued jobs to helpers, and adapts their number.
    fn maintain_helpers(&mut self) {
        self.context.submit_prefetches();
        for pass in 0..=RING_PASSES_MAX {
            let (pool, now_ms) = (&mut self.context.pool, self.context.now_ms);
            // Here queued jobs leave for idle helpers.
            match pool.has_work() {
                true => (self.context.tracer).call(Call::HelperSend, || pool.flush(now_ms)),
                false => pool.flush(now_ms),
            }
            // A job of the io_uring instance can be done at once, and lead to another one.
            if pass == RING_PASSES_MAX || !pool.has_finished() {
                break;
            }
            self.on_helper(RING_SLOT);
        }
        self.helpers.maintain(&mut self.context);
    }
}
