//! Figures per second while a run goes on: files, and metrics for Prometheus and OpenTelemetry.
//!
//! The thread that writes rows also counts them in seconds, and a thread of this module takes each second
//! a second after its end. Files are written there; metrics have a thread of their own, since a monitoring
//! server may not answer. The loops take no part in it.
//!
//! What a file cannot take is an error of the run, after its figures are shown. Metrics that do not arrive
//! are a warning: the next ones have the sums.

mod file;
pub mod metrics;
mod otlp;
mod protobuf;
mod push;
mod remote_write;

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::pin::pin_this_thread;
use super::progress::LoopStates;
use super::{SessionError, unix_ns};
use crate::cli_types::SeriesOutput;
use crate::engine::Epoch;
use file::SeriesFile;
use headway_latency::export::{Second, Seconds};
use headway_latency::run::Window;
use headway_latency::{Row, RunDescription};
use metrics::Metrics;
use push::Push;

/// Between two looks at the clock.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A second is taken this long after its end: rows come ten times per second.
const LATE_NS: u64 = 1_000_000_000;

/// The seconds of a run that goes on.
#[derive(Debug)]
pub(super) struct LiveSeconds {
    seconds: Mutex<Seconds>,
    /// When the rows begin to count.
    epoch: OnceLock<Epoch>,
    /// The measured part. After its end no empty second is of interest.
    window: Window,
}

impl LiveSeconds {
    /// Counts rows, which need not be in order.
    pub(super) fn record(&self, rows: &[Row]) {
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().for_each(|row| seconds.take(row));
    }

    /// A loop has begun; all have one epoch.
    pub(super) fn begin(&self, epoch: Epoch) {
        let _ = self.epoch.set(epoch);
    }

    /// The time of the run. `None` before it begins.
    fn now_ns(&self) -> Option<u64> {
        let elapsed = self.epoch.get()?.instant.elapsed();
        Some(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The start of the measured part, since 1970.
    fn start_unix_ns(&self) -> u64 {
        let epoch = self.epoch.get().map_or(0, |epoch| unix_ns(epoch.wall));
        epoch.saturating_add(self.window.start_ns)
    }

    /// The seconds that had ended at this time of the run.
    fn ended_by(&self, ns: u64) -> Vec<Second> {
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        seconds.fill(ns.min(self.window.end_ns));
        std::iter::from_fn(|| seconds.close(ns)).collect()
    }

    /// All that are left, after the last row.
    fn rest(&self) -> Vec<Second> {
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        if self.now_ns() >= Some(self.window.end_ns) {
            seconds.fill(self.window.end_ns);
        }
        std::iter::from_fn(|| seconds.close(u64::MAX)).collect()
    }
}

/// What did not get where it should.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// Metrics, which do not matter to the run.
    pub warnings: Vec<String>,
    /// Files that are not whole.
    pub failures: Vec<String>,
}

/// The outputs of a run that goes on.
#[derive(Debug)]
pub(super) struct LiveSeries {
    seconds: Arc<LiveSeconds>,
    end: Sender<()>,
    thread: JoinHandle<Lost>,
}

impl LiveSeries {
    /// Opens files and sends the first metrics, so that a wrong name is found before the run. `None`
    /// without outputs.
    pub(super) fn start(
        outputs: &[SeriesOutput],
        description: &RunDescription,
        window: Window,
        states: &LoopStates,
        cpus: &[usize],
    ) -> Result<Option<LiveSeries>, SessionError> {
        if outputs.is_empty() {
            return Ok(None);
        }
        let (mut files, mut pushes) = (Vec::new(), Vec::new());
        for output in outputs {
            match output {
                SeriesOutput::File(format, path) => files.push(SeriesFile::create(path, *format)?),
                SeriesOutput::Metrics(receiver) => {
                    pushes.push(Push::start(receiver, description, cpus)?);
                }
            }
        }
        let seconds = Arc::new(LiveSeconds {
            seconds: Mutex::new(Seconds::new(window.start_ns)),
            epoch: OnceLock::new(),
            window,
        });
        let mut writer = SeriesWriter {
            seconds: Arc::clone(&seconds),
            states: states.clone(),
            metrics: Metrics::default(),
            files,
            pushes,
        };
        let (end, ended) = channel::<()>();
        let cpus = cpus.to_vec();
        let thread = std::thread::Builder::new()
            .name("series".to_owned())
            .spawn(move || {
                pin_this_thread(&cpus).ok();
                while ended.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    writer.look();
                }
                writer.finish()
            })
            .map_err(SessionError::Thread)?;
        Ok(Some(LiveSeries {
            seconds,
            end,
            thread,
        }))
    }

    /// Where rows are counted.
    pub(super) fn seconds(&self) -> Arc<LiveSeconds> {
        Arc::clone(&self.seconds)
    }

    /// Takes the last seconds and closes the outputs. All rows are counted by then.
    pub(super) fn finish(self) -> Lost {
        drop(self.end);
        match self.thread.join() {
            Ok(lost) => lost,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// The thread's part.
struct SeriesWriter {
    seconds: Arc<LiveSeconds>,
    states: LoopStates,
    metrics: Metrics,
    files: Vec<SeriesFile>,
    pushes: Vec<Push>,
}

impl SeriesWriter {
    /// Takes the seconds that have ended.
    fn look(&mut self) {
        let Some(now_ns) = self.seconds.now_ns() else {
            return;
        };
        let ended = self.seconds.ended_by(now_ns.saturating_sub(LATE_NS));
        ended.iter().for_each(|second| self.write(second));
    }

    fn write(&mut self, second: &Second) {
        let start_ns = self.seconds.start_unix_ns();
        self.files
            .iter_mut()
            .for_each(|file| file.write(start_ns, second));
        if self.pushes.is_empty() {
            return;
        }
        self.metrics.add(second, start_ns);
        let samples = self.metrics.samples(&self.states.snapshot());
        self.pushes.iter_mut().for_each(|push| push.send(&samples));
    }

    fn finish(mut self) -> Lost {
        // A run that could not begin has no seconds.
        if self.seconds.now_ns().is_some() {
            let rest = self.seconds.rest();
            rest.iter().for_each(|second| self.write(second));
        }
        let stale = self.metrics.stale();
        Lost {
            failures: self
                .files
                .into_iter()
                .filter_map(SeriesFile::finish)
                .collect(),
            warnings: self
                .pushes
                .into_iter()
                .filter_map(|push| push.finish(&stale))
                .collect(),
        }
    }
}
