//! From records to sleeps: a state machine over the records of one thread, without any I/O.
//!
//! The kernel writes, for one time off the processor, a sample (the stack), SWITCH out and SWITCH in.
//! When the ring overflows any of them can be missing. The rule then: a SWITCH out that was no
//! preemption proves a sleep, so the sleep counts; what is not known (its length, its stack) stays zero
//! or empty, and is never taken from a neighbour.

use os::perf::{Record, STACK_FRAMES_MAX};

use crate::call::Call;
use crate::report::{Report, SITES_MAX, Site, Wait};

/// The thread has left the processor and not come back, as far as the records tell.
struct Away {
    since_ns: u64,
    preempted: bool,
}

/// The kernel stack of the last sample, until a SWITCH out uses it.
struct Stack {
    frames: [u64; STACK_FRAMES_MAX],
    depth: usize,
}

struct Totals {
    call: Call,
    stack: Box<[u64]>,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

/// The sums of one thread.
pub(crate) struct Ledger {
    away: Option<Away>,
    stack: Stack,
    sites: Vec<Totals>,
    waits: Wait,
    preemptions: Wait,
    lost_records: u64,
    sites_dropped: u64,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger {
            away: None,
            stack: Stack {
                frames: [0; STACK_FRAMES_MAX],
                depth: 0,
            },
            sites: Vec::new(),
            waits: Wait::default(),
            preemptions: Wait::default(),
            lost_records: 0,
            sites_dropped: 0,
        }
    }

    /// Takes the next record, of something that happened during `call`.
    pub(crate) fn record(&mut self, call: Call, record: Record<'_>) {
        match record {
            Record::Sample { stack, .. } => {
                self.close_torn(call);
                self.stack.depth = stack.len().min(STACK_FRAMES_MAX);
                self.stack.frames[..self.stack.depth].copy_from_slice(&stack[..self.stack.depth]);
            }
            Record::SwitchOut { time_ns, preempted } => {
                self.close_torn(call);
                self.away = Some(Away {
                    since_ns: time_ns,
                    preempted,
                });
            }
            Record::SwitchIn { time_ns } => {
                if let Some(away) = self.away.take() {
                    self.close(call, away.preempted, time_ns.saturating_sub(away.since_ns));
                }
            }
            Record::Lost { count } => {
                self.lost_records += count;
                self.close_torn(call);
                self.stack.depth = 0;
            }
            Record::Other => {}
        }
    }

    /// Ends a drain. The thread is running, so if it is still away in the records, the SWITCH in is lost.
    pub(crate) fn settle(&mut self, call: Call) {
        self.close_torn(call);
        self.stack.depth = 0;
    }

    /// Writes the sums into a report. `lost` is the kernel's own count, which may be ahead of the
    /// announcements in the ring.
    pub(crate) fn fill(&self, report: &mut Report, lost: Option<u64>) {
        report.waits = self.waits;
        report.preemptions = self.preemptions;
        report.lost_records = self.lost_records.max(lost.unwrap_or(0));
        report.sites_dropped = self.sites_dropped;
        report.sleeps = self.sites.iter().map(Totals::to_site).collect();
        report.sort();
    }

    fn close_torn(&mut self, call: Call) {
        if let Some(away) = self.away.take() {
            self.close(call, away.preempted, 0);
        }
    }

    fn close(&mut self, call: Call, preempted: bool, length_ns: u64) {
        let depth = std::mem::take(&mut self.stack.depth);
        if preempted {
            self.preemptions.add(length_ns);
        } else if call == Call::EventWait {
            self.waits.add(length_ns);
        } else {
            self.site(call, depth).add(length_ns);
        }
    }

    /// The totals for the stack in `self.stack`, or, at the bound, those of the call without a stack.
    fn site(&mut self, call: Call, depth: usize) -> &mut Totals {
        let stack = &self.stack.frames[..depth];
        if let Some(index) = self.position(call, stack) {
            return &mut self.sites[index];
        }
        let located = self.sites.iter().filter(|site| !site.stack.is_empty());
        let full = located.count() >= SITES_MAX;
        if full && !stack.is_empty() {
            self.sites_dropped += 1;
            return self.site(call, 0);
        }
        self.sites.push(Totals {
            call,
            stack: stack.into(),
            count: 0,
            total_ns: 0,
            max_ns: 0,
        });
        self.sites.last_mut().expect("just pushed")
    }

    fn position(&self, call: Call, stack: &[u64]) -> Option<usize> {
        self.sites
            .iter()
            .position(|site| site.call == call && *site.stack == *stack)
    }
}

impl Totals {
    fn add(&mut self, length_ns: u64) {
        self.count += 1;
        self.total_ns += length_ns;
        self.max_ns = self.max_ns.max(length_ns);
    }

    fn to_site(&self) -> Site {
        Site {
            call: self.call.name().to_owned(),
            stack: self.stack.to_vec(),
            symbol: None,
            count: self.count,
            total_ns: self.total_ns,
            max_ns: self.max_ns,
        }
    }
}

#[cfg(test)]
mod tests;
