//! One measurement: load on a server that runs, and everything that is watched meanwhile.
//!
//! Its directory afterwards: `run/` as `headway load` wrote it, with `server.json` and `trace.json`
//! in it; `background/`, the run of the other client of a measure with a probe; `disk.json`,
//! `usage.json`, `runnable.json`. Counters are read when the warm-up is over and when the measured
//! part is, so their difference belongs to it.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use headway_latency::study::evidence::{DiskUse, Runnable, ServerUse};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{RunningClient, Stopped};
use super::spec::{Observer, Probe, Spec};
use super::workspace::{READY_PATH, Workspace, probe_folder};
use crate::disk::{DiskStatistics, Order};
use crate::program::POLL_INTERVAL;
use crate::runnable::{Sampler, Settings};
use crate::servers::{Family, Server, Usage};
use crate::{MemoryStatus, Side, reclaimer};

/// The time that a client has to write its run after its last request.
const CLIENT_WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// A server is idle when it has not read from its disk for this time ...
const IDLE_INTERVAL: Duration = Duration::from_millis(300);

/// ... and has used at most this CPU time, since its timers still run.
const IDLE_CPU_MS: f64 = 30.0;

/// A server that is not idle after this time is measured as it is.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval of an idle connection's requests: short enough that no server closes it.
const IDLE_REQUEST_INTERVAL: &str = "25s";

/// The time that idle connections have to be established ...
const IDLE_RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// ... and, where the server does not count them, the time they are given.
const IDLE_CONNECT_TIME: Duration = Duration::from_secs(8);

/// One of this many filling requests goes to the server: what it keeps itself has to be as
/// it will stay, or its first seconds are measured.
const FILL_DIVISOR: u64 = 2;

/// One of this many filling requests when its caches are filled again: they have lost a little at
/// most.
const REFILL_DIVISOR: u64 = 20;

/// Caches under a limit are full from this share of it on.
const CACHE_FULL_SHARE: f64 = 0.95;

/// A server that answers fewer requests per second on a disk without delays has failed.
const FILL_RATE_MIN_RPS: f64 = 100.0;

/// A server, its place, and the probes whose files are there.
pub(super) struct Bench<'a> {
    pub workspace: &'a Workspace<'a>,
    pub server: &'a Server,
    pub probes: &'a [Probe],
    /// What writes beside the server.
    pub writers: RefCell<Option<RunningClient>>,
    pub interrupted: &'a AtomicBool,
}

/// One load to be made.
struct Demand<'a> {
    set: String,
    rate: Option<f64>,
    spec: &'a Spec,
    amount: Amount,
    directory: Option<PathBuf>,
}

/// When a load ends.
#[derive(Clone, Copy)]
enum Amount {
    Seconds(f64),
    Requests(u64),
}

impl Bench<'_> {
    /// Fills the caches while the disk answers at once: a slow one would need minutes, and they are
    /// not what is measured. The kernel's by a reader under the server's memory limit, so that they
    /// are equal for a quick and for a slow server; then the server's own by requests. An open-file
    /// service keeps what a request had to wait for, so Apache, with it and without, is asked
    /// first, while nothing is there.
    pub fn fill(&self, spec: &Spec) -> Result<(), Stopped> {
        self.filled(spec, FILL_DIVISOR)
    }

    /// Fills them again, before a point that is not a server's first: what the points before have
    /// left of them depends on how long they took and what they asked for.
    pub fn fill_again(&self, spec: &Spec) -> Result<(), Stopped> {
        self.filled(spec, REFILL_DIVISOR)
    }

    fn filled(&self, spec: &Spec, own_share: u64) -> Result<(), Stopped> {
        let requests = spec.environment.fill_requests;
        if requests == 0 {
            return Ok(());
        }
        self.remove_delays(true)?;
        let read_files = || self.read_files(requests, spec);
        let request_files = || self.request_files(requests / own_share, spec);
        let filled = match spec.server.kind.family() {
            Family::Apache { .. } => request_files().and_then(|()| read_files()),
            _ => read_files().and_then(|()| request_files()),
        };
        self.remove_delays(false)?;
        filled
    }

    fn remove_delays(&self, yes: bool) -> Result<(), Stopped> {
        let removed = self.workspace.remove_delays(yes);
        removed.map_err(|error| Stopped::Failed(error.to_string()))
    }

    fn read_files(&self, requests: u64, spec: &Spec) -> Result<(), Stopped> {
        let mut command = self.workspace.command(Side::Server, crate::headway());
        command.args(["fileset", "read", "--quiet"]);
        command.args(["--requests", &requests.to_string()]);
        command.args(["--seed", &spec.fill_seed().to_string()]);
        command.arg(self.workspace.root().join("set"));
        super::client::finish(&mut command, self.interrupted, self.workspace.journal())
    }

    fn request_files(&self, requests: u64, spec: &Spec) -> Result<(), Stopped> {
        let demand = Demand {
            set: "set".to_owned(),
            rate: None,
            spec,
            amount: Amount::Requests(requests),
            directory: None,
        };
        let mut client = self.start(&demand)?;
        let slow_s = requests as f64 / FILL_RATE_MIN_RPS;
        client.finish(self.interrupted, deadline(slow_s)).map(drop)
    }

    /// Waits until the server and its disk rest: what a busy one still has to do for the point
    /// before, and writes or reads ahead, would be measured with the next.
    pub fn settle(&self) {
        let begun = Instant::now();
        let mut before = self.done();
        while begun.elapsed() < IDLE_TIMEOUT && !self.interrupted.load(Ordering::Relaxed) {
            thread::sleep(IDLE_INTERVAL);
            let now = self.done();
            if now.0 == before.0 && now.1 - before.1 <= IDLE_CPU_MS {
                return;
            }
            before = now;
        }
    }

    /// Reads of the disk and CPU time so far.
    fn done(&self) -> (u64, f64) {
        let reads = self.workspace.disk().map_or(0, |disk| disk.reads);
        (reads, self.server.usage().cpu_ms)
    }

    /// Measures into an empty directory. Says what of the environment was not as it should be.
    pub fn measure(
        &self,
        spec: &Spec,
        rate: Option<f64>,
        directory: &Path,
    ) -> Result<Vec<String>, Stopped> {
        let run = directory.join("run");
        let main = Demand {
            set: "set".to_owned(),
            rate,
            spec,
            amount: Amount::Seconds(spec.seconds),
            directory: Some(run.clone()),
        };
        // They end when this does.
        let _idle = self.hold_idle(spec)?;
        let mut others = Vec::new();
        let mut client = match spec.probe {
            None => self.start(&main)?,
            Some(probe) => {
                let at = self.probes.iter().position(|known| *known == probe);
                others.push(self.start(&Demand {
                    directory: Some(directory.join("background")),
                    ..main
                })?);
                self.start(&Demand {
                    set: probe_folder(at.unwrap_or(0)),
                    rate: Some(probe.rate_rps),
                    spec,
                    amount: Amount::Seconds(spec.seconds),
                    directory: Some(run.clone()),
                })?
            }
        };
        let begun = Instant::now();
        let warm = begun + Duration::from_secs_f64(spec.warmup_s);
        self.wait(warm, &mut client)?;
        let before = self.read_counters()?;
        let watch = self.observe(spec, directory)?;
        self.faults(spec, warm, &mut client)?;
        self.wait(warm + Duration::from_secs_f64(spec.seconds), &mut client)?;
        let after = self.read_counters()?;
        let watched = watch.finish(self.interrupted);
        let status = client.finish(self.interrupted, deadline(spec.seconds));
        let others: Result<Vec<_>, _> = others
            .iter_mut()
            .map(|other| other.finish(self.interrupted, deadline(spec.seconds)))
            .collect();
        if spec.fault.is_some() {
            self.order(Order::Model)?;
        }
        watched?;
        others?;
        if !whole(&run) {
            let message = client.last_error_line();
            return Err(Stopped::Failed(format!(
                "headway load ended with {}: {message}",
                status?
            )));
        }
        self.alive()?;
        keep(directory, &before, &after, self.server.kind().is_ours())?;
        let thinned = thinned(spec, self.workspace.memory());
        Ok(thinned.into_iter().chain(self.writers_ended()).collect())
    }

    fn alive(&self) -> Result<(), Stopped> {
        match self.server.pids().is_empty() {
            false => Ok(()),
            true => Err(Stopped::Failed(
                "the server ended during the measurement".to_owned(),
            )),
        }
    }

    /// Why nothing is written any more, although it should be.
    fn writers_ended(&self) -> Option<String> {
        let mut writers = self.writers.borrow_mut();
        let writers = writers.as_mut()?;
        let status = writers.ended()?;
        let message = writers.last_error_line();
        Some(format!("headway-lab write ended with {status}: {message}"))
    }

    fn start(&self, demand: &Demand) -> Result<RunningClient, Stopped> {
        let spec = demand.spec;
        let mut command = self.workspace.command(Side::Client, crate::headway());
        self.ask(&mut command, spec, &format!("/{}/", demand.set));
        command
            .arg("--fileset")
            .arg(self.workspace.manifest(&demand.set));
        for address in self.workspace.clients() {
            command.args(["--source", &address.to_string()]);
        }
        match demand.rate {
            Some(rate) => command.args(["--rate", &format!("{rate:.3}")]),
            None => command.args(["--closed", "-c", &spec.workload.connections.to_string()]),
        };
        let k = spec.workload.requests_per_connection;
        command.args(["--requests-per-connection", &k.to_string()]);
        let time = |seconds: f64| format!("{:.0}ms", seconds * 1e3);
        if let Some(seconds) = spec.workload.timeout_s {
            command.args(["--timeout", &time(seconds)]);
        }
        if let Some(seconds) = spec.workload.first_pause_s {
            command.args(["--first-pause", &time(seconds)]);
        }
        if let Some(bits) = spec.workload.bandwidth_bits_per_s {
            command.args(["--bandwidth", &format!("{bits}bit")]);
        }
        let (warmup, seed) = match demand.directory {
            Some(_) => (spec.warmup_s, spec.seed()),
            // Other ones than the reader's: these may be new to the kernel's caches, as any are.
            None => (0.0, spec.fill_seed() + 1),
        };
        command.args(["--warmup", &time(warmup)]);
        if demand.directory.is_some() {
            command.args(["--cooldown", &time(spec.cooldown_s())]);
        }
        match demand.amount {
            Amount::Seconds(seconds) => command.args(["-d", &time(seconds)]),
            Amount::Requests(count) => command.args(["--requests", &count.to_string()]),
        };
        command.args(["--seed", &seed.to_string()]);
        command.args(["--label", spec.server.kind.title()]);
        if let Some(directory) = &demand.directory {
            command.arg("-o").arg(directory);
        }
        RunningClient::start(&mut command, "headway load", self.workspace.journal())
    }

    /// The beginning of a client's command: what it asks the server for, and how.
    fn ask(&self, command: &mut Command, spec: &Spec, path: &str) {
        let tls = self.server.tls_address().filter(|_| spec.workload.https);
        let (scheme, address) = match tls {
            Some(address) => ("https", address),
            None => ("http", self.server.address()),
        };
        command.args(["load", &format!("{scheme}://{address}{path}"), "--quiet"]);
        if let (Some(_), Some(certificate)) = (tls, self.server.certificate()) {
            command.arg("--cacert").arg(certificate);
        }
        if let Some(streams) = spec.workload.streams {
            command.args(["--http2", "--streams", &streams.to_string()]);
        }
    }

    /// Opens the connections that stay silent, and waits until they are there.
    fn hold_idle(&self, spec: &Spec) -> Result<Option<RunningClient>, Stopped> {
        let Some(idle) = spec.workload.idle else {
            return Ok(None);
        };
        let mut command = self.workspace.command(Side::Client, crate::headway());
        self.ask(&mut command, spec, READY_PATH);
        for address in self.workspace.clients() {
            command.args(["--source", &address.to_string()]);
        }
        command.args([
            "--closed",
            "-c",
            &idle.to_string(),
            "--think",
            IDLE_REQUEST_INTERVAL,
        ]);
        command.args(["--requests-per-connection", "unlimited"]);
        // It is ended; this is for the case that no process is left to do so.
        let longest =
            2.0 * (spec.length_s() + spec.cooldown_s() + IDLE_RETRY_TIMEOUT.as_secs_f64() + 60.0);
        command.args(["--warmup", "0", "-d", &format!("{longest:.0}s")]);
        let name = "headway load (silent connections)";
        let mut client = RunningClient::start(&mut command, name, self.workspace.journal())?;
        let begun = Instant::now();
        loop {
            self.wait(Instant::now() + IDLE_INTERVAL, &mut client)?;
            let open = self.connections_open();
            let there = match open {
                Some(open) => open >= idle,
                None => begun.elapsed() > IDLE_CONNECT_TIME,
            };
            if there {
                return Ok(Some(client));
            }
            if client.ended().is_some() || begun.elapsed() > IDLE_RETRY_TIMEOUT {
                let open = open.unwrap_or(0);
                let why = format!("of {idle} silent connections {open} came about");
                return Err(Stopped::Failed(why));
            }
        }
    }

    /// As a server of ours counts them.
    fn connections_open(&self) -> Option<u64> {
        let status = self.server.status().ok()??;
        status["total"]["counters"]["connections_open"].as_u64()
    }

    fn wait(&self, until: Instant, client: &mut RunningClient) -> Result<(), Stopped> {
        while Instant::now() < until && client.ended().is_none() {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Stopped::Interrupted);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn order(&self, order: Order) -> Result<(), Stopped> {
        self.workspace
            .order(order)
            .map_err(|error| Stopped::Failed(error.to_string()))
    }

    fn faults(
        &self,
        spec: &Spec,
        begun: Instant,
        client: &mut RunningClient,
    ) -> Result<(), Stopped> {
        let Some(fault) = spec.fault else {
            return Ok(());
        };
        self.wait(begun + Duration::from_secs_f64(fault.at_s), client)?;
        let for_ms = (fault.for_s * 1e3) as u64;
        self.order(match fault.factor {
            None => Order::Stall { for_ms },
            Some(factor) => Order::Slow { factor, for_ms },
        })
    }

    /// Reads all counters.
    fn read_counters(&self) -> Result<CounterReading, Stopped> {
        // A status page that does not answer costs the run its counters, not its latencies.
        let status = self.server.status().unwrap_or_default();
        let limit = || self.server.accept_report().ok().flatten();
        let status = status.or_else(|| Some(json!({ "accept_limit": limit()? })));
        Ok(CounterReading {
            at: Instant::now(),
            status,
            disk: self.workspace.disk(),
            usage: self.server.usage(),
        })
    }

    fn observe(&self, spec: &Spec, directory: &Path) -> Result<RunningObserver, Stopped> {
        Ok(match spec.observe {
            None => RunningObserver::Nothing,
            Some(Observer::Trace) => {
                let mut command = self.workspace.command(Side::Client, crate::headway());
                command.arg("trace");
                for pid in self.server.workers() {
                    command.args(["-p", &pid.to_string()]);
                }
                command.args(["--duration", &format!("{:.0}ms", spec.seconds * 1e3)]);
                let kept = directory.join("trace");
                command.arg("--keep").arg(&kept);
                let journal = self.workspace.journal();
                let running = RunningClient::start(&mut command, "headway trace", journal)?;
                RunningObserver::Trace(
                    Box::new(running),
                    kept,
                    directory.join("run/trace.json"),
                    spec.seconds,
                )
            }
            Some(Observer::Runnable) => {
                let (_, cpus) = crate::usual_split();
                let settings = Settings {
                    cpus,
                    ..Settings::default()
                };
                let sampler = Sampler::start(self.server.members(), settings);
                let failed =
                    |error: io::Error| Stopped::Failed(format!("the run-queue sampler: {error}"));
                RunningObserver::Runnable(sampler.map_err(failed)?, directory.join("runnable.json"))
            }
        })
    }
}

/// Counters at one moment.
struct CounterReading {
    at: Instant,
    status: Option<Value>,
    disk: Option<DiskStatistics>,
    usage: Usage,
}

/// An observer that runs.
enum RunningObserver {
    Nothing,
    Trace(Box<RunningClient>, PathBuf, PathBuf, f64),
    Runnable(Sampler, PathBuf),
}

impl RunningObserver {
    fn finish(self, interrupted: &AtomicBool) -> Result<(), Stopped> {
        match self {
            RunningObserver::Nothing => Ok(()),
            RunningObserver::Runnable(sampler, file) => write(&file, &summed(&sampler.finish())),
            RunningObserver::Trace(mut running, kept, file, seconds) => {
                let status = running.finish(interrupted, deadline(seconds))?;
                let from = kept.join("trace.json");
                if !status.success() || !from.exists() {
                    let message = running.last_error_line();
                    return Err(Stopped::Failed(format!(
                        "headway trace ended with {status}: {message}"
                    )));
                }
                let moved = fs::rename(&from, &file).and_then(|()| fs::remove_dir_all(&kept));
                moved.map_err(|error| Stopped::Failed(format!("{}: {error}", file.display())))
            }
        }
    }
}

/// How many samples found each number of runnable tasks.
fn summed(seen: &crate::runnable::Runnable) -> Runnable {
    let mut counts = std::collections::BTreeMap::new();
    for sample in &seen.samples {
        *counts.entry(u64::from(sample.runnable)).or_insert(0) += 1;
    }
    let summary = seen.summary();
    Runnable {
        samples: counts.into_iter().collect(),
        processes: summary.tasks_mean.round() as u64,
        look_us: summary.scan_us_median,
    }
}

/// Why caches that were filled hold less than they could.
fn thinned(spec: &Spec, memory: Option<MemoryStatus>) -> Option<String> {
    let memory = memory?;
    let limit_bytes = memory.limit_bytes?;
    let filled = spec.environment.fill_requests > 0;
    (filled && has_room(spec.environment.set_bytes, &memory)).then(|| {
        let cause = reclaimer().unwrap_or_else(|| "something else than the limit takes pages".into());
        format!(
            "{} MB of {} MB of memory were in use at the end, though there was more to keep: {cause}",
            memory.used_bytes / 1_000_000,
            limit_bytes / 1_000_000
        )
    })
}

/// Whether memory was left although the set had more to keep in it: then not the limit decided what
/// is kept.
fn has_room(set_bytes: u64, memory: &MemoryStatus) -> bool {
    memory.limit_bytes.is_some_and(|limit_bytes| {
        set_bytes > limit_bytes
            && (memory.used_bytes as f64) < CACHE_FULL_SHARE * limit_bytes as f64
    })
}

/// The run is there and says that it is complete.
fn whole(run: &Path) -> bool {
    headway_latency::Run::open(run).is_ok_and(|run| run.description().complete)
}

fn keep(
    directory: &Path,
    before: &CounterReading,
    after: &CounterReading,
    ours: bool,
) -> Result<(), Stopped> {
    let seconds = (after.at - before.at).as_secs_f64();
    if ours || after.status.is_some() {
        let both = json!({ "before": before.status, "after": after.status });
        write(&directory.join("run/server.json"), &both)?;
    }
    if let (Some(then), Some(now)) = (&before.disk, &after.disk) {
        write(
            &directory.join("disk.json"),
            &disk_use(&now.since(then), seconds),
        )?;
    }
    let usage = ServerUse {
        seconds,
        cpu_ms: after.usage.cpu_ms - before.usage.cpu_ms,
        rss_bytes: after.usage.resident_bytes,
        processes: after.usage.processes as u64,
    };
    write(&directory.join("usage.json"), &usage)
}

fn disk_use(counts: &DiskStatistics, seconds: f64) -> DiskUse {
    DiskUse {
        seconds,
        reads: counts.reads,
        read_bytes: counts.read_bytes,
        writes: counts.writes,
        written_bytes: counts.written_bytes,
        queue_mean: Some(counts.depth_mean()),
        queue_max: Some(counts.depth_max as f64),
        busy_share: Some(counts.busy_share()),
        service_ms: (counts.reads + counts.writes > 0).then(|| counts.service_us() / 1e3),
    }
}

fn write(file: &Path, value: &impl Serialize) -> Result<(), Stopped> {
    let text = serde_json::to_string(value).map_err(io::Error::other);
    text.and_then(|text| fs::write(file, text + "\n"))
        .map_err(|error| Stopped::Failed(format!("{}: {error}", file.display())))
}

fn deadline(seconds: f64) -> Instant {
    Instant::now() + Duration::from_secs_f64(seconds) + CLIENT_WRITE_TIMEOUT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_not_full_when_an_oversized_set_leaves_free_memory() {
        let memory = |limit_bytes, used_bytes| MemoryStatus {
            limit_bytes,
            used_bytes,
            cache_bytes: used_bytes / 2,
            peak_bytes: None,
            refaults: 0,
            cgroup_version: 2,
        };
        assert!(has_room(1200, &memory(Some(400), 360)));
        assert!(!has_room(1200, &memory(Some(400), 398)), "full");
        assert!(!has_room(200, &memory(Some(400), 250)), "all of it fits");
        assert!(!has_room(1200, &memory(None, 360)), "no limit");
    }
}
