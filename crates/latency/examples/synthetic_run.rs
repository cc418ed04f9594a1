//! Writes a run directory of made-up requests, to try and to time the analysis without a server.
//!
//! ```text
//! cargo run --release -p headway-latency --example synthetic_run -- DIRECTORY [REQUESTS] [RATE]
//! ```
//!
//! SPECweb99 sizes with their weights, Poisson arrivals, one server with a queue and a link of 1 Gbit/s, a
//! stall of 300 ms each 10 s, one failed request in 2000. Its label says that it is made up.

use headway_latency::run::{Arrivals, LoadInfo, Mode, ServerInfo};
use headway_latency::{Outcome, Row, RunDescription, RunWriter};
use std::path::PathBuf;

const FILE_WEIGHTS: [f64; 9] = [3.9, 5.9, 8.8, 17.7, 35.3, 11.8, 7.1, 5.0, 4.4];
const CLASS_WEIGHTS: [f64; 4] = [35.0, 50.0, 14.0, 1.0];

struct Random(u64);

impl Random {
    /// A number in (0, 1].
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }

    fn choose(&mut self, weights: &[f64]) -> usize {
        let mut left = self.unit() * weights.iter().sum::<f64>();
        let found = weights.iter().position(|weight| {
            left -= weight;
            left <= 0.0
        });
        found.unwrap_or(weights.len() - 1)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let usage = "usage: synthetic_run DIRECTORY [REQUESTS] [RATE]";
    let directory = PathBuf::from(words.next().ok_or(usage)?);
    let requests: u64 = words.next().map_or(Ok(1_000_000), |word| word.parse())?;
    let rate: f64 = words.next().map_or(Ok(5_000.0), |word| word.parse())?;
    let description = describe(requests, rate);
    let mut writer = RunWriter::create(&directory, &description)?;
    let mut random = Random(42);
    let mut clock = Clock::default();
    let mut batch = Vec::new();
    for index in 0..requests {
        batch.push(request(index, rate, &mut clock, &mut random));
        if batch.len() == 4096 {
            writer.append(&batch)?;
            batch.clear();
        }
    }
    writer.append(&batch)?;
    writer.finish(&description)?;
    Ok(())
}

/// When the next request is wanted and when the server is free again, in nanoseconds.
#[derive(Default)]
struct Clock {
    next_ns: f64,
    free_ns: f64,
}

fn request(index: u64, rate: f64, clock: &mut Clock, random: &mut Random) -> Row {
    clock.next_ns += random.exponential(1e9 / rate);
    let class = random.choose(&CLASS_WEIGHTS);
    let size_bytes =
        ((1 + random.choose(&FILE_WEIGHTS)) as f64 * 102.4 * 10_f64.powi(class as i32)) as u64;
    let intended_ns = clock.next_ns as u64;
    let start_ns = intended_ns + random.exponential(8_000.0) as u64;
    let stalled_until = if intended_ns % 10_000_000_000 < 300_000_000 {
        intended_ns / 10_000_000_000 * 10_000_000_000 + 300_000_000
    } else {
        0
    };
    let begin = clock.free_ns.max(start_ns as f64).max(stalled_until as f64);
    clock.free_ns = begin + random.exponential(0.4e9 / rate);
    let first_byte_ns = clock.free_ns as u64 + 30_000;
    let end_ns = first_byte_ns + size_bytes * 8;
    let failed = random.unit() < 1.0 / 2000.0;
    Row {
        intended_ns,
        start_ns,
        first_byte_ns: if failed { 0 } else { first_byte_ns },
        end_ns: if failed {
            intended_ns + 3_000_000_000
        } else {
            end_ns
        },
        size_bytes,
        bytes: if failed { 0 } else { size_bytes },
        status: if failed { 0 } else { 200 },
        error: if failed {
            Outcome::TimedOut
        } else {
            Outcome::Ok
        },
        connection: (index / 5) as u32,
        ordinal: (index % 5) as u32,
        class: class as u8,
        target: 0,
        warmup: index < requests_of(rate, 1.0),
    }
}

fn requests_of(rate: f64, seconds: f64) -> u64 {
    (rate * seconds) as u64
}

fn describe(requests: u64, rate: f64) -> RunDescription {
    RunDescription {
        started: "1970-01-01T00:00:00Z".into(),
        label: Some("synthetic".into()),
        command: std::env::args().collect(),
        targets: vec!["made up; no server was asked".into()],
        server: Some(ServerInfo {
            field: "none".into(),
            ..ServerInfo::default()
        }),
        load: LoadInfo {
            mode: Mode::Open,
            arrivals: Some(Arrivals::Poisson),
            rate_rps: Some(rate),
            requests_per_connection: Some(5),
            timeout_ms: Some(3000.0),
            warmup_s: 1.0,
            duration_s: Some((requests as f64 / rate - 1.0).max(0.0)),
            seed: 42,
            ..LoadInfo::default()
        },
        ..RunDescription::default()
    }
}
