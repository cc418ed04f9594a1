//! Run directories of servers that do not exist: a queue with a known behaviour, written through
//! the real writer.
//!
//! Requests arrive at random, with SPECweb99-like sizes, at one server. It answers at once, or a
//! miss delays all later requests, or it stalls now and then. The same seed gives the same run on
//! every machine.
#![allow(
    dead_code,
    reason = "each test program uses its own part of the support"
)]

pub mod browser;
pub mod outline;
pub mod study;

use std::path::Path;

use headway_base::random::{Draw, SplitMix64};
use headway_latency::row::{Outcome, Row};
use headway_latency::run::{
    Arrivals, ClientInfo, Environment, FileSetInfo, Kind, LoadInfo, Mode, Point, ProfileInfo,
    RunDescription, RunWriter, ServerInfo, Verdict, Window,
};

/// What the invented server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// A miss waits outside the loop and delays no other request.
    Steady,
    /// A miss blocks the loop, and all later requests wait.
    Blocking,
    /// Like blocking, with a stall of most of a second every ten seconds.
    Stalling,
    /// Every request is refused.
    Refusing,
}

/// A run to be written.
#[derive(Clone, Debug)]
pub struct Example {
    pub label: String,
    pub behaviour: Behaviour,
    pub capacity_rps: f64,
    pub seconds: f64,
    pub seed: u64,
    pub verdict: Verdict,
    pub reasons: Vec<String>,
    pub complete: bool,
}

impl Example {
    pub fn new(label: &str, behaviour: Behaviour, capacity_rps: f64) -> Example {
        Example {
            label: label.into(),
            behaviour,
            capacity_rps,
            seconds: 30.0,
            seed: 1,
            verdict: Verdict::Valid,
            reasons: Vec::new(),
            complete: true,
        }
    }

    pub fn seconds(self, seconds: f64) -> Example {
        Example { seconds, ..self }
    }

    pub fn verdict(self, verdict: Verdict, reason: &str) -> Example {
        let reasons = vec![reason.into()];
        Example {
            verdict,
            reasons,
            ..self
        }
    }

    pub fn seed(self, seed: u64) -> Example {
        Example { seed, ..self }
    }

    /// The `run.json` of a load run at this rate.
    pub fn description(&self, rate_rps: f64) -> RunDescription {
        RunDescription {
            kind: Kind::Load,
            complete: self.complete,
            started: "2026-05-01T10:00:00Z".into(),
            command: [
                "headway",
                "load",
                "http://127.0.0.1:8080",
                "--fileset",
                "/srv/set",
                "--rate",
                &format!("{rate_rps:.0}"),
                "-o",
                "run",
            ]
            .map(String::from)
            .into(),
            label: Some(self.label.clone()),
            environment: environment(),
            targets: vec!["http://127.0.0.1:8080".into()],
            server: Some(ServerInfo {
                field: format!("{}/1.0", self.label),
                ..ServerInfo::default()
            }),
            fileset: Some(FileSetInfo {
                path: "/srv/set".into(),
                profile: "specweb99".into(),
                bytes: 500_000_000,
                files: 3600,
                seed: 1,
                checksum: "0123456789abcdef".into(),
            }),
            load: LoadInfo {
                mode: Mode::Open,
                arrivals: Some(Arrivals::Poisson),
                rate_rps: Some(rate_rps),
                connections: Some(1024),
                requests_per_connection: Some(5),
                timeout_ms: Some(3000.0),
                warmup_s: 2.0,
                duration_s: Some(self.seconds),
                seed: self.seed,
                measured: Some(Window {
                    start_ns: 2_000_000_000,
                    end_ns: 2_000_000_000 + (self.seconds * 1e9) as u64,
                }),
                ..LoadInfo::default()
            },
            client: Some(ClientInfo {
                verdict: self.verdict,
                reasons: self.reasons.clone(),
                busy_share: Some(0.31),
                run_queue_delay_s: Some(0.012),
                lag_p50_us: Some(3.1),
                lag_p99_us: Some(41.0),
                lag_max_us: Some(380.0),
                ports_available: Some(28_232),
                ports_used: Some(1024),
                descriptors_limit: Some(20_000),
                descriptors_used: Some(1036),
                ..ClientInfo::default()
            }),
            ..RunDescription::default()
        }
    }

    /// The requests at this rate, the first two seconds a warm-up.
    pub fn rows(&self, rate_rps: f64) -> Vec<Row> {
        let mut random = SplitMix64(self.seed ^ rate_rps.to_bits());
        let mut rows = Vec::new();
        let mut now = 0.0;
        let mut free = 0.0;
        while now < self.seconds + 2.0 {
            now += -random.positive_fraction().ln() / rate_rps;
            let (class, size) = file(&mut random);
            let row = self.request(&mut random, now, &mut free, class, size);
            rows.push(Row {
                connection: (rows.len() / 5) as u32,
                ordinal: (rows.len() % 5) as u32,
                ..row
            });
        }
        rows
    }

    /// One request through the server; `free` is when its loop has time again. Times in seconds.
    fn request(
        &self,
        random: &mut SplitMix64,
        now: f64,
        free: &mut f64,
        class: u8,
        size: u64,
    ) -> Row {
        let work = (0.6 + 0.8 * random.positive_fraction()) / self.capacity_rps;
        let miss = random.positive_fraction() < 0.004 * (1.0 + f64::from(class));
        let disk = if miss {
            0.002 - 0.006 * random.positive_fraction().ln()
        } else {
            0.0
        };
        let mut begin = now.max(*free);
        if self.behaviour == Behaviour::Stalling && begin % 10.0 > 8.6 && begin % 10.0 < 9.4 {
            begin += 9.4 - begin % 10.0;
        }
        // The capacity that a server was measured at includes its misses, so the loop's own work is
        // less. A steady server has time to spare at its capacity, as one that is limited by its
        // link has.
        let (blocked, share) = match self.behaviour {
            Behaviour::Steady => (0.0, 0.8),
            _ => (disk, (1.0 - 0.000_058 * self.capacity_rps).max(0.2)),
        };
        *free = begin + work * share + blocked;
        let transfer = size as f64 / 110e6;
        let noise = 0.000_03 * random.positive_fraction();
        let end = *free + (disk - blocked) + 0.000_08 + transfer + noise;
        let waited = end - now;
        // A stalled server holds the connections, so requests that are due start late.
        let start = now + (waited - 0.4).max(0.0) + 0.000_003 * random.positive_fraction();
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        let mut row = Row {
            intended_ns: ns(now),
            start_ns: ns(start),
            first_byte_ns: ns(end - transfer),
            end_ns: ns(end),
            size_bytes: size,
            bytes: size,
            status: 200,
            error: Outcome::Ok,
            connection: 0,
            ordinal: 0,
            class,
            target: 0,
            warmup: now < 2.0,
            handshake_ns: 0,
        };
        let failed = match self.behaviour {
            Behaviour::Refusing => Some(Outcome::Refused),
            Behaviour::Stalling if waited > 0.7 && random.positive_fraction() < 0.3 => {
                Some(Outcome::TimedOut)
            }
            _ => None,
        };
        if let Some(outcome) = failed {
            row = Row {
                status: 0,
                bytes: 0,
                first_byte_ns: 0,
                error: outcome,
                ..row
            };
        }
        if self.behaviour == Behaviour::Refusing {
            row.end_ns = row.start_ns + 40_000;
        }
        row
    }

    /// Writes a load run.
    pub fn write_load(&self, directory: &Path, rate_rps: f64) {
        write_rows(directory, &self.description(rate_rps), &self.rows(rate_rps));
    }

    /// Writes a profile of these relative loads, each as often as `repeats` says.
    pub fn write_profile(&self, directory: &Path, loads: &[f64], repeats: u32) {
        let mut points = Vec::new();
        for &relative in loads {
            for repeat in 1..=repeats {
                let name = format!("points/{relative:.2}-{repeat}");
                let rate = relative * self.capacity_rps;
                let one = self.clone().seed(self.seed + u64::from(repeat));
                one.write_load(&directory.join(&name), rate);
                points.push(Point {
                    relative,
                    rate_rps: rate,
                    repeat,
                    directory: name,
                    done: true,
                    of_client: false,
                    of_knee: false,
                });
            }
        }
        let mut description = self.description(0.0);
        description.kind = Kind::Profile;
        description.client = None;
        description.command = [
            "headway",
            "profile",
            "http://127.0.0.1:8080",
            "--fileset",
            "/srv/set",
            "-o",
            "profile",
        ]
        .map(String::from)
        .into();
        description.profile = Some(ProfileInfo {
            capacity_rps: Some(self.capacity_rps),
            client_bound: None,
            points,
        });
        write_description(directory, &description);
        let server = self.server();
        std::fs::write(directory.join("server.json"), server.to_string())
            .expect("a file in a test's directory");
    }

    /// The wakeups of such a server, in the form of the status page's JSON.
    fn server(&self) -> serde_json::Value {
        let buckets: Vec<(u64, u64)> = match self.behaviour {
            Behaviour::Steady => (1..=12)
                .map(|ready| (ready, 900_000 >> (2 * ready).min(19)))
                .collect(),
            Behaviour::Stalling => (1..=64)
                .map(|ready| (ready, 90_000 / (ready * ready)))
                .chain([(128, 900), (1024, 80)])
                .collect(),
            _ => (1..=64)
                .map(|ready| (ready, 60_000 / (ready + 2)))
                .chain([(128, 21_000), (256, 6000), (512, 900)])
                .collect(),
        };
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        let sum: u64 = buckets.iter().map(|(upper, count)| upper * count).sum();
        let most = buckets.last().map_or(0, |(upper, _)| *upper);
        let sleeps = match self.behaviour {
            Behaviour::Steady => serde_json::json!([]),
            _ => {
                serde_json::json!([{ "call": "openat", "stack": [], "symbol": "io_schedule", "count": 8120, "total_ns": 1, "max_ns": 1 }])
            }
        };
        serde_json::json!({ "total": {
            "counters": { "ready_events": { "count": count, "sum": sum, "max": most, "buckets": buckets } },
            "trace": { "level": { "sees": "stacks" }, "sleeps": sleeps },
        } })
    }
}

/// Writes a run of these rows; one that is not complete is left as a killed program leaves it.
pub fn write_rows(directory: &Path, description: &RunDescription, rows: &[Row]) {
    std::fs::create_dir_all(directory.parent().expect("a directory below another"))
        .expect("a directory for the test");
    let mut writer = RunWriter::create(directory, description).expect("a new run directory");
    for batch in rows.chunks(4096) {
        writer.append(batch).expect("rows into a new run");
    }
    if description.complete {
        drop(writer.finish(description).expect("the end of a new run"));
        return;
    }
    // The writer's thread empties its queue after the writer is gone; the test wants all of it to
    // be there.
    drop(writer);
    let measured = rows.iter().filter(|row| !row.warmup).count() as u64;
    let written = || {
        let analysis = headway_latency::Run::open(directory).and_then(|run| run.analysis());
        analysis.is_ok_and(|analysis| analysis.counts.requests >= measured)
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !written() {
        assert!(
            std::time::Instant::now() < deadline,
            "the rows of a run that was cut off never came"
        );
        std::thread::yield_now();
    }
}

/// Writes only `run.json`.
pub fn write_description(directory: &Path, description: &RunDescription) {
    std::fs::create_dir_all(directory).expect("a directory for the test");
    let text = serde_json::to_vec_pretty(description).expect("a description is JSON");
    std::fs::write(directory.join("run.json"), text).expect("a file in a test's directory");
}

fn environment() -> Environment {
    Environment {
        host: "example".into(),
        kernel: "Linux 6.1.0".into(),
        cpus: 4,
        cpu_model: "An invented CPU at 3.0 GHz".into(),
        memory_bytes: 16 << 30,
        client_affinity: "3".into(),
        governor: Some("performance".into()),
        headway_version: "0.1.0".into(),
        ..Environment::default()
    }
}

/// A class and a size as SPECweb99 draws them: 35, 50, 14 and 1 percent, nine sizes with the
/// middle preferred.
fn file(random: &mut SplitMix64) -> (u8, u64) {
    let class = match random.positive_fraction() {
        u if u <= 0.35 => 0,
        u if u <= 0.85 => 1,
        u if u <= 0.99 => 2,
        _ => 3u8,
    };
    const WEIGHTS: [f64; 9] = [3.9, 5.9, 8.8, 17.7, 35.3, 11.8, 7.1, 5.0, 4.4];
    let mut left = random.positive_fraction() * WEIGHTS.iter().sum::<f64>();
    let index = WEIGHTS.iter().position(|weight| {
        left -= weight;
        left <= 0.0
    });
    let size = 102 * 10u64.pow(u32::from(class)) * (index.unwrap_or(8) as u64 + 1);
    (class, size)
}
