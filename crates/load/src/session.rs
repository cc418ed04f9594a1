//! One run, from what a user asked to what came out: the part of `headway load` that is not words.
//!
//! [`Settings::prepare`] checks everything and looks names up. [`Prepared::run`] then connects once
//! to each server, makes the run directory, lets the engine run with a [`recorder`] behind it,
//! judges, and closes the directory. On the threads of [`loops`] nothing happens but handing rows over;
//! files and the terminal belong to other threads.

pub mod bars;
mod fileset;
mod judging;
mod live;
mod loops;
mod observer;
mod pin;
pub mod progress;
mod recorder;
mod redaction;
mod rows;
mod settings;
pub mod status;
pub mod summary;
mod work;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use crate::cli_types::{SeriesOutput, Url};
use crate::client::environment::rfc3339;
use crate::client::limits::{self, Shortage};
use crate::client::resolve::ResolveError;
use crate::client::watch::allowed_cpus;
use crate::engine::{EngineError, Measured, Mode, Plan, PlanError};
use crate::scenario::{Scenario, ScenarioError};
use crate::tls::TlsError;
use headway_latency::run::Window;
use headway_latency::specweb99::Conformance;
use headway_latency::{Analysis, Analyzer, RunDescription, RunWriter, WriteError};
use live::{LiveSeries, Lost};
use observer::Watched;
use progress::{LoopStates, ProgressThread, ShowAs, ViewMaker};
use recorder::Writer;
use rows::{RowSink, Rows};

pub use live::metrics;
pub use redaction::without_secrets;
pub use settings::{Demand, Settings, WorkSource};

/// The entry of `environment.extra` that says why a run ended before its time.
pub(crate) const INTERRUPTED: &str = "interrupted";

/// Timeout of the one connection to each server before a run.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a run did not take place, or was not kept.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The words contradict each other or ask nothing.
    #[error("{0}")]
    Use(String),
    /// The plan is an error for the engine.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A name has no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A limit of this machine is too low.
    #[error(transparent)]
    Shortage(#[from] Shortage),
    /// A local address to ask from is none of this machine's.
    #[error(
        "--source {address}: no connection can leave from it: {source}; name addresses of this machine (`ip address` lists them)"
    )]
    Source {
        /// The address.
        address: IpAddr,
        /// Why the address cannot be used.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why reading failed.
        source: io::Error,
    },
    /// A file could be read and does not hold what it should.
    #[error("{0}")]
    Content(String),
    /// The scenario cannot be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A server cannot be connected to.
    #[error("connecting to {target}: {source}; is the server running, and does it listen there?")]
    Reach {
        /// Where the server should listen.
        target: String,
        /// Why the connection failed.
        source: io::Error,
    },
    /// The TLS handshake with a server fails.
    #[error("TLS with {target}: {why}")]
    Handshake {
        /// Where the server listens.
        target: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// TLS cannot be used as it was asked for.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client's thread could not be pinned.
    #[error("binding the loop to CPU {cpus:?}: {source}; this process may use {allowed:?}")]
    Pin {
        /// The CPUs of the option.
        cpus: Vec<usize>,
        /// The CPUs that are allowed.
        allowed: Vec<usize>,
        /// Why pinning failed.
        source: io::Error,
    },
    /// The thread that writes could not be started.
    #[error("starting a thread: {0}")]
    Thread(io::Error),
    /// The run cannot be shown.
    #[error("the view of the run: {0}; nothing was measured")]
    View(io::Error),
    /// A server does not take metrics.
    #[error("sending metrics to {url}: {why}; nothing was measured")]
    Metrics {
        /// Where they were sent.
        url: String,
        /// Why it failed, and which servers take them.
        why: String,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// One of several loops failed.
    #[error("thread {number} of {count}: {source}; the run was ended")]
    Loop {
        /// Which one, from 1.
        number: usize,
        /// Number of loops.
        count: usize,
        /// Why it failed.
        source: Box<SessionError>,
    },
    /// Interrupted where only a whole run is worth keeping.
    #[error("interrupted")]
    Interrupted,
    /// The run directory could not be written.
    #[error("writing the run: {0}")]
    Write(#[from] WriteError),
}

impl SessionError {
    /// Whether the error is a usage error, and not a failure of the machine.
    pub fn is_use(&self) -> bool {
        matches!(
            self,
            SessionError::Use(_)
                | SessionError::Plan(_)
                | SessionError::Scenario(ScenarioError::Mistake { .. })
                | SessionError::Tls(TlsError::ServerName(_))
        )
    }
}

/// A run that may begin.
#[derive(Debug)]
pub struct Prepared {
    /// For the engine.
    pub plan: Plan,
    /// For `run.json`: everything that is known before.
    pub description: RunDescription,
    /// The limits of this machine.
    pub limits: limits::ClientLimits,
    /// CPUs for the client's loops; empty is any.
    pub cpus: Vec<usize>,
    /// Loops, each on a thread of its own.
    pub threads: usize,
    /// What clients do, if it comes from a scenario file.
    pub scenario: Option<Arc<Scenario>>,
    /// The work is a set of files with a manifest.
    pub fileset: bool,
}

/// The surroundings of a run: signals, terminal, status page.
#[derive(Clone, Debug, Default)]
pub struct RunContext {
    /// Set when the run shall end now and keep what it has.
    pub interrupt: Arc<AtomicBool>,
    /// Show a progress line with this word before it.
    pub progress: Option<String>,
    /// Show this in place of the line.
    pub view: Option<ViewMaker>,
    /// A run that ends before its time is an error, and its directory stays incomplete.
    pub whole_only: bool,
    /// Where the server's own counters are read after the run.
    pub server_status: Option<Url>,
    /// Where figures per second go while the run goes on.
    pub outputs: Vec<SeriesOutput>,
}

/// The result of a session.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The description as it stands in `run.json`.
    pub description: RunDescription,
    /// The figures.
    pub analysis: Analysis,
    /// Things that did not work and did not matter to the figures.
    pub warnings: Vec<String>,
    /// Files of figures per second that are not whole.
    pub failed_outputs: Vec<String>,
    /// The run was interrupted.
    pub interrupted: bool,
    /// The first connection that could not be opened, as text.
    pub failure: Option<String>,
}

impl Prepared {
    /// Carries the run out. Without a directory only the figures are kept.
    ///
    /// # Errors
    /// See [`SessionError`]. After an error while writing, the directory holds what was written
    /// before, marked incomplete.
    pub fn run(
        mut self,
        directory: Option<&Path>,
        around: &RunContext,
    ) -> Result<Finished, SessionError> {
        self.reach()?;
        let now = crate::meeting::wall_clock();
        self.description.started = rfc3339(now);
        self.description.epoch_unix_ns = unix_ns(now);
        let sink = match directory {
            Some(path) => RowSink::Directory(RunWriter::create(path, &self.description)?),
            None => {
                let analyzer = Analyzer::new(&self.description);
                RowSink::Figures(Box::new(analyzer.expecting(planned(&self.plan))))
            }
        };
        let ran = self.measure(sink, around)?;
        if around.whole_only && ran.stopped_ns.is_some() {
            return Err(SessionError::Interrupted);
        }
        self.close(ran, around)
    }

    /// Nothing can be measured where not one connection can be made, and a wrong port is found in
    /// an instant.
    fn reach(&self) -> Result<(), SessionError> {
        for target in &self.plan.targets {
            let reached = match &target.tls {
                None => status::reach(&target.address, REACH_TIMEOUT).map(Ok),
                Some(tls) => {
                    let proxy = self.plan.proxy_version;
                    status::reach_tls(&target.address, tls, proxy, REACH_TIMEOUT)
                }
            };
            let name = target.address.to_string();
            match reached {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return Err(SessionError::Handshake { target: name, why }),
                Err(source) => {
                    return Err(SessionError::Reach {
                        target: name,
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// The run itself.
    fn measure(&self, sink: RowSink, around: &RunContext) -> Result<Ran, SessionError> {
        let states = LoopStates::new(self.threads);
        let others = pin::remaining_cpus(&allowed_cpus(), &self.cpus);
        let live = self.live(around, &states, &others)?;
        let seconds = live.as_ref().map(LiveSeries::seconds);
        let progress = self.progress(around, &states)?;
        let latencies = progress.as_ref().map(ProgressThread::latencies);
        let mut rows = Rows::new(sink, latencies, seconds.clone());
        let conforms = self.description.specweb99.is_some();
        if let (true, Mode::Closed { connections }) = (conforms, &self.plan.mode) {
            let from_ns = planned(&self.plan).start_ns;
            rows.conformance = Some(Conformance::new(*connections, from_ns));
        }
        let stopped_at_ns = Arc::clone(&rows.stopped_ns);
        let (writer, recorders) =
            Writer::start(rows, others, self.threads).map_err(SessionError::Thread)?;
        let failed = writer.failed();
        let observers = recorders.into_iter().enumerate().map(|(at, recorder)| {
            let (state, seconds) = (states.of_loop(at), seconds.clone());
            let interrupt = Arc::clone(&around.interrupt);
            let stopped_at_ns = Arc::clone(&stopped_at_ns);
            Watched::new(recorder, interrupt, state, seconds, stopped_at_ns)
        });
        let turned = loops::run(&self.plan, &self.cpus, observers.collect(), &failed);
        // Removed before anything else is printed.
        drop(progress);
        let rows = writer.finish();
        let lost = live.map(LiveSeries::finish).unwrap_or_default();
        let (rows, turned) = (rows?, turned?);
        Ok(Ran {
            measured: turned.measured,
            waited: turned.waited,
            stopped_ns: turned.stopped_ns,
            dropped: turned.dropped,
            rows,
            lost,
        })
    }

    /// What shows the run while it goes on.
    fn progress(
        &self,
        around: &RunContext,
        states: &LoopStates,
    ) -> Result<Option<ProgressThread>, SessionError> {
        let shower = match (&around.view, &around.progress) {
            (Some(view), _) => ShowAs::View(view.make().map_err(SessionError::View)?),
            (None, Some(word)) => ShowAs::Line(word.clone()),
            (None, None) => return Ok(None),
        };
        let thread = ProgressThread::start(shower, &self.plan, states);
        thread.map(Some).map_err(SessionError::Thread)
    }

    /// The outputs of figures per second, if there are any.
    fn live(
        &self,
        around: &RunContext,
        states: &LoopStates,
        cpus: &[usize],
    ) -> Result<Option<LiveSeries>, SessionError> {
        let window = planned(&self.plan);
        LiveSeries::start(&around.outputs, &self.description, window, states, cpus)
    }

    /// Decides the verdict, writes the description and closes the directory.
    fn close(mut self, ran: Ran, around: &RunContext) -> Result<Finished, SessionError> {
        let measured = &ran.measured;
        let evidence = judging::evidence(&self, &ran);
        let description = &mut self.description;
        description.started = rfc3339(measured.epoch.wall);
        description.epoch_unix_ns = unix_ns(measured.epoch.wall);
        description.load.measured = window(&self.plan, &ran);
        description.rows_dropped = ran.dropped;
        description.server = measured.server.as_deref().map(judging::server_info);
        description.client = Some(judging::client(
            &evidence,
            measured,
            &self.limits,
            &self.plan.targets,
        ));
        if let Some(stopped_ns) = ran.stopped_ns {
            let when = format!("after {:.1} s", stopped_ns as f64 / 1e9);
            let extra = &mut description.environment.extra;
            extra.insert(INTERRUPTED.to_owned(), when);
        }
        if let (Some(info), Some(found)) = (&mut description.specweb99, &ran.rows.conformance) {
            info.iterations = vec![found.finish()];
        }
        let mut warnings = judging::warnings(measured);
        warnings.extend(ran.lost.warnings);
        let analysis = match ran.rows.sink {
            RowSink::Figures(mut analyzer) => {
                analyzer.measured_in(description.load.measured);
                analyzer.dropped(ran.dropped);
                analyzer.finish()
            }
            RowSink::Directory(writer) => {
                warnings.extend(keep_status(around.server_status.as_ref(), &writer).err());
                writer.finish(description)?
            }
        };
        description.summary = Some(headway_latency::run::summary(&analysis));
        description.complete = true;
        Ok(Finished {
            interrupted: ran.stopped_ns.is_some(),
            failure: ran.measured.failure.map(|failure| failure.message),
            description: self.description,
            analysis,
            warnings,
            failed_outputs: ran.lost.failures,
        })
    }
}

/// What the loop's part of a run leaves behind.
struct Ran {
    measured: Measured,
    waited: crate::client::watch::Waited,
    /// When the run was interrupted, in nanoseconds since its epoch.
    stopped_ns: Option<u64>,
    dropped: u64,
    rows: Rows,
    /// Of the outputs of figures per second.
    lost: Lost,
}

/// From the end of the warm-up to when time ends the run, if it does.
fn planned(plan: &Plan) -> Window {
    let nanos = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    let start_ns = nanos(plan.warmup);
    let length_ns = plan.stop.duration.map_or(u64::MAX, nanos);
    Window {
        start_ns,
        end_ns: start_ns.saturating_add(length_ns),
    }
}

/// The measured part, where its ends are known; a run that had its number of requests ends with
/// their last response.
fn window(plan: &Plan, ran: &Ran) -> Option<Window> {
    let had_all = plan
        .stop
        .requests
        .is_some_and(|all| ran.rows.started >= all);
    let planned = planned(plan);
    let by_time = plan.stop.duration.filter(|_| !had_all);
    let by_time_ns = by_time.map(|_| planned.end_ns);
    // An interruption in the cool-down does not make the measured part longer.
    let stopped_ns = ran.stopped_ns.map(|ns| ns.min(planned.end_ns));
    let end_ns = stopped_ns.or(by_time_ns)?.min(ran.measured.elapsed_ns);
    (end_ns > planned.start_ns).then_some(Window { end_ns, ..planned })
}

/// Reads the server's counters and keeps them; the error is a warning.
fn keep_status(url: Option<&Url>, writer: &RunWriter) -> Result<(), String> {
    let Some(url) = url else { return Ok(()) };
    let counters = status::fetch(url).map_err(|error| error.to_string());
    let kept = counters.and_then(|counters| {
        writer
            .write_server(&counters)
            .map_err(|error| error.to_string())
    });
    kept.map_err(|why| format!("there is no server.json: {why}"))
}

fn unix_ns(moment: SystemTime) -> u64 {
    let since = moment
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
