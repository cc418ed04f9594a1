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
mod control_messages;
mod handlers;
mod helpers;
mod log;
mod memory;
mod request_handling;
mod resources;
mod sending;
mod small_file;

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use headway_debox::{Call, Tracer};
use headway_event::{Clock, Deadlines, Events, Interest, Ready, Token};
use headway_files::{Done, OpenFile, PinnerSocket, Pool, Residency};
use headway_http::HeadLimits;
use headway_os::privileges::{CapabilitySet, drop_capabilities};

use crate::accept::{Addresses, AdmissionControl, Balance, LISTENER, Listeners};
use crate::config::{AcceptBatch, Config, EarlyReject, ListenerMode, SendMethod};
use crate::connection::{CONNECTION, Connection, ConnectionTable};
use crate::control::{
    Control, ControlError, DescriptorError, FromWorker, StartDescriptors, ToWorker,
};
use crate::lookup::{Lookup, VirtualHosts};
use crate::metrics::Counters;
use crate::respond::handlers::Routes;
use crate::respond::{Date, ResponseCache, ResponseSettings};
use crate::send::{ChunkPool, MappingCache, RecentChunks};
use application::Applications;
use handlers::Handlers;
use log::Log;
use resources::{Resources, setup};

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
    config: Box<Config>,
    control: Control,
    events: Events,
    tracer: Tracer,
    counters: Counters,
    clock: Clock,
    now_ms: u64,
    date: Date,
    limits: HeadLimits,
    listeners: Listeners,
    addresses: Addresses,
    /// Decides the accept batch, unless a number is configured.
    auto: Option<AdmissionControl>,
    /// Knows how many connections the other workers have, if all accept from one queue.
    balance: Option<Balance>,
    connections: ConnectionTable,
    deadlines: Deadlines,
    hosts: Rc<VirtualHosts>,
    /// The locations with handlers and their requests in progress; empty without such locations.
    routes: Rc<Routes>,
    handlers: Option<Box<Handlers>>,
    applications: Applications,
    lookup: Lookup,
    response_settings: ResponseSettings,
    response_cache: ResponseCache,
    residency: Residency,
    pool: Pool,
    /// Helpers requested from the master that have not arrived, and the time of the request.
    helpers_requested: usize,
    helpers_requested_ms: u64,
    abandoned_jobs_reported: u64,
    /// The socket of the process that pins small files for all workers, if there is one.
    pinner: Option<PinnerSocket>,
    log: Option<Log>,
    /// The buffer into which requests are received; a connection stores only unconsumed input.
    scratch: Vec<u8>,
    /// The buffer into which small files are read before their response is built.
    body: Vec<u8>,
    /// Buffers for chunks of larger files.
    chunks: ChunkPool,
    /// Mapped chunks and recently sent chunks, for the send methods that use them.
    mappings: MappingCache,
    recent: RecentChunks,
    /// Connections whose write quantum was used up; they run again after the events of the next
    /// iteration.
    run_queue: Vec<Token>,
    prefetch: Vec<(Rc<OpenFile>, Range<u64>)>,
    done: Vec<Done>,
    /// Connections closed since the last accept batch on their behalf (`accept_on_close`).
    accepts_owed: u32,
    draining_until_ms: Option<u64>,
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
        Worker {
            number,
            control,
            events: resources.events,
            tracer: Tracer::disabled(),
            counters: Counters::default(),
            now_ms: clock.now_ms(),
            clock,
            date: Date::new(unix_second()),
            limits,
            addresses: Addresses::new(config.max_connections_per_address),
            auto: admission_control(&config, &mut resources.listeners),
            listeners: resources.listeners,
            balance: resources
                .shared_counters
                .map(|shared_counters| Balance::new(shared_counters, number)),
            connections: ConnectionTable::default(),
            deadlines: Deadlines::new(DEADLINE_TICK),
            hosts: Rc::new(resources.hosts),
            applications: Applications::new(&resources.routes),
            routes: Rc::new(resources.routes),
            handlers: resources.handlers,
            lookup: resources.lookup,
            response_settings: ResponseSettings::new(&config),
            response_cache: ResponseCache::new(config.response_cache_max_bytes),
            residency: Residency::detect(),
            pool: resources.pool,
            helpers_requested: 0,
            helpers_requested_ms: 0,
            abandoned_jobs_reported: 0,
            pinner: resources.pinner,
            log: resources.log,
            // Room for a buffered partial header and as much again, so that receiving always makes
            // progress.
            scratch: vec![0; 2 * config.max_header_bytes],
            body: Vec::new(),
            chunks: ChunkPool::new(config.chunk_cache_max_bytes),
            mappings: MappingCache::new(config.mapped_max_bytes),
            recent: RecentChunks::new(config.mapped_max_bytes),
            run_queue: Vec::new(),
            prefetch: Vec::new(),
            done: Vec::new(),
            accepts_owed: 0,
            draining_until_ms: None,
            last_clients: None,
            config,
        }
    }

    fn run(&mut self) -> Result<(), WorkerError> {
        let maps = self.config.send == SendMethod::Mmap;
        if let Err(error) = memory::reserve_and_lock(self.config.memory_bytes(), maps) {
            self.notice(error);
        }
        // From here on nothing may block. Reserving memory may, because no client is served yet.
        if self.config.trace {
            self.tracer = Tracer::enable();
        }
        // The SYN filter is loaded and the rings are open. Memory is locked as it grows.
        setup(
            "cannot give up capabilities",
            drop_capabilities(CapabilitySet::IPC_LOCK).map_err(Into::into),
        )?;
        self.control.send(&FromWorker::Ready, &[])?;
        let mut ready = Vec::new();
        self.maintain();
        while !self.is_drained() {
            let timeout = self.timeout();
            self.tracer
                .call(Call::EventWait, || self.events.wait(&mut ready, timeout))
                .map_err(|error| WorkerError::Setup {
                    what: "cannot wait for events".into(),
                    error,
                })?;
            self.tick();
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
            self.counters.ready_events.record(ready.len() as u64);
            self.check_idle_upstreams(&ready);
            for event in &ready {
                if !self.dispatch(event)? {
                    return Ok(());
                }
                self.accept_for_closed();
            }
            self.run_queued();
            self.maintain();
        }
        // Also log requests aborted by the drain deadline.
        for slot in self.connections.occupied() {
            self.close(slot);
        }
        self.flush_log();
        self.control.send(&FromWorker::Drained, &[])?;
        Ok(())
    }

    /// Reads the clocks, once per iteration.
    fn tick(&mut self) {
        self.now_ms = self.clock.now_ms();
        let second = unix_second();
        if second != self.date.second {
            self.date = Date::new(second);
        }
    }

    /// Handles one ready descriptor. Returns `false` if the master is gone and the worker must end.
    fn dispatch(&mut self, event: &Ready) -> Result<bool, WorkerError> {
        match event.token.kind() {
            LISTENER => {
                self.accept(event.token.slot());
            }
            CONNECTION => {
                if let Some(slot) = self.connections.find(event.token) {
                    self.with_connection(slot, |worker, connection| {
                        worker.on_event(connection, event)
                    });
                }
            }
            HELPER => self.on_helper(event.token.slot()),
            PROGRAM => self.on_program(event),
            SPAWNER => self.on_spawner(),
            DIRECT_PROCESS => self.on_direct(event.token),
            UPSTREAM_CONN => self.on_upstream_conn(event),
            CONTROL => return self.on_control_message(),
            _ => {}
        }
        Ok(true)
    }

    /// Does the periodic work at the end of each iteration.
    fn maintain(&mut self) {
        self.accept_last();
        self.maintain_helpers();
        self.maintain_handlers();
        self.listeners
            .resume(self.now_ms, &mut self.events, &self.tracer);
        self.expire_deadlines();
        self.accept_for_closed();
        self.maintain_log();
        self.maintain_balance();
        self.report_listeners();
        self.reject_while_full();
        self.maintain_queue();
    }

    /// The longest time that the next wait may take.
    fn timeout(&self) -> Option<Duration> {
        if !self.run_queue.is_empty() || self.last_clients.is_some() {
            return Some(Duration::ZERO);
        }
        let due = [
            self.deadlines.next_ms(),
            self.listeners.next_ms(),
            self.balance.as_ref().and_then(Balance::next_ms),
            self.pool.next_ms(self.now_ms),
            self.log.as_ref().and_then(Log::next_ms),
            self.draining_until_ms,
            self.auto
                .as_ref()
                .and_then(|auto| auto.next_ms(self.now_ms)),
            self.handlers_next_ms(),
            self.full_next_ms(),
            (self.helpers_requested > 0)
                .then_some(self.helpers_requested_ms + helpers::HELPER_REQUEST_TIMEOUT_MS),
        ];
        let next = due.into_iter().flatten().min()?;
        Some(Duration::from_millis(next.saturating_sub(self.now_ms)))
    }

    /// Runs `step` with a connection, and closes the connection if the step says so.
    fn with_connection(
        &mut self,
        slot: usize,
        step: impl FnOnce(&mut Worker, &mut Connection) -> Disposition,
    ) {
        let Some(mut connection) = self.connections.take(slot) else {
            return;
        };
        let disposition = step(self, &mut connection);
        self.connections.put_back(slot, connection);
        if disposition == Disposition::Close {
            self.close(slot);
        }
    }

    /// Continues the connections in the run queue.
    fn run_queued(&mut self) {
        for token in std::mem::take(&mut self.run_queue) {
            if let Some(slot) = self.connections.find(token) {
                self.with_connection(slot, Worker::continue_sending);
            }
        }
    }

    fn is_drained(&self) -> bool {
        let nobody = self.connections.len() == 0 && self.last_clients.is_none();
        self.draining_until_ms
            .is_some_and(|until| nobody || self.now_ms >= until)
    }

    /// Registers a connection for `interest`, unless it is already registered so.
    fn watch(&mut self, connection: &mut Connection, interest: Interest) {
        if connection.interest == Some(interest) {
            return;
        }
        let socket = connection.socket.as_fd();
        let registered = self
            .tracer
            .call(Call::EventControl, || match connection.interest {
                None => self.events.add(socket, connection.token, interest),
                Some(_) => self.events.modify(socket, connection.token, interest),
            });
        match registered {
            Ok(()) => connection.interest = Some(interest),
            // Out of memory or watches: this connection's deadline will end it.
            Err(error) => self.notice(format!("cannot watch a connection: {error}")),
        }
    }

    /// Sends a message for the operator to the master, which prints it.
    fn notice(&self, text: String) {
        // If the channel is full, many messages are unread already, so this one may be dropped.
        let _ = self.tracer.call(Call::ControlSend, || {
            self.control.try_send(&FromWorker::Notice { text }, &[])
        });
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

fn unix_second() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() as i64)
}
