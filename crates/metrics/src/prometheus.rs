//! The metrics in the Prometheus text format, version 0.0.4.
//!
//! Series about all workers together survive the death of a worker. Series with a `worker` label
//! start at 0 again with a new worker.
//! Source: the exposition formats page of the Prometheus documentation.

use headway_debox::{Label, Report, TraceLevel};
use std::fmt::{Display, Write};

use super::families::{self, FixedFamily, MetricType};
use super::request_durations::{LIMITS_US, RequestDurations};
use super::{
    Counters, Durations, Histogram, LongestTurn, MasterStatus, Overview, RequestStage,
    RequestStages, Snapshot, Upstream,
};

/// The content type of this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bucket limits of histograms of small integers. They are limits of [`Histogram`]'s buckets, so
/// the counts are exact.
const SMALL_LIMITS: &[u64] = &[0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// Bucket limits of histograms of durations: 16 µs to 17 s.
const TIME_LIMITS_US: &[u64] = &[
    16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144,
    524_288, 1_048_576, 2_097_152, 4_194_304, 8_388_608, 16_777_216,
];

/// All metrics of one moment.
pub fn render(overview: &Overview) -> String {
    let mut out = Metrics::default();
    if let Some(total) = &overview.total {
        out.blocking(&total.trace);
        out.counters(&total.counters);
        out.durations(&total.counters.request_durations);
        out.stages(&total.counters.request_stages);
        out.upstreams(&total.upstreams);
        out.trace(&total.trace);
        out.build_info(overview, total);
    }
    out.master(overview);
    out.workers(overview);
    out.text()
}

type Labels<'a> = &'a [(&'a str, &'a dyn Display)];

/// Families in the order of their first sample. A family may get samples from several sources, but
/// its lines must stand together.
#[derive(Default)]
struct Metrics(Vec<(String, String)>);

impl Metrics {
    fn text(self) -> String {
        self.0.into_iter().map(|(_, lines)| lines).collect()
    }

    /// The lines of a family, begun with HELP and TYPE if they are new.
    fn family(&mut self, name: &str, kind: MetricType, help: &str) -> &mut String {
        let position = match self.0.iter().position(|(known, _)| known == name) {
            Some(position) => position,
            None => {
                let help = help.replace('\\', "\\\\");
                let kind = kind.as_str();
                let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
                self.0.push((name.to_owned(), head));
                self.0.len() - 1
            }
        };
        &mut self.0[position].1
    }

    fn begin(&mut self, family: &FixedFamily) -> &mut String {
        self.family(family.name, family.kind, family.help)
    }

    fn sample(&mut self, family: &FixedFamily, values: &[&dyn Display], value: impl Display) {
        let labels: Vec<(&str, &dyn Display)> = family
            .labels
            .iter()
            .copied()
            .zip(values.iter().copied())
            .collect();
        write_sample(self.begin(family), family.name, &labels, value);
    }

    /// The first series has empty labels and is always 0, so that an alert on the sum has data
    /// before anything has blocked.
    fn blocking(&mut self, trace: &Report) {
        type Value = fn(&headway_debox::Site) -> f64;
        let sources: [(FixedFamily, Value); 2] = [
            (families::BLOCKED, |site| site.count as f64),
            (families::BLOCKED_SECONDS, |site| site.total_ns as f64 / 1e9),
        ];
        for (family, value) in sources {
            self.sample(&family, &[&"", &"", &""], 0);
            for sum in by_site(trace, value) {
                self.sample(&family, &[&sum.call, &sum.label, &sum.symbol], sum.value);
            }
        }
    }

    fn counters(&mut self, counters: &Counters) {
        self.begin(&families::HTTP_REQUESTS);
        for (code, method, count) in counters.http_requests.by_status_and_method() {
            self.sample(&families::HTTP_REQUESTS, &[&code, &method], count);
        }
        for series in counters.series() {
            let kind = MetricType::from(series.kind);
            let name = families::full_name(series.family, series.key, kind);
            let values = series.values.iter().map(|value| value as &dyn Display);
            let labels: Vec<_> = series.labels.iter().copied().zip(values).collect();
            let lines = self.family(&name, kind, series.family_help);
            match series.key.ends_with("_us") {
                false => write_sample(lines, &name, &labels, series.value),
                true => write_sample(lines, &name, &labels, series.value as f64 / 1e6),
            }
        }
        self.histograms(counters, None);
    }

    /// The histograms of one worker, or of all workers together.
    fn histograms(&mut self, counters: &Counters, worker: Option<&dyn Display>) {
        let label = worker.map(|worker| ("worker", worker));
        let labels = label.as_slice();
        for one in counters.histograms() {
            if families::is_per_worker(one.key) != worker.is_some() {
                continue;
            }
            let name = families::full_name(one.family, one.key, MetricType::Histogram);
            let lines = self.family(&name, MetricType::Histogram, one.help);
            let (limits, unit) = match one.key.ends_with("_us") {
                false => (SMALL_LIMITS, 1.0),
                true => (TIME_LIMITS_US, 1e-6),
            };
            write_histogram(lines, &name, labels, one.histogram, (limits, unit));
        }
    }

    fn durations(&mut self, durations: &RequestDurations) {
        let family = families::REQUEST_DURATION;
        let lines = self.begin(&family);
        for row in durations.rows() {
            let handler = row.handler.as_str();
            let class = row.class_name();
            let labels: [(&str, &dyn Display); 3] = [
                ("host", &row.host),
                ("handler", &handler),
                ("class", &class),
            ];
            write_durations(lines, family.name, &labels, &row.durations);
        }
    }

    fn stages(&mut self, stages: &RequestStages) {
        let family = families::REQUEST_STAGE;
        let lines = self.begin(&family);
        for stage in RequestStage::ALL {
            let labels: [(&str, &dyn Display); 1] = [("stage", &stage.as_str())];
            write_durations(lines, family.name, &labels, stages.of(stage));
        }
    }

    fn longest_turn(&mut self, worker: &dyn Display, longest: &LongestTurn) {
        for (stage, us) in longest.stages() {
            self.sample(&families::LONGEST_TURN, &[worker, &stage], us as f64 / 1e6);
        }
    }

    fn trace(&mut self, trace: &Report) {
        self.sample(&families::TRACE_LEVEL, &[], level(&trace.level));
        self.sample(&families::TRACE_LOST, &[], trace.lost_records);
        self.sample(&families::WAITS, &[], trace.waits.count);
        let seconds = trace.waits.total_ns as f64 / 1e9;
        self.sample(&families::WAIT_SECONDS, &[], seconds);
        self.sample(&families::PREEMPTIONS, &[], trace.preemptions.count);
        self.begin(&families::SYSTEM_CALLS);
        for (call, count) in &trace.calls {
            self.sample(&families::SYSTEM_CALLS, &[call], count);
        }
    }

    fn build_info(&mut self, overview: &Overview, total: &Snapshot) {
        let values: [&dyn Display; 3] = [&overview.version, &total.events, &total.residency];
        self.sample(&families::BUILD_INFO, &values, 1);
    }

    fn master(&mut self, overview: &Overview) {
        let master = &overview.master;
        let seconds = master.start_time_ms as f64 / 1e3;
        self.sample(&families::START_TIME, &[], seconds);
        self.deaths(master);
        for (result, count) in [("done", master.reloads), ("failed", master.reload_failures)] {
            self.sample(&families::RELOADS, &[&result], count);
        }
        for (result, count) in [
            ("done", master.upgrades),
            ("failed", master.upgrade_failures),
        ] {
            self.sample(&families::UPGRADES, &[&result], count);
        }
        for (result, count) in [
            ("issued", master.acme_issued),
            ("failed", master.acme_failures),
        ] {
            self.sample(&families::ACME_CERTIFICATES, &[&result], count);
        }
        self.begin(&families::ACME_EXPIRY);
        for (host, expires_s) in &master.acme_expiry_s {
            self.sample(&families::ACME_EXPIRY, &[host], *expires_s);
        }
        self.begin(&families::TLS_EXPIRY);
        for (host, expires_s) in &master.certificate_expiry_s {
            self.sample(&families::TLS_EXPIRY, &[host], *expires_s);
        }
        self.sample(&families::WORKERS_STUCK, &[], master.workers_stuck);
        self.sample(&families::HELPERS_STARTED, &[], master.helpers_started);
        self.sample(&families::HELPERS_REJECTED, &[], master.helpers_rejected);
        let stored = master.stored.iter().flat_map(super::Stored::all);
        let pinned = master.pinned.iter().flat_map(super::Pinned::all);
        for (family, value) in stored.chain(pinned) {
            self.sample(family, &[], value);
        }
        let dropped = master.log_lines_lost;
        self.sample(&families::LOG_LINES_DROPPED, &[&"write"], dropped);
        self.sample(&families::SPANS_EXPORTED, &[], master.spans_exported);
        let dropped = master.spans_dropped;
        self.sample(&families::SPANS_DROPPED, &[&"export"], dropped);
        for (_, family, value) in master.network.map(|drops| drops.all()).unwrap_or_default() {
            self.sample(family, &[], value);
        }
        let (responding, unresponsive) = (overview.workers.len(), overview.unresponsive.len());
        self.sample(&families::WORKERS, &[&"responding"], responding);
        self.sample(&families::WORKERS, &[&"unresponsive"], unresponsive);
    }

    fn deaths(&mut self, master: &MasterStatus) {
        for (process, deaths) in [
            ("worker", master.worker_deaths),
            ("log", master.log_deaths),
            ("spawner", master.spawner_deaths),
            ("handshakes", master.handshake_process_deaths),
            ("store", master.store_deaths),
            ("acme", master.acme_deaths),
            ("spans", master.span_deaths),
        ] {
            self.sample(&families::PROCESS_DEATHS, &[&process], deaths);
        }
    }

    fn upstreams(&mut self, all: &[Upstream]) {
        type Value = fn(&Upstream) -> f64;
        let sources: [(FixedFamily, Value); 6] = [
            (families::UPSTREAM_REQUESTS, |one| {
                one.requests_active as f64
            }),
            (families::UPSTREAM_IDLE, |one| one.idle_connections as f64),
            (families::UPSTREAM_CONSECUTIVE_FAILURES, |one| {
                one.consecutive_failures as f64
            }),
            (families::UPSTREAM_EJECTIONS, |one| one.ejections as f64),
            (families::UPSTREAM_EJECTED, |one| one.ejected as f64),
            (families::UPSTREAM_EJECTED_SECONDS, |one| {
                one.ejection_remaining_ms as f64 / 1e3
            }),
        ];
        for (family, value) in sources {
            for one in all {
                self.sample(&family, &[&one.location, &one.address], value(one));
            }
        }
    }

    /// How evenly the kernel distributes connections over workers, and how long each loop takes.
    fn workers(&mut self, overview: &Overview) {
        type Value = fn(&Snapshot) -> u64;
        let sources: [(FixedFamily, Value); 3] = [
            (families::WORKER_CONNECTIONS, |one| {
                one.counters.connections_open
            }),
            (families::WORKER_ACCEPTED, |one| {
                one.counters.connections_accepted
            }),
            (families::WORKER_REQUESTS, |one| {
                one.counters.requests_received
            }),
        ];
        for (family, value) in sources {
            self.begin(&family);
            for worker in &overview.workers {
                self.sample(&family, &[&worker.worker], value(worker));
            }
        }
        for one in &overview.workers {
            self.longest_turn(&one.worker, &one.counters.loop_longest_turn);
            self.histograms(&one.counters, Some(&one.worker));
        }
        self.begin(&families::WORKER_SKEW);
        for (of, skew) in overview.skew.all() {
            if let Some(skew) = skew {
                self.sample(&families::WORKER_SKEW, &[&of], skew);
            }
        }
    }
}

fn write_sample(out: &mut String, name: &str, labels: Labels<'_>, value: impl Display) {
    out.push_str(name);
    for (position, (label, text)) in labels.iter().enumerate() {
        let before = if position == 0 { '{' } else { ',' };
        // Writing to a String cannot fail, here and below.
        let _ = write!(out, "{before}{label}=\"{}\"", escaped(&text.to_string()));
    }
    let end = if labels.is_empty() { "" } else { "}" };
    let _ = writeln!(out, "{end} {value}");
}

/// The lines of a histogram with the buckets of [`LIMITS_US`].
fn write_durations(lines: &mut String, name: &str, labels: Labels<'_>, durations: &Durations) {
    let bucket = format!("{name}_bucket");
    let mut below = 0_u64;
    for (limit, count) in LIMITS_US.into_iter().zip(durations.buckets) {
        below = below.saturating_add(count);
        let seconds = limit as f64 / 1e6;
        let bound: &dyn Display = &seconds;
        let labels = [labels, &[("le", bound)]].concat();
        write_sample(lines, &bucket, &labels, below);
    }
    let count = durations.count();
    let all: &dyn Display = &"+Inf";
    let bounded = [labels, &[("le", all)]].concat();
    write_sample(lines, &bucket, &bounded, count);
    let sum = durations.sum_us as f64 / 1e6;
    write_sample(lines, &format!("{name}_sum"), labels, sum);
    write_sample(lines, &format!("{name}_count"), labels, count);
}

/// The lines of a histogram with buckets of these limits, in a unit of this many base units.
fn write_histogram(
    out: &mut String,
    name: &str,
    labels: Labels<'_>,
    of: &Histogram,
    (limits, unit): (&[u64], f64),
) {
    let bucket = format!("{name}_bucket");
    for limit in limits {
        let upper: &dyn Display = &(*limit as f64 * unit);
        let labels = [labels, &[("le", upper)]].concat();
        write_sample(out, &bucket, &labels, of.at_most(*limit));
    }
    let all: &dyn Display = &"+Inf";
    let bounded = [labels, &[("le", all)]].concat();
    write_sample(out, &bucket, &bounded, of.count());
    let sum = of.sum() as f64 * unit;
    write_sample(out, &format!("{name}_sum"), labels, sum);
    write_sample(out, &format!("{name}_count"), labels, of.count());
}

/// One series of the blocking record.
struct BlockingSeries<'a> {
    call: &'a str,
    label: Label,
    symbol: &'a str,
    value: f64,
}

/// Adds up call sites of the same name: they may have several stacks, but a series may appear only
/// once.
fn by_site(trace: &Report, value: fn(&headway_debox::Site) -> f64) -> Vec<BlockingSeries<'_>> {
    let mut sums: Vec<BlockingSeries<'_>> = Vec::new();
    for site in &trace.sleeps {
        let one = BlockingSeries {
            call: &site.call,
            label: site.label,
            symbol: site.symbol.as_deref().unwrap_or("unknown"),
            value: value(site),
        };
        let same = |sum: &&mut BlockingSeries<'_>| {
            (sum.call, sum.label, sum.symbol) == (one.call, one.label, one.symbol)
        };
        match sums.iter_mut().find(same) {
            Some(sum) => sum.value += one.value,
            None => sums.push(one),
        }
    }
    sums
}

fn level(level: &TraceLevel) -> u8 {
    match level {
        TraceLevel::Stacks => 2,
        TraceLevel::SwitchesOnly { .. } => 1,
        TraceLevel::Off { .. } => 0,
    }
}

fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
