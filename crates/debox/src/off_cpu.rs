//! From perf records to off-CPU intervals: a state machine over the records of one thread, without
//! any I/O.
//!
//! For one off-CPU interval the kernel writes a sample (the stack), SWITCH out and SWITCH in. When
//! the ring overflows, any of them can be missing. A SWITCH out that was not a preemption proves a
//! sleep, so the sleep is counted. What is unknown (its length, its stack) stays zero or empty, and
//! is never copied from a neighbour.

use headway_os::perf::{Record, STACK_FRAMES_MAX};

/// One interval in which the thread was not on a CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OffCpuInterval<'a> {
    /// Nanoseconds; zero if the record of the return is lost.
    pub length_ns: u64,
    /// The thread could have run on: load, not sleep.
    pub preempted: bool,
    /// Kernel addresses, innermost first; empty if not known.
    pub stack: &'a [u64],
}

/// What has been seen of an interval that is not over.
pub(crate) struct OffCpuTracker {
    off_cpu: Option<OffCpu>,
    frames: [u64; STACK_FRAMES_MAX],
    depth: usize,
}

/// The thread has left the CPU and, as far as the records show, not returned.
struct OffCpu {
    since_ns: u64,
    preempted: bool,
}

impl OffCpuTracker {
    pub(crate) const fn new() -> OffCpuTracker {
        OffCpuTracker {
            off_cpu: None,
            frames: [0; STACK_FRAMES_MAX],
            depth: 0,
        }
    }

    /// Takes the next record, hands a finished interval to `end`, and returns how many records the
    /// kernel says it lost here.
    pub(crate) fn record(
        &mut self,
        record: Record<'_>,
        end: impl FnOnce(OffCpuInterval<'_>),
    ) -> u64 {
        match record {
            Record::Sample { stack, .. } => {
                self.close_unfinished(end);
                self.depth = stack.len().min(STACK_FRAMES_MAX);
                self.frames[..self.depth].copy_from_slice(&stack[..self.depth]);
            }
            Record::SwitchOut { time_ns, preempted } => {
                self.close_unfinished(end);
                self.off_cpu = Some(OffCpu {
                    since_ns: time_ns,
                    preempted,
                });
            }
            Record::SwitchIn { time_ns } => self.close(time_ns, end),
            Record::Lost { count } => {
                self.close_unfinished(end);
                self.depth = 0;
                return count;
            }
            Record::Other => {}
        }
        0
    }

    /// Ends a drain. The thread is running, so if it is still away in the records, the SWITCH in is
    /// lost.
    pub(crate) fn end_drain(&mut self, end: impl FnOnce(OffCpuInterval<'_>)) {
        self.close_unfinished(end);
        self.depth = 0;
    }

    fn close_unfinished(&mut self, end: impl FnOnce(OffCpuInterval<'_>)) {
        self.close(0, end);
    }

    fn close(&mut self, time_ns: u64, end: impl FnOnce(OffCpuInterval<'_>)) {
        let Some(off_cpu) = self.off_cpu.take() else {
            return;
        };
        let depth = std::mem::take(&mut self.depth);
        end(OffCpuInterval {
            length_ns: time_ns.saturating_sub(off_cpu.since_ns),
            preempted: off_cpu.preempted,
            stack: &self.frames[..depth],
        });
    }
}
