//! What a person sees of a run that goes on: a line with rate, latency and errors, or a view of the caller's.
//!
//! A terminal can be stopped, and a write to it waits then. So this has a thread of its own,
//! which looks at what the loop and the writer leave for it; neither ever waits for the other or
//! for the terminal.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::engine::{Live, Mode, Plan, Schedule, Stage};
use headway_latency::format::{count, duration, number, time_us};
use headway_latency::{Histogram, Outcome, Row};

/// Between two lines.
const INTERVAL: Duration = Duration::from_millis(500);

/// What is known of a run that goes on.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// How far it is, as text.
    pub stage: String,
    /// Whether requests are measured now: it is neither the warm-up nor after the end.
    pub is_measured: bool,
    /// Seconds since the begin.
    pub now_s: f64,
    /// Requests started so far.
    pub started: u64,
    /// Requests that have ended.
    pub done: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// Requests on a connection.
    pub in_flight: u64,
    /// Requests that wait for a connection.
    pub waiting: u64,
    /// Connections that are open.
    pub connections: u64,
    /// Requests that could not be recorded.
    pub dropped: u64,
    /// Requests per second that the schedule wants now. `None` in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Latencies since this was last shown.
    pub latencies: Histogram,
}

/// Shows how a run goes. It is dropped when the run ends.
pub trait View: Send {
    /// Is called twice per second, on a thread of its own.
    fn show(&mut self, progress: &Progress);
}

/// Makes a view when a run begins.
#[derive(Clone)]
pub struct ViewMaker(Arc<MakeView>);

type MakeView = dyn Fn() -> io::Result<Box<dyn View>> + Send + Sync;

impl ViewMaker {
    /// One that calls this.
    pub fn new(make: impl Fn() -> io::Result<Box<dyn View>> + Send + Sync + 'static) -> ViewMaker {
        ViewMaker(Arc::new(make))
    }

    pub(super) fn make(&self) -> io::Result<Box<dyn View>> {
        (self.0)()
    }
}

impl fmt::Debug for ViewMaker {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("ViewMaker")
    }
}

/// What is shown.
pub(super) enum ShowAs {
    /// A line, with a word before it.
    Line(String),
    View(Box<dyn View>),
}

/// Latencies since the last line, kept by the writer's thread.
#[derive(Debug, Default)]
pub(super) struct Latencies(Mutex<Histogram>);

impl Latencies {
    /// Records the latencies of rows. While the line is being made they are left out of it.
    pub(super) fn record(&self, rows: &[Row]) {
        match self.0.try_lock() {
            Ok(mut histogram) => rows
                .iter()
                .filter(|row| row.error != Outcome::Abandoned)
                .for_each(|row| histogram.record_ns(row.response_ns())),
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => {}
        }
    }

    /// Returns what was recorded, and starts again.
    fn take(&self) -> Histogram {
        match self.0.lock() {
            Ok(mut histogram) => std::mem::take(&mut *histogram),
            Err(_) => Histogram::default(),
        }
    }
}

/// Counters that the loop publishes.
#[derive(Debug, Default)]
struct SharedProgress {
    now_ns: AtomicU64,
    started: AtomicU64,
    done: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
    waiting: AtomicU64,
    connections: AtomicU64,
    dropped: AtomicU64,
    stage: AtomicU64,
}

/// What all loops of a run publish.
#[derive(Clone, Debug)]
pub(super) struct LoopStates(Arc<Vec<SharedProgress>>);

impl LoopStates {
    /// The states of this many loops.
    pub(super) fn new(loops: usize) -> LoopStates {
        let each = (0..loops).map(|_| SharedProgress::default());
        LoopStates(Arc::new(each.collect()))
    }

    /// Where the loop with this number notes its state.
    pub(super) fn of_loop(&self, at: usize) -> LoopProgress {
        LoopProgress {
            loops: self.clone(),
            at,
        }
    }

    /// The sum of all loops, and the clock and the stage of the first one.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot::of_all(&self.0)
    }
}

/// The thread which shows a run. Dropping this removes what it shows.
#[derive(Debug)]
pub(super) struct ProgressThread {
    latencies: Arc<Latencies>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressThread {
    /// Begins to show a run.
    pub(super) fn start(
        shower: ShowAs,
        plan: &Plan,
        states: &LoopStates,
    ) -> io::Result<ProgressThread> {
        let latencies = Arc::new(Latencies::default());
        let (end, ended) = channel::<()>();
        let mut course = Course::of(plan);
        let (states, seen) = (states.clone(), Arc::clone(&latencies));
        let thread = std::thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || {
                let mut shower = shower;
                while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    let (now, latencies) = (states.snapshot(), seen.take());
                    match &mut shower {
                        ShowAs::Line(word) => show(&course.line(word, now, &latencies)),
                        ShowAs::View(view) => view.show(&course.progress(now, latencies)),
                    }
                }
                if let ShowAs::Line(_) = shower {
                    show("");
                }
            })?;
        Ok(ProgressThread {
            latencies,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Where the writer's thread leaves latencies.
    pub(super) fn latencies(&self) -> Arc<Latencies> {
        Arc::clone(&self.latencies)
    }
}

/// Where a loop notes its state.
#[derive(Clone, Debug)]
pub(super) struct LoopProgress {
    loops: LoopStates,
    at: usize,
}

impl LoopProgress {
    /// Notes the state of the loop; some stores, no more.
    pub(super) fn update(&self, live: &Live, dropped: u64) {
        let shared = &self.loops.0[self.at];
        let stage = match live.stage {
            Stage::Warmup => 0,
            Stage::Measuring => 1,
            Stage::Cooldown => 2,
            Stage::Draining => 3,
        };
        for (counter, value) in [
            (&shared.now_ns, live.now_ns),
            (&shared.started, live.started),
            (&shared.done, live.done),
            (&shared.errors, live.errors),
            (&shared.in_flight, live.in_flight.into()),
            (&shared.waiting, live.waiting.into()),
            (&shared.connections, live.connections.into()),
            (&shared.dropped, dropped),
            (&shared.stage, stage),
        ] {
            counter.store(value, Ordering::Relaxed);
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Joined, so that the line is gone before anything else is printed.
            drop(thread.join());
        }
    }
}

/// Replaces the line. A closed terminal is ignored.
fn show(text: &str) {
    let mut out = io::stderr().lock();
    drop(write!(out, "\r\x1b[K{text}"));
    drop(out.flush());
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    now_ns: u64,
    pub(super) started: u64,
    done: u64,
    errors: u64,
    pub(super) in_flight: u64,
    pub(super) waiting: u64,
    pub(super) connections: u64,
    pub(super) dropped: u64,
    stage: u64,
}

impl Snapshot {
    /// The sum of all loops, and the clock and the stage of the first one.
    fn of_all(loops: &[SharedProgress]) -> Snapshot {
        let mut all = loops.first().map_or(Snapshot::default(), Snapshot::of);
        for one in loops.iter().skip(1).map(Snapshot::of) {
            all.started += one.started;
            all.done += one.done;
            all.errors += one.errors;
            all.in_flight += one.in_flight;
            all.waiting += one.waiting;
            all.connections += one.connections;
            all.dropped += one.dropped;
        }
        all
    }

    fn of(shared: &SharedProgress) -> Snapshot {
        Snapshot {
            now_ns: shared.now_ns.load(Ordering::Relaxed),
            started: shared.started.load(Ordering::Relaxed),
            done: shared.done.load(Ordering::Relaxed),
            errors: shared.errors.load(Ordering::Relaxed),
            in_flight: shared.in_flight.load(Ordering::Relaxed),
            waiting: shared.waiting.load(Ordering::Relaxed),
            connections: shared.connections.load(Ordering::Relaxed),
            dropped: shared.dropped.load(Ordering::Relaxed),
            stage: shared.stage.load(Ordering::Relaxed),
        }
    }
}

/// How far a run is, and what changed since this was last asked.
#[derive(Debug)]
struct Course {
    warmup_s: f64,
    duration_s: Option<f64>,
    requests: Option<u64>,
    schedule: Option<Schedule>,
    /// Requests of the warm-up, which do not count towards the number of requests.
    warmup_done: u64,
    before: Snapshot,
}

impl Course {
    fn of(plan: &Plan) -> Course {
        Course {
            warmup_s: plan.warmup.as_secs_f64(),
            duration_s: plan.stop.duration.map(|length| length.as_secs_f64()),
            requests: plan.stop.requests,
            schedule: match &plan.mode {
                Mode::Open { schedule, .. } => Some(schedule.clone()),
                Mode::Closed { .. } => None,
            },
            warmup_done: 0,
            before: Snapshot::default(),
        }
    }

    fn progress(&mut self, now: Snapshot, latencies: Histogram) -> Progress {
        if now.stage == 0 {
            self.warmup_done = now.done;
        }
        let now_s = now.now_ns as f64 / 1e9;
        Progress {
            stage: self.stage_text(now),
            is_measured: now.stage == 1,
            now_s,
            started: now.started,
            done: now.done,
            errors: now.errors,
            in_flight: now.in_flight,
            waiting: now.waiting,
            connections: now.connections,
            dropped: now.dropped,
            offered_per_s: self.schedule.as_ref().map(|one| one.rate_at(now_s)),
            latencies,
        }
    }

    fn line(&mut self, word: &str, now: Snapshot, latencies: &Histogram) -> String {
        let before = std::mem::replace(&mut self.before, now);
        if now.stage == 0 {
            self.warmup_done = now.done;
        }
        let elapsed_s = now.now_ns.saturating_sub(before.now_ns) as f64 / 1e9;
        let done = now.done.saturating_sub(before.done) as f64;
        let rate = if elapsed_s > 0.0 {
            done / elapsed_s
        } else {
            0.0
        };
        let mut text = format!("{word} {}", self.stage_text(now));
        text += &format!("  {}/s", number(rate));
        if latencies.count() > 0 {
            let time = |percentile| time_us(latencies.percentile(percentile) as f64 / 1000.0);
            text += &format!("  p50 {}  p99 {}", time(50.0), time(99.0));
        }
        text += &format!("  errors {}", count(now.errors));
        if now.waiting > 0 {
            text += &format!("  waiting {}", count(now.waiting));
        }
        if now.dropped > 0 {
            text += &format!("  not recorded {}", count(now.dropped));
        }
        text
    }

    /// How far the run is.
    fn stage_text(&self, now: Snapshot) -> String {
        let now_s = now.now_ns as f64 / 1e9;
        match now.stage {
            0 => format!("warm-up {} of {}", duration(now_s), duration(self.warmup_s)),
            2 => "cool-down".to_owned(),
            3 => format!("waiting for {} responses", count(now.in_flight)),
            _ => match (self.duration_s, self.requests) {
                (_, Some(requests)) => {
                    let done = now.done.saturating_sub(self.warmup_done);
                    format!("{} of {}", count(done.min(requests)), count(requests))
                }
                (Some(length), None) => {
                    format!(
                        "{} of {}",
                        duration(now_s - self.warmup_s),
                        duration(length)
                    )
                }
                (None, None) => duration(now_s - self.warmup_s),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Segment;

    fn course() -> Course {
        Course {
            warmup_s: 2.0,
            duration_s: Some(10.0),
            requests: None,
            schedule: None,
            warmup_done: 0,
            before: Snapshot::default(),
        }
    }

    fn at(seconds: u64, done: u64, stage: u64) -> Snapshot {
        Snapshot {
            now_ns: seconds * 1_000_000_000,
            done,
            stage,
            ..Snapshot::default()
        }
    }

    #[test]
    fn progress_rate_is_that_since_the_last_line() {
        let mut course = course();
        let mut next = |now| course.line("load", now, &Histogram::default());
        let first = next(at(1, 100, 0));
        assert_eq!(first, "load warm-up 1 s of 2 s  100/s  errors 0");
        let second = next(at(3, 2100, 1));
        assert_eq!(second, "load 1 s of 10 s  1,000/s  errors 0");
    }

    #[test]
    fn percentiles_are_shown_when_rows_were_seen() {
        let mut histogram = Histogram::default();
        histogram.record_ns(2_000_000);
        let text = course().line("load", at(3, 1, 1), &histogram);
        assert!(
            text.contains("p50 2.0") && text.contains("p99 2.0"),
            "{text}"
        );
    }

    #[test]
    fn progress_line_has_waiting_requests_and_lost_rows() {
        let mut now = at(3, 1, 3);
        (now.waiting, now.dropped, now.in_flight) = (7, 9, 5);
        let text = course().line("load", now, &Histogram::default());
        assert!(text.contains("waiting for 5 responses"), "{text}");
        assert!(
            text.contains("waiting 7") && text.contains("not recorded 9"),
            "{text}"
        );
    }

    #[test]
    fn view_gets_the_rate_that_the_schedule_wants() {
        let segment = |from_per_s, to_per_s, seconds| Segment {
            from_per_s,
            to_per_s,
            length: Duration::from_secs(seconds),
        };
        let mut course = course();
        let segments = vec![segment(100.0, 100.0, 2), segment(100.0, 300.0, 4)];
        course.schedule = Some(Schedule { segments });
        let mut offered = |seconds| {
            let progress = course.progress(at(seconds, 1, 1), Histogram::default());
            progress.offered_per_s
        };
        assert_eq!(
            [1, 2, 4, 9].map(&mut offered),
            [100.0, 100.0, 200.0, 300.0].map(Some)
        );
        let progress = self::course().progress(at(3, 1, 1), Histogram::default());
        assert_eq!(progress.offered_per_s, None);
        assert!(
            progress.is_measured && progress.stage == "1 s of 10 s",
            "{progress:?}"
        );
    }
}
