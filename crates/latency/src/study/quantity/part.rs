//! A run, or a span of one, from which figures of its rows are taken.

use crate::cells::Cells;
use crate::histogram::Histogram;
use crate::row::{Outcome, Row};
use crate::{Bucket, inversion, series};
use std::collections::HashMap;

/// Requests of a span. Latency belongs to the span of the intended start, throughput to that of the
/// end.
#[derive(Clone, Debug)]
pub struct RunSegment {
    duration_s: f64,
    requests: u64,
    errors: u64,
    responses: u64,
    bytes: u64,
    response: Histogram,
    /// Complete responses only.
    good: Histogram,
    service: Histogram,
    outcomes: [u64; Outcome::ALL.len()],
    /// Connections that were opened, and whether a request on them timed out.
    reached: HashMap<u32, bool>,
    cells: Cells,
    /// From the actual start, as the papers took them.
    service_cells: Cells,
    /// Bytes and nanoseconds by connection.
    connections: HashMap<u32, (u64, u64)>,
}

impl RunSegment {
    /// A span of this length without requests.
    pub fn new(duration_s: f64) -> RunSegment {
        RunSegment {
            duration_s,
            requests: 0,
            errors: 0,
            responses: 0,
            bytes: 0,
            response: Histogram::new(),
            good: Histogram::new(),
            service: Histogram::new(),
            outcomes: [0; Outcome::ALL.len()],
            reached: HashMap::new(),
            cells: Cells::new(),
            service_cells: Cells::new(),
            connections: HashMap::new(),
        }
    }

    /// A request that was due in the span and ended.
    pub fn push(&mut self, row: &Row) {
        self.requests += 1;
        let complete = row.error == Outcome::Ok;
        self.errors += u64::from(!complete);
        self.outcomes[usize::from(row.error.code())] += 1;
        // A request that waited for a connection until its time was over had none.
        if row.had_connection() {
            *self.reached.entry(row.connection).or_default() |= row.error == Outcome::TimedOut;
        }
        if !row.error.has_latency() {
            return;
        }
        self.response.record_ns(row.response_ns());
        if complete {
            self.good.record_ns(row.response_ns());
        }
        self.cells
            .record(row.size_bytes, row.response_ns(), complete);
        if row.had_connection() {
            self.service.record_ns(row.service_ns());
            self.service_cells
                .record(row.size_bytes, row.service_ns(), complete);
            let connection = self.connections.entry(row.connection).or_default();
            connection.0 += row.bytes;
            connection.1 += row.service_ns();
        }
    }

    /// A request that ended in the span, also one of the warm-up.
    pub fn push_response(&mut self, row: &Row) {
        self.responses += u64::from(row.error == Outcome::Ok);
        self.bytes += row.bytes;
    }

    /// The figure of this name; `None` if the span has nothing to take it from.
    pub(super) fn figure(&self, name: &str, numbers: &[f64]) -> Option<f64> {
        if self.requests == 0 {
            return None;
        }
        let of_responses = |percent: f64| Some(self.response.percentile(percent) as f64 / 1e6);
        let of_good = |percent: f64| {
            self.has_good()
                .then(|| self.good.percentile(percent) as f64 / 1e6)
        };
        match name {
            "good_mean_ms" => self.has_good().then(|| self.good.mean_ns() / 1e6),
            "good_median_ms" => of_good(50.0),
            "good_p95_ms" => of_good(95.0),
            "good_p99_ms" => of_good(99.0),
            "outcome_share" => {
                let found = *self.outcomes.get(*numbers.first()? as usize)?;
                Some(found as f64 / self.requests as f64)
            }
            "accepted_timed_out" => {
                let late = self.reached.values().filter(|late| **late).count();
                let all = self.reached.len();
                (all > 0).then(|| late as f64 / all as f64)
            }
            "mean_ms" => Some(self.response.mean_ns() / 1e6),
            "median_ms" => of_responses(50.0),
            "p5_ms" => of_responses(5.0),
            "p10_ms" => of_responses(10.0),
            "p25_ms" => of_responses(25.0),
            "p75_ms" => of_responses(75.0),
            "p90_ms" => of_responses(90.0),
            "p95_ms" => of_responses(95.0),
            "p99_ms" => of_responses(99.0),
            "p99_9_ms" => of_responses(99.9),
            "max_ms" => Some(self.response.max_ns() as f64 / 1e6),
            "service_mean_ms" => Some(self.service.mean_ns() / 1e6),
            "service_median_ms" => Some(self.service.percentile(50.0) as f64 / 1e6),
            "service_p95_ms" => Some(self.service.percentile(95.0) as f64 / 1e6),
            "service_p99_ms" => Some(self.service.percentile(99.0) as f64 / 1e6),
            "rate_rps" => self.a_second(self.responses as f64),
            "throughput_mbit" => self.a_second(self.bytes as f64 * 8.0 / 1e6),
            "error_share" => Some(self.errors as f64 / self.requests as f64),
            "inversion" => inversion::inversion(&self.cells).map(|found| found.value),
            "inversion_random" => inversion::inversion(&self.cells).map(|found| found.random),
            "inversion_of_random" => inversion::inversion(&self.cells)?.of_random,
            "service_inversion" => Some(inversion::inversion(&self.service_cells)?.value),
            "service_inversion_of_random" => inversion::inversion(&self.service_cells)?.of_random,
            "jain" => inversion::inversion(&self.cells)?.jain,
            "service_jain" => inversion::inversion(&self.service_cells)?.jain,
            "within" => Some(self.within(numbers[0])),
            "conforming" => self.conforming(numbers[0]),
            "small_in_slowest" => decile(&self.cells, 10.0, 1.0),
            "decile" => decile(&self.cells, numbers[0], numbers[1]),
            "service_decile" => decile(&self.service_cells, numbers[0], numbers[1]),
            _ => self.of_series(name, numbers),
        }
    }

    fn has_good(&self) -> bool {
        self.good.count() > 0
    }

    fn a_second(&self, amount: f64) -> Option<f64> {
        (self.duration_s > 0.0).then(|| amount / self.duration_s)
    }

    fn within(&self, ms: f64) -> f64 {
        let bound = (ms * 1e6) as u64;
        let met = self
            .cells
            .iter()
            .filter(|(cell, _)| cell.complete && Bucket::mid(cell.bucket) <= bound);
        met.map(|(_, count)| count).sum::<u64>() as f64 / self.requests as f64
    }

    /// SPECweb99 asks of a connection that it receives its bytes at a rate, over the time of its
    /// requests.
    fn conforming(&self, kbit: f64) -> Option<f64> {
        let fast = |(bytes, ns): &&(u64, u64)| *bytes as f64 * 8e6 / (*ns).max(1) as f64 >= kbit;
        let all = self.connections.len();
        (all > 0).then(|| self.connections.values().filter(fast).count() as f64 / all as f64)
    }

    fn of_series(&self, name: &str, numbers: &[f64]) -> Option<f64> {
        let histograms = series::histograms(&self.cells);
        let number = *numbers.first()? as usize;
        let histogram = histograms.get(number.checked_sub(1)?)?;
        if name == "series_share" {
            let all: u64 = histograms.iter().map(Histogram::count).sum();
            return (all > 0).then(|| histogram.count() as f64 / all as f64);
        }
        if histogram.count() == 0 {
            return None;
        }
        match name {
            "series_mean_ms" => Some(histogram.mean_ns() / 1e6),
            "series_median_ms" => Some(histogram.percentile(50.0) as f64 / 1e6),
            "series_p95_ms" => Some(histogram.percentile(95.0) as f64 / 1e6),
            _ => None,
        }
    }
}

/// The share of a series in a tenth of the responses; both are counted from 1.
fn decile(cells: &Cells, decile: f64, of_series: f64) -> Option<f64> {
    let deciles = series::deciles(cells);
    let counts = deciles.get((decile as usize).checked_sub(1)?)?;
    let all: u64 = counts.iter().sum();
    let of = counts.get((of_series as usize).checked_sub(1)?)?;
    (all > 0).then(|| *of as f64 / all as f64)
}
