//! The master process: binds, spawns workers, helpers and the log process, watches them, reports.
//!
//! It alone makes the server's processes, because `fork` and `exec` wait, and is the only one that
//! holds the listeners for good, so that a worker's accept queue outlives the worker. It never
//! touches a request. One thread waits for signals and for the children's words; a second one
//! answers the status page and asks the first for numbers. Children end when their socket to the
//! master ends.

use headway_os::board::Board;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Display;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::accept::ABSENT;
use crate::config::{Config, ListenerMode};
use crate::control::{ControlError, FromWorker, Received, ToWorker};
use crate::tally::{MasterTally, status};

mod announce;
mod children;
mod spawners;
mod gather;
mod keeper;
mod listeners;
mod log;
mod signals;
mod spawn;
mod worker;

pub use children::{Programs, become_child};
pub use gather::Asker;
pub use listeners::BindError;

use children::ended;
use gather::Gather;
use keeper::Keeper;
use listeners::{Listeners, Manner};
use log::Log;
use signals::Signals;
use spawners::Spawners;
use worker::Place;

/// After the drain deadline a worker has this long to end by itself.
const END_PATIENCE: Duration = Duration::from_millis(500);
/// The log process has this long to write what is left.
const LOG_PATIENCE: Duration = Duration::from_secs(3);

/// How to run, beside what to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to start children.
    pub programs: Programs,
    /// Where to write addresses and process number, as JSON, when serving begins.
    pub ready_file: Option<PathBuf>,
    /// Print nothing but trouble.
    pub quiet: bool,
}

/// Why the server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// An address can not be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The channel to a child could not be made.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The access log can not be written.
    #[error("access log: {0}; nothing is served")]
    Log(String),
    /// A worker failed before serving began.
    #[error("worker {number}: {why}; nothing is served")]
    Worker {
        /// Its number.
        number: usize,
        /// What it said, or how it ended.
        why: String,
    },
    /// The ready file can not be written.
    #[error("ready file {}: {error}; the server ends", path.display())]
    ReadyFile {
        /// The file as given.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
    },
    /// A system call of the master failed.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: io::Error,
    },
}

/// Serves until SIGTERM or SIGINT; returns when the last child has ended.
///
/// The first signal lets requests in flight finish within the drain timeout, a second one ends at
/// once. SIGHUP makes the log process open its file anew.
pub fn run(config: Config, options: Options) -> Result<(), MasterError> {
    let mut master = Master::start(config, options)?;
    while !master.is_over() {
        master.turn()?;
    }
    master.end()
}

struct Helper {
    worker: usize,
    child: Child,
}

struct Stopping {
    deadline: Instant,
    killed: bool,
}

struct Master {
    config: Config,
    options: Options,
    signals: Signals,
    gather: Gather,
    /// `None` once stopping: a listener held open by nobody but the master would collect clients
    /// that nobody serves.
    listeners: Option<Listeners>,
    /// Where workers that share a listener show one another how many clients they have.
    board: Option<Board>,
    status: Option<SocketAddr>,
    places: Vec<Place>,
    helpers: Vec<Helper>,
    spawners: Spawners,
    log: Option<Log>,
    /// Who keeps small files for all workers, where somebody does.
    keeper: Option<Keeper>,
    tally: MasterTally,
    started: Instant,
    announced: bool,
    stopping: Option<Stopping>,
    failure: Option<MasterError>,
}

/// What became ready.
#[derive(Clone, Copy)]
enum Source {
    Stop,
    Reopen,
    Child,
    Question,
    Log,
    Keeper,
    Worker(usize),
}

impl Master {
    fn start(config: Config, options: Options) -> Result<Master, MasterError> {
        // Before the first child, so that no death goes unseen.
        let signals = Signals::new().map_err(system("signal handlers"))?;
        let listeners = Listeners::bind(&config.listen, &Manner::of(&config))?;
        let board = config.is_balanced().then(|| Board::new(config.workers));
        let board = board
            .transpose()
            .map_err(|error| system("memory that workers share")(error.into()))?;
        let places = board.iter().flat_map(Board::places);
        places.for_each(|place| place.store(ABSENT, Ordering::Relaxed));
        let (gather, asker) = Gather::new().map_err(system("wake pipe"))?;
        let status = match config.status {
            None => None,
            Some(wanted) => Some(start_status(wanted, asker)?),
        };
        let log = config
            .log
            .as_ref()
            .map(|log| Log::start(log, &options.programs))
            .transpose()?;
        let keeper = (config.pin_max_bytes > 0)
            .then(|| Keeper::start(&options.programs))
            .transpose()?;
        let listen = listeners.addresses.clone();
        let mut master = Master {
            signals,
            gather,
            listeners: Some(listeners),
            board,
            status,
            places: (0..config.workers).map(|_| Place::new()).collect(),
            helpers: Vec::new(),
            spawners: Spawners::new(config.workers, config.needs_spawner()),
            log,
            keeper,
            tally: MasterTally {
                pid: std::process::id(),
                listen,
                ..MasterTally::default()
            },
            started: Instant::now(),
            announced: false,
            stopping: None,
            failure: None,
            config,
            options,
        };
        for number in 0..master.places.len() {
            master.spawn_worker(number)?;
        }
        Ok(master)
    }

    /// One wait and all that follows from it.
    fn turn(&mut self) -> Result<(), MasterError> {
        for source in self.wait()? {
            match source {
                Source::Stop => self.stop_asked(),
                Source::Reopen => self.reopen_asked(),
                Source::Child => drop(signals::drain(&self.signals.child)),
                Source::Question => self.gather.take_questions(&mut self.places),
                Source::Log => self.listen_to_log(),
                Source::Keeper => self.listen_to_keeper(),
                Source::Worker(number) => self.listen_to(number),
            }
        }
        self.reap();
        let now = Instant::now();
        self.restart(now);
        self.keep_deadline(now);
        self.tally.uptime_ms = self.started.elapsed().as_millis() as u64;
        if let Some(overview) = self.gather.finish(&self.places, &self.tally)
            && !self.announced
            && self.stopping.is_none()
        {
            self.announced = true;
            announce::serving(&self.config, &self.options, self.status, &overview)?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<Vec<Source>, MasterError> {
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

    fn watched(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let signals = &self.signals;
        let mut watched = vec![
            (Source::Stop, signals.stop.as_fd(), PollFlags::IN),
            (Source::Reopen, signals.reopen.as_fd(), PollFlags::IN),
            (Source::Child, signals.child.as_fd(), PollFlags::IN),
            (Source::Question, self.gather.wake.as_fd(), PollFlags::IN),
        ];
        if let Some(control) = self.log.as_ref().and_then(Log::control) {
            watched.push((Source::Log, control.as_fd(), PollFlags::IN));
        }
        if let Some(keeper) = &self.keeper {
            watched.push((Source::Keeper, keeper.socket(), PollFlags::IN));
        }
        for (number, place) in self.places.iter().enumerate() {
            if let Some((fd, wants_room)) = place.running.as_ref().and_then(|one| one.interest()) {
                let room = if wants_room {
                    PollFlags::OUT
                } else {
                    PollFlags::empty()
                };
                watched.push((Source::Worker(number), fd, PollFlags::IN | room));
            }
        }
        watched
    }

    fn next_deadline(&self) -> Option<Instant> {
        let restarts = self.places.iter().filter_map(|place| place.restart_at);
        let log = self.log.iter().filter_map(|log| log.restart_at);
        let keeper = self.keeper.iter().filter_map(|keeper| keeper.restart_at);
        let stopping = self.stopping.iter().filter(|stopping| !stopping.killed);
        let stop = stopping.map(|stopping| stopping.deadline);
        restarts
            .chain(log)
            .chain(keeper)
            .chain(stop)
            .chain(self.gather.deadline())
            .chain(self.spawners.deadline())
            .min()
    }

    fn send(&mut self, number: usize, message: ToWorker, descriptors: Vec<OwnedFd>) {
        if let Some(running) = &mut self.places[number].running
            && !running.send(message, descriptors)
        {
            running.cut(true);
        }
    }

    /// Takes everything a worker has said, and gives it what waited for room.
    fn listen_to(&mut self, number: usize) {
        loop {
            let Some(running) = &mut self.places[number].running else {
                return;
            };
            let Some(control) = running.control() else {
                return;
            };
            match control.try_receive::<FromWorker>() {
                Ok(Received::Message(message, _)) => self.heard(number, message),
                Ok(Received::WouldBlock) => {
                    if !running.flush() {
                        running.cut(true);
                    }
                    return;
                }
                Ok(Received::Closed) => return running.cut(self.stopping.is_none()),
                Err(error) => {
                    say(format_args!("worker {number}: {error}; it is replaced"));
                    return running.cut(true);
                }
            }
        }
    }

    fn heard(&mut self, number: usize, message: FromWorker) {
        match message {
            FromWorker::Ready => {
                if let Some(running) = &mut self.places[number].running {
                    running.ready = true;
                }
                if !self.announced && self.places.iter().all(Place::is_ready) {
                    self.gather.begin_own(&mut self.places);
                }
            }
            FromWorker::WantHelpers { count } => {
                if let Err(error) = self.spawn_helpers(number, count) {
                    say(format_args!("{error}; worker {number} asks again"));
                }
            }
            FromWorker::Snapshot { id, snapshot } => {
                self.places[number].last = Some(*snapshot);
                self.gather.answered(number, id);
            }
            FromWorker::LeftWaiting => self.tell_others_to_look(number),
            FromWorker::Notice { text } => say(format_args!("worker {number}: {text}")),
            FromWorker::Drained => {}
            FromWorker::Failed { why } => self.places[number].why = Some(why),
        }
    }

    /// Clients may wait in the shared listeners that no other worker was told of.
    fn tell_others_to_look(&mut self, number: usize) {
        for other in 0..self.places.len() {
            if other != number && self.places[other].is_ready() {
                self.send(other, ToWorker::Look, Vec::new());
            }
        }
    }

    fn listen_to_log(&mut self) {
        if let Some(log) = &mut self.log
            && !log.listen(&mut self.tally)
        {
            log.died(&mut self.tally);
        }
    }

    fn listen_to_keeper(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.listen(&mut self.tally);
        }
    }

    /// Looks at every child: a signal says that some ended, not which.
    fn reap(&mut self) {
        for number in 0..self.places.len() {
            let running = self.places[number].running.as_mut();
            if let Some(Ok(Some(status))) = running.map(|running| running.child.try_wait()) {
                // Its last words first: they may say why.
                self.listen_to(number);
                self.worker_ended(number, &ended(status));
            }
        }
        self.helpers
            .retain_mut(|helper| !matches!(helper.child.try_wait(), Ok(Some(_)) | Err(_)));
        self.spawners.reap(self.stopping.is_some(), &mut self.tally);
        if let Some(keeper) = &mut self.keeper {
            keeper.reap(self.stopping.is_some(), &mut self.tally);
        }
    }

    fn worker_ended(&mut self, number: usize, end: &str) {
        let last = self.places[number].last.take();
        self.gather.departed(number, last);
        self.spawners.dismiss(number);
        let place = &mut self.places[number];
        let said = place.why.take();
        let why = said.map_or(end.to_owned(), |why| format!("{why} ({end})"));
        let delay = place.died(Instant::now()).as_millis();
        if self.stopping.is_some() {
            place.restart_at = None;
            return;
        }
        if !self.announced {
            self.failure = Some(MasterError::Worker { number, why });
            return self.stop(Duration::ZERO);
        }
        self.tally.worker_deaths += 1;
        if let Some(place) = self.board.as_ref().and_then(|board| board.place(number)) {
            place.store(ABSENT, Ordering::Relaxed);
        }
        if self.config.listeners == ListenerMode::Shared {
            self.tell_others_to_look(number);
        }
        say(format_args!(
            "worker {number} ended: {why}; a new one starts in {delay} ms"
        ));
    }

    fn restart(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        for number in 0..self.places.len() {
            if self.places[number].restart_at.is_some_and(|at| at <= now)
                && let Err(error) = self.spawn_worker(number)
            {
                say(format_args!("worker {number}: {error}; it is tried again"));
                self.places[number].died(now);
            }
        }
        for number in self.spawners.due(now) {
            self.start_spawner(number);
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.restart(&self.options.programs, now);
        }
        let restarted = match &mut self.log {
            Some(log) => log.restart(&self.options.programs, now),
            None => false,
        };
        if restarted {
            self.give_log_sockets();
        }
    }

    fn give_log_sockets(&mut self) {
        for number in 0..self.places.len() {
            if let Some(Ok(socket)) = self.log.as_ref().map(|log| log.socket(number as u32)) {
                self.send(number, ToWorker::Log, vec![socket]);
            }
        }
    }

    fn reopen_asked(&mut self) {
        signals::drain(&self.signals.reopen);
        if let Some(log) = &self.log {
            log.reopen();
        }
    }

    fn stop_asked(&mut self) {
        let signals = signals::drain(&self.signals.stop);
        if signals == 0 {
            return;
        }
        if self.stopping.is_some() || signals > 1 {
            return self.stop(Duration::ZERO);
        }
        self.stop(Duration::from_millis(self.config.drain_timeout_ms));
    }

    /// Tells all workers to finish. Without time to do so they are killed.
    fn stop(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        if self.stopping.is_none() && !timeout.is_zero() {
            let timeout_ms = timeout.as_millis() as u64;
            for number in 0..self.places.len() {
                self.send(number, ToWorker::Drain { timeout_ms }, Vec::new());
            }
        }
        self.places
            .iter_mut()
            .for_each(|place| place.restart_at = None);
        self.spawners.cease();
        self.listeners = None;
        let patience = if timeout.is_zero() {
            Duration::ZERO
        } else {
            END_PATIENCE
        };
        self.stopping = Some(Stopping {
            deadline: deadline + patience,
            killed: false,
        });
    }

    fn keep_deadline(&mut self, now: Instant) {
        if let Some(stopping) = self.stopping.as_mut().filter(|stopping| !stopping.killed)
            && stopping.deadline <= now
        {
            stopping.killed = true;
            self.places
                .iter_mut()
                .filter_map(|place| place.running.as_mut())
                .for_each(|running| {
                    let _ = running.child.kill();
                });
        }
    }

    fn is_over(&self) -> bool {
        self.stopping.is_some() && self.places.iter().all(|place| place.running.is_none())
    }

    /// The workers are gone, so the helpers' sockets have ended, and the log has all lines.
    fn end(mut self) -> Result<(), MasterError> {
        let deadline = Instant::now() + END_PATIENCE;
        self.helpers
            .iter_mut()
            .for_each(|helper| wait_or_kill(&mut helper.child, deadline));
        self.spawners.end(deadline);
        if let Some(keeper) = self.keeper {
            keeper.end(deadline);
        }
        if let Some(log) = &mut self.log {
            log.end(LOG_PATIENCE);
        }
        self.failure.map_or(Ok(()), Err)
    }
}

/// Binds the status page here, so that a taken port is an error before anything starts.
fn start_status(wanted: SocketAddr, asker: Asker) -> Result<SocketAddr, MasterError> {
    let (socket, address) = listeners::bind_alone(wanted)?;
    let listener = TcpListener::from(socket);
    listener
        .set_nonblocking(false)
        .map_err(system("status listener"))?;
    std::thread::Builder::new()
        .name("status".into())
        .spawn(move || status::serve(&listener, &|| asker.ask()))
        .map_err(system("status thread"))?;
    Ok(address)
}

/// Waits for a child until the deadline, then ends it.
fn wait_or_kill(child: &mut Child, deadline: Instant) {
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up, so that a deadline has passed when the wait for it ends.
    let duration = duration + Duration::from_micros(999);
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> MasterError {
    move |error| MasterError::System { what, error }
}

/// One line on standard error. If that is closed there is nobody to tell.
fn say(what: impl Display) {
    let _ = writeln!(io::stderr(), "headway: {what}");
}
