//! The composition root: one thread, one event loop, no waiting but for events.
//!
//! A turn of the loop: wait for events; take them in the order they come (accept, receive, helpers'
//! answers, the master's word); give connections that had spent their budget another turn; hand
//! queued work to helpers; look at deadlines. Every system call goes through the tracer, which
//! counts each voluntary sleep outside the event wait: that count is the proof that the loop never
//! blocked.
//!
//! What is absent on purpose: opening that may wait, reading that may wait, `fork`, name
//! resolution, locks, and writes to standard error (a terminal can be stopped); words for a person
//! go to the master as [`FromWorker::Notice`].

mod application;
mod clients;
mod dynamic;
mod exchange;
mod flow;
mod helpers;
mod log;
mod memory;
mod orders;
mod small;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use headway_debox::{Call, Tracer};
use headway_event::{Clock, Deadlines, Events, Interest, Mechanism, Ready, Token};
use headway_files::protocol::{FETCH_BYTES_MAX, Want};
use headway_files::{
    Done, KeeperSocket, Names, NamesBounds, OpenFile, Pool, PoolLimits, READ_IN_BYTES, Residency,
    Roots,
};
use headway_http::HeadLimits;
use headway_os::board::Board;
use headway_os::mapping::Mapping;

use crate::accept::{Addresses, Auto, Balance, LISTENER, Listeners};
use crate::config::{
    AcceptBatch, Config, EarlyReject, HelperBackend, ListenerMode, Opening, SendMethod,
};
use crate::connection::{CONNECTION, Connection, Phase, Slots};
use crate::control::{Control, ControlError, FromWorker, ToWorker};
use crate::lookup::{Hosts, Lookup};
use crate::respond::dynamic::Places;
use crate::respond::{Date, Rules, Shelf};
use crate::send::{Chunks, Windows};
use crate::tally::Counters;
use application::Applications;
use dynamic::Dynamic;
use log::Log;

/// The kind of token that names a helper's socket.
const HELPER: u8 = 2;
/// The kind of token that names the control socket.
const CONTROL: u8 = 3;
/// The kind of token that names a program's input or output.
const BACKEND: u8 = 4;
/// The kind of token that names the fork helper's socket.
const FORK_HELPER: u8 = 5;
/// The kind of token that names a program that stays.
const DIRECT: u8 = 6;
/// The kind of token that names a connection to a back end.
const LINE: u8 = 7;

/// Connection deadlines are kept to this precision, so that the table is scanned seldom.
const DEADLINE_TICK: Duration = Duration::from_millis(256);

/// Why a worker cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The channel to the master failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The master's first word was not the start order.
    #[error("the master did not say how to start")]
    NoStart,
    /// Something the worker needs could not be set up.
    #[error("{what}: {error}")]
    Setup {
        /// What was tried.
        what: String,
        /// Why it failed.
        error: io::Error,
    },
}

fn setup<T>(what: &str, result: io::Result<T>) -> Result<T, WorkerError> {
    result.map_err(|error| WorkerError::Setup {
        what: what.to_owned(),
        error,
    })
}

/// Whether a connection lives on after a step.
#[derive(PartialEq, Eq)]
enum Fate {
    Keep,
    Close,
}

/// One event loop with all it serves from.
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
    /// Decides how many clients to take, where no number is configured.
    auto: Option<Auto>,
    /// Knows how many clients the other workers have, where all take them from one queue.
    balance: Option<Balance>,
    connections: Slots,
    deadlines: Deadlines,
    hosts: Rc<Hosts>,
    /// Which paths programs answer, and what they have under way; nothing where there are none.
    places: Rc<Places>,
    dynamic: Option<Box<Dynamic>>,
    applications: Applications,
    lookup: Lookup,
    rules: Rules,
    shelf: Shelf,
    residency: Residency,
    pool: Pool,
    /// Helpers asked of the master that have not come, and when they were asked for.
    helpers_asked: usize,
    helpers_asked_ms: u64,
    given_up_told: u64,
    /// Who keeps small files for all workers, where somebody does.
    keeper: Option<KeeperSocket>,
    log: Option<Log>,
    /// Requests are received here; a connection keeps only what is left over.
    scratch: Vec<u8>,
    /// Small files are read here before their reply is prepared.
    body: Vec<u8>,
    /// Larger files are read here on their way, a window at a time.
    windows: Windows,
    /// What is mapped of files, and what was used lately, where the way of sending asks for it.
    maps: Chunks<Mapping>,
    recent: Chunks<()>,
    /// Connections that spent their budget and come again after the others.
    again: Vec<Token>,
    prefetch: Vec<(Rc<OpenFile>, Range<u64>)>,
    done: Vec<Done>,
    /// Connections closed since clients were last taken for them (`accept_on_close`).
    accepts_owed: u32,
    draining_until_ms: Option<u64>,
    /// While draining: how many clients of the accept queue may still be taken; then the listeners
    /// close.
    last_clients: Option<u32>,
}

/// Runs a worker until the master tells it to end, or is gone.
pub fn worker_main(control: Control) -> Result<(), WorkerError> {
    let result = Worker::start(control);
    match result {
        Ok(mut worker) => worker.run(),
        Err((control, error)) => {
            // The master prints it; if the master is gone there is nobody to tell.
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
        let order = match control.receive::<ToWorker>() {
            Ok(Some((ToWorker::Start { worker, config }, descriptors))) => {
                (worker, config, descriptors)
            }
            Ok(_) => return Err((control, WorkerError::NoStart)),
            Err(error) => return Err((control, error.into())),
        };
        let (number, config, descriptors) = order;
        match Parts::new(&config, descriptors, &control) {
            Ok(parts) => Ok(Worker::from_parts(number, config, control, parts)),
            Err(error) => Err((control, error)),
        }
    }

    fn from_parts(number: u32, config: Box<Config>, control: Control, mut parts: Parts) -> Worker {
        let limits = HeadLimits {
            head_bytes_max: config.max_header_bytes,
            target_bytes_max: config.max_target_bytes,
            ..HeadLimits::default()
        };
        let clock = Clock::monotonic();
        Worker {
            number,
            control,
            events: parts.events,
            tracer: Tracer::disabled(),
            counters: Counters::default(),
            now_ms: clock.now_ms(),
            clock,
            date: Date::new(unix_second()),
            limits,
            addresses: Addresses::new(config.max_connections_per_address),
            auto: (config.accept_batch == AcceptBatch::Auto).then(|| {
                let rejecting = config.early_reject != EarlyReject::Off;
                let shared = config.listeners != ListenerMode::Reuseport;
                // What it measures against is this worker's part of what the kernel makes of the
                // length.
                let queue = config.backlog.min(headway_os::listen::longest_queue());
                let queue = queue.div_ceil(config.sharers());
                let auto = Auto::new(queue, rejecting, shared, config.defer_accept);
                let auto = match config.eager_read {
                    true => auto,
                    // The request is there, and where nothing is written before that is asked for,
                    // the reply may be.
                    false => auto.serving_later(2 - u32::from(config.eager_write)),
                };
                match parts.listeners.remember() {
                    true => auto.remembering(),
                    false => auto,
                }
            }),
            listeners: parts.listeners,
            balance: parts.board.map(|board| Balance::new(board, number)),
            connections: Slots::default(),
            deadlines: Deadlines::new(DEADLINE_TICK),
            hosts: Rc::new(parts.hosts),
            applications: Applications::new(&parts.places),
            places: Rc::new(parts.places),
            dynamic: parts.dynamic,
            lookup: parts.lookup,
            rules: Rules::new(&config),
            shelf: Shelf::new(config.response_cache_max_bytes),
            residency: Residency::detect(),
            pool: parts.pool,
            helpers_asked: 0,
            helpers_asked_ms: 0,
            given_up_told: 0,
            keeper: parts.keeper,
            log: parts.log,
            // Room for a held partial head and as much again, so that receiving always progresses.
            scratch: vec![0; 2 * config.max_header_bytes],
            body: Vec::new(),
            windows: Windows::new(config.chunk_cache_max_bytes),
            maps: Chunks::new(config.mapped_max_bytes),
            recent: Chunks::new(config.mapped_max_bytes),
            again: Vec::new(),
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
        if let Err(error) = memory::hold(self.config.memory_bytes(), maps) {
            self.notice(error);
        }
        // From here on nothing may wait. Taking memory may: nobody is served yet.
        if self.config.trace {
            self.tracer = Tracer::enable();
        }
        self.control.send(&FromWorker::Ready, &[])?;
        let mut ready = Vec::new();
        self.tend();
        while !self.is_drained() {
            let timeout = self.timeout();
            self.tracer
                .call(Call::EventWait, || self.events.wait(&mut ready, timeout))
                .map_err(|error| WorkerError::Setup {
                    what: "waiting for events".into(),
                    error,
                })?;
            self.tick();
            if let Some(auto) = &mut self.auto {
                let crowded = ready.len() >= headway_event::EVENTS_PER_WAIT_MAX;
                let clients = ready
                    .iter()
                    .filter(|event| event.token.kind() == CONNECTION);
                auto.begin_turn(
                    clients.count() as u32,
                    crowded,
                    self.listeners.are_watched(),
                );
            }
            self.counters.ready_events.record(ready.len() as u64);
            self.hear_idle_lines(&ready);
            for event in &ready {
                if !self.take(event)? {
                    return Ok(());
                }
                self.accept_for_closed();
            }
            self.give_turns();
            self.tend();
        }
        // Those whom the deadline cuts off stand in the log, too.
        for slot in self.connections.occupied() {
            self.close(slot);
        }
        self.flush_log();
        self.control.send(&FromWorker::Drained, &[])?;
        Ok(())
    }

    /// Reads the clocks, once a turn.
    fn tick(&mut self) {
        self.now_ms = self.clock.now_ms();
        let second = unix_second();
        if second != self.date.second {
            self.date = Date::new(second);
        }
    }

    /// One ready descriptor. `false`: the master is gone, and so is the reason to run.
    fn take(&mut self, event: &Ready) -> Result<bool, WorkerError> {
        match event.token.kind() {
            LISTENER => {
                self.accept(event.token.slot());
            }
            CONNECTION => {
                if let Some(slot) = self.connections.find(event.token) {
                    self.step(slot, |worker, connection| {
                        worker.on_event(connection, event)
                    });
                }
            }
            HELPER => self.on_helper(event.token.slot()),
            BACKEND => self.on_program(event),
            FORK_HELPER => self.on_fork_helper(),
            DIRECT => self.on_direct(event.token),
            LINE => self.on_line(event),
            CONTROL => return self.on_orders(),
            _ => {}
        }
        Ok(true)
    }

    /// What is due at the end of each turn, whatever the events were.
    fn tend(&mut self) {
        self.accept_last();
        self.tend_helpers();
        self.tend_dynamic();
        self.listeners
            .resume(self.now_ms, &mut self.events, &self.tracer);
        self.expire();
        self.accept_for_closed();
        self.tend_log();
        self.tend_balance();
        self.tell_of_left();
        self.reject_while_full();
        self.tend_queue();
    }

    /// How long the next wait may be.
    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() || self.last_clients.is_some() {
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
            self.dynamic_next_ms(),
            self.full_next_ms(),
            (self.helpers_asked > 0).then_some(self.helpers_asked_ms + helpers::ASK_AGAIN_MS),
        ];
        let next = due.into_iter().flatten().min()?;
        Some(Duration::from_millis(next.saturating_sub(self.now_ms)))
    }

    /// Runs one step of a connection and closes it if the step says so.
    fn step(&mut self, slot: usize, step: impl FnOnce(&mut Worker, &mut Connection) -> Fate) {
        let Some(mut connection) = self.connections.lend(slot) else {
            return;
        };
        let fate = step(self, &mut connection);
        self.connections.restore(slot, connection);
        if fate == Fate::Close {
            self.close(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        let Some(mut connection) = self.connections.remove(slot) else {
            return;
        };
        // A reply that was cut off stands in the log with the bytes that left.
        if connection.outgoing.status != 0 && connection.record.is_some() {
            self.write_log(&mut connection);
        }
        if matches!(connection.phase, Phase::Exchange(_)) {
            self.abandon(&mut connection);
        }
        if connection.lent {
            // Closing our copy alone would leave the client with whoever still has another.
            let _ = self.tracer.call(Call::Shutdown, || {
                rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both)
            });
            // A program may have asked that closing waits until the client has got everything
            // (socket(7), `SO_LINGER`).
            let _ = self.tracer.call(Call::SocketOption, || {
                rustix::net::sockopt::set_socket_linger(&connection.socket, None)
            });
        }
        if connection.phase.waits_for_a_helper() {
            self.pool.leave(connection.token.0);
        }
        self.addresses.leave(connection.peer.ip());
        self.deadlines.clear(slot);
        if connection.interest.is_some() {
            self.events.forget(connection.socket.as_fd());
        }
        self.tracer.call(Call::Close, || drop(connection));
        self.counters.connections_closed += 1;
        self.listeners.set_full(false, &mut self.events);
        self.accepts_owed += u32::from(self.config.accept_on_close);
    }

    /// Connections that had more to send than one turn allows.
    fn give_turns(&mut self) {
        for token in std::mem::take(&mut self.again) {
            if let Some(slot) = self.connections.find(token) {
                self.step(slot, Worker::continue_sending);
            }
        }
    }

    fn is_drained(&self) -> bool {
        let nobody = self.connections.len() == 0 && self.last_clients.is_none();
        self.draining_until_ms
            .is_some_and(|until| nobody || self.now_ms >= until)
    }

    /// Tells the event mechanism what a connection waits for, if it does not know.
    fn watch(&mut self, connection: &mut Connection, interest: Interest) {
        if connection.interest == Some(interest) {
            return;
        }
        let socket = connection.socket.as_fd();
        let told = self
            .tracer
            .call(Call::EventControl, || match connection.interest {
                None => self.events.add(socket, connection.token, interest),
                Some(_) => self.events.modify(socket, connection.token, interest),
            });
        match told {
            Ok(()) => connection.interest = Some(interest),
            // Out of memory or watches: the deadline will end this connection, nobody else's.
            Err(error) => self.notice(format!("watching a connection: {error}")),
        }
    }

    /// Says something to a person, through the master.
    fn notice(&self, text: String) {
        // A full channel means that many notices are unread already; one more helps nobody.
        let _ = self.tracer.call(Call::ControlSend, || {
            self.control.try_send(&FromWorker::Notice { text }, &[])
        });
    }
}

/// What has to be opened before a worker can serve. Waiting is allowed here: nobody is served yet.
struct Parts {
    events: Events,
    listeners: Listeners,
    board: Option<Board>,
    hosts: Hosts,
    places: Places,
    dynamic: Option<Box<Dynamic>>,
    lookup: Lookup,
    pool: Pool,
    keeper: Option<KeeperSocket>,
    log: Option<Log>,
}

impl Parts {
    fn new(
        config: &Config,
        mut descriptors: Vec<OwnedFd>,
        control: &Control,
    ) -> Result<Parts, WorkerError> {
        let mechanism: Mechanism = setup("choosing the event mechanism", parse_mechanism(config))?;
        let mut events = setup("opening the event mechanism", Events::new(mechanism))?;
        let log_socket = config.log.as_ref().and_then(|_| descriptors.pop());
        let log = config
            .log
            .as_ref()
            .zip(log_socket)
            .map(|(log, socket)| Log::new(log.format, socket));
        let keeps = config.pin_max_bytes > 0;
        let keeper = keeps.then(|| descriptors.pop()).flatten();
        let keeper = keeper.map(|socket| KeeperSocket::new(socket, config.pin_max_bytes));
        let board = config.is_balanced().then(|| descriptors.pop()).flatten();
        let board = board
            .map(|board| Board::open(board).map_err(io::Error::from))
            .transpose();
        let board = setup("seeing how many clients the other workers have", board)?;
        let mut listeners = setup(
            "watching the listeners",
            Listeners::new(descriptors, config.listeners, &mut events),
        )?;
        listeners.open_wide(config.backlog, config.defer_accept);
        let watched = events.add(control.as_fd(), Token::new(CONTROL, 0, 0), Interest::READ);
        setup("watching the master", watched)?;
        let hosts = setup("reading the hosts", Hosts::open(&config.hosts))?;
        let places = Places::new(config);
        let dynamic = setup("preparing for programs", Dynamic::new(&places))?;
        let roots = [Hosts::roots(&config.hosts), Places::roots(config)].concat();
        let roots = Roots::open(&roots).map_err(io::Error::other);
        let roots = Rc::new(setup("opening the document roots", roots)?);
        let limits = PoolLimits {
            min: config.helpers_min,
            max: config.helpers_max,
            queue_max: config.helper_queue_max,
            want: want(config),
            ..PoolLimits::default()
        };
        let mut pool = Pool::new(limits, roots.clone());
        if config.helper_backend == HelperBackend::IoUring {
            let ring = pool.use_ring(config.descriptors_needed());
            setup("making a ring for the work of helpers", ring)?;
            if let Some(ring) = pool.ring() {
                let token = Token::new(HELPER, helpers::RING, 0);
                let watched = events.add(ring, token, Interest::READ);
                setup("watching the ring for the work of helpers", watched)?;
            }
        }
        let bounds = NamesBounds {
            entries_max: config.file_cache_entries,
            descriptors_max: config.file_cache_descriptors,
        };
        let lookup = Lookup::new(
            roots,
            Names::new(bounds),
            pool.retire_list(),
            config.opening,
            config.revalidate_ms,
            config.caching,
        );
        Ok(Parts {
            events,
            listeners,
            board,
            hosts,
            places,
            dynamic,
            lookup,
            pool,
            keeper,
            log,
        })
    }
}

/// What helpers do with names. To read a file along the way is ours: the papers' servers looked
/// first whether it is resident, and then had it read in.
fn want(config: &Config) -> Want {
    match config.opening {
        Opening::Touch => Want::Touch,
        Opening::Pass => Want::File,
        Opening::Probe if config.small_file_max_bytes >= FETCH_BYTES_MAX as u64 => {
            Want::FileFetched
        }
        // Larger ones than are kept in memory would be read twice.
        Opening::Probe => Want::FileReadIn(READ_IN_BYTES),
    }
}

fn parse_mechanism(config: &Config) -> io::Result<Mechanism> {
    config
        .events
        .parse()
        .map_err(|error| io::Error::other(format!("{error}")))
}

fn unix_second() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() as i64)
}
