//! What both observers read back from the kernel: losses and stacks.

use std::os::fd::{AsFd, AsRawFd};

use aya::Ebpf;
use aya::maps::{PerCpuArray, StackTraceMap};
use aya::programs::Program;

use crate::error::{AttachError, chain};
use crate::layout::{LOST_KINDS, STACK_UNKNOWN};
use crate::lost::Lost;

pub(crate) fn load_error(error: impl std::error::Error + 'static) -> AttachError {
    AttachError::Load { why: chain(&error) }
}

/// What the kernel's part could not count or keep.
pub(crate) fn lost_of(ebpf: &Ebpf) -> Lost {
    let counts = lost_counts(ebpf).unwrap_or_default();
    // Of a contention that was not seen, only the waiters are not known.
    let (mut events, mut waiters) = (0, 0);
    for (name, program) in ebpf.programs() {
        let sum = if name.starts_with("conten") {
            &mut waiters
        } else {
            &mut events
        };
        *sum += skipped(program);
    }
    Lost {
        threads: counts[0],
        calls: counts[1],
        sleeps: counts[2],
        stacks: counts[3],
        records: counts[4],
        waiters: counts[5] + waiters,
        processes: counts[6],
        names: 0,
        begun_before: counts[7],
        events: counts[8] + events,
        connections: counts[9],
    }
}

fn lost_counts(ebpf: &Ebpf) -> Option<[u64; LOST_KINDS]> {
    let lost: PerCpuArray<_, u64> = PerCpuArray::try_from(ebpf.map("lost")?).ok()?;
    let mut sums = [0; LOST_KINDS];
    for (kind, sum) in sums.iter_mut().enumerate() {
        *sum = lost.get(&(kind as u32), 0).ok()?.iter().sum();
    }
    Some(sums)
}

/// Kernel addresses of a stack by its number, innermost first; empty if unknown.
pub(crate) fn stack_of(ebpf: &Ebpf, number: u64) -> Vec<u64> {
    if number == STACK_UNKNOWN {
        return Vec::new();
    }
    let stacks = ebpf
        .map("stacks")
        .and_then(|map| StackTraceMap::try_from(map).ok());
    let trace = stacks.and_then(|stacks| stacks.get(&(number as u32), 0).ok());
    trace.map_or_else(Vec::new, |trace| {
        trace.frames().iter().map(|frame| frame.ip).collect()
    })
}

/// Events a program missed because it was running already: `recursion_misses` in its fdinfo
/// (proc(5)), Linux 5.12.
fn skipped(program: &Program) -> u64 {
    let Ok(descriptor) = program.fd() else {
        return 0;
    };
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    (text.lines())
        .find_map(|line| line.strip_prefix("recursion_misses:")?.trim().parse().ok())
        .unwrap_or(0)
}
