//! What the ring requests of the kernel: the attributes of the event, and opening it.
//!
//! The structure is written out here rather than taken from generated bindings, because a ring
//! needs eight of its fields and the kernel accepts any published size of it.
//!
//! Source: perf_event_open(2); include/uapi/linux/perf_event.h.

use std::io;
use std::os::fd::FromRawFd;

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::STACK_FRAMES_MAX;
use super::counter::{CounterScope, EventWords};
use super::faults::{FaultKind, FaultScope};

/// How much a ring records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Each time off the CPU with the kernel stack that led to it. Needs
    /// `kernel.perf_event_paranoid` ≤ 1 or `CAP_PERFMON`.
    Stacks,
    /// Each time off the CPU, its length, and whether it was a preemption; no stacks. Allowed
    /// up to `kernel.perf_event_paranoid` 2, the usual default.
    SwitchesOnly,
}

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER5` (Linux 4.8), the first with
/// `sample_max_stack`.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clock: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

const TYPE_SOFTWARE: u32 = 1;
const SOFTWARE_CONTEXT_SWITCHES: u64 = 3;
const SOFTWARE_PAGE_FAULTS_MINOR: u64 = 5;
const SOFTWARE_PAGE_FAULTS_MAJOR: u64 = 6;
const SOFTWARE_DUMMY: u64 = 9;

const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;

const FORMAT_TOTAL_TIME_ENABLED: u64 = 1 << 0;
const FORMAT_TOTAL_TIME_RUNNING: u64 = 1 << 1;
const FORMAT_LOST: u64 = 1 << 4;

// The flags are C bit fields. Compilers number them from the lowest bit on little-endian machines
// and from the highest on big-endian ones.
const DISABLED: u64 = flag(0);
const INHERIT: u64 = flag(1);
const EXCLUDE_USER: u64 = flag(4);
const EXCLUDE_KERNEL: u64 = flag(5);
const EXCLUDE_HYPERVISOR: u64 = flag(6);
const ENABLE_ON_EXEC: u64 = flag(12);
const SAMPLE_ID_ALL: u64 = flag(18);
const EXCLUDE_CALLCHAIN_USER: u64 = flag(22);
const USE_CLOCKID: u64 = flag(25);
const CONTEXT_SWITCH: u64 = flag(26);

const fn flag(bit: u32) -> u64 {
    if cfg!(target_endian = "little") {
        1 << bit
    } else {
        1 << (63 - bit)
    }
}

impl Attributes {
    fn new(detail: Detail) -> Attributes {
        let common = Attributes {
            kind: TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            read_format: FORMAT_LOST,
            // `sample_id_all` gives the SWITCH records their times, on the clock the caller reads
            // too.
            flags: SAMPLE_ID_ALL | USE_CLOCKID | CONTEXT_SWITCH | EXCLUDE_HYPERVISOR,
            sample_type: SAMPLE_TIME,
            clock: libc::CLOCK_MONOTONIC,
            ..Attributes::default()
        };
        match detail {
            Detail::Stacks => Attributes {
                config: SOFTWARE_CONTEXT_SWITCHES,
                sample_period: 1,
                sample_type: SAMPLE_TIME | SAMPLE_CALLCHAIN,
                flags: common.flags | EXCLUDE_CALLCHAIN_USER,
                sample_max_stack: STACK_FRAMES_MAX as u16,
                ..common
            },
            // Context switches happen in the kernel, so counting them needs the right to look into
            // it. An event that counts nothing does not, and carries the SWITCH records all the
            // same.
            Detail::SwitchesOnly => Attributes {
                config: SOFTWARE_DUMMY,
                flags: common.flags | EXCLUDE_KERNEL,
                ..common
            },
        }
    }
}

/// Opens the event for the calling thread, enabled at once. The flag tells whether the kernel
/// counts lost records.
pub(super) fn open_event(detail: Detail) -> io::Result<(OwnedFd, bool)> {
    let mut attributes = Attributes::new(detail);
    loop {
        match perf_event_open(&attributes) {
            Ok(event) => return Ok((event, attributes.read_format == FORMAT_LOST)),
            // Before Linux 6.0 the kernel knows no PERF_FORMAT_LOST.
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL) && attributes.read_format != 0 =>
            {
                attributes.read_format = 0;
            }
            // `kernel.perf_event_max_stack` may be below our depth; 0 asks for that depth.
            Err(error)
                if error.raw_os_error() == Some(libc::EOVERFLOW)
                    && attributes.sample_max_stack != 0 =>
            {
                attributes.sample_max_stack = 0;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Opens an event that leaves a record of header and time for each fault of the calling thread.
pub(super) fn open_fault_event(fault: FaultKind, scope: FaultScope) -> io::Result<OwnedFd> {
    perf_event_open(&Attributes {
        kind: TYPE_SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: match fault {
            FaultKind::Minor => SOFTWARE_PAGE_FAULTS_MINOR,
            FaultKind::Major => SOFTWARE_PAGE_FAULTS_MAJOR,
        },
        sample_period: 1,
        sample_type: SAMPLE_TIME,
        flags: match scope {
            FaultScope::Everywhere => EXCLUDE_HYPERVISOR,
            FaultScope::InKernel => EXCLUDE_HYPERVISOR | EXCLUDE_USER,
        },
        ..Attributes::default()
    })
}

/// Opens a counter that does not count yet; with [`CounterScope::Children`] it begins to at each
/// `exec`.
pub(super) fn open_counter(
    event: &EventWords,
    scope: CounterScope,
    leader: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let mut flags = DISABLED;
    for (wanted, flag) in [
        (event.exclude_user, EXCLUDE_USER),
        (event.exclude_kernel, EXCLUDE_KERNEL),
        // Counts of a CPU are not inherited.
        (!matches!(scope, CounterScope::Cpu(_)), INHERIT),
        (scope == CounterScope::Children, ENABLE_ON_EXEC),
    ] {
        flags |= if wanted { flag } else { 0 };
    }
    let attributes = Attributes {
        kind: event.kind,
        size: size_of::<Attributes>() as u32,
        config: event.config,
        config1: event.config1,
        config2: event.config2,
        read_format: FORMAT_TOTAL_TIME_ENABLED | FORMAT_TOTAL_TIME_RUNNING,
        flags,
        ..Attributes::default()
    };
    let (thread, cpu) = match scope {
        CounterScope::Thread(thread) => (thread, ANY_CPU),
        CounterScope::Children => (THIS_THREAD, ANY_CPU),
        CounterScope::Cpu(number) => (ANY_THREAD, number as libc::c_int),
    };
    let group = leader.map_or(NO_GROUP, |leader| leader.as_raw_fd());
    open(&attributes, thread, cpu, group)
}

const THIS_THREAD: libc::pid_t = 0;
const ANY_THREAD: libc::pid_t = -1;
const ANY_CPU: libc::c_int = -1;
const NO_GROUP: libc::c_int = -1;

/// On the calling thread, on whatever CPU it runs, in no group.
fn perf_event_open(attributes: &Attributes) -> io::Result<OwnedFd> {
    open(attributes, THIS_THREAD, ANY_CPU, NO_GROUP)
}

/// perf_event_open(2). The call does not wait, hence no EINTR.
fn open(
    attributes: &Attributes,
    thread: libc::pid_t,
    cpu: libc::c_int,
    group: libc::c_int,
) -> io::Result<OwnedFd> {
    const FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
    // SAFETY: the kernel reads `size` bytes at the pointer, and `size` is that of the structure.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attributes),
            thread,
            cpu,
            group,
            FLAG_FD_CLOEXEC,
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(answer as libc::c_int) })
}
