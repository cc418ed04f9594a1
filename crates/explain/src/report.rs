//! What all requests together say: percentiles, and the causes of the time around each.

use std::collections::{BTreeMap, HashMap};

use headway_base::format::{count, percent, time_us};
use headway_debox::Label;
use headway_debox_bpf::{Lost, Within};
use headway_latency::analysis::Inversion;
use headway_latency::inversion::inversion;
use serde::Serialize;

use crate::advice::{Advice, advice};
use crate::collector::{Collector, Stored};
use crate::figures::{Failure, LoopTurns, RunQueueShare, SleepCount};
use crate::names::FileNames;
use crate::parts::{Cause, Doing, Phase};
use crate::upstreams::Upstream;

/// Version of the form of [`Report`].
pub const SCHEMA: u32 = 1;

/// The percentiles whose causes are shown.
const SHOWN: [f64; 3] = [0.5, 0.95, 0.99];

/// How many causes and files are reported.
const CAUSES_MAX: usize = 40;
const FILES_MAX: usize = 3;

/// The whole answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The answer in words.
    pub summary: String,
    /// Name of the server's program.
    pub server: String,
    /// Its processes.
    pub pids: Vec<u32>,
    /// Its TCP ports.
    pub ports: Vec<u16>,
    /// Its Unix sockets.
    pub sockets: Vec<String>,
    /// Length of the observation.
    pub duration_s: f64,
    /// Counts of requests.
    pub requests: Requests,
    /// Time from the arrival of a request to the end of its response.
    pub latency: Latency,
    /// The share of each phase.
    pub phases: Vec<PhaseShare>,
    /// Causes, the one with the largest share at the p99 first.
    pub causes: Vec<CauseShare>,
    /// Requests by method and path, if these were asked for: those with the most time first.
    pub paths: Vec<PathShare>,
    /// What to change.
    pub advice: Vec<Advice>,
    /// The sockets to which the server was connected itself.
    pub upstreams: Vec<Upstream>,
    /// Connections that the kernel did not accept because a queue was full. Of all servers in the
    /// network namespace.
    pub listen_overflows: Option<u64>,
    /// For how long the ends of calls were seen, if not all the time: `ready_events`, `loop_turns` and `failures` are
    /// of this time.
    pub calls_seen_s: Option<f64>,
    /// How many waits for events returned 0, 1, 2 to 3, 4 to 7, … ready events.
    pub ready_events: Vec<u64>,
    /// How long the turns of its event loops took.
    pub loop_turns: Option<LoopTurns>,
    /// How many of its tasks could run.
    pub run_queue: Option<RunQueueShare>,
    /// In which calls its threads slept, and for what.
    pub sleeps: Vec<SleepCount>,
    /// Calls that failed for lack of something.
    pub failures: Vec<Failure>,
    /// How far the order of times is from the order of sizes of responses.
    pub inversion: Option<Inversion>,
    /// Events that were lost. If there are any, counts and times asleep are lower bounds, and times running
    /// are upper bounds.
    pub lost_events: u64,
    /// One sentence for each thing that is missing.
    pub missing: Vec<String>,
}

/// Counts of requests.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Requests {
    /// Those with a response that has ended.
    pub answered: u64,
    /// Those whose connection ended without one.
    pub unanswered: u64,
    /// Those which had arrived and had no response at the end of the observation.
    pub waiting: u64,
    /// How long the oldest of these had waited then, in microseconds.
    pub waiting_longest_us: f64,
    /// Connections to the ports of the server that were observed.
    pub connections: u64,
    /// One in this many connections was observed at the end.
    pub sampled_one_in: u64,
}

/// Percentiles of the time of a request, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Of all.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 95th percentile.
    pub p95_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// A share of the time of requests, from 0 to 1: of all, and of those around a percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// Of the time of all requests.
    pub all: f64,
    /// Of requests around the median.
    pub p50: f64,
    /// Of requests around the 95th percentile.
    pub p95: f64,
    /// Of requests around the 99th percentile.
    pub p99: f64,
}

/// A phase with its share.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseShare {
    /// The phase.
    pub phase: Phase,
    /// Its share of the time.
    pub share: Shares,
}

/// A cause with its share.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CauseShare {
    /// The cause in words.
    pub cause: String,
    /// Where requests were.
    pub phase: Phase,
    /// `running`, `runnable`, `asleep`, `client` or `unseen`.
    pub doing: &'static str,
    /// The call in which the thread slept.
    pub call: Option<String>,
    /// What it waited for.
    pub label: Option<Label>,
    /// The kernel function in which most of that time passed.
    pub symbol: Option<String>,
    /// Whether the thread worked for another request.
    pub for_others: bool,
    /// Whether the thread was asleep for anything but events, clients and other threads.
    pub blocked: bool,
    /// Share of the time.
    pub share: Shares,
    /// The time in all.
    pub total_ns: u64,
    /// Requests that it delayed.
    pub requests: u64,
    /// The files with most of that time.
    pub files: Vec<FileShare>,
    /// The processes which had the lock for most of that time.
    pub holders: Vec<HolderShare>,
    /// Other threads of the server that waited for the same at a time: the most that were seen. What a thread waits for
    /// is known as for `headway trace`: a lock, a futex, a file, or else the place in the kernel.
    pub waiters_max: u32,
    /// What the kernel did beside the call in most of that time.
    pub within: Option<Within>,
    /// Whether the thread was, for most of that time, the one that then passed the request on.
    pub passed_on: bool,
}

/// Requests with the same method and path.
#[derive(Clone, Debug, Serialize)]
pub struct PathShare {
    /// `GET /index.html`.
    pub path: String,
    /// How many.
    pub requests: u64,
    /// How many of these had which status, where it was seen.
    pub statuses: BTreeMap<u16, u64>,
    /// Their share of the time of all requests.
    pub share: f64,
    /// The median, in microseconds.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
}

/// A process which had a lock.
#[derive(Clone, Debug, Serialize)]
pub struct HolderShare {
    /// Name and process id.
    pub name: String,
    /// The kernel functions in which it then woke the thread, the innermost first.
    pub woken_in: Vec<String>,
    /// The time.
    pub total_ns: u64,
}

/// A file at which threads slept.
#[derive(Clone, Debug, Serialize)]
pub struct FileShare {
    /// The path, or its last part where that is all that is known.
    pub path: String,
    /// The time.
    pub total_ns: u64,
}

impl Doing {
    /// The word for it in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Doing::Running => "running",
            Doing::Runnable => "runnable",
            Doing::Asleep { .. } => "asleep",
            Doing::Client => "client",
            Doing::Unseen => "unseen",
        }
    }
}

impl Report {
    /// What the requests of a collector say. The caller adds what only it knows, then calls
    /// [`Report::conclude`].
    pub fn of(collector: &Collector) -> Report {
        let mut order: Vec<&Stored> = collector.stored.iter().collect();
        order.sort_by_key(|stored| stored.total_ns);
        let shares = shares(&order, collector.causes.len());
        let mut report = Report {
            schema: SCHEMA,
            requests: Requests {
                answered: collector.answered,
                unanswered: collector.unanswered,
                ..Requests::default()
            },
            latency: latency(&order),
            ..Report::default()
        };
        report.phases = phases(&collector.causes, &shares);
        report.causes = causes(&collector.causes, &collector.names, &order, &shares);
        report.paths = paths(&collector.names, &order);
        report.sleeps = collector.sleeps.rows();
        report.inversion = inversion(&collector.cells);
        report
    }

    /// Says what was lost: events, and what was beyond a limit.
    pub fn lose(&mut self, lost: &Lost, connections_max: u32) {
        self.lost_events = lost.records + lost.threads + lost.processes + lost.events;
        if lost.connections > 0 {
            self.missing.push(format!(
                "More than {} connections were open at a time, and requests on the others are in no table.",
                count(u64::from(connections_max))
            ));
        }
        if !lost.is_none() {
            self.missing.push(format!("{lost}."));
        }
    }

    /// Writes advice and summary, when everything else is known.
    pub fn conclude(&mut self) {
        self.advice = advice(self);
        self.summary = crate::text::summary(self);
    }

    /// The share of time in which threads were blocked.
    pub fn blocked_share(&self) -> Shares {
        (self.causes.iter().filter(|cause| cause.blocked))
            .fold(Shares::default(), |sum, cause| sum.plus(cause.share))
    }

    /// The share of time that requests spent in these phases.
    pub fn phase_share(&self, phases: &[Phase]) -> Shares {
        (self
            .phases
            .iter()
            .filter(|share| phases.contains(&share.phase)))
        .fold(Shares::default(), |sum, share| sum.plus(share.share))
    }
}

impl Shares {
    /// The sum of two shares.
    pub fn plus(self, other: Shares) -> Shares {
        Shares {
            all: self.all + other.all,
            p50: self.p50 + other.p50,
            p95: self.p95 + other.p95,
            p99: self.p99 + other.p99,
        }
    }
}

/// Requests that a glance looks at.
const GLANCED: usize = 2000;

impl Collector {
    /// Percentiles of the latest requests and the largest cause of late ones, in one line; `None` without
    /// requests.
    pub fn glance(&self) -> Option<String> {
        let latest = self.stored.iter().rev().take(GLANCED);
        let mut order: Vec<&Stored> = latest.collect();
        order.sort_by_key(|stored| stored.total_ns);
        let shares = shares(&order, self.causes.len());
        let largest =
            (self.causes.iter().zip(&shares)).max_by(|(_, a), (_, b)| a.p99.total_cmp(&b.p99))?;
        let latency = latency(&order);
        Some(format!(
            "p50 {}, p99 {}, {} of it in {}: {}",
            time_us(latency.p50_us),
            time_us(latency.p99_us),
            percent((largest.1.p99 * 100.0).round() / 100.0),
            largest.0.phase.name(),
            crate::text::in_words(largest.0)
        ))
    }
}

/// The nearest rank.
fn rank(quantile: f64, requests: usize) -> usize {
    ((quantile * requests as f64).ceil() as usize).clamp(1, requests.max(1)) - 1
}

fn latency(order: &[&Stored]) -> Latency {
    if order.is_empty() {
        return Latency::default();
    }
    let us = |ns: u64| ns as f64 / 1e3;
    let at = |quantile| us(order[rank(quantile, order.len())].total_ns);
    let sum: u64 = order.iter().map(|stored| stored.total_ns).sum();
    Latency {
        mean_us: us(sum) / order.len() as f64,
        p50_us: at(0.5),
        p95_us: at(0.95),
        p99_us: at(0.99),
        max_us: us(order[order.len() - 1].total_ns),
    }
}

/// The requests around a percentile: half a percent of all, and at least eleven if there are.
fn around<'o, 's>(order: &'o [&'s Stored], quantile: f64) -> &'o [&'s Stored] {
    let middle = rank(quantile, order.len());
    let each_side = (order.len() / 400).max(5);
    let end = (middle + each_side + 1).min(order.len());
    &order[middle.saturating_sub(each_side).min(end)..end]
}

/// The share of each cause, by its number: of all, and around each percentile.
fn shares(order: &[&Stored], causes: usize) -> Vec<Shares> {
    let share = |requests: &[&Stored]| {
        let mut sums = vec![0_u64; causes];
        for (cause, _, ns) in requests.iter().flat_map(|stored| &stored.parts) {
            sums[*cause as usize] += ns;
        }
        let whole: u64 = sums.iter().sum();
        let of = |ns: u64| ns as f64 / whole.max(1) as f64;
        sums.into_iter().map(of).collect::<Vec<f64>>()
    };
    let all = share(order);
    let [p50, p95, p99] = SHOWN.map(|quantile| share(around(order, quantile)));
    let shares = (0..causes).map(|cause| Shares {
        all: all[cause],
        p50: p50[cause],
        p95: p95[cause],
        p99: p99[cause],
    });
    shares.collect()
}

/// `order` is by length.
fn paths(names: &FileNames, order: &[&Stored]) -> Vec<PathShare> {
    let mut lines: HashMap<u32, (Vec<u64>, BTreeMap<u16, u64>)> = HashMap::new();
    for stored in order {
        if let Some(line) = stored.line {
            let (lengths, statuses) = lines.entry(line).or_default();
            lengths.push(stored.total_ns);
            if let Some(status) = stored.status {
                *statuses.entry(status).or_default() += 1;
            }
        }
    }
    let whole: u64 = order.iter().map(|stored| stored.total_ns).sum();
    let row = |(line, (lengths, statuses)): (u32, (Vec<u64>, BTreeMap<u16, u64>))| {
        let at = |quantile| lengths[rank(quantile, lengths.len())] as f64 / 1e3;
        PathShare {
            path: names.name(line).to_owned(),
            requests: lengths.len() as u64,
            statuses,
            share: lengths.iter().sum::<u64>() as f64 / whole.max(1) as f64,
            p50_us: at(0.5),
            p99_us: at(0.99),
        }
    };
    let mut rows: Vec<PathShare> = lines.into_iter().map(row).collect();
    rows.sort_by(|a, b| {
        b.share
            .total_cmp(&a.share)
            .then_with(|| a.path.cmp(&b.path))
    });
    rows.truncate(CAUSES_MAX);
    rows
}

fn phases(causes: &[Cause], shares: &[Shares]) -> Vec<PhaseShare> {
    let share = |phase: Phase| {
        let of_phase = causes.iter().zip(shares);
        of_phase
            .filter(|(cause, _)| cause.phase == phase)
            .fold(Shares::default(), |sum, (_, share)| sum.plus(*share))
    };
    (Phase::ALL.into_iter())
        .map(|phase| PhaseShare {
            phase,
            share: share(phase),
        })
        .collect()
}

/// What is added up for a cause.
#[derive(Clone, Default)]
struct Totals {
    ns: u64,
    requests: u64,
    files: HashMap<u32, u64>,
    symbols: HashMap<u32, u64>,
    holders: HashMap<(u32, Option<u32>), u64>,
    within: HashMap<Within, u64>,
    waiters_max: u32,
    passed_on: u64,
}

fn causes(
    causes: &[Cause],
    names: &FileNames,
    order: &[&Stored],
    shares: &[Shares],
) -> Vec<CauseShare> {
    let mut totals = vec![Totals::default(); causes.len()];
    for stored in order {
        let mut counted = Vec::new();
        for (cause, at, ns) in &stored.parts {
            let total = &mut totals[*cause as usize];
            total.ns += ns;
            total.requests += u64::from(!counted.contains(cause));
            counted.push(*cause);
            if let Some(file) = at.file {
                *total.files.entry(file).or_default() += ns;
            }
            if let Some(symbol) = at.symbol {
                *total.symbols.entry(symbol).or_default() += ns;
            }
            if let Some(holder) = at.holder {
                *total.holders.entry((holder, at.woken_in)).or_default() += ns;
            }
            if let Some(within) = at.within {
                *total.within.entry(within).or_default() += ns;
            }
            total.passed_on += ns * u64::from(at.passed_on);
            total.waiters_max = total.waiters_max.max(at.waiters);
        }
    }
    let rows = causes.iter().zip(totals).zip(shares);
    let mut rows: Vec<CauseShare> = rows
        .map(|((cause, totals), share)| row(cause, &totals, *share, names))
        .filter(|row| row.total_ns > 0)
        .collect();
    let key = |row: &CauseShare| row.share.p99 + row.share.all / 1e3;
    rows.sort_by(|a, b| key(b).total_cmp(&key(a)));
    rows.truncate(CAUSES_MAX);
    rows
}

fn row(cause: &Cause, totals: &Totals, share: Shares, names: &FileNames) -> CauseShare {
    let (call, label) = match cause.doing {
        Doing::Asleep { call, label } => {
            let name = call.map_or("a page fault".into(), headway_debox::calls::display_name);
            (Some(name.into_owned()), Some(label))
        }
        _ => (None, None),
    };
    let most_within = (totals.within.iter()).find(|(_, ns)| **ns * 2 > totals.ns);
    CauseShare {
        cause: crate::text::in_words(cause),
        phase: cause.phase,
        doing: cause.doing.word(),
        call,
        label,
        symbol: (largest(&totals.symbols).first())
            .map(|(number, _)| names.name(*number).to_owned()),
        for_others: cause.for_others,
        blocked: cause.is_blocked(),
        share,
        total_ns: totals.ns,
        requests: totals.requests,
        files: (largest(&totals.files).into_iter())
            .map(|(number, total_ns)| FileShare {
                path: names.name(number).to_owned(),
                total_ns,
            })
            .collect(),
        holders: (largest(&totals.holders).into_iter())
            .map(|((name, woken_in), total_ns)| HolderShare {
                name: names.name(name).to_owned(),
                woken_in: woken_in.map_or_else(Vec::new, |number| names.functions(number)),
                total_ns,
            })
            .collect(),
        waiters_max: totals.waiters_max,
        within: most_within.map(|(within, _)| *within),
        passed_on: totals.passed_on * 2 > totals.ns,
    }
}

/// Those with the most time, in order.
fn largest<K: Copy + Ord>(sums: &HashMap<K, u64>) -> Vec<(K, u64)> {
    let mut sums: Vec<(K, u64)> = sums.iter().map(|(key, ns)| (*key, *ns)).collect();
    sums.sort_by_key(|(key, ns)| (std::cmp::Reverse(*ns), *key));
    sums.truncate(FILES_MAX);
    sums
}

#[cfg(test)]
mod tests;
