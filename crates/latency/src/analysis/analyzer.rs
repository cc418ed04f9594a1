//! Rows in, an [`Analysis`] out.

use super::{Analysis, Counts, Distribution, FORMAT_NAME, FORMAT_VERSION, Late, Timeline};
use crate::cells::Cells;
use crate::histogram::Histogram;
use crate::row::{Outcome, Row};
use crate::run::{Format, Mode, RunDescription, Window};

/// Takes the rows of a run one by one, in bounded memory.
#[derive(Clone, Debug)]
pub struct Analyzer {
    mode: Mode,
    measured: Option<Window>,
    counts: Counts,
    first_ns: u64,
    last_ns: u64,
    bytes: u64,
    response: Histogram,
    service: Histogram,
    complete: Histogram,
    cells: Cells,
}

impl Analyzer {
    /// An analyzer for the run that is so described.
    pub fn new(description: &RunDescription) -> Analyzer {
        Analyzer {
            mode: description.load.mode,
            measured: description.load.measured,
            counts: Counts::default(),
            first_ns: u64::MAX,
            last_ns: 0,
            bytes: 0,
            response: Histogram::new(),
            service: Histogram::new(),
            complete: Histogram::new(),
            cells: Cells::new(),
        }
    }

    /// Takes one row.
    pub fn push(&mut self, row: &Row) {
        if row.warmup {
            self.counts.warmup += 1;
            return;
        }
        if row.error == Outcome::Abandoned {
            self.counts.abandoned += 1;
            return;
        }
        self.counts.requests += 1;
        self.first_ns = self.first_ns.min(row.intended_ns);
        self.last_ns = self.last_ns.max(row.end_ns);
        self.bytes += row.bytes;
        self.response.record_ns(row.response_ns());
        self.service.record_ns(row.service_ns());
        let complete = row.error == Outcome::Ok;
        if complete {
            self.counts.complete += 1;
            self.complete.record_ns(row.response_ns());
        } else {
            self.counts.errors += 1;
        }
        self.cells
            .record(row.size_bytes, row.response_ns(), complete);
    }

    /// Adds the rows of another analyzer, for runs of several machines.
    pub fn merge(&mut self, other: Analyzer) {
        self.counts.requests += other.counts.requests;
        self.counts.complete += other.counts.complete;
        self.counts.errors += other.counts.errors;
        self.counts.warmup += other.counts.warmup;
        self.counts.abandoned += other.counts.abandoned;
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.bytes += other.bytes;
        self.response.merge(&other.response);
        self.service.merge(&other.service);
        self.complete.merge(&other.complete);
        self.cells.merge(&other.cells);
    }

    /// The figures of everything that was taken.
    pub fn finish(self) -> Analysis {
        let window = self.measured.unwrap_or(Window {
            start_ns: self.first_ns.min(self.last_ns),
            end_ns: self.last_ns,
        });
        let duration_s = window.end_ns.saturating_sub(window.start_ns) as f64 / 1e9;
        let rate = |count: u64| {
            if duration_s > 0.0 {
                count as f64 / duration_s
            } else {
                0.0
            }
        };
        Analysis {
            format: Format {
                name: FORMAT_NAME.into(),
                version: FORMAT_VERSION,
            },
            duration_s,
            offered_rps: (self.mode == Mode::Open).then(|| rate(self.counts.requests)),
            achieved_rps: rate(self.counts.complete),
            throughput_bytes_per_s: rate(self.bytes),
            counts: self.counts,
            errors: Vec::new(),
            statuses: Vec::new(),
            response: distribution(&self.response),
            service: distribution(&self.service),
            complete: distribution(&self.complete),
            first_byte: None,
            late: Late::default(),
            goodput: Vec::new(),
            series: Vec::new(),
            deciles: [[0; 4]; 10],
            inversion: None,
            by_size: Vec::new(),
            by_class: Vec::new(),
            timeline: Timeline::default(),
        }
    }
}

/// The figures of a histogram; `None` when it is empty.
pub(super) fn distribution(histogram: &Histogram) -> Option<Distribution> {
    let percentile = |percent: f64| histogram.percentile(percent) as f64 / 1e3;
    let points = histogram.cdf_thinned(300);
    (histogram.count() > 0).then(|| Distribution {
        requests: histogram.count(),
        mean_us: histogram.mean_ns() / 1e3,
        min_us: histogram.min_ns() as f64 / 1e3,
        p5_us: percentile(5.0),
        p10_us: percentile(10.0),
        p25_us: percentile(25.0),
        p50_us: percentile(50.0),
        p75_us: percentile(75.0),
        p90_us: percentile(90.0),
        p95_us: percentile(95.0),
        p99_us: percentile(99.0),
        p99_9_us: percentile(99.9),
        p99_99_us: percentile(99.99),
        max_us: histogram.max_ns() as f64 / 1e3,
        intervals: None,
        cdf: points
            .into_iter()
            .map(|(ns, share)| super::CdfPoint {
                latency_us: ns as f64 / 1e3,
                share,
            })
            .collect(),
    })
}
