//! All metric families: those made from [`Counters`] and those made from other sources.
//!
//! The table below has the other ones. The Prometheus output takes names and HELP texts from it,
//! and the metrics reference lists it, so the two cannot differ.

use super::{Counters, SeriesKind};

/// Type of a metric family in the Prometheus text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A value that only grows.
    Counter,
    /// A current value.
    Gauge,
    /// A distribution in buckets.
    Histogram,
}

impl MetricType {
    /// The type as a `# TYPE` line names it.
    pub fn as_str(self) -> &'static str {
        match self {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        }
    }
}

impl From<SeriesKind> for MetricType {
    fn from(kind: SeriesKind) -> MetricType {
        match kind {
            SeriesKind::Counter => MetricType::Counter,
            SeriesKind::Gauge | SeriesKind::Peak => MetricType::Gauge,
        }
    }
}

/// One metric family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Heading under which the reference lists it.
    pub group: &'static str,
    /// The whole name.
    pub name: String,
    /// The family's type.
    pub kind: MetricType,
    /// The names of its labels.
    pub labels: Vec<&'static str>,
    /// The family's HELP text.
    pub help: &'static str,
    /// The family's series where they are known in advance: label values and meaning.
    pub series: Vec<(Vec<&'static str>, &'static str)>,
}

/// A family that is not made from [`Counters`].
#[derive(Clone, Copy, Debug)]
pub struct FixedFamily {
    /// Heading under which the reference lists it.
    pub group: &'static str,
    /// The whole name.
    pub name: &'static str,
    /// The family's type.
    pub kind: MetricType,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The family's HELP text.
    pub help: &'static str,
}

macro_rules! families {
    ($( $group:literal { $( $constant:ident $kind:ident $name:literal [$( $label:ident )*] $help:literal; )* } )*) => {
        $( $(
            #[doc = $help]
            pub const $constant: FixedFamily = FixedFamily {
                group: $group,
                name: $name,
                kind: MetricType::$kind,
                labels: &[$( stringify!($label) ),*],
                help: $help,
            };
        )* )*

        const FIXED: &[FixedFamily] = &[ $( $( $constant, )* )* ];
    };
}

families! {
    "Server" {
        BUILD_INFO Gauge "headway_build_info" [version events residency] "Always 1. The labels name the version, the event mechanism and the residency probe.";
        START_TIME Gauge "process_start_time_seconds" [] "Start time of the master process, in seconds since 1970.";
        WORKERS Gauge "headway_workers" [state] "Workers now, by state: responding, or unresponsive (no answer in time for this scrape).";
        WORKER_CONNECTIONS Gauge "headway_worker_connections" [worker] "Client connections open now, by worker.";
        WORKER_ACCEPTED Counter "headway_worker_connections_accepted_total" [worker] "Connections accepted, by worker.";
        WORKER_REQUESTS Counter "headway_worker_requests_received_total" [worker] "Requests received, by worker.";
        WORKER_SKEW Gauge "headway_worker_skew_ratio" [of] "Busiest worker divided by the average of all workers; 1 is balanced.";
    }
    "Loop" {
        BLOCKED Counter "headway_loop_blocked_total" [call resource site] "Times that an event loop slept outside its event wait, by system call, resource and kernel function.";
        BLOCKED_SECONDS Counter "headway_loop_blocked_seconds_total" [call resource site] "Time that event loops slept outside their event wait, by system call, resource and kernel function.";
        LONGEST_TURN Gauge "headway_loop_longest_turn_seconds" [worker stage] "Time that each stage took in the longest turn of the worker's event loop so far. The sum of the stages is that turn.";
        WAITS Counter "headway_loop_waits_total" [] "Times that an event loop slept in its event wait.";
        WAIT_SECONDS Counter "headway_loop_wait_seconds_total" [] "Time that event loops slept in their event wait.";
        PREEMPTIONS Counter "headway_loop_preemptions_total" [] "Times that the kernel preempted an event loop.";
        SYSTEM_CALLS Counter "headway_system_calls_total" [call] "System calls of the event loops.";
        TRACE_LEVEL Gauge "headway_trace_level" [] "What the tracer of the event loops sees: 2 is sleeps and stacks, 1 is sleeps only, 0 is nothing.";
        TRACE_LOST Counter "headway_trace_lost_records_total" [] "Trace records lost. While this grows, sleeps may be missing.";
    }
    "Requests" {
        HTTP_REQUESTS Counter "headway_http_requests_total" [code method] "HTTP requests answered, by status code and method. Unknown methods are counted as other.";
        REQUEST_DURATION Histogram "headway_http_request_duration_seconds" [host handler class] "Time from the first byte of a request to the last byte of its response, by host, handler and class of the status. An upgraded connection counts as 1xx.";
        REQUEST_STAGE Histogram "headway_http_request_stage_seconds" [stage] "Time that requests spent in a stage: queue (for a slot of a location), lookup (of a file or handler), upstream (until the header of its response) or send.";
    }
    "Handlers and upstreams" {
        UPSTREAM_REQUESTS Gauge "headway_upstream_requests_active" [location upstream] "Requests under way at an upstream now.";
        UPSTREAM_IDLE Gauge "headway_upstream_idle_connections" [location upstream] "Keep-alive connections to an upstream that wait for the next request now.";
        UPSTREAM_CONSECUTIVE_FAILURES Gauge "headway_upstream_consecutive_failures" [location upstream] "Consecutive failures of an upstream since its last ejection, as seen by the worker that saw the most.";
        UPSTREAM_EJECTIONS Gauge "headway_upstream_ejections" [location upstream] "Ejections of an upstream since its last answer, as seen by the worker that saw the most.";
        UPSTREAM_EJECTED Gauge "headway_upstream_ejected" [location upstream] "Workers that have ejected an upstream now, because it failed.";
        UPSTREAM_EJECTED_SECONDS Gauge "headway_upstream_ejection_remaining_seconds" [location upstream] "Time until the last worker that has ejected an upstream tries it again.";
    }
    "Helpers" {
        HELPERS_STARTED Counter "headway_helpers_started_total" [] "Helper processes started.";
        HELPERS_REJECTED Counter "headway_helpers_rejected_total" [] "Helper processes that a worker requested beyond its limit.";
    }
    "Content store" {
        STORED_FILES Gauge "headway_content_store_files" [] "Files in the content store of all workers now.";
        STORED_BYTES Gauge "headway_content_store_bytes" [] "Bytes of the content store of all workers now, in whole pages.";
        STORED_LIMIT Gauge "headway_content_store_limit_bytes" [] "Bytes that the content store may have, given the memory available now.";
        STORED_SHARED Counter "headway_content_store_shared_total" [] "Files in the content store given to a worker that another one had copied.";
        STORED_EVICTED Counter "headway_content_store_evicted_total" [] "Files evicted from the content store of all workers: for other files, or for lack of memory.";
        STORED_REJECTED Counter "headway_content_store_rejected_total" [] "Copies not stored: there was no room, or they could still change.";
    }
    "Page-cache pinning" {
        PINNED_FILES Gauge "headway_pinned_files" [] "Small files pinned in the page cache for all workers now.";
        PINNED_BYTES Gauge "headway_pinned_bytes" [] "Bytes of pinned files now, in whole pages.";
        PINNED_LIMIT Gauge "headway_pinned_limit_bytes" [] "Bytes that may be pinned, given the memory available now.";
        PINNED_EVICTED Counter "headway_pinned_evicted_total" [] "Pinned files released: for other files, for lack of memory, or because they were deleted.";
        PINNED_REJECTED Counter "headway_pinned_rejected_total" [] "Files not pinned: no room, no longer in memory, or refused by the kernel.";
    }
    "Log and processes" {
        LOG_LINES_DROPPED Counter "headway_log_lines_dropped_total" [stage] "Access log lines dropped, by stage.";
        SPANS_EXPORTED Counter "headway_spans_exported_total" [] "Spans of requests that the collector has taken.";
        SPANS_DROPPED Counter "headway_spans_dropped_total" [stage] "Spans of requests dropped, by stage.";
        WORKERS_STUCK Counter "headway_stuck_workers_replaced_total" [] "Workers replaced because they made no progress for worker-timeout. They count as process deaths, too.";
        RELOADS Counter "headway_config_reloads_total" [result] "Reloads of the configuration: done, or failed, so that the one before is in use.";
        UPGRADES Counter "headway_program_upgrades_total" [result] "Upgrades of the program: done, or failed, so that the one before goes on.";
        ACME_CERTIFICATES Counter "headway_acme_certificates_total" [result] "Orders of automatic certificates, by result. After a failure the previous certificate stays in use.";
        ACME_EXPIRY Gauge "headway_acme_certificate_expiry_seconds" [host] "When the automatic certificate of a name expires, in seconds since 1970. 0 while it is self-signed.";
        TLS_EXPIRY Gauge "headway_tls_certificate_expiry_seconds" [host] "When the certificate in use expires, by its first name, in seconds since 1970.";
        PROCESS_DEATHS Counter "headway_process_deaths_total" [process] "Processes of the server that ended unexpectedly, by kind of process.";
    }
    "Kernel" {
        LISTEN_OVERFLOWS Counter "headway_network_listen_overflows_total" [] "Connections that met a full accept queue, on the whole machine since the start of the server.";
        LISTEN_DROPS Counter "headway_network_listen_drops_total" [] "SYNs dropped at a listener for any reason, on the whole machine since the start of the server.";
        SYN_QUEUE_DROPS Counter "headway_network_syn_queue_drops_total" [] "SYNs dropped because the queue of half-open connections was full, on the whole machine since the start of the server.";
        SYN_COOKIES Counter "headway_network_syn_cookies_sent_total" [] "SYN cookies sent because the queue of half-open connections was full, on the whole machine since the start of the server.";
        DEFERRED_DROPS Counter "headway_network_deferred_drops_total" [] "Handshakes deferred until the client sends data (TCP_DEFER_ACCEPT), on the whole machine since the start of the server.";
    }
}

/// Headings in the order in which the reference lists them.
pub const GROUPS: [&str; 14] = [
    "Server",
    "Connections",
    "TLS",
    "HTTP/2",
    "Accepting",
    "Requests",
    "Loop",
    "Caches",
    "Helpers",
    "Handlers and upstreams",
    "Content store",
    "Page-cache pinning",
    "Log and processes",
    "Kernel",
];

/// The whole name of a family of [`Counters`]: one whose key ends in `_us` is in seconds.
pub fn full_name(family: &str, key: &str, kind: MetricType) -> String {
    let unit = if key.ends_with("_us") { "_seconds" } else { "" };
    let total = if kind == MetricType::Counter {
        "_total"
    } else {
        ""
    };
    format!("headway_{family}{unit}{total}")
}

/// Whether a histogram of [`Counters`] has a series for each worker, so that one slow loop is seen
/// among the others.
pub fn is_per_worker(key: &str) -> bool {
    matches!(key, "loop_turn_us" | "loop_lag_us")
}

/// Every family that the server can show, grouped as in [`GROUPS`] and each once.
pub fn all() -> Vec<Family> {
    let counters = Counters::default();
    let mut families: Vec<Family> = Vec::new();
    for fixed in FIXED {
        families.push(Family {
            group: fixed.group,
            name: fixed.name.to_owned(),
            kind: fixed.kind,
            labels: fixed.labels.to_vec(),
            help: fixed.help,
            series: Vec::new(),
        });
    }
    for series in counters.series() {
        let kind = MetricType::from(series.kind);
        let name = full_name(series.family, series.key, kind);
        let family = match families.iter().position(|family| family.name == name) {
            Some(position) => &mut families[position],
            None => {
                families.push(Family {
                    group: series.group,
                    name,
                    kind,
                    labels: series.labels.to_vec(),
                    help: series.family_help,
                    series: Vec::new(),
                });
                let last = families.len() - 1;
                &mut families[last]
            }
        };
        if !series.values.is_empty() {
            family.series.push((series.values.to_vec(), series.help));
        }
    }
    for histogram in counters.histograms() {
        families.push(Family {
            group: histogram.group,
            name: full_name(histogram.family, histogram.key, MetricType::Histogram),
            kind: MetricType::Histogram,
            labels: match is_per_worker(histogram.key) {
                false => Vec::new(),
                true => vec!["worker"],
            },
            help: histogram.help,
            series: Vec::new(),
        });
    }
    let rank = |group| GROUPS.iter().position(|known| *known == group);
    families.sort_by_key(|family| rank(family.group).unwrap_or(GROUPS.len()));
    families
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The rules of `promtool check metrics`, and our own for HELP texts.
    #[test]
    fn every_family_follows_the_prometheus_conventions() {
        let units = [
            "_ms",
            "_us",
            "_ns",
            "_milliseconds",
            "_kb",
            "_mb",
            "_minutes",
            "_percent",
        ];
        let mut names = BTreeSet::new();
        for family in all() {
            let name = family.name.as_str();
            assert!(names.insert(family.name.clone()), "{name} twice");
            let is_snake =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(name.bytes().all(is_snake) && !name.contains("__"), "{name}");
            assert!(
                name.starts_with("headway_") || name == START_TIME.name,
                "{name}"
            );
            assert_eq!(
                name.ends_with("_total"),
                family.kind == MetricType::Counter,
                "{name}"
            );
            for suffix in ["_count", "_sum", "_bucket", "_info"] {
                assert!(!name.ends_with(suffix) || name == BUILD_INFO.name, "{name}");
            }
            let stem = name.trim_end_matches("_total");
            assert!(
                !units.iter().any(|unit| stem.ends_with(unit)),
                "{name}: base units"
            );
            assert!(family.help.ends_with('.'), "{name}: {}", family.help);
            assert!(GROUPS.contains(&family.group), "{name}");
            let distinct: BTreeSet<_> = family.labels.iter().collect();
            assert_eq!(distinct.len(), family.labels.len(), "{name}");
            assert!(
                !distinct.contains(&"le") && !distinct.contains(&"quantile"),
                "{name}"
            );
            let mut values = BTreeSet::new();
            for (series, help) in &family.series {
                assert_eq!(series.len(), family.labels.len(), "{name} {series:?}");
                assert!(values.insert(series.clone()), "{name} {series:?} twice");
                assert!(help.ends_with('.'), "{name} {series:?}: {help}");
            }
        }
    }
}
