//! The worker: one thread with one event loop, which waits for events only.
//!
//! An iteration of the loop waits for events; handles them in order (new connections, input, helper
//! answers, control messages from the master); runs the connections in the run queue, whose write
//! quantum was used up; checks deadlines; and passes queued jobs to helpers. Every system call goes
//! through the tracer, which counts each voluntary sleep outside the event wait. That count proves
//! that the loop never blocked.
//!
//! The loop makes no call that may block: no blocking open or read, no `fork`, no name resolution,
//! no locks, no writes to standard error (a terminal can be stopped). Messages for the log go to
//! the master as [`FromWorker::Notice`].

mod application;
mod accepting;
mod acceptor;
mod connection_io;
mod context;
mod control_messages;
mod files;
mod gateway;
mod handler;
mod helpers;
mod log;
mod memory;
mod receiving;
mod request_handling;
mod sending;
mod start;
mod tokens;

use std::time::Duration;

use headway_event::Ready;
use headway_os::privileges::{CapabilitySet, drop_capabilities};

use crate::accept::{Balance, LISTENER};
use crate::calls::{Call, Tracer};
use crate::connection::{CONNECTION, Connection};
use crate::control::FromWorker;
use acceptor::Acceptor;
use application::EmbeddedApplications;
use context::LoopContext;
use files::StaticFiles;
use gateway::Gateway;
use helpers::HelperRequests;
use log::Log;
use start::setup;
pub use start::{WorkerError, worker_main};
use tokens::{CONTROL, DIRECT_PROCESS, HELPER, PROGRAM, SPAWNER, UPSTREAM_CONN};

/// Whether a connection stays open after a step.
#[derive(PartialEq, Eq)]
enum Disposition {
    Keep,
    Close,
}

/// The state of a worker.
struct Worker {
    number: u32,
    /// What the stages share.
    context: LoopContext,
    acceptor: Acceptor,
    /// The programs and upstreams that answer requests.
    gateway: Box<Gateway>,
    applications: EmbeddedApplications,
    files: StaticFiles,
    helpers: HelperRequests,
}

impl Worker {
    fn run(&mut self) -> Result<(), WorkerError> {
        let maps = self.context.sender.maps_files();
        if let Err(error) = memory::reserve_and_lock(self.context.config.memory_bytes(), maps) {
            self.context.notice(error);
        }
        // From here on nothing may block. Reserving memory may, because no client is served yet.
        if self.context.config.trace {
            self.context.tracer = Tracer::enable();
        }
        // The SYN filter is loaded and the rings are open. Memory is locked as it grows.
        setup(
            "cannot give up capabilities",
            drop_capabilities(CapabilitySet::IPC_LOCK).map_err(Into::into),
        )?;
        self.context.control.send(&FromWorker::Ready, &[])?;
        let mut ready = Vec::new();
        self.maintain();
        while !self.is_drained() {
            let timeout = self.timeout();
            self.context
                .tracer
                .call(Call::EventWait, || {
                    self.context.events.wait(&mut ready, timeout)
                })
                .map_err(|error| WorkerError::Setup {
                    what: "cannot wait for events".into(),
                    error,
                })?;
            self.context.tick();
            if let Some(auto) = &mut self.acceptor.auto {
                let crowded = ready.len() >= headway_event::EVENTS_PER_WAIT_MAX;
                let clients = ready
                    .iter()
                    .filter(|event| event.token.kind() == CONNECTION);
                auto.begin_iteration(
                    clients.count() as u32,
                    crowded,
                    self.acceptor.listeners.are_watched(),
                );
            }
            self.context
                .counters
                .ready_events
                .record(ready.len() as u64);
            self.gateway.check_idle_upstreams(&mut self.context, &ready);
            for event in &ready {
                if !self.dispatch(event)? {
                    return Ok(());
                }
                self.apply_settled();
                self.accept_for_closed();
            }
            self.run_queued();
            self.maintain();
        }
        // Also log requests aborted by the drain deadline.
        for slot in self.context.connections.occupied() {
            self.close(slot);
        }
        self.context.flush_log();
        self.context.control.send(&FromWorker::Drained, &[])?;
        Ok(())
    }

    /// Handles one ready descriptor. Returns `false` if the master is gone and the worker must end.
    fn dispatch(&mut self, event: &Ready) -> Result<bool, WorkerError> {
        match event.token.kind() {
            LISTENER => {
                self.accept(event.token.slot());
            }
            CONNECTION => {
                if let Some(slot) = self.context.connections.find(event.token) {
                    self.with_connection(slot, |worker, connection| {
                        worker.on_event(connection, event)
                    });
                }
            }
            HELPER => self.on_helper(event.token.slot()),
            PROGRAM => self.gateway.on_program(&mut self.context, event),
            SPAWNER => self.gateway.on_spawner(&mut self.context),
            DIRECT_PROCESS => self.gateway.on_direct(&mut self.context, event.token),
            UPSTREAM_CONN => self.gateway.on_upstream_conn(&mut self.context, event),
            CONTROL => return self.on_control_message(),
            _ => {}
        }
        Ok(true)
    }

    /// Does the periodic work at the end of each iteration.
    fn maintain(&mut self) {
        self.accept_last();
        self.acceptor.pause_if_short(&mut self.context);
        if std::mem::take(&mut self.context.evict_files) {
            self.files.evict();
        }
        if !self.context.routes.is_empty() {
            self.gateway.maintain(&mut self.context);
            self.apply_settled();
        }
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
        self.acceptor.maintain_balance(&mut self.context);
        self.acceptor.report_listeners(&mut self.context);
        self.acceptor.reject_while_full(&mut self.context);
        self.acceptor.maintain_queue(&mut self.context);
    }

    /// The longest time that the next wait may take.
    fn timeout(&self) -> Option<Duration> {
        if !self.context.run_queue.is_empty() || self.acceptor.last_clients.is_some() {
            return Some(Duration::ZERO);
        }
        let due = [
            self.context.deadlines.next_ms(),
            self.acceptor.listeners.next_ms(),
            self.acceptor.balance.as_ref().and_then(Balance::next_ms),
            self.context.pool.next_ms(self.context.now_ms),
            self.context.log.as_ref().and_then(Log::next_ms),
            self.context.draining_until_ms,
            self.acceptor
                .auto
                .as_ref()
                .and_then(|auto| auto.next_ms(self.context.now_ms)),
            self.gateway.next_ms(&self.context),
            self.acceptor.full_next_ms(&self.context),
            self.helpers.next_ms(),
        ];
        let next = due.into_iter().flatten().min()?;
        Some(Duration::from_millis(
            next.saturating_sub(self.context.now_ms),
        ))
    }

    /// Runs `step` with a connection, and closes the connection if the step says so.
    fn with_connection(
        &mut self,
        slot: usize,
        step: impl FnOnce(&mut Worker, &mut Connection) -> Disposition,
    ) {
        let Some(mut connection) = self.context.connections.take(slot) else {
            return;
        };
        let disposition = step(self, &mut connection);
        self.context.connections.put_back(slot, connection);
        if disposition == Disposition::Close {
            self.close(slot);
        }
    }

    /// Applies what the gateway has decided about connections that were not at hand.
    fn apply_settled(&mut self) {
        while !self.context.settled.is_empty() {
            let mut settled = std::mem::take(&mut self.context.settled);
            for (token, next) in settled.drain(..) {
                if let Some(slot) = self.context.connections.find(token) {
                    self.with_connection(slot, |worker, connection| {
                        worker.advance(connection, next)
                    });
                }
            }
            // Its memory is used again.
            if self.context.settled.is_empty() {
                self.context.settled = settled;
                break;
            }
        }
    }

    /// Continues the connections in the run queue.
    fn run_queued(&mut self) {
        for token in std::mem::take(&mut self.context.run_queue) {
            if let Some(slot) = self.context.connections.find(token) {
                self.with_connection(slot, Worker::take_turn);
            }
        }
    }

    fn is_drained(&self) -> bool {
        let nobody = self.context.connections.len() == 0 && self.acceptor.last_clients.is_none();
        self.context
            .draining_until_ms
            .is_some_and(|until| nobody || self.context.now_ms >= until)
    }
}
