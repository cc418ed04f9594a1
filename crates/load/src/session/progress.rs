//! The progress line on the terminal during a run: rate, latency and errors since the last line.
//!
//! A terminal can be stopped, and a write to it waits then. So the line has a thread of its own,
//! which looks at what the loop and the writer leave for it; neither ever waits for the other or
//! for the terminal.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::engine::{Live, Plan, Stage};
use headway_latency::format::{count, duration, number, time_us};
use headway_latency::{Histogram, Outcome, Row};

/// Between two lines.
const LINE_INTERVAL: Duration = Duration::from_millis(500);

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

/// A progress line. Dropping it removes the line.
#[derive(Debug)]
pub(super) struct ProgressLine {
    latencies: Arc<Latencies>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Begins the line, with a word before it.
    pub(super) fn start(word: &str, plan: &Plan, states: &LoopStates) -> io::Result<ProgressLine> {
        let latencies = Arc::new(Latencies::default());
        let (end, ended) = channel::<()>();
        let mut line = LineFormatter {
            word: word.to_owned(),
            warmup_s: plan.warmup.as_secs_f64(),
            duration_s: plan.stop.duration.map(|length| length.as_secs_f64()),
            requests: plan.stop.requests,
            warmup_done: 0,
            before: Snapshot::default(),
        };
        let (states, seen) = (states.clone(), Arc::clone(&latencies));
        let thread = std::thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || {
                while ended.recv_timeout(LINE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    let text = line.next(states.snapshot(), &seen.take());
                    show(&text);
                }
                show("");
            })?;
        Ok(ProgressLine {
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

impl Drop for ProgressLine {
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

/// Formats each line from what changed since the last one.
#[derive(Debug)]
struct LineFormatter {
    word: String,
    warmup_s: f64,
    duration_s: Option<f64>,
    requests: Option<u64>,
    /// Requests of the warm-up, which do not count towards the number of requests.
    warmup_done: u64,
    before: Snapshot,
}

impl LineFormatter {
    fn next(&mut self, now: Snapshot, latencies: &Histogram) -> String {
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
        let mut text = format!("{} {}", self.word, self.stage_text(now));
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

    fn line() -> LineFormatter {
        LineFormatter {
            word: "load".to_owned(),
            warmup_s: 2.0,
            duration_s: Some(10.0),
            requests: None,
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
        let mut line = line();
        let first = line.next(at(1, 100, 0), &Histogram::default());
        assert_eq!(first, "load warm-up 1 s of 2 s  100/s  errors 0");
        let second = line.next(at(3, 2100, 1), &Histogram::default());
        assert_eq!(second, "load 1 s of 10 s  1,000/s  errors 0");
    }

    #[test]
    fn percentiles_are_shown_when_rows_were_seen() {
        let mut histogram = Histogram::default();
        histogram.record_ns(2_000_000);
        let text = line().next(at(3, 1, 1), &histogram);
        assert!(
            text.contains("p50 2.0") && text.contains("p99 2.0"),
            "{text}"
        );
    }

    #[test]
    fn progress_line_has_waiting_requests_and_lost_rows() {
        let mut now = at(3, 1, 3);
        (now.waiting, now.dropped, now.in_flight) = (7, 9, 5);
        let text = line().next(now, &Histogram::default());
        assert!(text.contains("waiting for 5 responses"), "{text}");
        assert!(
            text.contains("waiting 7") && text.contains("not recorded 9"),
            "{text}"
        );
    }
}
