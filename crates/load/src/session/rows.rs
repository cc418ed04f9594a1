//! What the writer's thread does with rows: into the run directory, or into figures; and a glance for verdict and progress line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::progress::Latencies;
use super::recorder::Sink;
use latency::{Analyzer, Outcome, Row, RunWriter, WriteError};

/// Where rows go.
pub(super) enum Keep {
    /// They are kept.
    Directory(RunWriter),
    /// Only their figures are.
    Figures(Box<Analyzer>),
}

/// Keeps rows, and counts what the verdict wants to know of them.
pub(super) struct Rows {
    /// Where they go.
    pub keep: Keep,
    /// Requests of the measured part, in whatever way they ended.
    pub started: u64,
    /// Requests of the measured part that ended.
    pub replies: u64,
    /// Those that got a complete and expected reply.
    pub good: u64,
    /// Those that were answered 404.
    pub not_found: u64,
    /// When the run was told to end, in nanoseconds since its epoch; [`u64::MAX`] until then.
    pub stopped_ns: Arc<AtomicU64>,
    latencies: Option<Arc<Latencies>>,
}

impl Rows {
    /// No row yet; those that come are shown to the progress line if there is one.
    pub fn new(keep: Keep, latencies: Option<Arc<Latencies>>) -> Rows {
        Rows {
            keep,
            started: 0,
            replies: 0,
            good: 0,
            not_found: 0,
            stopped_ns: Arc::new(AtomicU64::new(u64::MAX)),
            latencies,
        }
    }
}

impl Sink for Rows {
    fn take(&mut self, rows: &[Row]) -> Result<(), WriteError> {
        if let Some(latencies) = &self.latencies {
            latencies.see(rows);
        }
        for row in rows.iter().filter(|row| !row.warmup) {
            self.started += 1;
            if row.error == Outcome::Abandoned {
                continue;
            }
            self.replies += 1;
            self.good += u64::from(row.error == Outcome::Ok);
            self.not_found += u64::from(row.status == 404);
        }
        match &mut self.keep {
            Keep::Directory(writer) => writer.append(rows),
            Keep::Figures(analyzer) => {
                analyzer.end_by(self.stopped_ns.load(Ordering::Acquire));
                rows.iter().for_each(|row| analyzer.push(row));
                Ok(())
            }
        }
    }
}
