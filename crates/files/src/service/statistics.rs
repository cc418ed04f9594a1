//! What the open-file service counts, and how Prometheus reads it.

use crate::keep::KeepStatistics;
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
    /// Answers without the descriptor that was asked for, because too many were on their way to
    /// clients.
    pub without_descriptor: u64,
    /// Names answered from the service's own cache, those checked again included.
    pub hits: u64,
    /// Names answered from the kernel's cache.
    pub probed: u64,
    /// Names that a helper was asked for.
    pub helped: u64,
    /// Beginnings of files that a helper was asked to read in.
    pub read_in: u64,
    /// Gauge: connected clients.
    pub clients: u64,
    /// Clients accepted.
    pub accepted: u64,
    /// Clients turned away because of who they are.
    pub refused_user: u64,
    /// Clients turned away because there was no room or no descriptor.
    pub refused_full: u64,
    /// Clients closed because they did not take their answers.
    pub stalled: u64,
    /// Clients closed because they sent something else than the protocol has.
    pub malformed: u64,
    /// Clients closed because they spoke another version.
    pub other_version: u64,
    /// Gauge: names remembered.
    pub names: u64,
    /// Gauge: descriptors held open by them.
    pub descriptors: u64,
    /// Small files that stay in memory.
    pub kept: KeepStatistics,
    /// The helpers.
    pub pool: PoolStatistics,
}

impl ServiceStatistics {
    /// The counters in the text format that Prometheus reads, each with a line of help.
    ///
    /// # Example
    /// ```
    /// let text = headway_files::service::ServiceStatistics::default().prometheus();
    /// assert!(text.contains("\nheadway_open_requests_total 0\n"));
    /// ```
    pub fn prometheus(&self) -> String {
        let pool = &self.pool;
        let counters = [
            (
                "requests",
                "requests of this protocol version",
                self.requests,
            ),
            ("files", "answers with a file", self.files),
            ("directories", "answers: a directory", self.directories),
            ("failed", "answers: no file", self.failed),
            ("elsewhere", "answers: below no root", self.elsewhere),
            ("busy", "answers: the queue is full", self.busy),
            (
                "without_descriptor",
                "files answered without their descriptor",
                self.without_descriptor,
            ),
            ("hits", "names known to the service", self.hits),
            ("probed", "names known to the kernel", self.probed),
            ("helped", "names a helper was asked for", self.helped),
            (
                "read_in",
                "beginnings a helper was asked to read in",
                self.read_in,
            ),
            (
                "coalesced",
                "askings that joined another's job",
                pool.coalesced,
            ),
            ("accepted", "clients accepted", self.accepted),
            (
                "refused_user",
                "clients turned away: not an allowed user",
                self.refused_user,
            ),
            (
                "refused_full",
                "clients turned away: no room",
                self.refused_full,
            ),
            (
                "stalled",
                "clients closed: they took no answers",
                self.stalled,
            ),
            (
                "malformed",
                "clients closed: not the protocol",
                self.malformed,
            ),
            (
                "other_version",
                "clients closed: another version",
                self.other_version,
            ),
            (
                "kept_let_go",
                "kept files given up: for others, for want of memory, or deleted",
                self.kept.let_go,
            ),
            (
                "kept_missed",
                "files not kept: too many at once, no room, gone again, or refused by the kernel",
                self.kept.missed,
            ),
            ("helper_deaths", "helpers that ended at work", pool.deaths),
            (
                "queue_us",
                "microseconds jobs waited for a helper",
                pool.queue_us.sum,
            ),
            (
                "service_us",
                "microseconds helpers worked",
                pool.service_us.sum,
            ),
        ];
        let gauges = [
            ("clients", "connected clients", self.clients),
            ("names", "names remembered", self.names),
            (
                "descriptors",
                "descriptors held open by names",
                self.descriptors,
            ),
            ("kept_files", "small files kept in memory", self.kept.files),
            (
                "kept_bytes",
                "bytes of them, in whole pages",
                self.kept.bytes,
            ),
            (
                "kept_bytes_max",
                "bytes of them at most",
                self.kept.bytes_max,
            ),
            ("helpers", "helper processes", pool.helpers),
            ("helpers_busy", "helper processes at work", pool.busy),
            ("queue", "jobs that wait for a helper", pool.queue),
        ];
        let mut text = String::new();
        for (name, help, value) in counters {
            line(&mut text, &format!("{name}_total"), "counter", help, value);
        }
        for (name, help, value) in gauges {
            line(&mut text, name, "gauge", help, value);
        }
        text
    }
}

fn line(text: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "# HELP headway_open_{name} {help}\n# TYPE headway_open_{name} {kind}\nheadway_open_{name} {value}\n"
    );
}
