//! The children of the program before, after an upgrade. They stay children of this process, since its number
//! is the same.
//!
//! They may have another version. So they get only the packets that their version has encoded, and what
//! they send and cannot be parsed is ignored. Their helpers run their own program, with the ruleset that the
//! program before has made. They serve until the new workers are ready, and drain then.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use headway_config::ErrorLevel;
use headway_control::{
    Control, FromSpans, FromWorker, HandedProcess, HandedWorker, NoticeRequest, Packet, Packets,
    Received, ToWorker,
};
use headway_metrics::{MasterStatus, Snapshot};
use headway_sandbox::Demand;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::children::{Programs, Role};
use super::inherited::Predecessor;
use super::stopping::EXIT_TIMEOUT;
use super::{Master, log_error, log_of};

/// How long the other processes may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(5);

/// The children of programs before this one.
#[derive(Default)]
pub(super) struct Predecessors {
    workers: Vec<Worker>,
    others: Vec<Other>,
    drain_timeout: Duration,
}

struct Worker {
    process: Process,
    number: u32,
    /// `None` after its end was seen.
    control: Option<Control>,
    program: Rc<OwnedFd>,
    is_ready: bool,
    /// When it is killed, once it drains.
    ends_at: Option<Instant>,
    helpers_max: usize,
    packets: Packets,
    /// What its helpers may open. `None` if they have to look up directories themselves.
    ruleset: Option<OwnedFd>,
    last: Option<Snapshot>,
}

/// A process which ends when its socket is closed.
struct Other {
    process: Process,
    socket: Option<Control>,
    /// It says on the socket what became of spans.
    counts_spans: bool,
    /// The process ID of the worker whose helper it is, if this program has started it.
    helper_of: Option<u32>,
}

/// A child that this program has not started. It is reaped here only, so its number stays its own.
struct Process(u32);

/// How a process has ended.
#[derive(PartialEq, Eq)]
enum End {
    NotYet,
    /// With success, or by a signal.
    Good,
    /// With an exit code.
    Failed,
}

impl Process {
    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.0).ok()?)
    }

    fn has_ended(&self) -> bool {
        self.end() != End::NotYet
    }

    fn end(&self) -> End {
        let Some(pid) = self.pid() else {
            return End::Good;
        };
        match waitpid(Some(pid), WaitOptions::NOHANG) {
            Ok(None) => End::NotYet,
            Ok(Some((_, status))) if status.exit_status().is_some_and(|code| code != 0) => {
                End::Failed
            }
            Ok(Some(_)) | Err(_) => End::Good,
        }
    }

    fn kill(&self) {
        if let Some(pid) = self.pid() {
            // It may have ended already.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Predecessors {
    pub(super) fn new(before: &Predecessor) -> io::Result<Predecessors> {
        let state = &before.state;
        let duplicate = |number: Option<RawFd>| {
            let duplicate = number.map(|number| before.duplicate(number));
            duplicate.transpose()
        };
        let worker = |handed: &HandedWorker| {
            let ends_in = handed.ends_in_ms.map(Duration::from_millis);
            Ok(Worker {
                process: Process(handed.pid),
                number: handed.number,
                control: Some(Control::new(before.duplicate(handed.control)?)),
                program: Rc::new(before.duplicate(handed.program)?),
                is_ready: handed.is_ready,
                ends_at: ends_in.map(|time| Instant::now() + time),
                helpers_max: handed.helpers_max,
                packets: handed.packets.clone(),
                ruleset: duplicate(handed.ruleset)?,
                last: serde_json::from_value(handed.last.clone()).ok(),
            })
        };
        let other = |handed: &HandedProcess| {
            Ok(Other {
                process: Process(handed.pid),
                socket: duplicate(handed.socket)?.map(Control::new),
                counts_spans: handed.counts_spans,
                helper_of: None,
            })
        };
        Ok(Predecessors {
            workers: state
                .workers
                .iter()
                .map(worker)
                .collect::<io::Result<_>>()?,
            others: state
                .processes
                .iter()
                .map(other)
                .collect::<io::Result<_>>()?,
            drain_timeout: Duration::from_millis(state.drain_timeout_ms),
        })
    }

    /// Whether all workers have ended.
    pub(super) fn are_gone(&self) -> bool {
        self.workers.is_empty()
    }

    /// The sockets of the workers, with their places.
    pub(super) fn watched(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let workers = self.workers.iter().enumerate();
        workers.filter_map(|(place, worker)| Some((place, worker.control.as_ref()?.as_fd())))
    }

    /// The last numbers of each worker.
    pub(super) fn known(&self) -> impl Iterator<Item = &Snapshot> {
        self.workers
            .iter()
            .filter_map(|worker| worker.last.as_ref())
    }

    /// Sends a packet to all workers that serve.
    pub(super) fn send(&mut self, packet: Packet) {
        for worker in &mut self.workers {
            if worker.is_ready {
                worker.send(packet);
            }
        }
    }

    /// Has the workers drain, each once.
    fn retire(&mut self, packet: Packet, timeout: Duration) {
        let until = Instant::now() + timeout + EXIT_TIMEOUT;
        for worker in &mut self.workers {
            match worker.ends_at {
                Some(ends_at) => worker.ends_at = Some(ends_at.min(until)),
                None if worker.is_ready && !timeout.is_zero() => {
                    worker.ends_at = Some(until);
                    worker.send(packet);
                }
                None => {
                    worker.ends_at = Some(until);
                    worker.process.kill();
                }
            }
            if timeout.is_zero() {
                worker.process.kill();
            }
        }
    }

    /// Has the workers finish what is in flight: the server stops.
    pub(super) fn stop(&mut self, timeout: Duration) {
        self.retire(Packet::Stop, timeout);
    }

    /// The same, and waits.
    pub(super) fn stop_and_wait(mut self, timeout: Duration) {
        self.stop(timeout);
        while !self.are_gone() {
            std::thread::sleep(PAUSE);
            self.reap();
            self.enforce(Instant::now());
        }
        self.end();
    }

    /// Reaps what has ended, and returns the last numbers of ended workers. When no worker is left, the other
    /// processes end.
    fn reap(&mut self) -> Vec<Snapshot> {
        let mut gone = Vec::new();
        for worker in &mut self.workers {
            if worker.process.has_ended() {
                // Its last numbers first.
                worker.read();
                gone.extend(worker.last.take());
                worker.control = None;
                worker.process = Process(0);
            }
        }
        self.workers.retain(|worker| worker.process.0 != 0);
        if self.workers.is_empty() {
            self.others.iter_mut().for_each(|other| other.socket = None);
        }
        let workers = &mut self.workers;
        self.others.retain(|other| {
            let end = other.process.end();
            // Its worker has another root now, so the ruleset is too old.
            if let (End::Failed, Some(pid)) = (&end, other.helper_of)
                && let Some(worker) = workers.iter_mut().find(|one| one.process.0 == pid)
            {
                worker.ruleset = None;
            }
            end == End::NotYet
        });
        gone
    }

    /// Reads what became of spans since the last call.
    fn take_span_counts(&self, status: &mut MasterStatus) {
        let counting = self.others.iter().filter(|other| other.counts_spans);
        for control in counting.filter_map(|other| other.socket.as_ref()) {
            while let Ok(Received::Message(message, _)) = control.try_receive::<FromSpans>() {
                if let FromSpans::Done {
                    exported, dropped, ..
                } = message
                {
                    status.spans_exported += exported;
                    status.spans_dropped += dropped;
                }
            }
        }
    }

    /// Kills workers that have not ended in time.
    fn enforce(&mut self, now: Instant) {
        for worker in &mut self.workers {
            if worker.ends_at.is_some_and(|at| at <= now) {
                worker.process.kill();
                // One that waits for a dead disk ends later.
                worker.ends_at = Some(now + EXIT_TIMEOUT);
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.workers
            .iter()
            .filter_map(|worker| worker.ends_at)
            .min()
    }

    /// Ends the other processes: the workers have ended.
    pub(super) fn end(mut self) {
        let until = Instant::now() + END_TIMEOUT;
        self.reap();
        while !self.others.is_empty() && Instant::now() < until {
            std::thread::sleep(PAUSE);
            self.reap();
        }
        self.others.iter().for_each(|other| other.process.kill());
    }

    /// What the next program gets of them.
    pub(super) fn handed(&self) -> (Vec<HandedWorker>, Vec<HandedProcess>, Vec<BorrowedFd<'_>>) {
        let (mut workers, mut ending, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for worker in &self.workers {
            let Some(control) = &worker.control else {
                ending.push(HandedProcess {
                    pid: worker.process.0,
                    socket: None,
                    counts_spans: false,
                });
                continue;
            };
            let left = |at: Instant| at.saturating_duration_since(Instant::now());
            kept.extend([control.as_fd(), worker.program.as_fd()]);
            kept.extend(worker.ruleset.as_ref().map(AsFd::as_fd));
            workers.push(HandedWorker {
                pid: worker.process.0,
                number: worker.number,
                control: control.as_fd().as_raw_fd(),
                program: worker.program.as_raw_fd(),
                is_ready: worker.is_ready,
                ends_in_ms: worker.ends_at.map(|at| left(at).as_millis() as u64),
                helpers_max: worker.helpers_max,
                packets: worker.packets.clone(),
                ruleset: worker.ruleset.as_ref().map(AsRawFd::as_raw_fd),
                last: serde_json::to_value(&worker.last).unwrap_or_default(),
            });
        }
        let others = self.others.iter().map(|other| {
            kept.extend(other.socket.iter().map(AsFd::as_fd));
            HandedProcess {
                pid: other.process.0,
                socket: other.socket.as_ref().map(|one| one.as_fd().as_raw_fd()),
                counts_spans: other.counts_spans,
            }
        });
        ending.extend(others);
        (workers, ending, kept)
    }
}

/// What a worker of another version asks for.
#[derive(Default)]
struct Wanted {
    helpers: u32,
    /// It has left connections to others.
    is_pending: bool,
}

impl Worker {
    fn send(&mut self, packet: Packet) {
        // If its buffer is full, it is stuck, and killed when its time is over.
        if let Some(control) = &self.control {
            let _ = self.packets.try_send(packet, control);
        }
    }

    fn log(&self, message: (ErrorLevel, &str), request: Option<NoticeRequest>) {
        let process = format!("worker {} before", self.number);
        log_of(&process, self.process.0, message, request);
    }

    fn read(&mut self) -> Wanted {
        let mut wanted = Wanted::default();
        while let Some(control) = &self.control {
            match control.try_receive::<FromWorker>() {
                Ok(Received::Message(FromWorker::Ready, _)) => self.is_ready = true,
                Ok(Received::Message(FromWorker::WantHelpers { count }, _)) => {
                    wanted.helpers = wanted.helpers.saturating_add(count);
                }
                Ok(Received::Message(FromWorker::Snapshot { snapshot, .. }, _)) => {
                    self.last = Some(*snapshot);
                }
                Ok(Received::Message(FromWorker::AcceptPending, _)) => wanted.is_pending = true,
                Ok(Received::Message(
                    FromWorker::Notice {
                        level,
                        text,
                        request,
                    },
                    _,
                )) => self.log((level, &text), request.map(|request| *request)),
                Ok(Received::Message(FromWorker::Failed { why }, _)) => {
                    self.log((ErrorLevel::Error, &why), None);
                }
                // Another version may say what this one does not know.
                Ok(Received::Message(
                    FromWorker::Pong | FromWorker::Drained | FromWorker::Directories { .. },
                    _,
                ))
                | Err(headway_control::ControlError::Malformed(_)) => {}
                Ok(Received::WouldBlock) => break,
                Ok(Received::Closed) | Err(_) => self.control = None,
            }
        }
        wanted
    }

    /// Starts helpers, which run the program of the worker.
    fn start_helpers(&self, count: u32, programs: &Programs) -> io::Result<Vec<Process>> {
        let programs = Programs {
            program: format!("/proc/self/fd/{}", self.program.as_raw_fd()).into(),
            sandbox: self.packets.confines_helpers().then_some(Demand::Possible),
            workers_are_confined: true,
            ..programs.clone()
        };
        let mut started = Vec::new();
        for _ in 0..self.helpers_max.min(count as usize) {
            let (theirs, workers) = Control::pair().map_err(io::Error::other)?;
            let ruleset = self.ruleset.as_ref().map(AsFd::as_fd);
            let begun = self.packets.begin_helper(&workers, ruleset);
            begun.map_err(io::Error::other)?;
            let child = programs.spawn(Role::Helper, theirs.into_inner())?;
            let pid = child.id();
            started.push(Process(pid));
            let socket = workers.into_inner();
            if let Some(control) = &self.control {
                let message = ToWorker::Helper { pid };
                let sent = control.try_send(&message, &[socket.as_fd()]);
                sent.map_err(io::Error::other)?;
            }
        }
        Ok(started)
    }
}

impl Master<'_> {
    pub(super) fn read_predecessor(&mut self, place: usize) {
        let before = &mut self.predecessors;
        let Some(worker) = before.workers.get_mut(place) else {
            return;
        };
        let (wanted, pid) = (worker.read(), worker.process.0);
        if wanted.helpers > 0 {
            match worker.start_helpers(wanted.helpers, &self.current.programs) {
                Ok(started) => before
                    .others
                    .extend(started.into_iter().map(|process| Other {
                        process,
                        socket: None,
                        counts_spans: false,
                        helper_of: Some(pid),
                    })),
                Err(error) => log_error(format_args!("start a helper: {error}")),
            }
        }
        if wanted.is_pending {
            self.notify_others(usize::MAX);
        }
    }

    /// The new workers serve, so those before drain.
    pub(super) fn retire_predecessors(&mut self) {
        let timeout = self.predecessors.drain_timeout;
        self.predecessors.retire(Packet::Drain, timeout);
    }

    /// Reaps children of programs before, once there is no way back to the last one.
    pub(super) fn reap_predecessors(&mut self) {
        self.predecessors.enforce(Instant::now());
        if self.inherited.borrow().predecessor().is_some() {
            return;
        }
        self.predecessors.take_span_counts(&mut self.own_status);
        for last in self.predecessors.reap() {
            self.collector.departed(usize::MAX, Some(last));
        }
    }
}

/// Reads the secret of session tickets. One of another version may be useless.
pub(super) fn read_tickets(before: &Predecessor) -> Option<headway_tls::TicketSecret> {
    let memory = before.duplicate(before.state.tickets?).ok()?;
    headway_tls::process::read_tickets(memory).ok()?
}
