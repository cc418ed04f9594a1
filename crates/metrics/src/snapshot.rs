//! What one worker reports about itself at one moment, and the sum over workers.

use headway_debox::Report;
use serde::{Deserialize, Serialize};

use super::{Counters, Upstream};

/// What one worker reports about itself at one moment; also the sum of several.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// The worker's number, from 0. Meaningless in a sum.
    pub worker: u32,
    /// The process id of the worker. Meaningless in a sum.
    pub pid: u32,
    /// Milliseconds since the worker began to serve. In a sum, the longest.
    pub uptime_ms: u64,
    /// The event mechanism in use.
    pub events: String,
    /// How paths become open files (`opening`).
    #[serde(default)]
    pub opening: String,
    /// How files are sent (`send`).
    #[serde(default)]
    pub send: String,
    /// The residency probe in use.
    pub residency: String,
    /// The counters.
    pub counters: Counters,
    /// The state of each upstream.
    #[serde(default)]
    pub upstreams: Vec<Upstream>,
    /// What the tracer of the worker saw: whether the loop blocked.
    pub trace: Report,
}

impl Snapshot {
    /// The sum of several workers. `None` without workers, because there is no proof of nothing.
    pub fn total<'a>(snapshots: impl IntoIterator<Item = &'a Snapshot>) -> Option<Snapshot> {
        let mut snapshots = snapshots.into_iter();
        let mut total = snapshots.next()?.clone();
        snapshots.for_each(|snapshot| total.merge(snapshot));
        Some(total)
    }

    /// Adds another worker's snapshot to this one.
    pub fn merge(&mut self, other: &Snapshot) {
        self.uptime_ms = self.uptime_ms.max(other.uptime_ms);
        join(&mut self.events, &other.events);
        join(&mut self.opening, &other.opening);
        join(&mut self.send, &other.send);
        join(&mut self.residency, &other.residency);
        self.counters.merge(&other.counters);
        for upstream in &other.upstreams {
            Upstream::merge(&mut self.upstreams, upstream);
        }
        self.trace.merge(&other.trace);
    }
}

/// Workers nearly always agree. Where they do not, the sum names both.
fn join(mine: &mut String, theirs: &str) {
    if mine.is_empty() {
        theirs.clone_into(mine);
    } else if !theirs.is_empty() && !mine.split(", ").any(|one| one == theirs) {
        mine.push_str(", ");
        mine.push_str(theirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_snapshot_names_both_mechanisms_when_workers_differ() {
        let with = |events: &str| Snapshot {
            worker: 0,
            pid: 1,
            uptime_ms: 5,
            events: events.into(),
            opening: "probe-then-pass".into(),
            send: "copy".into(),
            residency: "cachestat".into(),
            counters: Counters {
                connections_accepted: 3,
                ..Counters::default()
            },
            upstreams: Vec::new(),
            trace: crate::calls::Tracer::disabled().report(),
        };
        let all = [with("epoll"), with("poll"), with("epoll")];
        let total = Snapshot::total(&all).unwrap();
        assert_eq!(
            (total.events.as_str(), total.residency.as_str()),
            ("epoll, poll", "cachestat")
        );
        assert_eq!(
            (total.counters.connections_accepted, total.uptime_ms),
            (9, 5)
        );
        assert!(Snapshot::total(&[]).is_none());
    }
}
