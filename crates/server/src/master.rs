//! The master process: binds the listeners, starts workers, helpers and the other processes,
//! watches them, and reports.
//!
//! Only the master creates processes, because `fork` and `exec` block. It keeps all listeners open,
//! so that a worker's accept queue outlives the worker. One thread waits for signals and messages; a
//! second serves the status page. Children end when their socket to the master is closed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Display;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use headway_base::format::printable;
use headway_config::{Config, SendMethod};
use headway_control::{ControlError, FromWorker, Received, ToWorker};
use headway_files::Residency;
use headway_metrics::MasterStatus;
use headway_metrics::status;

mod announce;
mod children;
mod spawners;
mod collector;
mod listeners;
mod log;
mod shared;
mod signals;
mod spawn;
mod stopping;
mod store;
mod watchdog;
mod worker;

pub use children::Programs;
pub use collector::OverviewRequester;
pub use listeners::{BindError, unavailable_addresses};

use children::ended;
use collector::Collector;
use listeners::{ListenerOptions, Listeners};
use log::Log;
use shared::SharedTables;
use signals::Signals;
use spawners::Spawners;
use stopping::Stopping;
use store::Store;
use watchdog::Watchdog;
use worker::WorkerSlot;

/// How to run the server, apart from its configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to start children.
    pub programs: Programs,
    /// File for the addresses and the process id, as JSON, written when serving begins.
    pub ready_file: Option<PathBuf>,
    /// Print only warnings and errors.
    pub quiet: bool,
}

/// Error that prevents the server from starting or continuing.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// An address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The channel to a child could not be created.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The access log cannot be written.
    #[error("cannot open access log: {0}; not starting")]
    Log(String),
    /// A worker failed before serving began.
    #[error("worker {number}: {why}; not starting")]
    Worker {
        /// The number of the worker.
        number: usize,
        /// The error that the worker reported, or how it ended.
        why: String,
    },
    /// The ready file cannot be written.
    #[error("cannot write ready file {}: {error}; stopping", path.display())]
    ReadyFile {
        /// The file as given.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// There is no memory that several workers can share.
    #[error(
        "memfd_create: {0} (a seccomp profile may forbid it); not starting, because workers share memory. \
         Allow it, or set workers = 1, or listeners = \"reuseport\" without max-connections-per-address"
    )]
    SharedMemory(io::Error),
    /// A system call of the master failed.
    #[error("{what}: {error}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error.
        error: io::Error,
    },
}

/// Serves until SIGTERM or SIGINT; returns when the last child has ended.
///
/// The first signal lets requests in flight finish within the drain timeout; a second one stops at
/// once. SIGHUP makes the log process reopen its file.
pub fn run(config: Config, options: Options) -> Result<(), MasterError> {
    let mut master = Master::start(config, options)?;
    while !master.is_over() {
        master.iterate()?;
    }
    master.end()
}

struct Helper {
    worker: usize,
    child: Child,
}

struct Master {
    config: Config,
    options: Options,
    signals: Signals,
    collector: Collector,
    /// `None` while stopping: a listener that only the master holds open would collect connections
    /// that are never served.
    listeners: Option<Listeners>,
    /// What the workers know of each other.
    shared: SharedTables,
    watchdog: Watchdog,
    status_address: Option<SocketAddr>,
    slots: Vec<WorkerSlot>,
    helpers: Vec<Helper>,
    spawners: Spawners,
    log: Option<Log>,
    /// The process that keeps the content store and pins small files for all workers.
    store: Option<Store>,
    own_status: MasterStatus,
    started: Instant,
    announced: bool,
    stopping: Option<Stopping>,
    failure: Option<MasterError>,
}

/// What became ready.
#[derive(Clone, Copy)]
enum MasterEvent {
    Stop,
    Reopen,
    Child,
    StatusRequest,
    Log,
    Store,
    Worker(usize),
}

/// Without `cachestat` too many calls would sleep.
fn choose_send_method(config: &mut Config) {
    if config.send == SendMethod::Auto && Residency::detect().name() != "cachestat" {
        config.send = SendMethod::Copy;
        log_line("cachestat(2) needs Linux 6.5; send = \"auto\" copies");
    }
}

impl Master {
    fn start(mut config: Config, options: Options) -> Result<Master, MasterError> {
        // Before the first child, so that no SIGCHLD is missed.
        let signals = Signals::new().map_err(system("signal handlers"))?;
        let listeners = Listeners::bind(&config.listen, &ListenerOptions::of(&config))?;
        choose_send_method(&mut config);
        let shared = SharedTables::new(&config).map_err(MasterError::SharedMemory)?;
        let (collector, requester) = Collector::new().map_err(system("wake pipe"))?;
        let status = match config.status {
            None => None,
            Some(wanted) => Some(start_status(wanted, requester)?),
        };
        let log = config
            .log
            .as_ref()
            .map(|log| Log::start(log, &options.programs))
            .transpose()?;
        let store = Store::start(&mut config, &options.programs)?;
        let listen = listeners.addresses.clone();
        let mut master = Master {
            signals,
            collector,
            listeners: Some(listeners),
            shared,
            watchdog: Watchdog::new(&config),
            status_address: status,
            slots: (0..config.workers).map(|_| WorkerSlot::new()).collect(),
            helpers: Vec::new(),
            spawners: Spawners::new(config.workers, config.needs_spawner()),
            log,
            store,
            own_status: MasterStatus {
                pid: std::process::id(),
                start_time_ms: collector::now_ms(),
                listen,
                ..MasterStatus::default()
            },
            started: Instant::now(),
            announced: false,
            stopping: None,
            failure: None,
            config,
            options,
        };
        for number in 0..master.slots.len() {
            master.spawn_worker(number)?;
        }
        Ok(master)
    }

    /// One wait, and the work for what became ready.
    fn iterate(&mut self) -> Result<(), MasterError> {
        for source in self.wait()? {
            match source {
                MasterEvent::Stop => self.handle_stop(),
                MasterEvent::Reopen => self.handle_reopen(),
                MasterEvent::Child => drop(signals::drain(&self.signals.child)),
                MasterEvent::StatusRequest => self.collector.take_requests(&mut self.slots),
                MasterEvent::Log => self.read_log(),
                MasterEvent::Store => self.read_store(),
                MasterEvent::Worker(number) => self.read_worker(number),
            }
        }
        self.reap();
        let now = Instant::now();
        self.restart(now);
        self.watch_workers(now);
        self.enforce_deadline(now);
        self.own_status.uptime_ms = self.started.elapsed().as_millis() as u64;
        if let Some(overview) = self.collector.finish(&self.slots, &self.own_status)
            && !self.announced
            && self.stopping.is_none()
        {
            self.announced = true;
            announce::serving(&self.config, &self.options, self.status_address, &overview)?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<Vec<MasterEvent>, MasterError> {
        let watched = self.watched();
        let mut polled: Vec<PollFd<'_>> = watched
            .iter()
            .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        let left = |at: Instant| timespec(at.saturating_duration_since(Instant::now()));
        match poll(&mut polled, self.next_deadline().map(left).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(system("poll")(error.into())),
        }
        let ready = watched
            .iter()
            .zip(&polled)
            .filter(|(_, one)| !one.revents().is_empty());
        Ok(ready.map(|((source, _, _), _)| *source).collect())
    }

    fn watched(&self) -> Vec<(MasterEvent, BorrowedFd<'_>, PollFlags)> {
        let (signals, wake) = (&self.signals, self.collector.wake.as_fd());
        let mut watched = vec![
            (MasterEvent::Stop, signals.stop.as_fd(), PollFlags::IN),
            (MasterEvent::Reopen, signals.reopen.as_fd(), PollFlags::IN),
            (MasterEvent::Child, signals.child.as_fd(), PollFlags::IN),
            (MasterEvent::StatusRequest, wake, PollFlags::IN),
        ];
        if let Some(control) = self.log.as_ref().and_then(Log::control) {
            watched.push((MasterEvent::Log, control.as_fd(), PollFlags::IN));
        }
        if let Some(socket) = self.store.as_ref().and_then(Store::socket) {
            watched.push((MasterEvent::Store, socket, PollFlags::IN));
        }
        for (number, slot) in self.slots.iter().enumerate() {
            if let Some((fd, wants_room)) = slot.running.as_ref().and_then(|one| one.interest()) {
                let room = if wants_room {
                    PollFlags::OUT
                } else {
                    PollFlags::empty()
                };
                watched.push((MasterEvent::Worker(number), fd, PollFlags::IN | room));
            }
        }
        watched
    }

    fn next_deadline(&self) -> Option<Instant> {
        let restarts = self.slots.iter().filter_map(|slot| slot.restart_at);
        let log = self.log.iter().filter_map(|log| log.restart_at);
        let store = self.store.iter().filter_map(|store| store.restart_at);
        let stop = self.stopping.iter().map(|stopping| stopping.deadline);
        let watchdog = match self.stopping {
            None => self.watchdog.deadline(&self.slots),
            Some(_) => None,
        };
        restarts
            .chain(log)
            .chain(store)
            .chain(stop)
            .chain(watchdog)
            .chain(self.collector.deadline())
            .chain(self.spawners.deadline())
            .min()
    }

    fn send(&mut self, number: usize, message: ToWorker, descriptors: Vec<OwnedFd>) {
        if let Some(running) = &mut self.slots[number].running
            && !running.send(message, descriptors)
        {
            running.cut(true);
        }
    }

    /// Reads all messages of a worker, and sends it what waited for room.
    fn read_worker(&mut self, number: usize) {
        loop {
            let Some(running) = &mut self.slots[number].running else {
                return;
            };
            let Some(control) = running.control() else {
                return;
            };
            match control.try_receive::<FromWorker>() {
                Ok(Received::Message(message, _)) => {
                    running.progress.seen();
                    self.handle_message(number, message);
                }
                Ok(Received::WouldBlock) => {
                    if !running.flush() {
                        running.cut(true);
                    }
                    return;
                }
                Ok(Received::Closed) => return running.cut(self.stopping.is_none()),
                Err(error) => {
                    log_line(format_args!("worker {number}: {error}; replacing it"));
                    return running.cut(true);
                }
            }
        }
    }

    fn handle_message(&mut self, number: usize, message: FromWorker) {
        match message {
            FromWorker::Ready => {
                if let Some(running) = &mut self.slots[number].running {
                    running.ready = true;
                }
                if !self.announced && self.slots.iter().all(WorkerSlot::is_ready) {
                    self.collector.begin(&mut self.slots);
                }
            }
            FromWorker::WantHelpers { count } => {
                if let Err(error) = self.spawn_helpers(number, count) {
                    log_line(format_args!("{error}; worker {number} will retry"));
                }
            }
            FromWorker::Snapshot { id, snapshot } => {
                self.slots[number].last = Some(*snapshot);
                self.collector.answered(number, id);
            }
            FromWorker::AcceptPending => self.notify_others(number),
            FromWorker::Notice { text } => log_line(format_args!("worker {number}: {text}")),
            // Every message is a sign of progress.
            FromWorker::Pong | FromWorker::Drained => {}
            FromWorker::Failed { why } => self.slots[number].why = Some(why),
        }
    }

    /// Has the other workers poll the shared listeners for connections that one worker has left.
    fn notify_others(&mut self, number: usize) {
        for other in 0..self.slots.len() {
            if other != number && self.slots[other].is_ready() {
                self.send(other, ToWorker::PollListeners, Vec::new());
            }
        }
    }

    fn read_log(&mut self) {
        if let Some(log) = &mut self.log
            && !log.read(&mut self.own_status)
        {
            log.died(&mut self.own_status);
        }
    }

    fn read_store(&mut self) {
        if let Some(store) = &self.store {
            store.read(&mut self.own_status);
        }
    }

    /// Checks every child, because SIGCHLD does not say which one ended.
    fn reap(&mut self) {
        for number in 0..self.slots.len() {
            let running = self.slots[number].running.as_mut();
            if let Some(Ok(Some(status))) = running.map(|running| running.child.try_wait()) {
                // Its last messages first: they may have the reason.
                self.read_worker(number);
                self.worker_ended(number, &ended(status));
            }
            self.slots[number].reap_ended();
        }
        self.helpers
            .retain_mut(|helper| !matches!(helper.child.try_wait(), Ok(Some(_)) | Err(_)));
        self.spawners
            .reap(self.stopping.is_some(), &mut self.own_status);
        if let Some(store) = &mut self.store {
            store.reap(self.stopping.is_some(), &mut self.own_status);
        }
    }

    fn worker_ended(&mut self, number: usize, end: &str) {
        let last = self.slots[number].last.take();
        self.collector.departed(number, last);
        self.spawners.dismiss(number);
        self.shared.release(number);
        let slot = &mut self.slots[number];
        let reported = slot.why.take();
        let why = reported.map_or(end.to_owned(), |why| format!("{why} ({end})"));
        let delay = slot.died(Instant::now()).as_millis();
        if self.stopping.is_some() {
            slot.restart_at = None;
            return;
        }
        if !self.announced {
            self.failure = Some(MasterError::Worker { number, why });
            return self.stop(Duration::ZERO);
        }
        self.own_status.worker_deaths += 1;
        if self.config.wakes_one_worker() {
            self.notify_others(number);
        }
        log_line(format_args!(
            "worker {number} ended: {why}; restarting it in {delay} ms"
        ));
    }

    fn restart(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        for number in 0..self.slots.len() {
            if self.slots[number].restart_at.is_some_and(|at| at <= now)
                && let Err(error) = self.spawn_worker(number)
            {
                log_line(format_args!("worker {number}: {error}; retrying"));
                self.slots[number].died(now);
            }
        }
        for number in self.spawners.due(now) {
            self.start_spawner(number);
        }
        let restarted = match &mut self.store {
            Some(store) => store.restart(&self.options.programs, now),
            None => false,
        };
        if restarted {
            (0..self.slots.len()).for_each(|number| self.connect_store(number));
        }
        let restarted = match &mut self.log {
            Some(log) => log.restart(&self.options.programs, now),
            None => false,
        };
        if restarted {
            self.send_log_sockets();
        }
    }

    fn connect_store(&mut self, number: usize) {
        if let Some(socket) = self.store.as_ref().and_then(Store::connect) {
            self.send(number, ToWorker::Store, vec![socket]);
        }
    }

    fn send_log_sockets(&mut self) {
        for number in 0..self.slots.len() {
            if let Some(Ok(socket)) = self.log.as_ref().map(|log| log.socket(number as u32)) {
                self.send(number, ToWorker::Log, vec![socket]);
            }
        }
    }

    fn handle_reopen(&mut self) {
        signals::drain(&self.signals.reopen);
        if let Some(log) = &self.log {
            log.reopen();
        }
    }
}

/// Binds the status page before anything else starts, so that a port in use is an error.
fn start_status(
    wanted: SocketAddr,
    requester: OverviewRequester,
) -> Result<SocketAddr, MasterError> {
    let (socket, address) = listeners::bind_alone(wanted)?;
    let listener = TcpListener::from(socket);
    std::thread::Builder::new()
        .name("status".into())
        .spawn(move || status::serve(&listener, &|| requester.request()))
        .map_err(system("status thread"))?;
    Ok(address)
}

fn timespec(duration: Duration) -> Timespec {
    // Round up, so that the deadline has passed when the wait ends.
    let duration = duration + Duration::from_micros(999);
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> MasterError {
    move |error| MasterError::System { what, error }
}

/// Writes one line to standard error, and ignores errors.
#[expect(clippy::disallowed_methods, reason = "the master may wait")]
fn log_line(what: impl Display) {
    let _ = writeln!(io::stderr(), "headway: {}", printable(&what.to_string()));
}
