//! What the engine tells while it runs, on its own thread: rows are handed on, nothing waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::progress::ProgressLine;
use super::recorder::{Recorder, Sink};
use crate::engine::{Control, Live, Observer};
use headway_latency::Row;

/// How long requests in flight may take after an interruption; then they are abandoned.
const INTERRUPT_GRACE_NS: u64 = 1_000_000_000;

/// Passes rows to the recorder and the state to the progress line, and ends the run when it is
/// interrupted.
pub(super) struct Watched<S> {
    recorder: Recorder<S>,
    interrupt: Arc<AtomicBool>,
    progress: Option<ProgressLine>,
    stopped_ns: Option<u64>,
    /// The interruption, for the writer's thread.
    stopped_at_ns: Arc<AtomicU64>,
}

impl<S: Sink> Watched<S> {
    /// An observer that stops the run when `interrupt` is set or the writer fails.
    pub(super) fn new(
        recorder: Recorder<S>,
        interrupt: Arc<AtomicBool>,
        progress: Option<ProgressLine>,
        stopped_at_ns: Arc<AtomicU64>,
    ) -> Watched<S> {
        Watched {
            recorder,
            interrupt,
            progress,
            stopped_ns: None,
            stopped_at_ns,
        }
    }

    /// Ends the progress line. Returns the recorder, and when the run was interrupted.
    pub(super) fn end(self) -> (Recorder<S>, Option<u64>) {
        drop(self.progress);
        (self.recorder, self.stopped_ns)
    }

    /// The first `Stop` starts nothing any more, the second one abandons what is in flight.
    fn stop(&mut self, now_ns: u64) -> Control {
        match self.stopped_ns {
            None => {
                self.stopped_ns = Some(now_ns);
                self.stopped_at_ns.store(now_ns, Ordering::Release);
                Control::Stop
            }
            Some(at) if now_ns.saturating_sub(at) >= INTERRUPT_GRACE_NS => Control::Stop,
            Some(_) => Control::Continue,
        }
    }
}

impl<S: Sink> Observer for Watched<S> {
    fn rows(&mut self, batch: &mut Vec<Row>) {
        self.recorder.take(batch);
    }

    fn tick(&mut self, live: &Live) -> Control {
        if let Some(progress) = &self.progress {
            progress.update(live, self.recorder.dropped());
        }
        match self.interrupt.load(Ordering::Relaxed) || self.recorder.failed() {
            true => self.stop(live.now_ns),
            false => Control::Continue,
        }
    }
}
