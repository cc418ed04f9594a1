//! Writes a run directory, or a profile, of made-up requests, to try and to time the analysis
//! without a server.
//!
//! ```text
//! cargo run --release -p headway-latency --example synthetic_run -- DIRECTORY [REQUESTS] [RATE] [SIZES] [SEED]
//! cargo run --release -p headway-latency --example synthetic_run -- DIRECTORY profile CAPACITY SECONDS
//! ```
//!
//! SPECweb99 sizes with their weights, or SIZES different ones that are asked for equally often;
//! Poisson arrivals, one server with a queue and a link of 1 Gbit/s, a stall of 300 ms each 10 s,
//! one failed request in 2000. The same words give the same rows. Its label says that it is made
//! up.

use headway_base::random::{Draw, SplitMix64};
use headway_latency::run::{
    Arrivals, Kind, LoadInfo, Mode, Point, ProfileInfo, ServerInfo, write_description,
};
use headway_latency::{Outcome, Row, RunDescription, RunWriter};
use std::error::Error;
use std::path::{Path, PathBuf};

const USAGE: &str = "usage: synthetic_run DIRECTORY [REQUESTS] [RATE] [SIZES] [SEED], \
                     or synthetic_run DIRECTORY profile CAPACITY SECONDS";

/// Unless another one is given.
const SEED: u64 = 42;

/// Relative loads of a profile: the default of `headway profile`.
const LOADS: [f64; 6] = [0.2, 0.4, 0.6, 0.8, 0.9, 0.95];

const FILE_WEIGHTS: [f64; 9] = [3.9, 5.9, 8.8, 17.7, 35.3, 11.8, 7.1, 5.0, 4.4];
const CLASS_WEIGHTS: [f64; 4] = [35.0, 50.0, 14.0, 1.0];

fn choose(random: &mut SplitMix64, weights: &[f64]) -> usize {
    let mut left = random.positive_fraction() * weights.iter().sum::<f64>();
    let found = weights.iter().position(|weight| {
        left -= weight;
        left <= 0.0
    });
    found.unwrap_or(weights.len() - 1)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = PathBuf::from(arguments.first().ok_or(USAGE)?);
    let number = |index: usize, default: f64| {
        arguments.get(index).map_or(Ok(default), |argument| {
            argument.parse::<f64>().map_err(|_| USAGE)
        })
    };
    if arguments
        .get(1)
        .is_some_and(|argument| argument == "profile")
    {
        return profile(&directory, number(2, 20_000.0)?, number(3, 30.0)?);
    }
    let load = Load {
        requests: number(1, 1e6)? as u64,
        rate: number(2, 5_000.0)?,
        busy: 0.4,
        sizes: number(3, 0.0)? as u64,
        seed: number(4, SEED as f64)? as u64,
    };
    write(&directory, &load)
}

/// One run.
struct Load {
    requests: u64,
    rate: f64,
    /// Share of the time that the server is at work.
    busy: f64,
    /// Different sizes; 0 for those of SPECweb99.
    sizes: u64,
    seed: u64,
}

fn profile(directory: &Path, capacity: f64, seconds: f64) -> Result<(), Box<dyn Error>> {
    let points = LOADS.map(|relative| Point {
        relative,
        rate_rps: relative * capacity,
        repeat: 1,
        directory: format!("points/{relative:.2}-1"),
        done: true,
        of_client: false,
        of_knee: false,
    });
    for point in &points {
        let load = Load {
            requests: (point.rate_rps * (seconds + 1.0)) as u64,
            rate: point.rate_rps,
            busy: point.relative * 0.95,
            sizes: 0,
            seed: SEED,
        };
        write(&directory.join(&point.directory), &load)?;
    }
    let described = RunDescription {
        kind: Kind::Profile,
        profile: Some(ProfileInfo {
            capacity_rps: Some(capacity),
            client_bound: None,
            points: points.into(),
        }),
        ..describe(0, capacity, SEED)
    };
    Ok(write_description(directory, &described, true)?)
}

fn write(directory: &Path, load: &Load) -> Result<(), Box<dyn Error>> {
    let description = describe(load.requests, load.rate, load.seed);
    let mut writer = RunWriter::create(directory, &description)?;
    let mut random = SplitMix64(load.seed);
    let mut clock = Clock::default();
    let mut batch = Vec::new();
    for index in 0..load.requests {
        batch.push(request(index, load, &mut clock, &mut random));
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

/// Class and size of the next request.
fn file(load: &Load, random: &mut SplitMix64) -> (u8, u64) {
    if load.sizes > 0 {
        return (
            Row::NO_CLASS,
            200 + 7 * (random.fraction() * load.sizes as f64) as u64,
        );
    }
    let class = choose(random, &CLASS_WEIGHTS);
    let steps = (1 + choose(random, &FILE_WEIGHTS)) as f64;
    (
        class as u8,
        (steps * 102.4 * 10_f64.powi(class as i32)) as u64,
    )
}

fn request(index: u64, load: &Load, clock: &mut Clock, random: &mut SplitMix64) -> Row {
    clock.next_ns += random.exponential() * 1e9 / load.rate;
    let (class, size_bytes) = file(load, random);
    let intended_ns = clock.next_ns as u64;
    let start_ns = intended_ns + (random.exponential() * 8_000.0) as u64;
    let stalled_until = if intended_ns % 10_000_000_000 < 300_000_000 {
        intended_ns / 10_000_000_000 * 10_000_000_000 + 300_000_000
    } else {
        0
    };
    let begin = clock.free_ns.max(start_ns as f64).max(stalled_until as f64);
    clock.free_ns = begin + random.exponential() * load.busy * 1e9 / load.rate;
    let first_byte_ns = clock.free_ns as u64 + 30_000;
    let end_ns = first_byte_ns + size_bytes * 8;
    let failed = random.fraction() < 1.0 / 2000.0;
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
        class,
        target: 0,
        warmup: index < load.rate as u64,
        handshake_ns: 0,
    }
}

fn describe(requests: u64, rate: f64, seed: u64) -> RunDescription {
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
            seed,
            ..LoadInfo::default()
        },
        ..RunDescription::default()
    }
}
