//! The worker: one thread with one event loop, which waits for events only.
//!
//! An iteration of the loop waits for events; handles them in order (new connections, input, helper
//! answers, control messages from the master); runs the connections in the run queue, whose write
//! quantum was used up; passes queued jobs to helpers; and checks deadlines. Every system call goes
//! through the tracer, which counts each voluntary sleep outside the event wait. That count proves
//! that the loop never blocked.
//!
//! The loop makes no call that may block: no blocking open or read, no `fork`, no name resolution,
//! no locks, no writes to standard error (a terminal can be stopped). Messages for the log go to
//! the master as [`FromWorker::Notice`].

mod application;
mod clients;
mod connection_io;
mod context;
mod control_messages;
mod files;
mod gateway;
mod helpers;
mod log;
mod memory;
mod receiving;
mod request_handling;
mod resources;
mod sending;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use headway_debox::{Call, Tracer};
use headway_event::{Clock, Deadlines, Ready};
use headway_files::Residency;
use headway_http::HeadLimits;
use headway_os::privileges::{CapabilitySet, drop_capabilities};

use crate::accept::{Addresses, AdmissionControl, Balance, LISTENER, Listeners};
use crate::config::{AcceptBatch, Config, EarlyReject, ListenerMode, SendMethod};
use crate::connection::{CONNECTION, Connection, ConnectionTable};
use crate::control::{
    Control, ControlError, DescriptorError, FromWorker, StartDescriptors, ToWorker,
};
use crate::metrics::Counters;
use crate::request::Requests;
use crate::respond::{Date, ResponseSettings};
use application::Applications;
use context::{LoopContext, unix_second};
use files::StaticFiles;
use gateway::Gateway;
use helpers::HelperRequests;
use log::Log;
use resources::{Resources, setup};
use sending::Sender;

/// The token kind of helper sockets.
const HELPER: u8 = 2;
/// The token kind of the control socket.
const CONTROL: u8 = 3;
/// The token kind of a program's input and output.
const PROGRAM: u8 = 4;
/// The token kind of the spawner's socket.
const SPAWNER: u8 = 5;
/// The token kind of long-running programs.
const DIRECT_PROCESS: u8 = 6;
/// The token kind of upstream connections.
const UPSTREAM_CONN: u8 = 7;

/// The precision of connection deadlines. A coarse tick keeps scans of the table rare.
const DEADLINE_TICK: Duration = Duration::from_millis(256);

/// Why a worker cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The channel to the master failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The start message lacks a descriptor or has one too many.
    #[error(transparent)]
    Descriptors(#[from] DescriptorError),
    /// The first control message was not the start message.
    #[error("the master sent no start message")]
    NoStart,
    /// A resource could not be set up.
    #[error("{what}: {error}")]
    Setup {
        /// What failed.
        what: String,
        /// The cause.
        error: io::Error,
    },
}

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
    listeners: Listeners,
    addresses: Addresses,
    /// Decides the accept batch, unless a number is configured.
    auto: Option<AdmissionControl>,
    /// Knows how many connections the other workers have, if all accept from one queue.
    balance: Option<Balance>,
    /// The programs and upstreams that answer requests.
    gateway: Box<Gateway>,
    applications: Applications,
    files: StaticFiles,
    helpers: HelperRequests,
    /// Connections closed since the last accept batch on their behalf (`accept_on_close`).
    accepts_owed: u32,
    /// While draining: how many connections may still be accepted before the listeners close.
    last_clients: Option<u32>,
}

/// Runs a worker until the master stops it or disappears.
pub fn worker_main(control: Control) -> Result<(), WorkerError> {
    let result = Worker::start(control);
    match result {
        Ok(mut worker) => worker.run(),
        Err((control, error)) => {
            // The master prints the error. If the master is gone, nothing more can be done.
            let _ = control.send(
                &FromWorker::Failed {
                    why: error.to_string(),
                },
                &[],
            );
            Err(error)
        }
    }
}

impl Worker {
    fn start(control: Control) -> Result<Worker, (Control, WorkerError)> {
        let (order, received) = match control.receive::<ToWorker>() {
            Ok(Some(message)) => message,
            Ok(None) => return Err((control, WorkerError::NoStart)),
            Err(error) => return Err((control, error.into())),
        };
        let ToWorker::Start {
            worker,
            config,
            descriptors,
        } = order
        else {
            return Err((control, WorkerError::NoStart));
        };
        let resources = StartDescriptors::new(descriptors, received)
            .map_err(WorkerError::from)
            .and_then(|descriptors| Resources::new(&config, descriptors, &control));
        match resources {
            Ok(resources) => Ok(Worker::from_resources(worker, config, control, resources)),
            Err(error) => Err((control, error)),
        }
    }

    fn from_resources(
        number: u32,
        config: Box<Config>,
        control: Control,
        mut resources: Resources,
    ) -> Worker {
        let limits = HeadLimits {
            head_bytes_max: config.max_header_bytes,
            target_bytes_max: config.max_target_bytes,
            ..HeadLimits::default()
        };
        let clock = Clock::monotonic();
        let reserve = resources.listeners.reserve();
        Worker {
            number,
            addresses: Addresses::new(config.max_connections_per_address),
            auto: admission_control(&config, &mut resources.listeners),
            listeners: resources.listeners,
            balance: resources
                .shared_counters
                .map(|shared_counters| Balance::new(shared_counters, number)),
            applications: Applications::new(&resources.routes),
            gateway: resources.gateway,
            files: StaticFiles::new(&config, resources.lookup, resources.pinner),
            helpers: HelperRequests::default(),
            accepts_owed: 0,
            last_clients: None,
            context: LoopContext {
                control,
                events: resources.events,
                tracer: Tracer::disabled(),
                counters: Counters::default(),
                now_ms: clock.now_ms(),
                clock,
                date: Date::new(unix_second()),
                limits,
                connections: ConnectionTable::default(),
                deadlines: Deadlines::new(DEADLINE_TICK),
                requests: Requests::default(),
                hosts: Rc::new(resources.hosts),
                routes: Rc::new(resources.routes),
                response_settings: ResponseSettings::new(&config),
                residency: Residency::detect(),
                pool: resources.pool,
                sender: Sender::new(&config),
                log: resources.log,
                // Room for a buffered partial header and as much again, so that receiving always
                // makes progress.
                scratch: vec![0; 2 * config.max_header_bytes],
                run_queue: Vec::new(),
                settled: Vec::new(),
                reserve,
                descriptors_short: false,
                draining_until_ms: None,
                config,
            },
        }
    }

    fn run(&mut self) -> Result<(), WorkerError> {
        let maps = self.context.config.send == SendMethod::Mmap;
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
            if let Some(auto) = &mut self.auto {
                let crowded = ready.len() >= headway_event::EVENTS_PER_WAIT_MAX;
                let clients = ready
                    .iter()
                    .filter(|event| event.token.kind() == CONNECTION);
                auto.begin_iteration(
                    clients.count() as u32,
                    crowded,
                    self.listeners.are_watched(),
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
        self.pause_if_short();
        self.maintain_helpers();
        if !self.context.routes.is_empty() {
            self.gateway.maintain(&mut self.context);
            self.apply_settled();
        }
        self.listeners.resume(
            self.context.now_ms,
            &mut self.context.events,
            &self.context.tracer,
        );
        self.expire_deadlines();
        self.accept_for_closed();
        self.context.maintain_log();
        self.maintain_balance();
        self.report_listeners();
        self.reject_while_full();
        self.maintain_queue();
    }

    /// The longest time that the next wait may take.
    fn timeout(&self) -> Option<Duration> {
        if !self.context.run_queue.is_empty() || self.last_clients.is_some() {
            return Some(Duration::ZERO);
        }
        let due = [
            self.context.deadlines.next_ms(),
            self.listeners.next_ms(),
            self.balance.as_ref().and_then(Balance::next_ms),
            self.context.pool.next_ms(self.context.now_ms),
            self.context.log.as_ref().and_then(Log::next_ms),
            self.context.draining_until_ms,
            self.auto
                .as_ref()
                .and_then(|auto| auto.next_ms(self.context.now_ms)),
            self.gateway.next_ms(&self.context),
            self.full_next_ms(),
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
            for (token, next) in std::mem::take(&mut self.context.settled) {
                if let Some(slot) = self.context.connections.find(token) {
                    self.with_connection(slot, |worker, connection| {
                        worker.advance(connection, next)
                    });
                }
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
        let nobody = self.context.connections.len() == 0 && self.last_clients.is_none();
        self.context
            .draining_until_ms
            .is_some_and(|until| nobody || self.context.now_ms >= until)
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
        deferred_events: match config.eager_read {
            true => 0,
            false => 2 - u32::from(config.eager_write),
        },
    };
    Some(AdmissionControl::new(&settings, config.defer_accept))
}
