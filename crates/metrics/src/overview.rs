//! The whole server at one moment: the source of the status page, the JSON and the metrics.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::families::{self, FixedFamily};
use super::features::Feature;
use super::{Counters, NetworkDrops, Snapshot};

/// The whole server at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Overview {
    /// The version of Headway.
    pub version: String,
    /// The name of the machine.
    #[serde(default)]
    pub host_name: String,
    /// Features that are off.
    #[serde(default)]
    pub off: Vec<Feature>,
    /// When the overview was taken, in milliseconds since 1970.
    pub time_ms: u64,
    /// The master's own numbers.
    pub master: MasterStatus,
    /// The sum of all workers, ended ones included. `None` until a first worker has answered.
    pub total: Option<Snapshot>,
    /// The workers that answered.
    pub workers: Vec<Snapshot>,
    /// Numbers of the workers that did not answer in time.
    pub unresponsive: Vec<u32>,
    /// How evenly the workers that answered share the work.
    #[serde(default)]
    pub skew: Skew,
}

/// Busiest worker divided by the average of all workers: 1 when the work is balanced, the number of
/// workers when one does everything.
///
/// `None` with fewer than two workers, and where all numbers are 0. A worker counts from its own
/// start, so a replacement begins at 0.
///
/// ```
/// use headway_metrics::Skew;
/// assert_eq!(Skew::ratio([30, 10]), Some(1.5));
/// assert_eq!(Skew::ratio([30]), None);
/// assert_eq!(Skew::ratio([0, 0]), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Skew {
    /// Skew of the connections open now.
    pub connections_open: Option<f64>,
    /// Skew of the connections accepted.
    pub connections_accepted: Option<f64>,
    /// Skew of the requests received.
    pub requests_received: Option<f64>,
}

impl Skew {
    /// Skew of these workers.
    pub fn of(workers: &[Snapshot]) -> Skew {
        let of = |number: fn(&Counters) -> u64| {
            Skew::ratio(workers.iter().map(|worker| number(&worker.counters)))
        };
        Skew {
            connections_open: of(|counters| counters.connections_open),
            connections_accepted: of(|counters| counters.connections_accepted),
            requests_received: of(|counters| counters.requests_received),
        }
    }

    /// The largest number divided by the mean.
    pub fn ratio(numbers: impl IntoIterator<Item = u64>) -> Option<f64> {
        let (mut count, mut sum, mut most) = (0_u64, 0_u64, 0_u64);
        for number in numbers {
            (count, sum, most) = (count + 1, number.saturating_add(sum), most.max(number));
        }
        (count > 1 && sum > 0).then(|| most as f64 * count as f64 / sum as f64)
    }

    /// All three with their names.
    pub fn all(&self) -> [(&'static str, Option<f64>); 3] {
        [
            ("connections_open", self.connections_open),
            ("connections_accepted", self.connections_accepted),
            ("requests_received", self.requests_received),
        ]
    }
}

/// The master's own numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MasterStatus {
    /// The master's process id.
    pub pid: u32,
    /// When the master started, in milliseconds since 1970.
    #[serde(default)]
    pub start_time_ms: u64,
    /// Milliseconds since the master began to serve.
    pub uptime_ms: u64,
    /// The addresses served.
    pub listen: Vec<String>,
    /// Workers that ended unexpectedly.
    pub worker_deaths: u64,
    /// Workers replaced because they made no progress; also in `worker_deaths`.
    #[serde(default)]
    pub workers_stuck: u64,
    /// Helper processes started.
    pub helpers_started: u64,
    /// Helper processes that a worker requested beyond its limit.
    pub helpers_rejected: u64,
    /// Log processes that ended unexpectedly.
    pub log_deaths: u64,
    /// Spawners that ended unexpectedly.
    #[serde(default)]
    pub spawner_deaths: u64,
    /// Handshake processes that ended unexpectedly.
    #[serde(default)]
    pub handshake_process_deaths: u64,
    /// ACME processes that ended unexpectedly.
    #[serde(default)]
    pub acme_deaths: u64,
    /// Orders of certificates that succeeded.
    #[serde(default)]
    pub acme_issued: u64,
    /// Orders of certificates that failed.
    #[serde(default)]
    pub acme_failures: u64,
    /// When the automatic certificate of each name expires, in seconds since 1970; 0 for a
    /// self-signed one.
    #[serde(default)]
    pub acme_expiry_s: BTreeMap<String, u64>,
    /// When each certificate in use expires, by its first name, in seconds since 1970.
    #[serde(default)]
    pub certificate_expiry_s: BTreeMap<String, u64>,
    /// Store processes that ended unexpectedly.
    #[serde(default)]
    pub store_deaths: u64,
    /// How often the configuration was reloaded.
    #[serde(default)]
    pub reloads: u64,
    /// Reloads that failed: the configuration before is in use.
    #[serde(default)]
    pub reload_failures: u64,
    /// Why the last reload failed; `None` if it did not.
    #[serde(default)]
    pub reload_error: Option<String>,
    /// How often another program has taken over.
    #[serde(default)]
    pub upgrades: u64,
    /// Upgrades that failed: the program before goes on.
    #[serde(default)]
    pub upgrade_failures: u64,
    /// Why the last upgrade failed; `None` if it did not.
    #[serde(default)]
    pub upgrade_error: Option<String>,
    /// Page-cache pinning; `None` where it is off.
    #[serde(default)]
    pub pinned: Option<Pinned>,
    /// The content store of all workers; `None` where it is off.
    #[serde(default)]
    pub stored: Option<Stored>,
    /// Log lines the log process could not write.
    pub log_lines_lost: u64,
    /// The last error of the log process; `None` when it writes again.
    pub log_error: Option<String>,
    /// Span processes that ended unexpectedly.
    #[serde(default)]
    pub span_deaths: u64,
    /// Spans that the collector has taken.
    #[serde(default)]
    pub spans_exported: u64,
    /// Spans that the collector has not taken.
    #[serde(default)]
    pub spans_dropped: u64,
    /// Why the last spans were lost; `None` when the collector takes them again.
    #[serde(default)]
    pub span_error: Option<String>,
    /// Drops of this network namespace since the start; `None` where the kernel does not report them.
    #[serde(default)]
    pub network: Option<NetworkDrops>,
}

/// Small files pinned in the page cache for all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// Files pinned now.
    pub files: u64,
    /// Bytes of the pinned files, in whole pages.
    pub bytes: u64,
    /// Bytes that may be pinned, given the memory available now.
    pub limit_bytes: u64,
    /// Files released: for other files, for lack of memory, or because they were deleted.
    pub evicted: u64,
    /// Files not pinned: no room, no longer in memory, or refused by the kernel.
    pub rejected: u64,
}

impl Pinned {
    /// All numbers with their families.
    pub fn all(&self) -> [(&'static FixedFamily, u64); 5] {
        [
            (&families::PINNED_FILES, self.files),
            (&families::PINNED_BYTES, self.bytes),
            (&families::PINNED_LIMIT, self.limit_bytes),
            (&families::PINNED_EVICTED, self.evicted),
            (&families::PINNED_REJECTED, self.rejected),
        ]
    }
}

/// The content store that all workers share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Files in it now.
    pub files: u64,
    /// Their bytes, in whole pages.
    pub bytes: u64,
    /// Bytes that it may have, given the memory available now.
    pub limit_bytes: u64,
    /// Files given to a worker that another one had copied.
    pub shared: u64,
    /// Files evicted: for other files, or for lack of memory.
    pub evicted: u64,
    /// Copies not stored: there was no room, or they could still change.
    pub rejected: u64,
}

impl Stored {
    /// All numbers with their families.
    pub fn all(&self) -> [(&'static FixedFamily, u64); 6] {
        [
            (&families::STORED_FILES, self.files),
            (&families::STORED_BYTES, self.bytes),
            (&families::STORED_LIMIT, self.limit_bytes),
            (&families::STORED_SHARED, self.shared),
            (&families::STORED_EVICTED, self.evicted),
            (&families::STORED_REJECTED, self.rejected),
        ]
    }
}

impl From<headway_files::StoreStatistics> for Stored {
    fn from(stored: headway_files::StoreStatistics) -> Stored {
        Stored {
            files: stored.files,
            bytes: stored.bytes,
            limit_bytes: stored.bytes_max,
            shared: stored.shared,
            evicted: stored.evicted,
            rejected: stored.rejected,
        }
    }
}

impl From<headway_files::PinStatistics> for Pinned {
    fn from(pinned: headway_files::PinStatistics) -> Pinned {
        Pinned {
            files: pinned.files,
            bytes: pinned.bytes,
            limit_bytes: pinned.bytes_max,
            evicted: pinned.evicted,
            rejected: pinned.rejected,
        }
    }
}

/// The name of this machine; empty if it is unknown. Only the master calls this, because no event loop
/// reads files.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.unwrap_or_default().trim().to_owned()
}

impl Overview {
    /// Log lines dropped by workers and by the log process.
    pub fn log_lines_dropped(&self) -> u64 {
        let total = self.total.as_ref();
        let workers = total.map_or(0, |total| total.counters.log_lines_dropped);
        workers.saturating_add(self.master.log_lines_lost)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::status::{history::History, page};
    use crate::{MethodLabel, prometheus};

    fn largest(value: &mut Value) {
        match value {
            Value::Number(_) => *value = u64::MAX.into(),
            Value::Array(values) => values.iter_mut().for_each(largest),
            Value::Object(fields) => {
                let large =
                    |(key, _): &(&String, &mut Value)| !["worker", "pid"].contains(&key.as_str());
                fields
                    .iter_mut()
                    .filter(large)
                    .for_each(|(_, value)| largest(value));
            }
            _ => {}
        }
    }

    fn snapshot_of_largest_numbers() -> Snapshot {
        let mut counters = Counters::default();
        for value in [1, 3, 5000] {
            counters.ready_events.record(value);
        }
        counters.http_requests.record(200, MethodLabel::Get);
        counters.http_requests.record(404, MethodLabel::Head);
        let site = headway_debox::Site {
            call: "openat2".into(),
            stack: Vec::new(),
            symbol: None,
            label: headway_debox::Label::Unknown,
            count: 1,
            total_ns: 1,
            max_ns: 1,
        };
        let mut trace = crate::calls::Tracer::disabled().report();
        trace.calls = [("close".into(), 1), ("openat2".into(), 1)].into();
        trace.sleeps = vec![
            site.clone(),
            headway_debox::Site {
                call: "close".into(),
                ..site
            },
        ];
        let snapshot = Snapshot {
            worker: 0,
            pid: 1,
            uptime_ms: 1,
            events: String::new(),
            opening: String::new(),
            send: String::new(),
            residency: String::new(),
            counters,
            upstreams: vec![crate::Upstream::default()],
            trace,
        };
        let mut value = serde_json::to_value(snapshot).unwrap();
        largest(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn sums_stop_at_the_largest_number_when_workers_report_it() {
        let workers = vec![snapshot_of_largest_numbers(), snapshot_of_largest_numbers()];
        let total = Snapshot::total(&workers).unwrap();
        assert_eq!(total.counters.connections_accepted, u64::MAX);
        assert_eq!(total.counters.ready_events.count(), u64::MAX);
        assert_eq!(total.upstreams[0].requests_active, u64::MAX);
        assert_eq!(total.trace.blocked_count(), u64::MAX);
        let overview = Overview {
            version: String::new(),
            host_name: String::new(),
            off: Vec::new(),
            time_ms: 1,
            master: MasterStatus {
                log_lines_lost: 1,
                ..MasterStatus::default()
            },
            total: Some(total),
            skew: Skew::of(&workers),
            workers,
            unresponsive: Vec::new(),
        };
        assert_eq!(overview.log_lines_dropped(), u64::MAX);
        assert!(prometheus::render(&overview).contains("headway_build_info"));
        assert!(page::render(&overview, &History::default()).ends_with("</html>\n"));
    }
}
