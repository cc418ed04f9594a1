//! What the engine tells while it runs, on its own thread: rows are handed on, nothing waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::live::LiveSeconds;
use super::progress::LoopProgress;
use super::recorder::Recorder;
use crate::engine::{Control, Epoch, Live, Observer};
use headway_latency::Row;

/// How long requests in flight may take after an interruption; then they are abandoned.
const INTERRUPT_GRACE_NS: u64 = 1_000_000_000;

/// Passes rows to the recorder and the state to those who show it, and ends the run when it is
/// interrupted. There is one for each loop.
pub(super) struct Watched {
    recorder: Recorder,
    interrupt: Arc<AtomicBool>,
    state: LoopProgress,
    seconds: Option<Arc<LiveSeconds>>,
    stopped_ns: Option<u64>,
    /// The interruption, for the writer's thread.
    stopped_at_ns: Arc<AtomicU64>,
}

impl Watched {
    /// An observer that stops the run when `interrupt` is set or the writer fails.
    pub(super) fn new(
        recorder: Recorder,
        interrupt: Arc<AtomicBool>,
        state: LoopProgress,
        seconds: Option<Arc<LiveSeconds>>,
        stopped_at_ns: Arc<AtomicU64>,
    ) -> Watched {
        Watched {
            recorder,
            interrupt,
            state,
            seconds,
            stopped_ns: None,
            stopped_at_ns,
        }
    }

    /// The rows that found no room, and when the run was interrupted.
    pub(super) fn end(self) -> (u64, Option<u64>) {
        (self.recorder.dropped(), self.stopped_ns)
    }

    /// The first `Stop` starts nothing any more, the second one abandons what is in flight.
    fn stop(&mut self, now_ns: u64) -> Control {
        match self.stopped_ns {
            None => {
                self.stopped_ns = Some(now_ns);
                self.stopped_at_ns.fetch_min(now_ns, Ordering::AcqRel);
                Control::Stop
            }
            Some(at) if now_ns.saturating_sub(at) >= INTERRUPT_GRACE_NS => Control::Stop,
            Some(_) => Control::Continue,
        }
    }
}

impl Observer for Watched {
    fn begin(&mut self, epoch: Epoch) {
        if let Some(seconds) = &self.seconds {
            seconds.begin(epoch);
        }
    }

    fn rows(&mut self, batch: &mut Vec<Row>) {
        self.recorder.take(batch);
    }

    fn tick(&mut self, live: &Live) -> Control {
        self.state.update(live, self.recorder.dropped());
        match self.interrupt.load(Ordering::Relaxed) || self.recorder.failed() {
            true => self.stop(live.now_ns),
            false => Control::Continue,
        }
    }
}
