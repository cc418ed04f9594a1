//! Making the measurements of a plan that are not there yet.
//!
//! A server that does not start, a part of the lab that this machine cannot make, a load that
//! fails: each costs its own measurements, whose records say why, and the rest goes on. They are
//! tried again the next time. An interruption ends the server and the lab, leaves what is done, and
//! the same command goes on. After a kill it first clears what is left (`journal`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use headway_latency::Run;
use headway_latency::format;
use headway_latency::run::Verdict;
use headway_load::knee::{Search, Step, is_behind, is_good};

use super::build;
use super::client::Stopped;
use super::journal::Journal;
use super::measure::Bench;
use super::plan::{EnvironmentGroup, Plan, RateRequest, Session, rate};
use super::shares;
use super::spec::{Knee, Point, Probe, ServerChoice, Spec};
use super::store::{Record, Store, StoreError};
use super::workspace::{READY_PATH, Workspace, WorkspaceError};
use crate::error::LabError;
use crate::servers::{Server, ServerSpec, available};

/// How the work ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Told to end.
    #[error("interrupted; repeat the command to resume it")]
    Interrupted,
    /// The directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A lab is left.
    #[error("{0}")]
    Left(String),
    /// Something of an earlier run is left.
    #[error(
        "what a killed run left here could not be cleared: {0}; end that, then give the same command again"
    )]
    Earlier(String),
}

/// Receives the progress.
pub trait Listener {
    /// Receives one line.
    fn line(&mut self, line: &str);
}

/// What a run needs beside its plan.
pub struct Options<'a> {
    /// Set by a signal.
    pub interrupted: &'a AtomicBool,
}

/// Measures what is not measured yet.
///
/// # Errors
/// See [`RunError`]. What is done stays done.
pub fn run(
    plan: &Plan,
    store: &Store,
    options: &Options<'_>,
    listener: &mut dyn Listener,
) -> Result<(), RunError> {
    // Now, as long as the program is the one that was started.
    let _ = build::id();
    let (journal, cleared) = Journal::open(store.path()).map_err(RunError::Earlier)?;
    if let Some(cleared) = cleared {
        listener.line(&format!("cleared what a killed run left: {cleared}"));
    }
    let done = plan
        .specs()
        .filter(|spec| store.is_done(&spec.key()))
        .count();
    let mut run = StudyRun {
        store,
        journal: &journal,
        interrupted: options.interrupted,
        listener,
        at: done,
        of: plan.len(),
        begun: Instant::now(),
        disturbed: HashMap::new(),
    };
    if done > 0 {
        run.listener.line(&format!(
            "continuing: {done} of {} measurements are done",
            plan.len()
        ));
    }
    let ended = plan.groups.iter().try_for_each(|group| run.group(group));
    journal.settle();
    ended
}

/// How often a measurement is made at most until its environment was as it should be.
const ATTEMPTS_MAX: u32 = 3;

struct StudyRun<'a> {
    store: &'a Store,
    journal: &'a Journal,
    interrupted: &'a AtomicBool,
    listener: &'a mut dyn Listener,
    at: usize,
    of: usize,
    begun: Instant,
    /// How often each measurement, by its key, found the environment not as it should be.
    disturbed: HashMap<String, u32>,
}

impl StudyRun<'_> {
    fn stopped(&self) -> Result<(), RunError> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(RunError::Interrupted),
            false => Ok(()),
        }
    }

    fn group(&mut self, group: &EnvironmentGroup) -> Result<(), RunError> {
        let waiting = |spec: &&Spec| !self.store.is_done(&spec.key());
        let specs = group.sessions.iter().flat_map(|session| &session.specs);
        let pending: Vec<&Spec> = specs.filter(waiting).collect();
        if pending.is_empty() {
            return Ok(());
        }
        self.stopped()?;
        let environment = group.environment.describe();
        self.listener.line(&format!("environment: {environment}"));
        let probes = probes(&pending);
        let journal = self.journal;
        match Workspace::up(&group.environment, &probes, self.interrupted, journal) {
            Ok(workspace) => {
                let done = group
                    .sessions
                    .iter()
                    .try_for_each(|session| self.session(&workspace, &probes, session));
                // A lab that stays counts more than why the work ended.
                workspace
                    .down()
                    .map_err(|error| RunError::Left(error.to_string()))?;
                done
            }
            // It is in the way of every other environment, and outlives this run.
            Err(WorkspaceError::Lab(
                error @ (LabError::Left { .. } | LabError::HalfMade { .. }),
            )) => Err(RunError::Left(error.to_string())),
            Err(WorkspaceError::Interrupted) => Err(RunError::Interrupted),
            Err(_) if self.interrupted.load(Ordering::Relaxed) => Err(RunError::Interrupted),
            Err(error) => {
                let why = format!(
                    "the environment could not be made: {}",
                    in_one_line(&error.to_string())
                );
                pending
                    .iter()
                    .try_for_each(|spec| self.failed(spec, None, &why))
            }
        }
    }

    fn session(
        &mut self,
        workspace: &Workspace,
        probes: &[Probe],
        session: &Session,
    ) -> Result<(), RunError> {
        let waiting = |spec: &&Spec| !self.store.is_done(&spec.key());
        let pending = session.specs.iter().filter(waiting);
        let (knees, mut pending): (Vec<&Spec>, Vec<&Spec>) =
            pending.partition(|spec| matches!(spec.point, Point::Knee(_)));
        for spec in knees {
            self.search_knee(workspace, probes, spec)?;
        }
        // What overloads a server pushes files out of its memory, and the next point would begin
        // with what is left.
        pending.sort_by(|one, other| {
            let (one_rate, other_rate) = (self.demand_rps(one), self.demand_rps(other));
            (one.fault.is_some().cmp(&other.fault.is_some())).then(one_rate.total_cmp(&other_rate))
        });
        let mut rest = &pending[..];
        while !rest.is_empty() {
            self.stopped()?;
            let done = self.run_server(workspace, probes, &session.server, rest)?;
            rest = &rest[done..];
        }
        Ok(())
    }

    /// Finds the knee of a server. Each probe has a server of its own with filled caches, as a rate
    /// has that is measured in turns, for one that was overrun leaves its mark on the next.
    fn search_knee(
        &mut self,
        workspace: &Workspace,
        probes: &[Probe],
        spec: &Spec,
    ) -> Result<(), RunError> {
        let Point::Knee(knee) = spec.point else {
            return Ok(());
        };
        let mut search = match self.capacity(spec, &spec.server) {
            Ok(capacity) => Search::near(capacity),
            Err(why) => return self.failed(spec, None, &why),
        };
        let mut found = Record::of(spec.clone());
        while let Step::Probe(rate) = search.step() {
            let probe = spec.at_rate(rate);
            let record = self.probe(workspace, probes, &probe)?;
            if let Some(why) = record.failed {
                return self.failed(spec, record.version, &why);
            }
            let (is_good, client) = self.judge(&probe, rate, knee);
            search.take(rate, is_good);
            let missing = record.missing.into_iter().chain(client);
            found
                .missing
                .extend(missing.map(|what| format!("at {rate}/s: {what}")));
            found.version = record.version;
        }
        let rate = match search.step() {
            Step::Found(rate) => rate,
            Step::AtLeast(rate) => {
                let why = format!("no rate up to {rate}/s was too much, so the knee may be higher");
                found.missing.push(why);
                rate
            }
            Step::Below(rate) | Step::Probe(rate) => {
                let why = format!("no rate down to {rate}/s was answered in time");
                return self.failed(spec, found.version, &why);
            }
        };
        found.rate_rps = Some(rate);
        self.at += 1;
        let line = format!("{}: {}/s", self.position_text(spec), format::number(rate));
        self.listener.line(&line);
        Ok(self.store.conclude(&found)?)
    }

    /// One rate of a search. What an earlier search of this build has found counts.
    fn probe(
        &mut self,
        workspace: &Workspace,
        probes: &[Probe],
        spec: &Spec,
    ) -> Result<Record, RunError> {
        let key = spec.key();
        let known = self.store.record(&key);
        let ours = |record: &Record| {
            record.failed.is_none() && record.build.as_deref() == Some(build::id())
        };
        if let Some(record) = known.filter(ours) {
            return Ok(record);
        }
        // It is no measurement of the plan.
        let at = self.at;
        while self.run_server(workspace, probes, &spec.server, &[spec])? == 0 {
            self.stopped()?;
        }
        self.at = at;
        let ended = self.store.record(&key);
        Ok(ended.unwrap_or_else(|| Record {
            failed: Some("it left no record".to_owned()),
            ..Record::of(spec.clone())
        }))
    }

    /// Whether a probe was answered in time, and why that may be the client's doing.
    fn judge(&self, probe: &Spec, rate: f64, knee: Knee) -> (bool, Option<String>) {
        let run = Run::open(self.store.directory(&probe.key()).join("run"));
        let Some(description) = run.ok().map(|run| run.description().clone()) else {
            return (false, None);
        };
        let summary = description.summary.unwrap_or_default();
        let mean_ms = summary.mean_us.map(|mean_us| mean_us / 1e3);
        let limit_ms = knee.mean_ms;
        let is_good = is_good(summary.rate_rps, rate, probe.seconds, mean_ms, limit_ms);
        let client = description.client.unwrap_or_default();
        let at_limit = client.verdict == Verdict::Invalid;
        (is_good, at_limit.then(|| client.reasons.join("; ")))
    }

    /// The rate that a point demands; infinite for the capacity.
    fn demand_rps(&self, spec: &Spec) -> f64 {
        let request = rate(spec, &|server| self.capacity(spec, server));
        request
            .ok()
            .and_then(|request| request.rate)
            .unwrap_or(f64::INFINITY)
    }

    /// Starts the server and measures what it has to be measured at, until it has failed its
    /// clients or was overrun: requests that timed out stay in its queues, its processes wait for
    /// clients that are gone, its caches hold less than before, and the next point would measure
    /// that. Says how many are done.
    fn run_server(
        &mut self,
        workspace: &Workspace,
        probes: &[Probe],
        choice: &ServerChoice,
        pending: &[&Spec],
    ) -> Result<usize, RunError> {
        if let Err(reason) = available(choice.kind) {
            return self.all_failed(pending, &reason.to_string());
        }
        let queue = pending
            .first()
            .and_then(|spec| spec.environment.listen_queue);
        let server = match start(workspace, choice, queue, pending) {
            Ok(server) => server,
            Err(why) => {
                self.stopped()?;
                return self.all_failed(pending, &why);
            }
        };
        let writers = pending
            .first()
            .map_or(Ok(None), |spec| workspace.start_writers(&spec.environment));
        let bench = Bench {
            workspace,
            server: &server,
            probes,
            writers: RefCell::default(),
            interrupted: self.interrupted,
        };
        let filled = writers.and_then(|writers| {
            *bench.writers.borrow_mut() = writers;
            bench.fill(pending[0])
        });
        let done = match filled {
            Ok(()) => self.measure_until_overload(&bench, pending),
            Err(Stopped::Interrupted) => Err(RunError::Interrupted),
            Err(Stopped::Failed(why)) => {
                self.all_failed(pending, &format!("filling the caches: {why}"))
            }
        };
        drop(bench);
        let ended = server.stop();
        let done = done?;
        match ended {
            Ok(_) => Ok(done),
            Err(error) => Err(RunError::Left(error.to_string())),
        }
    }

    fn measure_until_overload(
        &mut self,
        bench: &Bench,
        pending: &[&Spec],
    ) -> Result<usize, RunError> {
        for (at, spec) in pending.iter().enumerate() {
            if at > 0 {
                bench.settle();
                match bench.fill_again(spec) {
                    Ok(()) => {}
                    Err(Stopped::Interrupted) => return Err(RunError::Interrupted),
                    Err(Stopped::Failed(why)) => {
                        self.failed(spec, None, &format!("filling the caches: {why}"))?;
                        return Ok(at + 1);
                    }
                }
            }
            match self.measure(bench, spec)? {
                Condition::Healthy => {}
                Condition::Overloaded => return Ok(at + 1),
                Condition::Disturbed => return Ok(at),
            }
        }
        Ok(pending.len())
    }

    fn all_failed(&mut self, pending: &[&Spec], why: &str) -> Result<usize, RunError> {
        for spec in pending {
            self.failed(spec, None, why)?;
        }
        Ok(pending.len())
    }

    fn measure(&mut self, bench: &Bench, spec: &Spec) -> Result<Condition, RunError> {
        self.stopped()?;
        let capacity = |server: &ServerChoice| self.capacity(spec, server);
        let RateRequest { rate, without } = match rate(spec, &capacity) {
            Ok(request) => request,
            Err(why) => {
                self.failed(spec, None, &why)?;
                return Ok(Condition::Healthy);
            }
        };
        bench.settle();
        self.stopped()?;
        let key = spec.key();
        let directory = self.store.clear(&key)?;
        let version = Some(bench.server.version().to_owned());
        match bench.measure(spec, rate, &directory) {
            Ok(mut missing) => {
                let condition = condition(&directory, spec, rate);
                // One that was overrun would be so again: its queues are why it took so long.
                let again = !missing.is_empty()
                    && condition == Condition::Healthy
                    && self.is_worth_another(&key);
                self.at += usize::from(!again);
                let passed_over = without.iter();
                missing
                    .extend(passed_over.map(|why| {
                        format!("the rate is a share of what the others can do: {why}")
                    }));
                let mut line = format!("{}: {}", self.position_text(spec), outcome(&directory));
                missing.iter().for_each(|what| line += &format!("; {what}"));
                if again {
                    self.listener.line(&(line + "; measured again"));
                    self.store.clear(&key)?;
                    return Ok(Condition::Disturbed);
                }
                self.listener.line(&line);
                self.store.conclude(&Record {
                    rate_rps: rate,
                    version,
                    missing,
                    ..Record::of(spec.clone())
                })?;
                Ok(condition)
            }
            Err(Stopped::Interrupted) => {
                self.store.clear(&key)?;
                Err(RunError::Interrupted)
            }
            Err(Stopped::Failed(why)) => {
                self.failed(spec, version, &why)?;
                Ok(Condition::Overloaded)
            }
        }
    }

    /// A measurement in a disturbed environment is made again, with a new server and filled caches,
    /// but not for ever.
    fn is_worth_another(&mut self, key: &str) -> bool {
        let times = self.disturbed.entry(key.to_owned()).or_default();
        *times += 1;
        *times < ATTEMPTS_MAX
    }

    /// What a point is a share of: the median over the repeats that were measured.
    fn capacity(&self, spec: &Spec, server: &ServerChoice) -> Result<f64, String> {
        shares::whole(self.store, spec, server)
    }

    fn failed(&mut self, spec: &Spec, version: Option<String>, why: &str) -> Result<(), RunError> {
        self.at += 1;
        let line = format!("{}: failed: {why}", self.position_text(spec));
        self.listener.line(&line);
        Ok(self.store.conclude(&Record {
            failed: Some(why.to_owned()),
            version,
            ..Record::of(spec.clone())
        })?)
    }

    fn position_text(&self, spec: &Spec) -> String {
        let mut text = format!(
            "[{}/{}, {:.0} s] {} {}",
            self.at,
            self.of,
            self.begun.elapsed().as_secs_f64(),
            server_text(&spec.server),
            spec.point_text()
        );
        if let Some(observer) = spec.observe {
            let _ = write!(text, " ({observer:?})");
        }
        if spec.fault.is_some() {
            text += " (fault)";
        }
        if spec.repeat > 1 {
            let _ = write!(text, ", repeat {}", spec.repeat);
        }
        text.to_lowercase()
    }
}

/// The condition of a server after a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Healthy,
    /// The server had errors or answered too few requests.
    Overloaded,
    /// The environment was not as specified: the point has to be measured again.
    Disturbed,
}

fn condition(directory: &std::path::Path, spec: &Spec, offered_rps: Option<f64>) -> Condition {
    let run = Run::open(directory.join("run"));
    let Some(summary) = run.ok().and_then(|run| run.description().summary.clone()) else {
        return Condition::Overloaded;
    };
    // With a probe the rate is the other client's.
    let offered_rps = offered_rps.filter(|_| spec.probe.is_none());
    let behind = offered_rps.is_some_and(|rps| is_behind(summary.rate_rps, rps, spec.seconds));
    match summary.errors > 0 || behind {
        true => Condition::Overloaded,
        false => Condition::Healthy,
    }
}

fn probes(specs: &[&Spec]) -> Vec<Probe> {
    let mut probes: Vec<Probe> = Vec::new();
    for probe in specs.iter().filter_map(|spec| spec.probe) {
        if !probes.contains(&probe) {
            probes.push(probe);
        }
    }
    probes
}

fn start(
    workspace: &Workspace,
    choice: &ServerChoice,
    listen_queue: Option<u32>,
    pending: &[&Spec],
) -> Result<Server, String> {
    let one_line = |error: WorkspaceError| in_one_line(&error.to_string());
    workspace.drop_caches().map_err(one_line)?;
    let address = workspace.address().map_err(one_line)?;
    let mut spec = ServerSpec::new(choice.kind, workspace.root(), address);
    if pending.iter().any(|spec| spec.workload.https) {
        spec.tls_port = Some(workspace.address().map_err(one_line)?.port());
    }
    spec.http2 = pending.iter().any(|spec| spec.workload.streams.is_some());
    spec.probe = Some(READY_PATH.to_owned());
    spec.access_log = choice.access_log;
    spec.arguments = choice.arguments.clone();
    spec.accept_limit = choice.accept_limit;
    spec.sizes.helpers = choice.helpers;
    spec.sizes.connections = choice.connections.unwrap_or(spec.sizes.connections);
    spec.sizes.workers = choice.workers.unwrap_or(spec.sizes.workers);
    spec.sizes.clients = choice.processes.unwrap_or(spec.sizes.clients);
    spec.sizes.backlog = listen_queue.unwrap_or(spec.sizes.backlog);
    let prefix = |program: &std::ffi::OsStr| workspace.command(crate::Side::Server, program);
    let note = |leader| workspace.journal().process(leader);
    Server::start_with_leader(&spec, prefix, workspace.scratch(), note)
        .map_err(|error| in_one_line(&error.to_string()))
}

/// `nginx`, `flash (helpers 5)`.
pub(super) fn server_text(choice: &ServerChoice) -> String {
    let mut sizes = Vec::new();
    for (name, size) in [
        ("workers", choice.workers),
        ("processes", choice.processes),
        ("helpers", choice.helpers),
        ("connections", choice.connections),
        ("accept limit", choice.accept_limit),
    ] {
        sizes.extend(size.map(|size| format!("{name} {size}")));
    }
    sizes.extend(choice.arguments.iter().cloned());
    match sizes.is_empty() {
        true => choice.kind.to_string(),
        false => format!("{} ({})", choice.kind, sizes.join(", ")),
    }
}

fn outcome(directory: &std::path::Path) -> String {
    let Ok(run) = Run::open(directory.join("run")) else {
        return "measured".to_owned();
    };
    let description = run.description();
    let summary = description.summary.clone().unwrap_or_default();
    let client = description.client.clone().unwrap_or_default();
    let verdict = match client.verdict {
        Verdict::Valid => "valid",
        Verdict::Suspect => "suspect",
        Verdict::Invalid => "invalid",
    };
    let time = |us: Option<f64>| us.map_or("–".to_owned(), format::time_us);
    format!(
        "{verdict}, {} good responses/s, mean {}, p50 {}, p95 {}, {} errors",
        format::number(summary.rate_rps),
        time(summary.mean_us),
        time(summary.p50_us),
        time(summary.p95_us),
        summary.errors,
    )
}

fn in_one_line(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join("; ")
}
