//! An upgrade: a new version of the program replaces this one in the same process, so that the service
//! manager sees the same main process and the children stay its children.
//!
//! First the new program checks its configuration and what it would get, in a process of its own with a time
//! limit (the rehearsal). If that fails in any way, nothing has changed. Then this program executes it, with
//! the listeners, the sockets of the children and the secret of session tickets. It starts its own workers,
//! and only when they are ready do the workers before drain ([`super::predecessors`]). If it cannot serve, it
//! executes the program before again ([`super::inherited`]).
//!
//! HAProxy's main process does the same (its management guide, 4).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use headway_base::format::printable;
use headway_config::{Config, ListenerMode};
use headway_control::{
    ControlError, Drain, FORMAT, HandedProcess, HandedWorker, Handover, Packet, Packets, ToHelper,
};
use headway_metrics::MasterStatus;
use headway_os::exec::BlockedSignals;
use headway_os::spawn::in_new_session;
use headway_tls::process::sealed;
use rustix::event::{PollFd, PollFlags, poll};

use crate::confinement::Directories;

use super::children::{Role, ended};
use super::collector::{self, Collector};
use super::inherited::{Inherited, VARIABLE, execute, open_program, path_of_program};
use super::predecessors::{Predecessors, read_tickets};
use super::reload::Generation;
use super::service::Service;
use super::spans::Spans;
use super::tls::SharedTls;
use super::{
    Master, MasterError, Options, activation, listeners, log_error, log_info, signals, system,
};

/// The option of the rehearsal, which follows `serve`.
const OPTION: &str = "--rehearse-upgrade";
/// Time for the rehearsal.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Another time for it in milliseconds, for tests.
const TIME_VARIABLE: &str = "HEADWAY_UPGRADE_TIMEOUT_MS";
/// What is repeated of its messages.
const TEXT_BYTES_MAX: usize = 2_000;
/// Time for the new workers to be ready.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// An upgrade whose program is being checked.
pub(super) struct Upgrade {
    rehearsal: Child,
    deadline: Instant,
}

/// What the next program gets: the description, and the descriptors in it.
struct Parcel<'m> {
    state: Handover,
    kept: Vec<BorrowedFd<'m>>,
    /// Those of workers, to be kept too.
    rulesets: Vec<OwnedFd>,
}

/// How helpers of a worker begin that another program starts.
#[derive(Default)]
struct HelperOrders {
    /// They look up directories. For roots that are switched later, or without a ruleset.
    looking: Option<ToHelper>,
    with_ruleset: Option<ToHelper>,
    ruleset: Option<OwnedFd>,
}

impl HelperOrders {
    fn of(generation: &Generation) -> HelperOrders {
        let Some(demand) = generation.programs.sandbox_of(Role::Helper) else {
            return HelperOrders::default();
        };
        let config = &generation.config;
        // Without a ruleset they can still look.
        let order = generation.directories.order(config, demand).ok();
        let order = order.and_then(|(order, ruleset)| Some((order, ruleset?)));
        let (with_ruleset, ruleset) = order.unzip();
        HelperOrders {
            looking: Some(Directories::of(config).order(Vec::new())),
            with_ruleset,
            ruleset,
        }
    }

    fn packets(&self, config: &Config) -> Result<Packets, ControlError> {
        let timeout_ms = config.drain_timeout_ms;
        let drain = Drain {
            timeout_ms,
            idle_ms: timeout_ms / 2,
        };
        Packets::new(drain, self.looking.as_ref(), self.with_ruleset.as_ref())
    }
}

fn handed_process(
    (pid, socket): (u32, Option<BorrowedFd<'_>>),
    counts_spans: bool,
) -> HandedProcess {
    HandedProcess {
        pid,
        socket: socket.map(|socket| socket.as_raw_fd()),
        counts_spans,
    }
}

impl Master<'_> {
    /// Begins an upgrade. One that is requested during a reload follows it.
    pub(super) fn handle_upgrade(&mut self) {
        if signals::drain(&self.signals.upgrade) == 0 || self.stopping.is_some() {
            return;
        }
        self.upgrade_is_due = true;
        self.upgrade_if_due();
    }

    pub(super) fn upgrade_if_due(&mut self) {
        if !self.announced || self.is_busy() || self.stopping.is_some() {
            return;
        }
        if !std::mem::take(&mut self.upgrade_is_due) {
            return;
        }
        Service::reloading();
        match self.rehearse() {
            Ok(rehearsal) => {
                let time = std::env::var(TIME_VARIABLE).ok();
                let time = time.and_then(|text| text.parse().ok());
                let time = time.map_or(TIME_MAX, Duration::from_millis);
                self.upgrade = Some(Upgrade {
                    rehearsal,
                    deadline: Instant::now() + time,
                });
            }
            Err(error) => {
                let path = self.path.display();
                self.fail_upgrade(&format!("{path}: {error}"));
            }
        }
    }

    /// Whether a reload or an upgrade runs.
    pub(super) fn is_busy(&self) -> bool {
        self.reading.is_some() || self.reload.is_some() || self.upgrade.is_some()
    }

    /// Starts the new program to check what it would get.
    fn rehearse(&self) -> io::Result<Child> {
        let program = open_program(Path::new(&self.current.programs.program))?;
        let parcel = self.parcel(program.as_fd())?;
        let memory = parcel.state.to_memory().map_err(io::Error::other)?;
        let mut arguments: Vec<_> = std::env::args_os().collect();
        let name = arguments.remove(0);
        let place = arguments.iter().position(|one| one == "serve");
        arguments.insert(place.map_or(0, |place| place + 1), OPTION.into());
        let mut command = Command::new(&self.path);
        command
            .arg0(name)
            .args(arguments)
            .env_remove(VARIABLE)
            .stdin(File::from(memory))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        in_new_session(&mut command).spawn()
    }

    pub(super) fn upgrade_deadline(&self) -> Option<Instant> {
        self.upgrade.as_ref().map(|upgrade| upgrade.deadline)
    }

    /// Continues an upgrade when the new program has been checked.
    pub(super) fn watch_upgrade(&mut self, now: Instant) {
        let Some(upgrade) = &mut self.upgrade else {
            return;
        };
        let path = self.path.display().to_string();
        let why = match upgrade.rehearsal.try_wait() {
            Ok(Some(status)) if status.success() => return self.exchange(),
            Ok(Some(status)) => failure(&mut upgrade.rehearsal, status),
            Ok(None) if upgrade.deadline <= now => {
                let _ = upgrade.rehearsal.kill();
                "its checks take too long".to_owned()
            }
            Ok(None) => return,
            Err(error) => error.to_string(),
        };
        self.cancel_upgrade();
        self.fail_upgrade(&format!("{path}: {why}"));
    }

    /// Ends the rehearsal.
    pub(super) fn cancel_upgrade(&mut self) {
        if let Some(mut upgrade) = self.upgrade.take() {
            // It may have ended already.
            let _ = upgrade.rehearsal.kill();
            self.ending.push(upgrade.rehearsal);
        }
    }

    fn fail_upgrade(&mut self, why: &str) {
        log_error(format_args!(
            "upgrade failed: {why}; serving on with version {VERSION}"
        ));
        Service::ready();
        self.own_status.upgrade_failures += 1;
        self.own_status.upgrade_error = Some(why.to_owned());
        self.report_result();
        self.reload_if_due();
        self.upgrade_if_due();
    }

    /// Executes the new program. Returns only if that fails, or if a signal to stop has come.
    fn exchange(&mut self) {
        let blocked = BlockedSignals::all();
        let mut stop = [PollFd::new(&self.signals.stop, PollFlags::IN)];
        if poll(&mut stop, Some(&super::timespec(Duration::ZERO))) != Ok(0) {
            return;
        }
        let why = match self.execute_new() {
            Ok(never) => match never {},
            Err(error) => format!("{}: {error}", self.path.display()),
        };
        // Children that are started now must not have them blocked.
        drop(blocked);
        self.cancel_upgrade();
        self.fail_upgrade(&why);
    }

    fn execute_new(&self) -> io::Result<std::convert::Infallible> {
        let program = open_program(&self.current.programs.program)?;
        let tickets = self.shared_tls.tickets();
        let tickets = tickets.as_ref().map(|secret| sealed(&Some(secret.clone())));
        let tickets = tickets.transpose()?;
        let mut parcel = self.parcel(program.as_fd())?;
        let rulesets = std::mem::take(&mut parcel.rulesets);
        parcel.kept.extend(rulesets.iter().map(AsFd::as_fd));
        parcel.state.tickets = tickets.as_ref().map(AsRawFd::as_raw_fd);
        let memory: OwnedFd = parcel.state.to_memory().map_err(io::Error::other)?;
        parcel.kept.extend(tickets.iter().map(AsFd::as_fd));
        parcel.kept.push(memory.as_fd());
        let state = (memory.as_raw_fd(), 0, "");
        execute(&self.path, state, &parcel.kept)
    }

    fn parcel<'m>(&'m self, program: BorrowedFd<'m>) -> io::Result<Parcel<'m>> {
        let (mut workers, mut processes, mut kept) = self.predecessors.handed();
        let mut rulesets = Vec::new();
        kept.push(program);
        for slot in &self.slots {
            let Some((assigned, running)) = slot.worker.as_ref().zip(slot.running.as_ref()) else {
                continue;
            };
            let Some(control) = running.control() else {
                processes.push(handed_process((running.child.id(), None), false));
                continue;
            };
            let helper = HelperOrders::of(&assigned.generation);
            let packets = helper.packets(&assigned.generation.config);
            let left = |at: Instant| at.saturating_duration_since(Instant::now());
            kept.push(control.as_fd());
            workers.push(HandedWorker {
                pid: running.child.id(),
                number: assigned.number as u32,
                control: control.as_fd().as_raw_fd(),
                program: program.as_raw_fd(),
                is_ready: running.ready,
                ends_in_ms: assigned.retires_at.map(|at| left(at).as_millis() as u64),
                helpers_max: assigned.generation.config.helpers_max,
                packets: packets.map_err(io::Error::other)?,
                ruleset: helper.ruleset.as_ref().map(AsRawFd::as_raw_fd),
                last: serde_json::to_value(&slot.last).unwrap_or_default(),
            });
            rulesets.extend(helper.ruleset);
        }
        for (process, counts_spans) in self.other_children() {
            kept.extend(process.1);
            processes.push(handed_process(process, counts_spans));
        }
        let listeners = self.listeners.as_ref();
        kept.extend(listeners.into_iter().flat_map(|all| all.sockets()));
        let status = self.status.as_ref();
        kept.extend(status.map(|status| status.socket()));
        let config = &self.current.config;
        let state = Handover {
            format: FORMAT,
            version: VERSION.into(),
            path: self.path.clone(),
            program: program.as_raw_fd(),
            is_activated: listeners.is_some_and(|listeners| listeners.is_activated()),
            listeners: listeners.map_or_else(Vec::new, |listeners| listeners.handed()),
            is_shared: config.listeners != ListenerMode::Reuseport,
            status: status.map(|status| status.handed()),
            workers,
            processes,
            tickets: None,
            drain_timeout_ms: config.drain_timeout_ms,
            master: serde_json::to_value(&self.own_status).unwrap_or_default(),
            departed: self.collector.handed(),
        };
        Ok(Parcel {
            state,
            kept,
            rulesets,
        })
    }

    /// The children beside the workers, with the sockets that must stay open for the workers, and whether they
    /// count spans.
    fn other_children(&self) -> Vec<((u32, Option<BorrowedFd<'_>>), bool)> {
        let logs = self.log.iter().chain(&self.retired_logs);
        let others = logs.filter_map(|log| log.handed());
        let others = others.chain(self.store.as_ref().and_then(|store| store.handed()));
        let mut all: Vec<_> = others.map(|one| (one, false)).collect();
        let spans = self.spans.as_ref().and_then(Spans::handed);
        all.extend(spans.map(|(pid, socket)| ((pid, Some(socket)), true)));
        let helpers = self.helpers.iter().map(|helper| helper.child.id());
        let ended = self.slots.iter().flat_map(|slot| slot.ended_pids());
        let without = helpers
            .chain(ended)
            .chain(self.companions.pids())
            .chain(self.ending.iter().map(Child::id))
            .chain(self.acme.as_ref().and_then(|acme| acme.process.pid()));
        all.extend(without.map(|pid| ((pid, None), false)));
        all
    }

    /// The new workers serve: ends the way back. Returns whether this was an upgrade.
    pub(super) fn finish_upgrade(&mut self) -> bool {
        let Some(before) = self.inherited.borrow_mut().forget() else {
            return false;
        };
        let version = &before.state.version;
        let status = &mut self.own_status;
        match before.why {
            None => {
                status.upgrades += 1;
                status.upgrade_error = None;
                log_info(format_args!("upgraded from version {version} to {VERSION}"));
            }
            Some(why) => {
                log_error(format_args!(
                    "upgrade failed: {why}; serving on with version {VERSION}"
                ));
                status.upgrade_failures += 1;
                status.upgrade_error = Some(why);
            }
        }
        if let Some(listeners) = &self.listeners {
            listeners.own_files();
        }
        self.retire_predecessors();
        true
    }

    /// When the new workers have to be ready.
    pub(super) fn takeover_deadline(&self) -> Option<Instant> {
        let is_over = self.announced || self.stopping.is_some();
        let is_upgrade = !is_over && self.inherited.borrow().predecessor().is_some();
        is_upgrade.then_some(self.begun + START_TIMEOUT)
    }

    /// Gives up if the new workers are not ready in time.
    pub(super) fn watch_takeover(&mut self, now: Instant) {
        if self.takeover_deadline().is_some_and(|at| at <= now) {
            self.failure = Some(MasterError::NotReady);
            self.stop(Duration::ZERO);
        }
    }

    pub(super) fn handle_status_request(&mut self) {
        self.predecessors.send(Packet::Snapshot);
        self.collector.take_requests(&mut self.slots);
    }

    /// Ends a program that was to replace another one and cannot serve.
    pub(super) fn goes_back(&self) -> bool {
        self.failure.is_some() && self.inherited.borrow().predecessor().is_some()
    }
}

/// What the state of the program before is made into.
pub(super) struct Taken {
    pub(super) shared_tls: SharedTls,
    pub(super) predecessors: Predecessors,
    pub(super) status: MasterStatus,
    pub(super) started: Instant,
    pub(super) path: PathBuf,
}

impl Taken {
    pub(super) fn of(
        inherited: &Inherited,
        collector: &mut Collector,
        options: &Options,
    ) -> Result<Taken, MasterError> {
        let (pid, now_ms) = (std::process::id(), collector::now_ms());
        let begin = |status: MasterStatus| MasterStatus {
            pid,
            pinned: None,
            stored: None,
            log_error: None,
            ..status
        };
        let Some(before) = inherited.predecessor() else {
            return Ok(Taken {
                shared_tls: SharedTls::default(),
                predecessors: Predecessors::default(),
                status: begin(MasterStatus {
                    start_time_ms: now_ms,
                    ..MasterStatus::default()
                }),
                started: Instant::now(),
                path: path_of_program(&options.programs.program),
            });
        };
        let state = &before.state;
        collector.take_over(state.departed.clone());
        let status: MasterStatus = serde_json::from_value(state.master.clone()).unwrap_or_default();
        let age = Duration::from_millis(now_ms.saturating_sub(status.start_time_ms));
        Ok(Taken {
            shared_tls: SharedTls::with_tickets(read_tickets(before)),
            predecessors: Predecessors::new(before)
                .map_err(system("children of the program before"))?,
            started: Instant::now().checked_sub(age).unwrap_or_else(Instant::now),
            status: begin(status),
            path: state.path.clone(),
        })
    }
}

/// How the rehearsal has failed.
fn failure(rehearsal: &mut Child, status: ExitStatus) -> String {
    let mut bytes = Vec::new();
    if let Some(mut errors) = rehearsal.stderr.take() {
        // A process that it has started may hold the pipe open.
        let _ = rustix::io::ioctl_fionbio(&errors, true);
        let mut part = [0; 512];
        while let Ok(length @ 1..) = errors.read(&mut part) {
            bytes.extend_from_slice(&part[..length]);
            if bytes.len() > TEXT_BYTES_MAX {
                break;
            }
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = text
        .lines()
        .map(|line| line.strip_prefix("headway: ").unwrap_or(line));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    match lines.is_empty() {
        true => ended(status),
        false => printable(&lines.join("; ")).to_string(),
    }
}

/// Checks whether this program, with this configuration, can replace the one whose state is in a memfd.
///
/// # Errors
/// Why not.
pub fn rehearse_upgrade(mut config: Config, state: impl AsFd) -> Result<(), String> {
    let state = Handover::from_memory(state.as_fd()).map_err(|error| error.to_string())?;
    if state.is_activated {
        activation::share(&mut config);
    }
    if state.is_shared != (config.listeners != ListenerMode::Reuseport) {
        return Err("listeners: a change needs a restart".into());
    }
    let known = state.listeners.iter().chain(&state.status);
    let known: Vec<_> = known.map(|listener| listener.wanted.clone()).collect();
    if let Some(problem) = listeners::unavailable_beside(&config, &known).first() {
        return Err(problem.to_string());
    }
    super::check_tls(&config)
}
