//! The record of one call: what the paper's `DeBoxInfo` holds.
//!
//! A record is a buffer that the caller owns and the recorder fills again and again, so that
//! tracing does not allocate. The lengths of its two arrays come from its [`Limits`]; what does not
//! fit is counted.
//!
//! Source: Ruan's dissertation (2005), section 2.3.1 and Figure 2.3.

use headway_os::perf::STACK_FRAMES_MAX;
use serde::Serialize;

use crate::labels::Label;
use crate::off_cpu::OffCpuInterval;
use crate::report::Wait;
use crate::symbols::Symbols;

/// How much of a call is kept.
///
/// ```
/// use headway_debox::{Debox, Limits};
///
/// // For a collector: symbols are resolved later, and no file of /proc is read.
/// let limits = Limits { resolve: false, wakeup: false, ..Limits::default() };
/// let debox = Debox::enable(limits);
/// assert_eq!(debox.last().expect("records are on").limits(), limits);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many kernel functions in which one call slept are kept apart. The paper's structure has
    /// 5.
    pub sleeps_max: usize,
    /// Entries of the call trace. The paper's structure has 200. An entry is a frame of the kernel
    /// stack at a sleep, until [`FunctionTimes::merge`](crate::FunctionTimes::merge) replaces them
    /// by the functions of the call.
    pub trace_max: usize,
    /// Whether sleeps get their label and function at once. It needs the kernel's symbols, which
    /// the first [`Debox::enable`](crate::Debox::enable) of the process loads (tens of
    /// milliseconds, several megabytes); otherwise resolve the stacks later.
    pub resolve: bool,
    /// Whether to measure after each sleep how long the thread waited for a CPU. Takes three system
    /// calls on /proc.
    pub wakeup: bool,
    /// Whether to count page faults in user mode between the beginning and the end of a call, for
    /// example in a closure. Without it only faults in the kernel count, and a program that touches
    /// much fresh memory does not pay for each page. The value given to
    /// [`Debox::enable`](crate::Debox::enable) applies; later limits do not change it.
    pub own_faults: bool,
}

impl Default for Limits {
    /// The paper's five sleeps, no call trace, labels at once, all faults.
    fn default() -> Limits {
        Limits {
            sleeps_max: 5,
            trace_max: 0,
            resolve: true,
            wakeup: true,
            own_faults: true,
        }
    }
}

/// A kernel stack, innermost frame first.
#[derive(Clone, Copy)]
pub struct Stack {
    frames: [u64; STACK_FRAMES_MAX],
    depth: u8,
}

impl Stack {
    /// Keeps the innermost frames; what goes beyond the room is entry code.
    pub fn new(frames: &[u64]) -> Stack {
        let depth = frames.len().min(STACK_FRAMES_MAX);
        let mut stack = Stack {
            frames: [0; STACK_FRAMES_MAX],
            depth: depth as u8,
        };
        stack.frames[..depth].copy_from_slice(&frames[..depth]);
        stack
    }

    /// The addresses; all but the first are return addresses. Empty if not known.
    pub fn frames(&self) -> &[u64] {
        &self.frames[..usize::from(self.depth)]
    }
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.frames()).finish()
    }
}

/// The sleeps of one call in one kernel function: the paper's `PerSleepInfo`.
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    /// How many times the call slept here.
    pub count: u32,
    /// Nanoseconds off the CPU in total, including the time from the wakeup until the thread ran.
    pub blocked_ns: u64,
    /// The longest of them.
    pub max_ns: u64,
    /// The resource; `Unknown` unless [`Limits::resolve`] and the stack is known.
    pub label: Label,
    /// The kernel function it slept in and the offset in it, where resolved: the start of the
    /// innermost function that is not the scheduler's.
    pub site: Option<CodeOffset>,
    /// The stack of the first of them.
    pub stack: Stack,
    /// Other tasks asleep on the same resource when this sleep began. Only an attached observer
    /// (BPF) knows them.
    pub waiters_entry: Option<u32>,
    /// Other tasks asleep on the same resource at the wakeup.
    pub waiters_exit: Option<u32>,
}

/// A position in the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CodeOffset {
    /// Where the function starts.
    pub function: u64,
    /// The return address's distance from there.
    pub offset: u32,
}

impl CodeOffset {
    /// An address inside the call, for looking up its source line.
    pub fn address(self) -> u64 {
        self.function + u64::from(self.offset).saturating_sub(1)
    }
}

/// An entry of the call trace: the paper's `CallTrace`. A frame of the stack at a sleep, or a
/// function of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// A kernel address: a return address of the stack, or one at the start of the function.
    pub address: u64,
    /// Nanoseconds of the sleep it is a frame of, or of the function.
    pub length_ns: u64,
    /// Depth, the outermost frame being 0.
    pub depth: u16,
}

/// The performance of one system call, in the buffer of its caller.
#[derive(Debug)]
pub struct Record {
    limits: Limits,
    /// Number of the call.
    pub number: u32,
    /// When the call began, in nanoseconds of `CLOCK_MONOTONIC`; right to some 5 µs.
    pub start_ns: u64,
    /// Wall-clock time.
    pub wall_ns: u64,
    /// The wall time in ticks of the clock in use ([`headway_os::ticks`]): the CPU's counter where
    /// it is reliable.
    pub wall_ticks: u64,
    /// Minor page faults; `None` where the privilege does not reach.
    pub faults_minor: Option<u32>,
    /// Major page faults.
    pub faults_major: Option<u32>,
    /// How often the call lost the CPU while it could have run on.
    pub preemptions: Wait,
    /// Nanoseconds that the thread was runnable without running, after wakeups and preemptions.
    /// `None` if it was not requested, if the call did not sleep, or if a signal handler's call
    /// came in between.
    pub wakeup_ns: Option<u64>,
    /// Sleeps that found no room in `sleeps`.
    pub sleeps_dropped: u32,
    /// Trace entries that found no room.
    pub trace_dropped: u32,
    /// Records the kernel lost during the call or shortly before it; sleeps may be missing if
    /// not 0.
    pub lost: u64,
    sleeps: Vec<Sleep>,
    trace: Vec<TraceEntry>,
}

impl Record {
    /// An empty buffer; the only allocation there is.
    pub fn new(limits: Limits) -> Record {
        Record {
            limits,
            number: 0,
            start_ns: 0,
            wall_ns: 0,
            wall_ticks: 0,
            faults_minor: None,
            faults_major: None,
            preemptions: Wait::default(),
            wakeup_ns: None,
            sleeps_dropped: 0,
            trace_dropped: 0,
            lost: 0,
            sleeps: Vec::with_capacity(limits.sleeps_max),
            trace: Vec::with_capacity(limits.trace_max),
        }
    }

    /// The record of a call that was observed from outside: it has these sleeps, and the caller
    /// fills in the rest.
    pub fn observed(number: u32, sleeps: Vec<Sleep>) -> Record {
        let limits = Limits {
            sleeps_max: sleeps.len(),
            ..Limits::default()
        };
        Record {
            number,
            sleeps,
            ..Record::new(limits)
        }
    }

    /// The limits on what is kept.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The sleeps, in the order of their first occurrence.
    pub fn sleeps(&self) -> &[Sleep] {
        &self.sleeps
    }

    /// The sleeps, for an observer that knows more about them, such as the waiters.
    pub fn sleeps_mut(&mut self) -> &mut [Sleep] {
        &mut self.sleeps
    }

    /// The call trace; see [`Limits::trace_max`].
    pub fn trace(&self) -> &[TraceEntry] {
        &self.trace
    }

    /// Number of sleeps, dropped ones included.
    pub fn slept_count(&self) -> u64 {
        let kept: u64 = self.sleeps.iter().map(|sleep| u64::from(sleep.count)).sum();
        kept + u64::from(self.sleeps_dropped)
    }

    /// Whether the thread lost the CPU in the call, voluntarily or not, or may have lost it because
    /// a record is missing.
    #[inline]
    pub fn left_cpu(&self) -> bool {
        !self.sleeps.is_empty()
            || self.preemptions.count > 0
            || self.sleeps_dropped > 0
            || self.lost > 0
    }

    /// Nanoseconds asleep in the sleeps that are kept.
    pub fn blocked_ns(&self) -> u64 {
        self.sleeps.iter().map(|sleep| sleep.blocked_ns).sum()
    }

    /// Nanoseconds on the CPU: the wall time without sleeps and preemptions. An upper limit if a
    /// sleep was dropped or a record lost.
    pub fn cpu_ns(&self) -> u64 {
        (self.wall_ns)
            .saturating_sub(self.blocked_ns())
            .saturating_sub(self.preemptions.total_ns)
    }

    /// Makes it the record of a new call. Arrays keep their memory.
    #[inline(always)]
    pub(crate) fn begin(&mut self, number: u32) {
        self.number = number;
        self.preemptions = Wait::default();
        self.wakeup_ns = None;
        self.sleeps_dropped = 0;
        self.trace_dropped = 0;
        self.lost = 0;
        self.sleeps.clear();
        self.trace.clear();
    }

    pub(crate) fn add(&mut self, interval: OffCpuInterval<'_>, symbols: Option<&Symbols>) {
        if interval.preempted {
            return self.preemptions.add(interval.length_ns);
        }
        self.add_trace(interval);
        let site = symbols.and_then(|symbols| symbols.site(interval.stack));
        let same = |sleep: &&mut Sleep| match (site, sleep.site) {
            (Some(here), Some(there)) => here == there,
            (None, None) => sleep.stack.frames() == interval.stack,
            _ => false,
        };
        if let Some(sleep) = self.sleeps.iter_mut().find(same) {
            sleep.count += 1;
            sleep.blocked_ns += interval.length_ns;
            sleep.max_ns = sleep.max_ns.max(interval.length_ns);
        } else if self.sleeps.len() < self.limits.sleeps_max {
            self.sleeps.push(Sleep {
                count: 1,
                blocked_ns: interval.length_ns,
                max_ns: interval.length_ns,
                label: symbols.map_or(Label::Unknown, |symbols| symbols.label(interval.stack)),
                site,
                stack: Stack::new(interval.stack),
                waiters_entry: None,
                waiters_exit: None,
            });
        } else {
            self.sleeps_dropped += 1;
        }
    }

    /// Replaces the call trace by other entries, as many as fit.
    pub(crate) fn set_trace(&mut self, entries: impl Iterator<Item = TraceEntry>, dropped: u64) {
        self.trace.clear();
        self.trace_dropped = u32::try_from(dropped).unwrap_or(u32::MAX);
        for entry in entries {
            if self.trace.len() < self.limits.trace_max {
                self.trace.push(entry);
            } else {
                self.trace_dropped = self.trace_dropped.saturating_add(1);
            }
        }
    }

    /// Adds the frames of a stack, the outermost first, as a function tracer would report them.
    fn add_trace(&mut self, interval: OffCpuInterval<'_>) {
        if self.limits.trace_max == 0 {
            return;
        }
        for (depth, &address) in interval.stack.iter().rev().enumerate() {
            if self.trace.len() == self.limits.trace_max {
                self.trace_dropped += 1;
                continue;
            }
            self.trace.push(TraceEntry {
                address,
                length_ns: interval.length_ns,
                depth: depth as u16,
            });
        }
    }
}
