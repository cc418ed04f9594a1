//! Carrying a study out: configuration by configuration, server by server.
//!
//! Counters run for a window inside the client's measurement; what was served is added up from the
//! client's rows that ended in the same window, by the clock of the wall that both have. A server
//! that fails costs its own measurement and no other. The outcome is written after each, so that a
//! study can go on where it stopped.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use headway_lab::servers::{Kind, Server, ServerSpec};
use headway_load::client::rfc3339;

use super::client::{Demand, Running};
use super::outcome::{KeepError, Measured, Outcome, Setup};
use super::plan::{PlanError, StudyPlan, sized};
use super::window::served;
use super::workspace::{Confined, READY_PATH, Workspace, bound};
use crate::count::{Counts, KernelPerf, Session, Space, Target};
use crate::events::{Meaning, table};
use crate::machine::Machine;
use crate::probe;
use crate::smt::configuration::listed;
use crate::smt::{
    Change, Configuration, CpuState, Layout, Setting, SmtControl, StateError, Topology,
};

/// Why a study ended early. What was measured is kept.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A signal ended the study.
    #[error("interrupted; repeat the command to resume it")]
    Interrupted,
    /// Something of the work.
    #[error("{0}")]
    Failed(String),
    /// The plan is invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The directory.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// CPUs that could not be changed, or not changed back.
    #[error(transparent)]
    State(#[from] StateError),
    /// The directory has measurements of other work.
    #[error("{directory} holds measurements of other work ({what}); name another directory")]
    OtherWork {
        /// The directory.
        directory: String,
        /// The difference between the plans.
        what: String,
    },
}

/// Told what happens, a line at a time.
pub type Listener<'a> = dyn FnMut(&str) + 'a;

/// The time that a client needs to open its connections and begin; the same again is left after the
/// window.
const START_MARGIN: Duration = Duration::from_secs(1);

/// The time that the client has to write its rows after the measurement.
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_secs(120);

/// The interval at which a server is checked while it is measured.
const CHECK_DELAY: Duration = Duration::from_secs(1);

/// Carries a plan out with the CPUs of `state`, which are restored before it returns.
///
/// # Errors
/// [`RunError`]; failures of single servers are in the outcome instead.
pub fn run(
    plan: &StudyPlan,
    mut state: CpuState,
    interrupted: &AtomicBool,
    notify: &mut Listener,
) -> Result<Outcome, RunError> {
    plan.check()?;
    if plan.score_share.is_some() && headway_lab::groups::find("cpu").is_none() {
        return Err(RunError::Failed(
            "no mounted control group hierarchy has the cpu controller, so servers cannot have a share of their CPUs; \
             leave --score-share out"
                .into(),
        ));
    }
    let mut outcome = opened(plan)?;
    let machine = Machine::current();
    outcome.notices = machine.notices();
    outcome.width = machine.core.as_ref().and_then(|(_, core)| core.width);
    outcome.machine = described(&machine);
    let topology = with_smt(plan, &mut state, notify)?;
    let workspace = Workspace::new(&plan.workload, &mut state, interrupted)?;
    let mut study = Study {
        plan,
        workspace,
        machine,
        topology,
        outcome,
        interrupted,
    };
    let done = study.all(&mut state, notify);
    // Before anything is returned; what could not be restored matters more than what was measured.
    state.restore()?;
    study.keep()?;
    done.map(|()| study.outcome)
}

/// The outcome that the directory has, or a new one.
fn opened(plan: &StudyPlan) -> Result<Outcome, RunError> {
    let directory = &plan.directory;
    fs::create_dir_all(directory).map_err(|error| {
        RunError::Failed(format!("cannot make {}: {error}", directory.display()))
    })?;
    let Some(outcome) = Outcome::read(directory)? else {
        return Ok(Outcome::new(plan.workload.clone()));
    };
    let other = |what: String| RunError::OtherWork {
        directory: directory.display().to_string(),
        what,
    };
    if outcome.workload != plan.workload {
        return Err(other(
            serde_json::to_string(&outcome.workload).unwrap_or_default(),
        ));
    }
    let share = outcome.scores.first().map(|score| score.share);
    if plan.scores && share.is_some_and(|share| share != plan.score_share) {
        return Err(other("scores with another share of the CPUs".into()));
    }
    Ok(outcome)
}

/// The topology, after SMT has been switched on if a configuration needs it.
fn with_smt(
    plan: &StudyPlan,
    state: &mut CpuState,
    notify: &mut Listener,
) -> Result<Topology, RunError> {
    let topology = Topology::current();
    let needs = |one: &Configuration| one.on(&topology, &plan.choice) == Setting::NeedsSmt;
    if topology.smt == SmtControl::Off && plan.configurations.iter().any(needs) {
        notify("switching SMT on");
        state.change(&Change {
            file: topology.root.join("smt/control"),
            value: "on".into(),
        })?;
        return Ok(Topology::current());
    }
    Ok(topology)
}

fn described(machine: &Machine) -> BTreeMap<String, String> {
    let text = |path: &str| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let description = machine.description();
    let core = description
        .core
        .unwrap_or_else(|| "not in the table".into());
    BTreeMap::from([
        ("host".into(), text("/proc/sys/kernel/hostname")),
        ("kernel".into(), text("/proc/sys/kernel/osrelease")),
        ("cpu".into(), description.cpu),
        ("core".into(), core),
        ("headway".into(), env!("CARGO_PKG_VERSION").into()),
        (
            "build".into(),
            if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            }
            .into(),
        ),
    ])
}

/// A study on its way.
pub(super) struct Study<'a> {
    pub(super) plan: &'a StudyPlan,
    pub(super) workspace: Workspace,
    machine: Machine,
    pub(super) topology: Topology,
    pub(super) outcome: Outcome,
    pub(super) interrupted: &'a AtomicBool,
}

impl Study<'_> {
    fn all(&mut self, state: &mut CpuState, notify: &mut Listener) -> Result<(), RunError> {
        self.workspace.warm(self.interrupted)?;
        self.probe(notify)?;
        for configuration in &self.plan.configurations {
            let setting = configuration.on(&self.topology, &self.plan.choice);
            match setting {
                Setting::Possible(layout) => {
                    self.configuration(*configuration, layout, state, notify)?
                }
                Setting::NeedsSmt => {
                    let why = "the kernel did not switch SMT on";
                    self.impossible(*configuration, why.into(), notify);
                }
                Setting::Impossible(why) => self.impossible(*configuration, why, notify),
            }
            self.keep()?;
        }
        if self.plan.instructions {
            self.instructions(state, notify)?;
        }
        Ok(())
    }

    /// Latencies are needed only where misses are counted, and take their time.
    fn probe(&mut self, notify: &mut Listener) -> Result<(), RunError> {
        if self.machine.core_unit().is_none() || self.outcome.probed.is_some() {
            return Ok(());
        }
        let first = self.topology.online().first().copied().unwrap_or(0);
        notify("measuring the latencies of memory");
        self.outcome.probed = Some(bound(&[first], || probe::run(first))?);
        Ok(())
    }

    fn impossible(&mut self, configuration: Configuration, why: String, notify: &mut Listener) {
        notify(&format!("{configuration} cannot be had here: {why}"));
        self.outcome.put_setup(Setup {
            configuration,
            impossible: Some(why),
            server: Vec::new(),
            client: Vec::new(),
            changed: Vec::new(),
            remarks: Vec::new(),
        });
    }

    fn configuration(
        &mut self,
        configuration: Configuration,
        mut layout: Layout,
        state: &mut CpuState,
        notify: &mut Listener,
    ) -> Result<(), RunError> {
        for change in &layout.changes {
            state.change(change)?;
        }
        let of_plan = Confined::to(&layout.server, state)?;
        layout.remarks.extend(of_plan.remark.clone());
        let changed = layout.changes.iter();
        self.outcome.put_setup(Setup {
            configuration,
            impossible: None,
            server: layout.server.clone(),
            client: layout.client.clone(),
            changed: changed
                .map(|change| format!("{} = {}", change.file.display(), change.value))
                .collect(),
            remarks: layout.remarks.clone(),
        });
        let mut done = self.measurements(configuration, &layout, &of_plan, notify);
        if self.plan.scores && done.is_ok() {
            let shared = self
                .plan
                .score_share
                .map(|share| Confined::with_share(&layout.server, share, state));
            let shared = shared.transpose()?;
            let confined = shared.as_ref().unwrap_or(&of_plan);
            done = self.scores(configuration, &layout, confined, notify);
        }
        state.restore()?;
        // Restoring has undone SMT, too, if that was needed.
        self.topology = with_smt(self.plan, state, notify)?;
        done
    }

    fn measurements(
        &mut self,
        configuration: Configuration,
        layout: &Layout,
        confined: &Confined,
        notify: &mut Listener,
    ) -> Result<(), RunError> {
        for repeat in 1..=self.plan.repeats {
            for server in &self.plan.servers {
                if self.outcome.has(*server, configuration, repeat) {
                    notify(&format!("{server} {configuration} #{repeat}: kept"));
                    continue;
                }
                let measured = self.measurement(*server, configuration, repeat, layout, confined);
                let measured = match measured {
                    Err(RunError::Failed(why)) => Measured {
                        failed: Some(why),
                        ..named(*server, configuration, repeat)
                    },
                    other => other?,
                };
                notify(&result_line(&measured));
                self.outcome.put(measured);
                self.keep()?;
            }
        }
        Ok(())
    }

    fn measurement(
        &self,
        kind: Kind,
        configuration: Configuration,
        repeat: u32,
        layout: &Layout,
        confined: &Confined,
    ) -> Result<Measured, RunError> {
        let mut spec = self.spec(kind)?;
        sized(
            &mut spec,
            configuration.contexts(),
            self.plan.workload.connections,
        );
        let server = confined.start(&spec, &self.workspace.servers(), &[])?;
        let name = format!("{kind}-{configuration}-{repeat}");
        let run = self.plan.directory.join("runs").join(name);
        // Left by a measurement that failed.
        match fs::remove_dir_all(&run) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(RunError::Failed(format!(
                    "cannot remove {}: {error}",
                    run.display()
                )));
            }
            _ => {}
        }
        let window = self.window(&server, layout, &run)?;
        let version = server.version().to_owned();
        server
            .stop()
            .map_err(|error| RunError::Failed(error.to_string()))?;
        let (served, errors, verdict) = served(&run, window.begin, window.end)?;
        Ok(Measured {
            version,
            served,
            errors,
            verdict,
            cpu_ms: window.cpu_ms,
            counts: window.counts,
            ..named(kind, configuration, repeat)
        })
    }

    pub(super) fn spec(&self, kind: Kind) -> Result<ServerSpec, RunError> {
        let mut spec = ServerSpec::new(kind, self.workspace.root(), Workspace::address()?);
        spec.probe = Some(READY_PATH.into());
        Ok(spec)
    }

    /// Load, and counters for a window of it.
    fn window(&self, server: &Server, layout: &Layout, run: &Path) -> Result<Window, RunError> {
        let work = &self.plan.workload;
        let demand = Demand {
            connections: work.connections,
            requests_per_connection: work.requests_per_connection,
            warmup_s: work.warmup_s,
            seconds: work.seconds + 2.0 * START_MARGIN.as_secs_f64(),
            bits_per_s: None,
        };
        let mut client = Running::start(&mut demand.command(
            server,
            &self.workspace.set(),
            &layout.client,
            run,
        ))?;
        let begun = Instant::now();
        let warm = begun + Duration::from_secs_f64(work.warmup_s) + START_MARGIN;
        let mut died = end_of(server);
        client.wait(warm, self.interrupted, &mut died)?;
        let hardware = self.hardware(layout)?;
        let software = self.software(server)?;
        let sessions: Vec<&Session<KernelPerf>> = hardware.iter().chain(&software).collect();
        let cpu_before = server.usage().cpu_ms;
        let begin = SystemTime::now();
        let started = Instant::now();
        sessions
            .iter()
            .try_for_each(|session| session.start())
            .map_err(counting)?;
        client.wait(
            started + Duration::from_secs_f64(work.seconds),
            self.interrupted,
            &mut died,
        )?;
        let end = SystemTime::now();
        sessions
            .iter()
            .try_for_each(|session| session.stop())
            .map_err(counting)?;
        let cpu_ms = server.usage().cpu_ms - cpu_before;
        let mut counts = Counts::default();
        for session in sessions {
            counts.merge(session.counts().map_err(counting)?);
        }
        client.finish(
            Instant::now() + START_MARGIN * 2 + CLIENT_TIMEOUT,
            self.interrupted,
        )?;
        if server.pids().is_empty() {
            return Err(RunError::Failed(
                "the server ended during the measurement".into(),
            ));
        }
        Ok(Window {
            begin,
            end,
            cpu_ms,
            counts,
        })
    }

    /// What the CPUs of the configuration count, for all that runs there: interrupts and the
    /// kernel's threads are a part of serving, as in the dissertation.
    fn hardware(&self, layout: &Layout) -> Result<Option<Session<'static, KernelPerf>>, RunError> {
        let meanings: Vec<Meaning> = table()
            .meanings()
            .filter(|one| !one.is_software())
            .collect();
        let target = Target::Cpus {
            cpus: layout.server.clone(),
            cores: layout.cores.clone(),
        };
        let spaces: &[Space] = if self.plan.split {
            &[Space::User, Space::Kernel]
        } else {
            &[Space::Both]
        };
        let session = Session::open(&KernelPerf, &self.machine, &meanings, &target, spaces);
        session.map(Some).map_err(|error| {
            RunError::Failed(format!(
                "counting on CPUs {}: {error}; {}",
                listed(&layout.server),
                self.machine.limits.advice()
            ))
        })
    }

    /// What the kernel counts of the server's own processes.
    fn software(&self, server: &Server) -> Result<Option<Session<'static, KernelPerf>>, RunError> {
        let threads: Vec<i32> = server.pids().into_iter().flat_map(threads_of).collect();
        let session = Session::open(
            &KernelPerf,
            &self.machine,
            &Meaning::SOFTWARE,
            &Target::Threads(threads),
            &[Space::Both],
        );
        session.map(Some).map_err(|error| {
            RunError::Failed(format!(
                "counting the server's processes: {error}; {}",
                self.machine.limits.advice()
            ))
        })
    }

    pub(super) fn keep(&mut self) -> Result<(), RunError> {
        self.outcome.made = rfc3339(SystemTime::now());
        Ok(self.outcome.write(&self.plan.directory)?)
    }
}

/// Checks a server regularly, and reports its end.
pub(super) fn end_of(server: &Server) -> impl FnMut() -> Option<String> {
    let mut looked = Instant::now();
    move || {
        if looked.elapsed() < CHECK_DELAY {
            return None;
        }
        looked = Instant::now();
        let alive = !server.pids().is_empty();
        (!alive).then(|| "the server ended during the measurement".to_owned())
    }
}

/// What was seen in a window.
struct Window {
    begin: SystemTime,
    end: SystemTime,
    cpu_ms: f64,
    counts: Counts,
}

fn counting(error: io::Error) -> RunError {
    RunError::Failed(format!("reading counters: {error}"))
}

fn named(kind: Kind, configuration: Configuration, repeat: u32) -> Measured {
    Measured {
        server: kind.name().into(),
        configuration: configuration.name().into(),
        repeat,
        ..Measured::default()
    }
}

fn result_line(measured: &Measured) -> String {
    let Measured {
        server,
        configuration,
        repeat,
        served,
        ..
    } = measured;
    match &measured.failed {
        Some(why) => format!("{server} {configuration} #{repeat}: {why}"),
        None => format!(
            "{server} {configuration} #{repeat}: {:.0} Mb/s, {:.0} requests/s ({})",
            served.bytes * 8e-6 / served.seconds,
            served.requests / served.seconds,
            measured.verdict
        ),
    }
}

/// The threads of a process; none if it has ended.
pub fn threads_of(process: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::score::Score;
    use super::*;

    #[test]
    fn directory_is_an_error_when_its_scores_have_another_share() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut plan = StudyPlan::new(
            vec![Kind::Nginx],
            vec![Configuration::One],
            directory.path().into(),
        );
        plan.scores = true;
        plan.score_share = Some(0.1);
        let mut outcome = Outcome::new(plan.workload.clone());
        outcome.put_score(Score {
            share: Some(0.1),
            ..Score::default()
        });
        outcome.write(directory.path()).expect("written");
        assert!(opened(&plan).is_ok());
        plan.score_share = None;
        let refused = opened(&plan).expect_err("another share").to_string();
        assert!(refused.contains("another share"), "{refused}");
        // A run without scores mixes none.
        plan.scores = false;
        assert!(opened(&plan).is_ok());
    }
}
