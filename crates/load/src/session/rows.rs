//! What the writer's thread does with rows: into the run directory, or into figures; and a glance
//! for verdict and progress line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::live::LiveSeconds;
use super::progress::Latencies;
use super::recorder::Sink;
use headway_latency::specweb99::Conformance;
use headway_latency::{Analyzer, Outcome, Row, RunWriter, WriteError};

/// Where rows go.
pub(super) enum RowSink {
    /// Rows are written to a run directory.
    Directory(RunWriter),
    /// Only the figures of the rows are kept.
    Figures(Box<Analyzer>),
}

/// Stores rows, and counts what the verdict needs.
pub(super) struct Rows {
    /// The sink of the rows.
    pub sink: RowSink,
    /// Requests of the measured part, in whatever way they ended.
    pub started: u64,
    /// Requests of the measured part that ended.
    pub responses: u64,
    /// Requests with a complete and expected response.
    pub good: u64,
    /// Requests that were answered 404.
    pub not_found: u64,
    /// Requests that timed out.
    pub timed_out: u64,
    /// Requests of the measured part without a latency.
    pub untimed: u64,
    /// Requests of the measured part that found the client's queue full.
    pub unqueued: u64,
    /// When the run was interrupted, in nanoseconds since its epoch; [`u64::MAX`] until then.
    pub stopped_ns: Arc<AtomicU64>,
    /// What connections received, for a SPECweb99-like run.
    pub conformance: Option<Conformance>,
    latencies: Option<Arc<Latencies>>,
    seconds: Option<Arc<LiveSeconds>>,
}

impl Rows {
    /// No rows yet; later ones are also shown to the progress line and to live outputs, if there are any.
    pub(super) fn new(
        sink: RowSink,
        latencies: Option<Arc<Latencies>>,
        seconds: Option<Arc<LiveSeconds>>,
    ) -> Rows {
        Rows {
            sink,
            started: 0,
            responses: 0,
            good: 0,
            not_found: 0,
            timed_out: 0,
            untimed: 0,
            unqueued: 0,
            stopped_ns: Arc::new(AtomicU64::new(u64::MAX)),
            conformance: None,
            latencies,
            seconds,
        }
    }
}

impl Sink for Rows {
    fn see(&mut self, rows: &[Row]) {
        if let Some(latencies) = &self.latencies {
            latencies.record(rows);
        }
        if let Some(seconds) = &self.seconds {
            seconds.record(rows);
        }
    }

    fn take(&mut self, rows: &[Row]) -> Result<(), WriteError> {
        for row in rows.iter().filter(|row| !row.warmup) {
            self.started += 1;
            self.untimed += u64::from(!row.error.has_latency());
            self.unqueued += u64::from(row.error == Outcome::NoConnection);
            if row.error == Outcome::Abandoned {
                continue;
            }
            self.responses += 1;
            self.good += u64::from(row.error == Outcome::Ok);
            // A scenario may expect one.
            self.not_found += u64::from(row.status == 404 && row.error != Outcome::Ok);
            let in_vain = [Outcome::ConnectTimedOut, Outcome::TimedOut];
            self.timed_out += u64::from(in_vain.contains(&row.error));
        }
        if let Some(conformance) = &mut self.conformance {
            rows.iter().for_each(|row| conformance.push(row));
        }
        match &mut self.sink {
            RowSink::Directory(writer) => writer.append(rows),
            RowSink::Figures(analyzer) => {
                analyzer.end_by(self.stopped_ns.load(Ordering::Acquire));
                rows.iter().for_each(|row| analyzer.push(row));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_latency::RunDescription;

    #[test]
    fn each_kind_of_row_is_counted() {
        let row = |status, error, warmup| Row {
            intended_ns: 0,
            start_ns: 0,
            first_byte_ns: 1,
            end_ns: 1,
            size_bytes: 0,
            bytes: 0,
            status,
            error,
            connection: 0,
            ordinal: 0,
            class: Row::NO_CLASS,
            target: 0,
            warmup,
            handshake_ns: 0,
        };
        let analyzer = Analyzer::new(&RunDescription::default());
        let mut rows = Rows::new(RowSink::Figures(Box::new(analyzer)), None, None);
        let all = [
            row(200, Outcome::Ok, true),
            row(404, Outcome::Status, true),
            row(200, Outcome::Ok, false),
            row(200, Outcome::Ok, false),
            row(404, Outcome::Status, false),
            row(500, Outcome::Status, false),
            row(503, Outcome::Status, false),
            row(200, Outcome::Length, false),
            row(0, Outcome::Abandoned, false),
            row(0, Outcome::TimedOut, true),
            row(0, Outcome::TimedOut, false),
            row(0, Outcome::ConnectTimedOut, false),
            row(0, Outcome::NoConnection, true),
            row(0, Outcome::NoConnection, false),
            row(0, Outcome::NoPort, false),
        ];
        rows.take(&all).expect("nothing is written");
        assert_eq!((rows.started, rows.responses), (11, 10));
        assert_eq!((rows.good, rows.not_found, rows.timed_out), (2, 1, 2));
        assert_eq!((rows.untimed, rows.unqueued), (3, 1));
    }
}
