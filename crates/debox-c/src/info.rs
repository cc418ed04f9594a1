//! The structures of `include/debox.h`, field by field, and how a record becomes one.
//!
//! What the paper's Figure 2.3 has keeps its name. Strings end with a zero byte and are cut to fit.

use std::ffi::{c_char, c_int, c_long};

use headway_debox::{KernelSite, Record, Sleep, TraceEntry, TraceLevel, kernel_symbols};

/// Entries of `psi`.
pub const SLEEPS: usize = 5;
/// Entries of `ct`.
pub const TRACE: usize = 200;

/// `struct timeval` of 64-bit machines.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TimeVal {
    tv_sec: c_long,
    tv_usec: c_long,
}

/// The sleeps of a label, `PerSleepInfo` of the header.
#[repr(C)]
#[allow(non_snake_case, missing_docs)]
#[derive(Clone, Copy)]
pub struct PerSleepInfo {
    pub numSleeps: c_int,
    pub blockingLine: c_int,
    pub numWaitersEntry: c_int,
    pub numWaitersExit: c_int,
    pub blockedTime: TimeVal,
    pub blockedNs: u64,
    pub maxBlockedNs: u64,
    pub wmesg: [c_char; 24],
    pub blockingFile: [c_char; 64],
    pub blockingFunction: [c_char; 64],
    pub blockingOffset: u64,
    pub blockingAddress: u64,
    pub reserved: [u64; 3],
}

/// A function in the trace of a call, `CallTrace` of the header.
#[repr(C)]
#[allow(non_snake_case, missing_docs)]
#[derive(Clone, Copy)]
pub struct CallTrace {
    pub callSite: usize,
    pub deltaTime: c_long,
    pub depth: c_int,
    pub reserved: c_int,
}

/// `CallTime`: a structure where the paper has a union, since there is room for both.
#[repr(C)]
#[allow(non_snake_case, missing_docs)]
#[derive(Clone, Copy)]
pub struct CallTime {
    pub callTimeval: TimeVal,
    pub callCycles: i64,
}

/// The figures of a call, `DeBoxInfo` of the header.
#[repr(C)]
#[allow(non_snake_case, missing_docs)]
pub struct DeBoxInfo {
    pub structSize: u32,
    pub structVersion: u32,
    pub syscallNum: c_int,
    pub numPGFaults: c_int,
    pub CallTime: CallTime,
    pub numPerSleepInfo: c_int,
    pub traceDepth: c_int,
    pub numSleepsDropped: c_int,
    pub numTraceDropped: c_int,
    pub numMajorFaults: c_int,
    pub numPreemptions: c_int,
    pub traceLevel: c_int,
    pub reservedInt: c_int,
    pub callNs: u64,
    pub cpuNs: u64,
    pub startNs: u64,
    pub preemptedNs: u64,
    pub wakeupNs: u64,
    pub lostRecords: u64,
    pub callSite: usize,
    pub reserved: [u64; 9],
    pub psi: [PerSleepInfo; SLEEPS],
    pub ct: [CallTrace; TRACE],
}

/// The version of the structures.
pub const VERSION: u32 = 1;

/// "Not known", where there is a number.
const NOT_KNOWN: c_int = -1;

impl DeBoxInfo {
    /// Fills in the record of a call. Arrays are written as far as their counts say, as in the
    /// paper.
    #[inline]
    pub fn fill(&mut self, record: &Record, site: usize) {
        self.syscallNum = record.number as c_int;
        self.numMajorFaults = record
            .faults_major
            .map_or(NOT_KNOWN, |faults| faults as c_int);
        self.numPGFaults = match (record.faults_minor, record.faults_major) {
            (Some(minor), Some(major)) => minor.saturating_add(major) as c_int,
            _ => NOT_KNOWN,
        };
        self.CallTime = CallTime {
            callTimeval: timeval(record.wall_ns),
            callCycles: record.wall_ticks as i64,
        };
        self.callNs = record.wall_ns;
        self.startNs = record.start_ns;
        self.callSite = site;
        self.numPerSleepInfo = 0;
        self.traceDepth = 0;
        self.numSleepsDropped = 0;
        self.numTraceDropped = 0;
        self.numPreemptions = 0;
        self.preemptedNs = 0;
        self.lostRecords = 0;
        self.cpuNs = record.wall_ns;
        self.wakeupNs = record.wakeup_ns.unwrap_or(u64::MAX);
        if record.left_cpu() {
            self.fill_absences(record);
        }
    }

    #[cold]
    #[inline(never)]
    fn fill_absences(&mut self, record: &Record) {
        self.numPerSleepInfo = record.sleeps().len() as c_int;
        self.traceDepth = record.trace().len() as c_int;
        self.numSleepsDropped = record.sleeps_dropped as c_int;
        self.numTraceDropped = record.trace_dropped as c_int;
        self.numPreemptions = record.preemptions.count as c_int;
        self.preemptedNs = record.preemptions.total_ns;
        self.lostRecords = record.lost;
        self.cpuNs = record.cpu_ns();
        for (info, sleep) in self.psi.iter_mut().zip(record.sleeps()) {
            info.fill(sleep);
        }
        for (info, entry) in self.ct.iter_mut().zip(record.trace()) {
            *info = trace(entry);
        }
    }

    /// What does not change from call to call.
    pub fn begin(&mut self, size: usize, level: &TraceLevel) {
        self.structSize = size.min(size_of::<DeBoxInfo>()) as u32;
        self.structVersion = VERSION;
        self.syscallNum = NOT_KNOWN;
        self.traceLevel = level_number(level);
        self.numPerSleepInfo = 0;
        self.traceDepth = 0;
    }
}

/// `DEBOX_LEVEL_STACKS`, `DEBOX_LEVEL_SWITCHES` or `DEBOX_LEVEL_OFF`.
pub fn level_number(level: &TraceLevel) -> c_int {
    match level {
        TraceLevel::Stacks => 2,
        TraceLevel::SwitchesOnly { .. } => 1,
        TraceLevel::Off { .. } => 0,
    }
}

impl PerSleepInfo {
    fn fill(&mut self, sleep: &Sleep) {
        let waiters = |count: Option<u32>| count.map_or(NOT_KNOWN, |count| count as c_int);
        self.numSleeps = sleep.count as c_int;
        self.blockedTime = timeval(sleep.blocked_ns);
        self.blockedNs = sleep.blocked_ns;
        self.maxBlockedNs = sleep.max_ns;
        self.numWaitersEntry = waiters(sleep.waiters_entry);
        self.numWaitersExit = waiters(sleep.waiters_exit);
        copy(&mut self.wmesg, sleep.label.name());
        // They are in the kernel's debug file, see `debox_lines`.
        copy(&mut self.blockingFile, "");
        self.blockingLine = 0;
        copy(&mut self.blockingFunction, function(sleep.site));
        self.blockingOffset = sleep.site.map_or(0, |site| u64::from(site.offset));
        self.blockingAddress = sleep
            .site
            .map_or(0, |site| site.function + u64::from(site.offset));
    }
}

fn function(site: Option<KernelSite>) -> &'static str {
    site.zip(kernel_symbols())
        .and_then(|(site, symbols)| symbols.name(site.function))
        .map_or("", |(name, _)| name)
}

fn trace(entry: &TraceEntry) -> CallTrace {
    CallTrace {
        callSite: entry.address as usize,
        deltaTime: entry.length_ns as c_long,
        depth: c_int::from(entry.depth),
        reserved: 0,
    }
}

#[inline]
fn timeval(ns: u64) -> TimeVal {
    TimeVal {
        tv_sec: (ns / 1_000_000_000) as c_long,
        tv_usec: (ns % 1_000_000_000 / 1000) as c_long,
    }
}

/// Copies a text, cut to leave room for the zero byte.
pub fn copy(room: &mut [c_char], text: &str) {
    let Some(last) = room.len().checked_sub(1) else {
        return;
    };
    let length = text.len().min(last);
    for (target, byte) in room.iter_mut().zip(&text.as_bytes()[..length]) {
        *target = *byte as c_char;
    }
    room[length] = 0;
}
