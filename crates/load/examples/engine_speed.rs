//! How fast the engine is by itself: every row goes to an observer that keeps a histogram, none to
//! a file.
//!
//! `cargo run --release -p headway-load --example engine_speed -- ADDRESS PATH SECONDS CONNECTIONS
//! [RATE|closed [REQUESTS_PER_CONNECTION]]` runs a closed loop, or with a rate an open one with
//! constant gaps, and prints one line. For comparing with wrk: same server, same file, runs in
//! turns.

use std::error::Error;
use std::time::Duration;

use headway_latency::{Histogram, Outcome, Row};
use headway_load::engine::{
    self, Address, Arrivals, Mode, Observer, Plan, Schedule, Stop, Target, Work,
};

#[derive(Default)]
struct Histograms {
    response: Histogram,
    late: Histogram,
    rows: u64,
    errors: u64,
}

impl Observer for Histograms {
    fn rows(&mut self, batch: &mut Vec<Row>) {
        for row in batch.drain(..).filter(|row| !row.warmup) {
            self.rows += 1;
            self.errors += u64::from(row.error != Outcome::Ok);
            self.response.record_ns(row.response_ns());
            self.late.record_ns(row.lag_ns());
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, path, seconds, connections, rate @ ..] = &arguments[..] else {
        return Err("usage: engine_speed ADDRESS PATH SECONDS CONNECTIONS [RATE|closed [REQUESTS_PER_CONNECTION]]".into());
    };
    let target = Target::new(Address::Inet(address.parse()?), address);
    let work = Work::paths([path]);
    let mut plan = Plan::closed(target, work, connections.parse()?);
    if let [_, requests_per_connection, ..] = rate {
        plan.requests_per_connection = Some(requests_per_connection.parse()?);
    }
    if let Some(rate) = rate.first().filter(|rate| *rate != "closed") {
        plan.mode = Mode::Open {
            schedule: Schedule::constant(rate.parse()?),
            arrivals: Arrivals::Constant,
            connections_max: connections.parse()?,
            waiting_max: 10_000,
        };
    }
    plan.warmup = Duration::from_millis(500);
    plan.stop = Stop {
        duration: Some(Duration::from_secs_f64(seconds.parse()?)),
        ..Stop::default()
    };
    let mut histograms = Histograms::default();
    let measured = engine::run(&plan, &mut histograms)?;
    let us = |ns: u64| ns as f64 / 1e3;
    println!(
        "requests/s {:.0} errors {} response us p50 {:.0} p99 {:.0} | start lag us p50 {:.1} p99 {:.1} max {:.0} | loop lag us p99 {:.1} | busy {:.3} cpu {:.3} | bytes/s {:.0} | {:?}",
        histograms.rows as f64 / seconds.parse::<f64>()?,
        histograms.errors,
        us(histograms.response.percentile(50.0)),
        us(histograms.response.percentile(99.0)),
        us(histograms.late.percentile(50.0)),
        us(histograms.late.percentile(99.0)),
        us(histograms.late.max_ns()),
        us(measured.lag.percentile(99.0)),
        measured.busy_share,
        measured.cpu_ns as f64 / measured.elapsed_ns as f64,
        measured.bytes as f64 * 1e9 / measured.elapsed_ns as f64,
        measured.failure,
    );
    Ok(())
}
