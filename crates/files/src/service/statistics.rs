//! What the open-file service counts, and how Prometheus reads it.

use crate::pinner::PinStatistics;
use crate::pool::PoolStatistics;
use std::fmt::Write;

/// The service's counters; all but the gauges only grow.
#[derive(Clone, Debug, Default)]
pub struct ServiceStatistics {
    /// Requests of this protocol version.
    pub requests: u64,
    /// Answers: an open file.
    pub files: u64,
    /// Answers: a directory.
    pub directories: u64,
    /// Answers: no file, and why.
    pub failed: u64,
    /// Answers: below none of the roots.
    pub elsewhere: u64,
    /// Answers: too much is waiting already.
    pub busy: u64,
    /// Paths answered from the file cache, including revalidated ones.
    pub hits: u64,
    /// Paths answered from the kernel's name cache.
    pub probed: u64,
    /// Paths that a helper resolved.
    pub helped: u64,
    /// Beginnings of files that a helper read into memory.
    pub read_in: u64,
    /// Gauge: connected clients.
    pub clients: u64,
    /// Clients accepted.
    pub accepted: u64,
    /// Clients rejected because their user is not allowed.
    pub refused_user: u64,
    /// Clients turned away because there was no room or no descriptor.
    pub refused_full: u64,
    /// Clients disconnected because they did not receive their answers.
    pub stalled: u64,
    /// Clients closed because they sent something else than the protocol has.
    pub malformed: u64,
    /// Clients closed because they spoke another version.
    pub other_version: u64,
    /// Gauge: names remembered.
    pub cache_entries: u64,
    /// Gauge: descriptors held open by them.
    pub cache_descriptors: u64,
    /// Small files that stay in memory.
    pub pinned: PinStatistics,
    /// The helpers.
    pub pool: PoolStatistics,
}

impl ServiceStatistics {
    /// The counters in the text format of Prometheus.
    ///
    /// # Example
    /// ```
    /// let text = headway_files::service::ServiceStatistics::default().prometheus();
    /// assert!(text.contains("\nheadway_open_requests_total 0\n"));
    /// ```
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        for family in [
            &self.requests(),
            &self.connections(),
            &self.memory(),
            &self.jobs(),
        ] {
            family.iter().for_each(|family| family.write(&mut text));
        }
        text
    }

    fn requests(&self) -> Vec<Family> {
        vec![
            Family::counter("requests_total", "Requests received.", self.requests),
            Family {
                name: "answers_total",
                kind: "counter",
                help: "Answers by result: done, a path below no root, or busy because the job queue was full.",
                // Not what a path was: other users of this machine may read the page.
                values: vec![
                    (
                        r#"{result="done"}"#,
                        self.files + self.directories + self.failed,
                    ),
                    (r#"{result="elsewhere"}"#, self.elsewhere),
                    (r#"{result="busy"}"#, self.busy),
                ],
            },
            Family {
                name: "lookups_total",
                kind: "counter",
                help: "Paths by where the answer came from: the file cache, the kernel's name cache, or a helper.",
                values: vec![
                    (r#"{source="cache"}"#, self.hits),
                    (r#"{source="kernel"}"#, self.probed),
                    (r#"{source="helper"}"#, self.helped),
                ],
            },
            Family::counter(
                "prefetches_total",
                "Files whose beginning a helper was asked to read into memory.",
                self.read_in,
            ),
        ]
    }

    fn connections(&self) -> Vec<Family> {
        vec![
            Family::gauge("connections", "Connected clients.", self.clients),
            Family::counter(
                "connections_accepted_total",
                "Clients accepted.",
                self.accepted,
            ),
            Family {
                name: "connections_closed_total",
                kind: "counter",
                help: "Clients disconnected by reason: a user that is not allowed, no room or descriptor, answers not \
                       received in time, malformed data, or another protocol version.",
                values: vec![
                    (r#"{reason="user"}"#, self.refused_user),
                    (r#"{reason="full"}"#, self.refused_full),
                    (r#"{reason="timeout"}"#, self.stalled),
                    (r#"{reason="malformed"}"#, self.malformed),
                    (r#"{reason="version"}"#, self.other_version),
                ],
            },
        ]
    }

    fn memory(&self) -> Vec<Family> {
        let pinned = &self.pinned;
        vec![
            Family::gauge(
                "cache_entries",
                "Entries in the file cache.",
                self.cache_entries,
            ),
            Family::gauge(
                "cache_descriptors",
                "Descriptors that the file cache keeps open.",
                self.cache_descriptors,
            ),
            Family::gauge(
                "pinned_files",
                "Small files pinned in memory.",
                pinned.files,
            ),
            Family::gauge(
                "pinned_bytes",
                "Bytes pinned, in whole pages.",
                pinned.bytes,
            ),
            Family::gauge(
                "pinned_limit_bytes",
                "Limit of pinned bytes now.",
                pinned.bytes_max,
            ),
            Family::counter(
                "pinned_evictions_total",
                "Pinned files released: for other files, for lack of memory, or because they were deleted.",
                pinned.evicted,
            ),
            Family::counter(
                "pinned_rejections_total",
                "Files not pinned: the queue or the limit was full, the file was no longer in memory, or the kernel refused.",
                pinned.rejected,
            ),
        ]
    }

    fn jobs(&self) -> Vec<Family> {
        let pool = &self.pool;
        vec![
            Family {
                name: "helpers",
                kind: "gauge",
                help: "Helper processes by state.",
                values: vec![
                    (r#"{state="busy"}"#, pool.busy),
                    (r#"{state="idle"}"#, pool.helpers.saturating_sub(pool.busy)),
                ],
            },
            Family::gauge(
                "helper_queue_length",
                "Jobs waiting for a helper.",
                pool.queue,
            ),
            Family::counter(
                "helper_jobs_joined_total",
                "Jobs that joined an equal one already queued or running.",
                pool.coalesced,
            ),
            Family::counter(
                "helper_deaths_total",
                "Helpers that ended during a job.",
                pool.deaths,
            ),
            Family::counter(
                "helper_wait_microseconds_total",
                "Time that jobs waited for a helper, in microseconds.",
                pool.queue_us.sum,
            ),
            Family::counter(
                "helper_service_microseconds_total",
                "Time that helpers worked, in microseconds.",
                pool.service_us.sum,
            ),
        ]
    }
}

#[cfg(test)]
#[test]
fn files_directories_and_failures_cannot_be_told_apart_by_a_reader_of_the_metrics() {
    let text = |files, directories, failed| {
        let counted = ServiceStatistics {
            files,
            directories,
            failed,
            ..ServiceStatistics::default()
        };
        counted.prometheus()
    };
    assert_eq!(text(1, 0, 0), text(0, 0, 1));
    assert_eq!(text(1, 0, 0), text(0, 1, 0));
    assert_ne!(text(1, 0, 0), text(0, 0, 0));
}

/// A metric family: its values by label.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    values: Vec<(&'static str, u64)>,
}

impl Family {
    fn counter(name: &'static str, help: &'static str, value: u64) -> Family {
        Family {
            name,
            kind: "counter",
            help,
            values: vec![("", value)],
        }
    }

    fn gauge(name: &'static str, help: &'static str, value: u64) -> Family {
        Family {
            kind: "gauge",
            ..Family::counter(name, help, value)
        }
    }

    fn write(&self, text: &mut String) {
        let Family {
            name, kind, help, ..
        } = self;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# HELP headway_open_{name} {help}\n# TYPE headway_open_{name} {kind}\n"
        );
        for (labels, value) in &self.values {
            let _ = writeln!(text, "headway_open_{name}{labels} {value}");
        }
    }
}
