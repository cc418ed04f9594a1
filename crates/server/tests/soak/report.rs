//! What a run has shown: figures, and the judgement.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use crate::journal::Journal;
use crate::load::Results;
use crate::server::{Holdings, sum_of};
use crate::wanted::STALEST_MS;

pub struct Report<'a> {
    pub seconds: u64,
    pub seed: u64,
    pub results: &'a Results,
    pub journal: &'a Journal,
    pub before: &'a Holdings,
    pub after: &'a Holdings,
    pub leaks: &'a [String],
    /// The last metrics of each start of the server.
    pub metrics: &'a [String],
    pub restarts: u64,
    /// What the server wrote to standard error.
    pub messages: String,
    pub stopped: Option<String>,
    /// Processes which are left after the server.
    pub left: Vec<String>,
}

impl Report<'_> {
    /// Prints the figures, and writes them to a directory if there is one.
    pub fn write(&self, output: Option<&Path>) {
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let results = self.results;
        let total = |name| {
            self.metrics
                .iter()
                .map(|text| sum_of(text, name))
                .sum::<f64>()
        };
        let report = json!({
            "seconds": self.seconds,
            "seed": self.seed,
            "requests": read(&results.requests),
            "responses checked": read(&results.checked),
            "body bytes": read(&results.bytes),
            "connections": read(&results.connections),
            "failed, explained by a fault": read(&results.excused),
            "behind an announced close": read(&results.unanswered),
            "clients that vanished": read(&results.vanished),
            "lost": read(&results.lost),
            "wrong": read(&results.wrong),
            "leaks": self.leaks,
            "checked by route": *results.routes.lock().expect("routes"),
            "faults": self.journal.by_kind(),
            "explained": self.journal.excused(),
            "restarts of the master": self.restarts,
            "oldest version in a response, ms": STALEST_MS.load(Ordering::SeqCst),
            "requests received by the server": total("headway_requests_received_total"),
            "loop blocked": total("headway_loop_blocked_total"),
            "loop blocked, seconds": total("headway_loop_blocked_seconds_total"),
            "loop blocked by call": self.blocked(),
            "resident kB before": self.before.resident_kilobytes,
            "resident kB after": self.after.resident_kilobytes,
            "descriptors before": self.before.descriptors,
            "descriptors after": self.after.descriptors,
            "processes before": self.before.processes,
            "processes after": self.after.processes,
            "panics": self.panics(),
            "stop": self.stopped,
            "left": self.left,
            "lines": *results.lines.lock().expect("lines"),
        });
        let text = serde_json::to_string_pretty(&report).expect("a report");
        println!("{text}");
        if let Some(output) = output {
            std::fs::write(output.join("report.json"), text + "\n").expect("the report");
            std::fs::write(output.join("messages"), &self.messages).expect("the messages");
        }
    }

    fn panics(&self) -> Vec<&str> {
        let lines = self.messages.lines();
        lines.filter(|line| line.contains("panicked")).collect()
    }

    fn blocked(&self) -> BTreeMap<String, f64> {
        let mut calls = BTreeMap::new();
        let lines = self.metrics.iter().flat_map(|text| text.lines());
        for line in lines {
            let Some(rest) = line.strip_prefix("headway_loop_blocked_seconds_total{") else {
                continue;
            };
            let Some((labels, value)) = rest.rsplit_once("} ") else {
                continue;
            };
            *calls.entry(labels.replace('"', "")).or_default() +=
                value.parse::<f64>().unwrap_or(0.0);
        }
        calls
    }

    /// # Panics
    /// When anything was lost, wrong or left.
    pub fn judge(&self) {
        let lines = self.results.lines.lock().expect("lines");
        assert!(lines.is_empty(), "lost or wrong: {lines:#?}");
        assert!(self.leaks.is_empty(), "leaks: {:#?}", self.leaks);
        assert_eq!(self.panics(), Vec::<&str>::new(), "the server panicked");
        assert_eq!(self.stopped, None, "the server did not stop well");
        assert_eq!(self.left, Vec::<String>::new(), "processes are left");
        assert!(
            self.results.checked.load(Ordering::SeqCst) > 0,
            "nothing was checked"
        );
    }
}
