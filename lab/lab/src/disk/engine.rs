//! A disk in time: the model, the faults and the statistics together. Pure: the caller says what
//! time it is.
//!
//! What is started and when it ends is decided by the model's own clock, not by when it
//! was polled: a late timer makes one answer late and no other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::faults::Faults;
use super::model::{Device, Job, Started};
use super::spec::{DiskSpec, Order};
use super::statistics::DiskStatistics;

/// A disk with what waits and what is under way.
#[derive(Debug)]
pub(crate) struct Engine {
    spec: DiskSpec,
    timing: Timing,
    device: Device,
    faults: Faults,
    /// Requests that are under way, by their end.
    under_way: BinaryHeap<Reverse<UnderWay>>,
    counters: DiskCounters,
    next_id: u64,
    /// What a request costs on its way through the kernel to the disk process and back: every
    /// answer leaves so much earlier.
    read_overhead_ns: u64,
}

/// How long requests take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timing {
    Fast,
    Model,
    /// No delays, faults or counting for a while; the model continues afterwards.
    Maintenance,
    /// No delays but [`PROBE_NS`] for every request.
    Probe,
}

/// The known delay with which the overhead of the disk process is measured: long enough that the
/// CPUs become idle, as they do under a slow disk.
pub(crate) const PROBE_NS: u64 = 1_000_000;

/// Ordered by end, then by age. Jobs of one engine have different numbers, so equality is that of
/// the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnderWay(Started);

impl Ord for UnderWay {
    fn cmp(&self, other: &UnderWay) -> std::cmp::Ordering {
        let key = |it: &UnderWay| (it.0.finish_ns, it.0.job.id);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for UnderWay {
    fn partial_cmp(&self, other: &UnderWay) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A request that can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) id: u64,
    /// Whether the request failed with EIO.
    pub(crate) failed: bool,
}

impl Engine {
    /// Without delays, until an order says otherwise.
    pub(crate) fn new(spec: DiskSpec, now_ns: u64) -> Engine {
        Engine {
            timing: Timing::Fast,
            device: Device::new(&spec.model.mechanics(), spec.seed),
            spec,
            faults: Faults::default(),
            under_way: BinaryHeap::new(),
            counters: DiskCounters::new(now_ns),
            next_id: 0,
            read_overhead_ns: 0,
        }
    }

    /// Queues a request and returns its number.
    pub(crate) fn arrive(
        &mut self,
        now_ns: u64,
        offset_bytes: u64,
        length_bytes: u64,
        write: bool,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.counters.depth(now_ns, 1);
        self.device.arrive(Job {
            id,
            arrived_ns: now_ns,
            offset_bytes,
            length_bytes,
            write,
        });
        id
    }

    /// Whether a request that touches the range would fail now.
    pub(crate) fn fails(&self, now_ns: u64, offset_bytes: u64, length_bytes: u64) -> bool {
        self.timing != Timing::Maintenance && self.faults.fails(now_ns, offset_bytes, length_bytes)
    }

    /// What can be answered by now. Starts what could be started in the meantime.
    pub(crate) fn due(&mut self, now_ns: u64) -> Vec<Done> {
        let mut done = Vec::new();
        self.start_until(now_ns);
        while let Some(Reverse(UnderWay(first))) = self.under_way.peek().copied() {
            let end_ns = self.released_ns(first.finish_ns);
            if end_ns.saturating_sub(self.read_overhead_ns) > now_ns {
                break;
            }
            self.under_way.pop();
            let job = first.job;
            let failed = self.fails(now_ns, job.offset_bytes, job.length_bytes);
            self.counters.depth(now_ns, -1);
            if self.timing != Timing::Maintenance {
                let seen_ns = now_ns + self.read_overhead_ns;
                self.counters.answered(&first, end_ns, seen_ns, failed);
            }
            done.push(Done { id: job.id, failed });
        }
        done
    }

    /// When [`Engine::due`] has to be called next; `None` when nothing is there.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        let end = self.under_way.peek();
        let end_ns = end.map(|Reverse(UnderWay(first))| {
            let end_ns = self.released_ns(first.finish_ns);
            end_ns.saturating_sub(self.read_overhead_ns)
        });
        let start_ns = self.device.ready_ns().map(|ready| self.released_ns(ready));
        match (end_ns, start_ns) {
            (Some(end_ns), Some(start_ns)) => Some(end_ns.min(start_ns)),
            (one, other) => one.or(other),
        }
    }

    /// Applies an order.
    pub(crate) fn order(&mut self, now_ns: u64, order: &Order) {
        match *order {
            Order::Fast => {
                self.faults = Faults::default();
                self.begin(now_ns, Timing::Fast);
                self.counters.begin(now_ns);
            }
            Order::Model => {
                self.faults = Faults::planned(&self.spec.faults, now_ns);
                self.begin(now_ns, Timing::Model);
                self.counters.begin(now_ns);
            }
            // The files' own.
            Order::Restart => {}
            Order::Slow { factor, for_ms } => self.faults.slow(now_ns, for_ms, factor),
            Order::Stall { for_ms } => self.faults.stall(now_ns, for_ms),
            Order::Fail {
                offset_bytes,
                length_bytes,
            } => self.faults.fail(now_ns, offset_bytes, length_bytes),
        }
    }

    /// Sets what every request costs besides the disk.
    pub(crate) fn set_read_overhead(&mut self, read_overhead_ns: u64) {
        self.read_overhead_ns = read_overhead_ns;
    }

    /// Sets the same delay for every request, or removes it.
    pub(crate) fn set_probe(&mut self, now_ns: u64, probe: bool) {
        self.begin(now_ns, if probe { Timing::Probe } else { Timing::Fast });
    }

    /// Pauses the model and its counters while the lab works on the file system, or continues them.
    pub(crate) fn set_maintenance(&mut self, now_ns: u64, paused: bool) {
        match (self.timing, paused) {
            (Timing::Model, true) => {
                self.counters.depth(now_ns, 0);
                self.begin(now_ns, Timing::Maintenance);
            }
            (Timing::Maintenance, false) => self.begin(now_ns, Timing::Model),
            _ => return,
        }
        self.counters.seen_ns = now_ns;
        self.counters.paused = paused;
    }

    pub(crate) fn statistics(&mut self, now_ns: u64) -> DiskStatistics {
        self.counters.depth(now_ns, 0);
        self.counters.sum.clone()
    }

    /// Delays are off until a command switches them on.
    pub(crate) fn is_fast(&self) -> bool {
        self.timing == Timing::Fast
    }

    /// Begins another timing with a fresh device; what was under way is over, what waits is started
    /// by the new timing.
    fn begin(&mut self, now_ns: u64, timing: Timing) {
        let waiting = self.device.take_waiting();
        let over = std::mem::take(&mut self.under_way).into_vec();
        self.under_way = over
            .into_iter()
            .map(|Reverse(UnderWay(started))| {
                let finish_ns = started.finish_ns.min(now_ns);
                Reverse(UnderWay(Started {
                    finish_ns,
                    ..started
                }))
            })
            .collect();
        self.timing = timing;
        self.device = Device::new(&self.spec.model.mechanics(), self.spec.seed);
        waiting.into_iter().for_each(|job| self.device.arrive(job));
    }

    fn start_until(&mut self, now_ns: u64) {
        if self.timing != Timing::Model {
            let delay_ns = if self.timing == Timing::Probe {
                PROBE_NS
            } else {
                0
            };
            for job in self.device.take_waiting() {
                self.under_way.push(Reverse(UnderWay(Started {
                    job,
                    start_ns: job.arrived_ns,
                    finish_ns: job.arrived_ns + delay_ns,
                })));
            }
            return;
        }
        while let Some(ready_ns) = self.device.ready_ns() {
            let at_ns = self.released_ns(ready_ns);
            if at_ns > now_ns {
                return;
            }
            let slower = self.faults.slower(at_ns);
            let started = self.device.start(at_ns, slower);
            self.under_way
                .extend(started.map(|started| Reverse(UnderWay(started))));
        }
    }

    fn released_ns(&self, at_ns: u64) -> u64 {
        if self.timing == Timing::Maintenance {
            at_ns
        } else {
            self.faults.released_ns(at_ns)
        }
    }
}

/// The statistics, and what their integrals need.
#[derive(Debug)]
struct DiskCounters {
    sum: DiskStatistics,
    depth: u64,
    seen_ns: u64,
    paused: bool,
}

impl DiskCounters {
    fn new(now_ns: u64) -> DiskCounters {
        DiskCounters {
            sum: DiskStatistics::default(),
            depth: 0,
            seen_ns: now_ns,
            paused: false,
        }
    }

    fn begin(&mut self, now_ns: u64) {
        self.seen_ns = now_ns;
        self.paused = false;
        self.sum = DiskStatistics {
            depth_max: self.depth,
            ..DiskStatistics::default()
        };
    }

    /// Adds the time that has passed at the old depth, then changes it.
    fn depth(&mut self, now_ns: u64, change: i64) {
        let passed_ns = now_ns.saturating_sub(self.seen_ns);
        self.seen_ns = self.seen_ns.max(now_ns);
        let passed_ns = if self.paused { 0 } else { passed_ns };
        self.sum.elapsed_ns += passed_ns;
        self.sum.depth_ns += passed_ns * self.depth;
        if self.depth > 0 {
            self.sum.busy_ns += passed_ns;
        }
        self.depth = self.depth.saturating_add_signed(change);
        if !self.paused {
            self.sum.depth_max = self.sum.depth_max.max(self.depth);
        }
    }

    fn answered(&mut self, started: &Started, end_ns: u64, seen_ns: u64, failed: bool) {
        let job = &started.job;
        if job.write {
            self.sum.writes += 1;
            self.sum.written_bytes += job.length_bytes;
        } else {
            self.sum.reads += 1;
            self.sum.read_bytes += job.length_bytes;
        }
        self.sum.failed += u64::from(failed);
        self.sum.service_ns += started.finish_ns - started.start_ns;
        self.sum.modelled_ns += end_ns.saturating_sub(job.arrived_ns);
        self.sum.response_ns += seen_ns.saturating_sub(job.arrived_ns);
    }
}

#[cfg(test)]
mod tests;
