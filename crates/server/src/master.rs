//! The master process: binds the listeners, starts workers, helpers and the other processes,
//! watches them, and reports.
//!
//! Only the master creates processes, because `fork` and `exec` block. It keeps all listeners open,
//! so that a worker's accept queue outlives the worker. One thread waits for signals and messages; a
//! second serves the status page. Children end when their socket to the master is closed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use headway_config::{Config, SendMethod};
use headway_control::{FromWorker, Packet, Received, ToWorker};
use headway_files::Residency;
use headway_metrics::{MasterStatus, Overview};

mod acme;
mod activation;
mod announce;
mod children;
mod collector;
mod companions;
mod directories;
mod error;
mod error_log;
mod inherited;
mod listeners;
mod log;
mod names;
mod predecessors;
mod reading;
mod reaping;
mod reload;
mod sandbox;
mod service;
mod shared;
mod signals;
mod spans;
mod spawn;
mod status_page;
mod stopping;
mod store;
mod supervised;
mod tls;
mod unix_socket;
mod upgrade;
mod watchdog;
mod worker;

pub use children::Programs;
pub use collector::OverviewRequester;
pub use error::MasterError;
pub use inherited::Inherited;
pub use listeners::unavailable_addresses;
pub use reading::ReadConfig;
pub use tls::check_tls;
pub use upgrade::rehearse_upgrade;

use acme::Acme;
use collector::Collector;
use companions::Companions;
use error_log::{log_error, log_info, log_of, log_warn};
use listeners::Listeners;
use log::Log;
use names::Resolver;
use predecessors::Predecessors;
use reading::{Reader, Reading};
use reload::{Generation, Reload};
use service::Service;
use signals::Signals;
use spans::Spans;
use status_page::StatusPage;
use stopping::Stopping;
use store::Store;
use tls::{Renewals, SharedTls};
use upgrade::{Taken, Upgrade};
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

/// Serves until SIGTERM or SIGINT; returns when the last child has ended.
///
/// The first signal lets requests in flight finish within the drain timeout; a second one stops at
/// once. SIGHUP reads the configuration again, SIGUSR1 makes the log process reopen its file, and
/// SIGUSR2 replaces the program.
pub fn run(
    config: Config,
    options: Options,
    read_config: ReadConfig,
    inherited: Inherited,
) -> Result<(), MasterError> {
    let inherited = RefCell::new(inherited);
    let serve = || {
        let mut master = Master::start(config, options, Reader::new(read_config), &inherited)?;
        while !master.is_over() {
            master.iterate()?;
        }
        master.end()
    };
    let served = serve();
    if let Err(error) = &served {
        inherited.into_inner().fail(error);
    }
    served
}

struct Helper {
    /// The slot of its worker.
    worker: usize,
    generation: Weak<Generation>,
    child: Child,
}

struct Master<'r> {
    /// The configuration of workers that are started, and what they share.
    current: Rc<Generation>,
    reader: Reader,
    /// The way back to the program before, until workers serve.
    inherited: &'r RefCell<Inherited>,
    predecessors: Predecessors,
    /// A reload whose configuration is being read.
    reading: Option<Reading>,
    /// A reload whose workers are starting.
    reload: Option<Reload>,
    reload_is_due: bool,
    /// An upgrade whose program is being checked.
    upgrade: Option<Upgrade>,
    upgrade_is_due: bool,
    /// Where an upgrade finds the program.
    path: PathBuf,
    /// Resolves the names of upstreams, if there are any.
    resolver: Option<Resolver>,
    options: Options,
    signals: Signals,
    service: Service,
    collector: Collector,
    /// `None` while stopping: a listener that only the master holds open would collect connections
    /// that are never served.
    listeners: Option<Listeners>,
    watchdog: Watchdog,
    status: Option<StatusPage>,
    slots: Vec<WorkerSlot>,
    helpers: Vec<Helper>,
    companions: Companions,
    shared_tls: SharedTls,
    renewals: Renewals,
    log: Option<Log>,
    /// Orders certificates.
    acme: Option<Acme>,
    /// Sends spans to a collector.
    spans: Option<Spans>,
    /// Those that workers still write to which a reload has replaced.
    retired_logs: Vec<Log>,
    /// Processes that a reload has replaced, and which end by themselves.
    ending: Vec<Child>,
    /// The process that keeps the content store and pins small files for all workers.
    store: Option<Store>,
    own_status: MasterStatus,
    /// When the server began to serve, and when this program did.
    started: Instant,
    begun: Instant,
    announced: bool,
    stopping: Option<Stopping>,
    failure: Option<MasterError>,
}

/// How a process ends that has done its work.
const CLEAN_EXIT: &str = "exit code 0";

/// What became ready.
#[derive(Clone, Copy)]
enum MasterEvent {
    Stop,
    Reload,
    Configuration,
    Names,
    Reopen,
    Upgrade,
    Child,
    StatusRequest,
    Log,
    Store,
    Acme,
    Spans,
    Worker(usize),
    Predecessor(usize),
}

/// Without `cachestat` too many calls would sleep.
fn choose_send_method(config: &mut Config) {
    if config.send == SendMethod::Auto && Residency::detect().name() != "cachestat" {
        config.send = SendMethod::Copy;
        log_warn("cachestat(2) needs Linux 6.5; send = \"auto\" copies");
    }
}

impl<'r> Master<'r> {
    fn start(
        mut config: Config,
        options: Options,
        reader: Reader,
        inherited: &'r RefCell<Inherited>,
    ) -> Result<Master<'r>, MasterError> {
        // Before the first child, so that no SIGCHLD is missed.
        let signals = Signals::new().map_err(system("signal handlers"))?;
        inherited::begin();
        // Before the first thread and the first child, which inherit it.
        let programs = sandbox::enter(&config, &options, &inherited.borrow())?;
        let listeners = Listeners::start(&mut inherited.borrow_mut(), &mut config)?;
        let (mut collector, requester) = Collector::new().map_err(system("wake pipe"))?;
        error_log::configure(config.error_log);
        let status = match config.status {
            None => None,
            Some(wanted) => Some(StatusPage::start(wanted, &inherited.borrow(), requester)?),
        };
        let store = Store::start(&mut config, &programs)?;
        let taken = Taken::of(&inherited.borrow(), &mut collector, &options)?;
        let shared_tls = taken.shared_tls;
        let acme = Acme::prepare(&config, &shared_tls)?;
        let current = Generation::new(config, &programs, &shared_tls)?;
        let current = Rc::new(current.with_valid_certificates(None)?);
        let log = Log::start_of(&current)?;
        let resolver = Resolver::start(&current.config).map_err(system("resolver thread"))?;
        let listen = listeners.shown();
        let spans = Spans::of(&current.config);
        let mut master = Master {
            signals,
            service: Service::new(),
            collector,
            listeners: Some(listeners),
            watchdog: Watchdog::new(&current.config),
            status,
            slots: Vec::new(),
            helpers: Vec::new(),
            companions: Companions::default(),
            shared_tls,
            renewals: Renewals::new(),
            log,
            acme,
            spans,
            retired_logs: Vec::new(),
            ending: Vec::new(),
            store,
            own_status: MasterStatus {
                listen,
                ..taken.status
            },
            started: taken.started,
            begun: Instant::now(),
            announced: false,
            stopping: None,
            failure: None,
            current,
            reader,
            inherited,
            predecessors: taken.predecessors,
            reading: None,
            reload: None,
            reload_is_due: false,
            upgrade: None,
            upgrade_is_due: false,
            path: taken.path,
            resolver,
            options,
        };
        master.start_workers(&master.current.clone())?;
        Ok(master)
    }

    /// One wait, and the work for what became ready.
    fn iterate(&mut self) -> Result<(), MasterError> {
        for source in self.wait()? {
            match source {
                MasterEvent::Stop => self.handle_stop(),
                MasterEvent::Reload => self.handle_reload(),
                MasterEvent::Names => self.handle_new_addresses(),
                MasterEvent::Reopen => self.handle_reopen(),
                MasterEvent::Upgrade => self.handle_upgrade(),
                MasterEvent::Configuration => {}
                MasterEvent::Child => drop(signals::drain(&self.signals.child)),
                MasterEvent::StatusRequest => self.handle_status_request(),
                MasterEvent::Log => self.read_log(),
                MasterEvent::Store => self.read_store(),
                MasterEvent::Acme => self.read_acme(),
                MasterEvent::Spans => self.read_spans(),
                MasterEvent::Worker(number) => self.read_worker(number),
                MasterEvent::Predecessor(place) => self.read_predecessor(place),
            }
        }
        self.reap();
        let now = Instant::now();
        self.restart(now);
        self.watch_workers(now);
        self.enforce_deadline(now);
        self.watch_reading(now);
        self.enforce_reload(now);
        self.watch_upgrade(now);
        self.watch_takeover(now);
        self.start_acme(now);
        self.look_for_renewals(now);
        self.service.ping(now);
        self.own_status.uptime_ms = self.started.elapsed().as_millis() as u64;
        if let Some(overview) = self.collector.finish(
            &self.slots,
            &self.current,
            &self.own_status,
            &self.predecessors,
        ) && !self.announced
            && self.stopping.is_none()
            && self.slots.iter().all(WorkerSlot::is_ready)
        {
            self.announce(&overview)?;
        }
        Ok(())
    }

    /// Says that the server serves. All workers are ready.
    fn announce(&mut self, overview: &Overview) -> Result<(), MasterError> {
        // The status page has asked for it before there were workers.
        if overview.workers.is_empty() {
            self.collector.begin(&mut self.slots);
            return Ok(());
        }
        self.announced = true;
        announce::serving(&self.current, &self.options, self.status.as_ref(), overview);
        match self.finish_upgrade() {
            true => self.report_result(),
            false => self.write_ready_file()?,
        }
        Service::ready();
        self.reload_if_due();
        self.upgrade_if_due();
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
            (MasterEvent::Reload, signals.reload.as_fd(), PollFlags::IN),
            (MasterEvent::Reopen, signals.reopen.as_fd(), PollFlags::IN),
            (MasterEvent::Upgrade, signals.upgrade.as_fd(), PollFlags::IN),
            (MasterEvent::Child, signals.child.as_fd(), PollFlags::IN),
            (MasterEvent::StatusRequest, wake, PollFlags::IN),
        ];
        // Before, a reload would replace workers that are not ready.
        if let Some(resolver) = self.resolver.as_ref().filter(|_| self.announced) {
            watched.push((MasterEvent::Names, resolver.wake.as_fd(), PollFlags::IN));
        }
        if let Some(reading) = &self.reading {
            let wake = reading.wake.as_fd();
            watched.push((MasterEvent::Configuration, wake, PollFlags::IN));
        }
        if let Some(control) = self.log.as_ref().and_then(Log::control) {
            watched.push((MasterEvent::Log, control.as_fd(), PollFlags::IN));
        }
        if let Some(socket) = self.store.as_ref().and_then(Store::socket) {
            watched.push((MasterEvent::Store, socket, PollFlags::IN));
        }
        if let Some(control) = self.acme.as_ref().and_then(Acme::control) {
            watched.push((MasterEvent::Acme, control.as_fd(), PollFlags::IN));
        }
        if let Some(control) = self.spans.as_ref().and_then(Spans::control) {
            watched.push((MasterEvent::Spans, control.as_fd(), PollFlags::IN));
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
        let before = self.predecessors.watched();
        let before = before.map(|(place, fd)| (MasterEvent::Predecessor(place), fd, PollFlags::IN));
        watched.extend(before);
        watched
    }

    fn next_deadline(&self) -> Option<Instant> {
        let restarts = self.slots.iter().filter_map(|slot| slot.restart_at);
        let log = self.log.iter().filter_map(|log| log.restart_at);
        let store = self.store.iter().filter_map(|store| store.restart_at);
        let acme = self.acme_deadline();
        let spans = self
            .spans
            .iter()
            .filter_map(|spans| spans.process.restart_at());
        let stop = self.stopping.iter().map(|stopping| stopping.deadline);
        let watchdog = match self.stopping {
            None => self.watchdog.deadline(&self.slots),
            Some(_) => None,
        };
        restarts
            .chain(log)
            .chain(store)
            .chain(acme)
            .chain(spans)
            .chain(stop)
            .chain(watchdog)
            .chain(self.collector.deadline())
            .chain(self.companions.deadline())
            .chain(self.reload_deadline())
            .chain(self.upgrade_deadline())
            .chain(self.predecessors.deadline())
            .chain(self.takeover_deadline())
            .chain(self.service.deadline())
            .chain(self.renewals.deadline(&self.current))
            .min()
    }

    fn send(&mut self, number: usize, message: ToWorker, descriptors: Vec<OwnedFd>) {
        if let Some(running) = &mut self.slots[number].running
            && !running.send(message, descriptors)
        {
            // Its last messages may say why.
            self.read_worker(number);
            if let Some(running) = &mut self.slots[number].running {
                running.cut(true);
            }
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
                Ok(Received::Message(message, descriptors)) => {
                    running.progress.seen();
                    self.handle_message(number, message, descriptors);
                }
                Ok(Received::WouldBlock) => {
                    if !running.flush() {
                        running.cut(true);
                    }
                    return;
                }
                Ok(Received::Closed) => return running.cut(self.stopping.is_none()),
                Err(error) => {
                    running.cut(true);
                    let worker = self.slots[number].number();
                    return log_error(format_args!("worker {worker}: {error}; replacing it"));
                }
            }
        }
    }

    fn handle_message(&mut self, number: usize, message: FromWorker, descriptors: Vec<OwnedFd>) {
        match message {
            FromWorker::Directories { numbers } => {
                let slot = &self.slots[number];
                // One that serves may do what a client wants.
                if let Some(worker) = slot.worker.as_ref().filter(|_| !slot.is_ready()) {
                    worker.generation.directories.put(&numbers, descriptors);
                }
            }
            FromWorker::Ready => {
                if let Some(running) = &mut self.slots[number].running {
                    running.ready = true;
                }
                if !self.announced && self.slots.iter().all(WorkerSlot::is_ready) {
                    self.collector.begin(&mut self.slots);
                }
                self.finish_reload();
            }
            FromWorker::WantHelpers { count } => {
                if let Err(error) = self.spawn_helpers(number, count) {
                    let worker = self.slots[number].number();
                    log_error(format_args!("{error}; worker {worker} will retry"));
                }
            }
            FromWorker::Snapshot { id, snapshot } => {
                self.slots[number].last = Some(*snapshot);
                self.collector.answered(number, id);
            }
            FromWorker::AcceptPending => self.notify_others(number),
            FromWorker::Notice {
                level,
                text,
                request,
            } => {
                let slot = &self.slots[number];
                let process = format!("worker {}", slot.number());
                let request = request.map(|request| *request);
                log_of(&process, slot.pid(), (level, &text), request);
            }
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
        self.predecessors.send(Packet::PollListeners);
    }

    fn restart(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        for number in 0..self.slots.len() {
            if self.slots[number].restart_at.is_some_and(|at| at <= now)
                && let Err(error) = self.spawn_worker(number)
            {
                let worker = self.slots[number].number();
                log_error(format_args!("worker {worker}: {error}; retrying"));
                self.slots[number].died(now);
            }
        }
        for (kind, number) in self.companions.due(now) {
            self.start_companion(kind, number);
        }
        let programs = &self.current.programs;
        let restarted = match &mut self.store {
            Some(store) => store.restart(programs, now),
            None => false,
        };
        if restarted {
            (0..self.slots.len()).for_each(|number| self.connect_store(number));
        }
        let restarted = match &mut self.log {
            Some(log) => log.restart(&self.current.programs, now),
            None => false,
        };
        if restarted {
            self.send_log_sockets();
        }
        self.start_spans(now);
    }
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
