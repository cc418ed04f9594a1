//! What a run counts, and the rows on their way to the observer.

use headway_latency::{Histogram, Outcome, Row};

use super::observer::{
    Control, Epoch, Failure, Handshakes, LATE_NS, LimitsMet, Live, Measured, Observer, Stage,
};
use super::tls_session::TlsSession;

/// Rows a batch holds.
pub(crate) const ROWS_PER_BATCH: usize = 4096;

/// Lags up to this need no memory during the run: 10 minutes.
const LAG_PREALLOCATED_NS: u64 = 600_000_000_000;

pub(crate) struct Counters<'a> {
    observer: &'a mut dyn Observer,
    batch: Vec<Row>,
    /// Requests that were due.
    pub requests: u64,
    pub done: u64,
    /// Requests of the measured time that have not ended.
    pub measured_unfinished: u64,
    outcomes: [u64; Outcome::ALL.len()],
    late_starts: u64,
    pub lag: Histogram,
    pub bytes: u64,
    pub in_flight: u32,
    pub connections: u32,
    pub connections_peak: u32,
    pub connections_opened: u64,
    pub retried: u64,
    pub unsolicited: u64,
    pub handshakes: Handshakes,
    pub limits: LimitsMet,
    failure: Option<Failure>,
    pub server: Option<String>,
}

impl<'a> Counters<'a> {
    pub(super) fn new(observer: &'a mut dyn Observer) -> Counters<'a> {
        Counters {
            observer,
            batch: Vec::with_capacity(ROWS_PER_BATCH),
            requests: 0,
            done: 0,
            measured_unfinished: 0,
            outcomes: [0; Outcome::ALL.len()],
            late_starts: 0,
            lag: Histogram::with_room(LAG_PREALLOCATED_NS),
            bytes: 0,
            in_flight: 0,
            connections: 0,
            connections_peak: 0,
            connections_opened: 0,
            retried: 0,
            unsolicited: 0,
            handshakes: Handshakes::default(),
            limits: LimitsMet::default(),
            failure: None,
            server: None,
        }
    }

    pub(super) fn begin(&mut self, epoch: Epoch) {
        self.observer.begin(epoch);
    }

    /// A request has ended.
    pub(super) fn push(&mut self, row: Row) {
        if self.batch.len() >= ROWS_PER_BATCH {
            self.flush();
        }
        self.done += 1;
        self.measured_unfinished -= u64::from(!row.warmup);
        self.outcomes[usize::from(row.error.code())] += 1;
        self.late_starts += u64::from(!row.warmup && row.lag_ns() >= LATE_NS);
        self.batch.push(row);
    }

    /// Hands the rows over between two iterations when half a batch has come, rather than inside one
    /// when it is full.
    pub(super) fn flush_early(&mut self) {
        if self.batch.len() >= ROWS_PER_BATCH / 2 {
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.observer.rows(&mut self.batch);
        self.batch.clear();
        self.batch.reserve(ROWS_PER_BATCH);
    }

    pub(super) fn tick(&mut self, now_ns: u64, stage: Stage, waiting: u32) -> Control {
        self.flush();
        self.observer.tick(&Live {
            now_ns,
            stage,
            started: self.requests,
            done: self.done,
            errors: self.done - self.outcomes[usize::from(Outcome::Ok.code())],
            in_flight: self.in_flight,
            waiting,
            connections: self.connections,
            bytes: self.bytes,
        })
    }

    pub(super) fn opened(&mut self) {
        self.connections_opened += 1;
        self.connections += 1;
        self.connections_peak = self.connections_peak.max(self.connections);
    }

    pub(super) fn count_handshake(&mut self, tls: &TlsSession) {
        self.handshakes.done += 1;
        self.handshakes.resumed += u64::from(tls.is_resumed());
        let protocol = &mut self.handshakes.protocol;
        protocol.get_or_insert_with(|| tls.protocol());
    }

    /// Only the first is kept: thousands would say the same.
    pub(super) fn failed(&mut self, failure: impl FnOnce() -> Failure) {
        self.failure.get_or_insert_with(failure);
    }

    pub(super) fn measured(
        mut self,
        epoch: Epoch,
        elapsed_ns: u64,
        idle_ns: u64,
        cpu_ns: u64,
    ) -> Measured {
        self.flush();
        Measured {
            epoch,
            elapsed_ns,
            requests: self.requests,
            outcomes: self.outcomes,
            late_starts: self.late_starts,
            lag: self.lag,
            busy_share: 1.0 - idle_ns.min(elapsed_ns) as f64 / elapsed_ns.max(1) as f64,
            cpu_ns,
            bytes: self.bytes,
            connections_opened: self.connections_opened,
            connections_peak: self.connections_peak,
            retried: self.retried,
            unsolicited: self.unsolicited,
            handshakes: self.handshakes,
            limits: self.limits,
            failure: self.failure,
            server: self.server,
            stopped: false,
        }
    }
}
