//! The numbers in the Prometheus text format, version 0.0.4.
//!
//! Names begin with `headway_`, counters end in `_total`, times are in seconds. Series about all
//! workers together survive the death of a worker; those with a `worker` label begin anew with it.
//! Source: the exposition formats page of the Prometheus documentation.

use headway_debox::{Label, Report, Rung};
use std::fmt::{Display, Write};

use super::{BackEnd, Counters, Histogram, Kind, MasterTally, Overview, Snapshot};

/// The content type of this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bounds of the histograms of small integers; they are bucket bounds, so the counts are exact.
const SMALL_BOUNDS: &[u64] = &[0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// Bounds of the histograms of microseconds: 16 µs to 17 s.
const TIME_BOUNDS_US: &[u64] = &[
    16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144,
    524_288, 1_048_576, 2_097_152, 4_194_304, 8_388_608, 16_777_216,
];

/// All metrics of one moment.
pub fn render(overview: &Overview) -> String {
    let mut out = Metrics(String::with_capacity(16 * 1024));
    if let Some(total) = &overview.total {
        out.blocking(&total.trace);
        out.counters(&total.counters);
        out.back_ends(&total.back_ends);
        out.trace(&total.trace);
        out.info(overview, total);
    }
    out.master(overview);
    out.workers(overview);
    out.0
}

struct Metrics(String);

impl Metrics {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String can not fail, here and below.
        let _ = writeln!(
            self.0,
            "# HELP {name} {}\n# TYPE {name} {kind}",
            help.replace('\\', "\\\\")
        );
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        self.0.push_str(name);
        for (position, (label, text)) in labels.iter().enumerate() {
            let before = if position == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escaped(&text.to_string()));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// A first series with empty labels is always there and always 0, so that an alert on the sum
    /// has something to look at before anything blocked.
    fn blocking(&mut self, trace: &Report) {
        type Value = fn(&headway_debox::Site) -> f64;
        let families: [(&str, &str, Value); 2] = [
            (
                "headway_loop_blocked_total",
                "Voluntary sleeps of the event loops outside the event wait, by system call and kernel site.",
                |site| site.count as f64,
            ),
            (
                "headway_loop_blocked_seconds_total",
                "Time slept by the event loops outside the event wait, by system call and kernel site.",
                |site| site.total_ns as f64 / 1e9,
            ),
        ];
        for (name, help, value) in families {
            self.family(name, "counter", help);
            self.sample(name, &[("call", &""), ("resource", &""), ("site", &"")], 0);
            for sum in by_site(trace, value) {
                let labels: [(&str, &dyn Display); 3] = [
                    ("call", &sum.call),
                    ("resource", &sum.label),
                    ("site", &sum.symbol),
                ];
                self.sample(name, &labels, sum.value);
            }
        }
    }

    fn counters(&mut self, counters: &Counters) {
        self.family(
            "headway_responses_total",
            "counter",
            "Responses by status code.",
        );
        for (status, count) in counters.responses.sorted() {
            self.sample("headway_responses_total", &[("status", &status)], count);
        }
        for scalar in counters.scalars() {
            let (suffix, kind) = match scalar.kind {
                Kind::Counter => ("_total", "counter"),
                Kind::Gauge | Kind::Peak => ("", "gauge"),
            };
            self.single(
                &format!("headway_{}{suffix}", scalar.name),
                kind,
                scalar.help,
                scalar.value,
            );
        }
        for (name, help, histogram) in counters.histograms() {
            match name.strip_suffix("_us") {
                None => self.histogram(
                    &format!("headway_{name}"),
                    help,
                    histogram,
                    SMALL_BOUNDS,
                    1.0,
                ),
                Some(name) => {
                    let help = help.replace(", in microseconds", ", in seconds");
                    let name = format!("headway_{name}_seconds");
                    self.histogram(&name, &help, histogram, TIME_BOUNDS_US, 1e-6);
                }
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, of: &Histogram, bounds: &[u64], unit: f64) {
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for bound in bounds {
            self.sample(
                &bucket,
                &[("le", &(*bound as f64 * unit))],
                of.at_most(*bound),
            );
        }
        self.sample(&bucket, &[("le", &"+Inf")], of.count());
        self.sample(&format!("{name}_sum"), &[], of.sum() as f64 * unit);
        self.sample(&format!("{name}_count"), &[], of.count());
    }

    fn trace(&mut self, trace: &Report) {
        let help =
            "How much the tracer of the loops sees: 2 sleeps and stacks, 1 sleeps only, 0 nothing.";
        self.single("headway_trace_rung", "gauge", help, rung(&trace.rung));
        let help = "Trace records lost; while this grows, sleeps may be missing.";
        self.single(
            "headway_trace_lost_records_total",
            "counter",
            help,
            trace.lost_records,
        );
        let help = "Sleeps of the event loops in the event wait.";
        self.single(
            "headway_loop_waits_total",
            "counter",
            help,
            trace.waits.count,
        );
        let help = "Time the event loops slept in the event wait.";
        let seconds = trace.waits.total_ns as f64 / 1e9;
        self.single("headway_loop_wait_seconds_total", "counter", help, seconds);
        let help = "Times a loop lost its processor while it could have run on.";
        self.single(
            "headway_loop_preempted_total",
            "counter",
            help,
            trace.preemptions.count,
        );
        let help = "System calls of the event loops.";
        self.family("headway_system_calls_total", "counter", help);
        for (call, count) in &trace.calls {
            self.sample("headway_system_calls_total", &[("call", call)], count);
        }
    }

    fn info(&mut self, overview: &Overview, total: &Snapshot) {
        self.family(
            "headway_info",
            "gauge",
            "Always 1; the labels say what runs.",
        );
        let labels: [(&str, &dyn Display); 3] = [
            ("version", &overview.version),
            ("events", &total.events),
            ("residency", &total.residency),
        ];
        self.sample("headway_info", &labels, 1);
    }

    fn master(&mut self, overview: &Overview) {
        let master = &overview.master;
        let seconds = master.uptime_ms as f64 / 1e3;
        self.single(
            "headway_uptime_seconds",
            "gauge",
            "Time since the master began.",
            seconds,
        );
        let help = "Workers that ended unasked.";
        self.single(
            "headway_worker_deaths_total",
            "counter",
            help,
            master.worker_deaths,
        );
        let help = "Helper processes started.";
        self.single(
            "headway_helpers_spawned_total",
            "counter",
            help,
            master.helpers_spawned,
        );
        let help = "Helper processes refused beyond a worker's bound.";
        self.single(
            "headway_helpers_refused_total",
            "counter",
            help,
            master.helpers_refused,
        );
        let help = "Log processes that ended unasked.";
        self.single(
            "headway_log_deaths_total",
            "counter",
            help,
            master.log_deaths,
        );
        let help = "Fork helpers that ended unasked.";
        self.single(
            "headway_spawner_deaths_total",
            "counter",
            help,
            master.spawner_deaths,
        );
        self.kept(master);
        let help = "Access log lines the log process could not write.";
        self.single(
            "headway_log_lines_lost_total",
            "counter",
            help,
            master.log_lines_lost,
        );
        for (name, help, value) in master.network.map(|drops| drops.all()).unwrap_or_default() {
            self.single(
                &format!("headway_network_{name}_total"),
                "counter",
                help,
                value,
            );
        }
        let help = "Workers that did not answer in time for this scrape.";
        self.single(
            "headway_workers_silent",
            "gauge",
            help,
            overview.silent.len(),
        );
        self.single(
            "headway_workers",
            "gauge",
            "Workers that answered.",
            overview.workers.len(),
        );
    }

    /// Small files that stay in the page cache for all workers.
    fn kept(&mut self, master: &MasterTally) {
        let help = "Keepers of small files that ended unasked.";
        self.single(
            "headway_keeper_deaths_total",
            "counter",
            help,
            master.keeper_deaths,
        );
        let Some(kept) = master.kept else { return };
        for (name, help, value) in kept.gauges() {
            self.single(&format!("headway_kept_{name}"), "gauge", help, value);
        }
        for (name, help, value) in kept.counters() {
            self.single(
                &format!("headway_kept_{name}_total"),
                "counter",
                help,
                value,
            );
        }
    }

    /// Which back ends do their work, and which are left alone.
    fn back_ends(&mut self, all: &[BackEnd]) {
        type Value = fn(&BackEnd) -> f64;
        let families: [(&str, &str, Value); 6] = [
            (
                "headway_upstream_requests",
                "Requests under way, by location and back end.",
                |one| one.requests as f64,
            ),
            (
                "headway_upstream_idle",
                "Connections that wait for the next request.",
                |one| one.idle as f64,
            ),
            (
                "headway_upstream_failures",
                "Failures in a row since it was left alone last; the most that one worker has seen.",
                |one| one.failures as f64,
            ),
            (
                "headway_upstream_ejections",
                "How often it has been left alone since it answered last; the most of one worker.",
                |one| one.ejections as f64,
            ),
            (
                "headway_upstream_left_alone",
                "Workers that leave it alone now, because it failed.",
                |one| one.left_alone as f64,
            ),
            (
                "headway_upstream_left_alone_seconds",
                "How much longer the last of them does.",
                |one| one.left_alone_ms as f64 / 1e3,
            ),
        ];
        for (name, help, value) in families {
            if !all.is_empty() {
                self.family(name, "gauge", help);
            }
            for one in all {
                let labels: [(&str, &dyn Display); 2] =
                    [("location", &one.location), ("back_end", &one.address)];
                self.sample(name, &labels, value(one));
            }
        }
    }

    /// How evenly the kernel spreads clients over workers.
    fn workers(&mut self, overview: &Overview) {
        type Value = fn(&Snapshot) -> u64;
        let families: [(&str, &str, &str, Value); 3] = [
            (
                "headway_worker_connections_open",
                "gauge",
                "Connections open now, by worker.",
                |one| one.counters.connections_open,
            ),
            (
                "headway_worker_accepted_total",
                "counter",
                "Connections accepted, by worker.",
                |one| one.counters.accepted,
            ),
            (
                "headway_worker_requests_total",
                "counter",
                "Requests, by worker.",
                |one| one.counters.requests,
            ),
        ];
        for (name, kind, help, value) in families {
            self.family(name, kind, help);
            for worker in &overview.workers {
                self.sample(name, &[("worker", &worker.worker)], value(worker));
            }
        }
        let help = "The most that one worker has, by the mean of all workers: 1 is even.";
        self.family("headway_worker_skew", "gauge", help);
        for (of, skew) in overview.skew.all() {
            if let Some(skew) = skew {
                self.sample("headway_worker_skew", &[("of", &of)], skew);
            }
        }
    }
}

/// What one series says.
struct Sum<'a> {
    call: &'a str,
    label: Label,
    symbol: &'a str,
    value: f64,
}

/// Sites of one name may have several stacks; a series may appear only once.
fn by_site(trace: &Report, value: fn(&headway_debox::Site) -> f64) -> Vec<Sum<'_>> {
    let mut sums: Vec<Sum<'_>> = Vec::new();
    for site in &trace.sleeps {
        let one = Sum {
            call: &site.call,
            label: site.label,
            symbol: site.symbol.as_deref().unwrap_or("unknown"),
            value: value(site),
        };
        let same = |sum: &&mut Sum<'_>| {
            (sum.call, sum.label, sum.symbol) == (one.call, one.label, one.symbol)
        };
        match sums.iter_mut().find(same) {
            Some(sum) => sum.value += one.value,
            None => sums.push(one),
        }
    }
    sums
}

fn rung(rung: &Rung) -> u8 {
    match rung {
        Rung::Stacks => 2,
        Rung::SwitchesOnly { .. } => 1,
        Rung::Off { .. } => 0,
    }
}

fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
