//! The sums of one thread: sleeps by call and kernel stack, event waits, preemptions.

use headway_os::perf::Record;

use crate::call::CallKind;
use crate::labels::Label;
use crate::off_cpu::{OffCpuInterval, OffCpuTracker};
use crate::report::{Report, SITES_MAX, Site, Wait};

/// What sleeps outside of every call, such as in a page fault, are attributed to.
const ELSEWHERE: &str = "elsewhere";

struct SiteTotals<C> {
    /// `None` is elsewhere.
    call: Option<C>,
    stack: Box<[u64]>,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

/// What a thread's records add up to.
pub(crate) struct Aggregator<C> {
    off_cpu: OffCpuTracker,
    sums: ThreadSums<C>,
}

struct ThreadSums<C> {
    sites: Vec<SiteTotals<C>>,
    waits: Wait,
    preemptions: Wait,
    lost_records: u64,
    sites_dropped: u64,
}

impl<C: CallKind> Aggregator<C> {
    pub(crate) fn new() -> Aggregator<C> {
        Aggregator {
            off_cpu: OffCpuTracker::new(),
            sums: ThreadSums {
                sites: Vec::new(),
                waits: Wait::default(),
                preemptions: Wait::default(),
                lost_records: 0,
                sites_dropped: 0,
            },
        }
    }

    /// Takes the next record, of something that happened during `call`.
    pub(crate) fn record(&mut self, call: Option<C>, record: Record<'_>) {
        let Aggregator { off_cpu, sums } = self;
        let lost = off_cpu.record(record, |interval| sums.add(call, interval));
        sums.lost_records += lost;
    }

    /// Ends a drain.
    pub(crate) fn end_drain(&mut self, call: Option<C>) {
        let Aggregator { off_cpu, sums } = self;
        off_cpu.end_drain(|interval| sums.add(call, interval));
    }

    /// How often `call` slept.
    pub(crate) fn sleeps_in(&self, call: C) -> u64 {
        let sites = self.sums.sites.iter();
        let of_call = sites.filter(|site| site.call == Some(call));
        of_call.map(|site| site.count).sum()
    }

    /// Writes the sums into a report. `lost` is the kernel's own count, which may be ahead of the
    /// announcements in the ring.
    pub(crate) fn fill(&self, report: &mut Report, lost: Option<u64>) {
        report.waits = self.sums.waits;
        report.preemptions = self.sums.preemptions;
        report.lost_records = self.sums.lost_records.max(lost.unwrap_or(0));
        report.sites_dropped = self.sums.sites_dropped;
        report.sleeps = self.sums.sites.iter().map(SiteTotals::to_site).collect();
        report.sort();
    }
}

impl<C: CallKind> ThreadSums<C> {
    fn add(&mut self, call: Option<C>, interval: OffCpuInterval<'_>) {
        if interval.preempted {
            self.preemptions.add(interval.length_ns);
        } else if call == Some(C::WAIT) {
            self.waits.add(interval.length_ns);
        } else {
            self.site(call, interval.stack).add(interval.length_ns);
        }
    }

    /// The totals for a stack, or, at the limit of sites, those of the call without a stack.
    fn site(&mut self, call: Option<C>, stack: &[u64]) -> &mut SiteTotals<C> {
        let known = |site: &SiteTotals<C>| site.call == call && *site.stack == *stack;
        if let Some(index) = self.sites.iter().position(known) {
            return &mut self.sites[index];
        }
        let located = self.sites.iter().filter(|site| !site.stack.is_empty());
        if !stack.is_empty() && located.count() >= SITES_MAX {
            self.sites_dropped += 1;
            return self.site(call, &[]);
        }
        self.sites.push(SiteTotals {
            call,
            stack: stack.into(),
            count: 0,
            total_ns: 0,
            max_ns: 0,
        });
        self.sites.last_mut().expect("just pushed")
    }
}

impl<C: CallKind> SiteTotals<C> {
    fn add(&mut self, length_ns: u64) {
        self.count += 1;
        self.total_ns += length_ns;
        self.max_ns = self.max_ns.max(length_ns);
    }

    fn to_site(&self) -> Site {
        Site {
            call: self.call.map_or(ELSEWHERE, C::name).to_owned(),
            stack: self.stack.to_vec(),
            symbol: None,
            label: Label::Unknown,
            count: self.count,
            total_ns: self.total_ns,
            max_ns: self.max_ns,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
