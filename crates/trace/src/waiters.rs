//! Matches waiter counts of an observer ([`headway_debox_bpf::WaiterObserver`]) with the sleeps
//! that programs recorded.
//!
//! An observed sleep and a record belong together if thread and time agree; within the record, the
//! kernel function identifies the sleep. So a kept call has its own waiters, and so has its call
//! site. For sleeps of calls that were not kept, the observer knows no call site: they share the
//! mean of their process, call and kernel function.

use std::collections::HashMap;

use headway_debox::Symbols;
use headway_debox::collect::{CallSite, KeptRecord, Process, SiteSleep};
use headway_debox_bpf::{ObservedSleep, Resource};

use crate::model::SleepAt;

/// How far apart the clocks of a record and of the observer may be: a record's beginning is right
/// to some 5 µs.
const CLOCK_ERROR_NS: u64 = 10_000;

/// How many records of a thread are compared with one sleep: a call, its neighbours, and calls that
/// it interrupted.
const CANDIDATES_MAX: usize = 6;

/// Function and offset of a location in the kernel; `None` where its functions have no names.
type KernelLocation = Option<(u64, u32)>;

/// Everything an observer saw, by process.
#[derive(Debug, Default)]
pub struct WaiterCounts {
    processes: HashMap<u32, Vec<CountedSleep>>,
}

/// A sleep whose waiters were counted.
#[derive(Clone, Copy, Debug)]
struct CountedSleep {
    tid: u32,
    call: u32,
    start_ns: u64,
    end_ns: u64,
    spot: KernelLocation,
    entry: u64,
    exit: u64,
}

impl WaiterCounts {
    /// Creates it from observed sleeps; `stack` returns the kernel addresses of a stack by its
    /// number. Sleeps outside calls, and those without waiter counts, are left out.
    pub fn new<'s>(
        sleeps: &[ObservedSleep],
        stack: impl Fn(u64) -> &'s [u64],
        symbols: Option<&Symbols>,
    ) -> WaiterCounts {
        let mut spots: HashMap<u64, KernelLocation> = HashMap::new();
        let mut processes: HashMap<u32, Vec<CountedSleep>> = HashMap::new();
        for sleep in sleeps {
            let Some(call) = sleep.call.filter(|_| sleep.resource != Resource::None) else {
                continue;
            };
            let spot = spots.entry(sleep.stack);
            let spot = *spot.or_insert_with(|| spot_of(stack(sleep.stack), symbols));
            processes.entry(sleep.pid).or_default().push(CountedSleep {
                tid: sleep.tid,
                call,
                start_ns: sleep.start_ns,
                end_ns: sleep.end_ns,
                spot,
                entry: sleep.waiters_entry,
                exit: sleep.waiters_exit,
            });
        }
        WaiterCounts { processes }
    }

    /// The waiters of a process's sleeps.
    pub(crate) fn of(&self, process: &Process, symbols: Option<&Symbols>) -> Merged {
        let mut merged = Merged::default();
        let mut threads: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, record) in process.kept.iter().enumerate() {
            threads.entry(record.thread).or_default().push(index);
        }
        // The number may have been another process's before, and another program's after an exec.
        let lived = process.started_ns.saturating_sub(CLOCK_ERROR_NS)
            ..=process.ended_ns.unwrap_or(u64::MAX);
        let seen = self.processes.get(&process.pid).into_iter().flatten();
        for seen in seen.filter(|seen| lived.contains(&seen.start_ns)) {
            let records = threads.get(&seen.tid).map_or(&[][..], Vec::as_slice);
            let found = record_of(seen, &process.kept, records).and_then(|index| {
                let record = &process.kept[index];
                let (sleep, spot) = sleep_of(seen, record, symbols)?;
                Some((index, sleep, (record.site, record.call, spot)))
            });
            match found {
                Some((record, sleep, site)) => {
                    merged.kept.entry((record, sleep)).or_default().add(seen);
                    merged.sites.entry(site).or_default().add(seen);
                }
                None => {
                    let rest = merged.rest.entry((seen.call, seen.spot));
                    rest.or_default().add(seen);
                }
            }
        }
        merged
    }
}

/// The record of the call in which a sleep happened, among those of its thread in the order they
/// began.
fn record_of(seen: &CountedSleep, kept: &[KeptRecord], records: &[usize]) -> Option<usize> {
    let late = seen.end_ns.saturating_add(CLOCK_ERROR_NS);
    let after = records.partition_point(|index| kept[*index].start_ns <= late);
    let length = seen.end_ns.saturating_sub(seen.start_ns);
    let candidates = records[..after].iter().rev().take(CANDIDATES_MAX);
    let judged = candidates.filter_map(|index| {
        let overlap = overlap_ns(seen, &kept[*index])?;
        // Most of it lies in the right call, or in the handler's call and in the one it
        // interrupted.
        Some((
            overlap >= length / 2,
            kept[*index].call == seen.call,
            overlap,
            *index,
        ))
    });
    judged.max().map(|(.., index)| index)
}

/// How much of a sleep lies in a call, given the clocks' slack; `None` if nothing does.
fn overlap_ns(seen: &CountedSleep, record: &KeptRecord) -> Option<u64> {
    let start = seen
        .start_ns
        .max(record.start_ns.saturating_sub(CLOCK_ERROR_NS));
    let end = record.start_ns.saturating_add(record.wall_ns);
    let end = seen.end_ns.min(end.saturating_add(CLOCK_ERROR_NS));
    end.checked_sub(start)
}

/// Which sleep of a record it is: the one in the same kernel function, or one whose function is
/// unknown.
fn sleep_of(
    seen: &CountedSleep,
    record: &KeptRecord,
    symbols: Option<&Symbols>,
) -> Option<(usize, KernelLocation)> {
    let spot = |sleep: &SiteSleep| spot_of(&sleep.stack, symbols);
    let mut sleeps = record.sleeps.iter();
    let index = sleeps
        .position(|sleep| spot(sleep) == seen.spot)
        .or_else(|| {
            record
                .sleeps
                .iter()
                .position(|sleep| sleep.stack.is_empty())
        })?;
    Some((index, spot(&record.sleeps[index])))
}

fn spot_of(stack: &[u64], symbols: Option<&Symbols>) -> KernelLocation {
    let site = symbols?.site(stack)?;
    Some((site.function, site.offset))
}

/// Waiters of several sleeps.
#[derive(Clone, Copy, Debug, Default)]
struct WaiterSums {
    sleeps: u64,
    entry_total: u64,
    exit_total: u64,
    entry_max: u64,
    exit_max: u64,
}

impl WaiterSums {
    fn add(&mut self, seen: &CountedSleep) {
        self.sleeps += 1;
        self.entry_total += seen.entry;
        self.exit_total += seen.exit;
        self.entry_max = self.entry_max.max(seen.entry);
        self.exit_max = self.exit_max.max(seen.exit);
    }

    /// The counts of this many sleeps with the same mean; exact if as many were observed.
    fn of_sleeps(&self, sleeps: u64) -> WaiterSums {
        let scaled = |total: u64| {
            let (total, seen) = (u128::from(total), u128::from(self.sleeps.max(1)));
            ((total * u128::from(sleeps) + seen / 2) / seen) as u64
        };
        WaiterSums {
            sleeps,
            entry_total: scaled(self.entry_total),
            exit_total: scaled(self.exit_total),
            ..*self
        }
    }

    fn with(self, other: WaiterSums) -> WaiterSums {
        WaiterSums {
            sleeps: self.sleeps + other.sleeps,
            entry_total: self.entry_total + other.entry_total,
            exit_total: self.exit_total + other.exit_total,
            entry_max: self.entry_max.max(other.entry_max),
            exit_max: self.exit_max.max(other.exit_max),
        }
    }
}

/// The waiters of one process.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    /// By record and sleep in it.
    kept: HashMap<(usize, usize), WaiterSums>,
    /// By call site, call and kernel function: sleeps whose record is kept.
    sites: HashMap<(u64, u32, KernelLocation), WaiterSums>,
    /// By call and location: the others.
    rest: HashMap<(u32, KernelLocation), WaiterSums>,
}

impl Merged {
    /// Adds the counts of a sleep of a kept record.
    pub(crate) fn add_to_kept(&self, record: usize, sleep: usize, at: &mut SleepAt) {
        if let Some(counts) = self.kept.get(&(record, sleep)) {
            at.waiters_entry_max = Some(counts.entry_max);
            at.waiters_exit_max = Some(counts.exit_max);
        }
    }

    /// Adds the counts of the sleeps of a call site in one kernel function.
    pub(crate) fn add_to_site(
        &self,
        site: &CallSite,
        sleep: &SiteSleep,
        symbols: Option<&Symbols>,
        at: &mut SleepAt,
    ) {
        let spot = spot_of(&sleep.stack, symbols);
        let own = self.sites.get(&(site.address, site.call, spot));
        let rest = self.rest.get(&(site.call, spot));
        let unseen = |own: &WaiterSums| sleep.count.saturating_sub(own.sleeps);
        let counts = match (own, rest) {
            (None, None) => return,
            (Some(own), Some(rest)) if unseen(own) > 0 => own.with(rest.of_sleeps(unseen(own))),
            (Some(own), _) => own.of_sleeps(sleep.count),
            (None, Some(rest)) => rest.of_sleeps(sleep.count),
        };
        at.waiters_entry_max = Some(counts.entry_max);
        at.waiters_exit_max = Some(counts.exit_max);
        at.waiters_entry_total = Some(counts.entry_total);
        at.waiters_exit_total = Some(counts.exit_total);
    }
}

#[cfg(test)]
mod tests {
    use headway_debox::collect::{KeptRecord, SiteSleep};
    use headway_debox::{Label, Wait};
    use headway_debox_bpf::{ObservedSleep, Resource};

    use super::{CountedSleep, WaiterCounts, WaiterSums, record_of};

    fn kept(start_ns: u64, wall_ns: u64, call: u32) -> KeptRecord {
        KeptRecord {
            thread: 1,
            call,
            name: String::new(),
            site: 0,
            result: 0,
            start_ns,
            wall_ns,
            faults_minor: None,
            faults_major: None,
            preemptions: Wait::default(),
            wakeup_ns: None,
            sleeps: vec![SiteSleep {
                label: Label::Unknown,
                symbol: None,
                stack: vec![1],
                count: 1,
                total_ns: wall_ns,
                max_ns: wall_ns,
            }],
            sleeps_dropped: 0,
            lost: 0,
            user_stack: Vec::new(),
        }
    }

    fn seen(start_ns: u64, end_ns: u64, call: u32) -> CountedSleep {
        CountedSleep {
            tid: 1,
            call,
            start_ns,
            end_ns,
            spot: None,
            entry: 0,
            exit: 0,
        }
    }

    #[test]
    fn sleep_belongs_to_the_call_it_lies_in_when_neighbours_touch_it() {
        let records = [
            kept(1_000_000, 100_000, 0),
            kept(1_101_000, 100_000, 0),
            kept(1_202_000, 100_000, 0),
        ];
        let of = |start, end| record_of(&seen(start, end, 0), &records, &[0, 1, 2]);
        assert_eq!(of(1_002_000, 1_099_000), Some(0));
        assert_eq!(of(1_098_000, 1_198_000), Some(1));
        assert_eq!(of(1_204_000, 1_309_000), Some(2));
        assert_eq!(of(2_000_000, 2_100_000), None);
        assert_eq!(of(100, 200), None);
    }

    #[test]
    fn sleep_belongs_to_the_call_of_its_number_when_a_handler_called_meanwhile() {
        let records = [kept(1_000_000, 500_000, 0), kept(1_200_000, 50_000, 1)];
        let of = |call| record_of(&seen(1_205_000, 1_245_000, call), &records, &[0, 1]);
        assert_eq!((of(0), of(1)), (Some(0), Some(1)));
    }

    #[test]
    fn sums_are_exact_when_all_were_seen_and_scaled_when_not() {
        let seen = WaiterSums {
            sleeps: 3,
            entry_total: 10,
            exit_total: 4,
            entry_max: 5,
            exit_max: 2,
        };
        assert_eq!(seen.of_sleeps(3).entry_total, 10);
        assert_eq!(seen.of_sleeps(6).entry_total, 20);
        assert_eq!(seen.of_sleeps(1).exit_total, 1);
        assert_eq!(seen.of_sleeps(1).entry_max, 5);
    }

    #[test]
    fn sleeps_are_left_out_when_their_waiters_were_not_counted() {
        let sleep = ObservedSleep {
            pid: 7,
            tid: 7,
            call: Some(1),
            start_ns: 1,
            end_ns: 2,
            stack: 0,
            resource: Resource::File,
            waiters_entry: 3,
            waiters_exit: 2,
        };
        let blind = ObservedSleep {
            resource: Resource::None,
            ..sleep
        };
        let outside = ObservedSleep {
            call: None,
            ..sleep
        };
        let waits = WaiterCounts::new(&[sleep, blind, outside], |_| &[], None);
        assert_eq!(waits.processes[&7].len(), 1);
    }
}
