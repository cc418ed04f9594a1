//! Puts the programs into the kernel: sizes and policy first, then one tracepoint after the other.

use std::fmt;
use std::path::Path;

use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{BtfTracePoint, Iter, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader, Endianness};
use headway_debox::policy::Filter;
use serde::Serialize;

use crate::error::{AttachError, chain, os_error};
use crate::layout::CALLS_MAX;
use crate::object;
use crate::target::Pids;

/// How much room the kernel's part gets. What goes beyond is counted, see [`Lost`](crate::Lost).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Processes traced at a time, children included.
    pub processes_max: u32,
    /// Threads traced at a time. About a kilobyte each.
    pub threads_max: u32,
    /// Call sites, and as many places where they sleep.
    pub sites_max: u32,
    /// How many kernel stacks are kept apart. Hash collisions lose a few before this number is
    /// reached.
    pub stacks_max: u32,
    /// Tasks of the whole system asleep on something at a time.
    pub sleepers_max: u32,
    /// Bytes of the ring buffer through which records come; a power of two, at least a page.
    pub ring_bytes: u32,
    /// How many programs are kept with their names; the calls of further ones are counted.
    pub programs_max: usize,
    /// How many records are stored until [`Attach::records`](crate::Attach::records) takes them.
    pub records_max: usize,
    /// Whether records of single calls are kept at all; totals always are.
    pub records: bool,
    /// Whether tasks of other processes count as waiters. That costs every context switch and
    /// wakeup of the system some map operations. Without it, only traced threads count.
    pub waiters_everywhere: bool,
}

impl Default for Limits {
    /// Some ten megabytes of kernel memory.
    fn default() -> Limits {
        Limits {
            processes_max: 4096,
            threads_max: 4096,
            sites_max: 8192,
            stacks_max: 8192,
            sleepers_max: 16384,
            ring_bytes: 1 << 20,
            programs_max: 65536,
            records_max: 65536,
            records: true,
            waiters_everywhere: true,
        }
    }
}

/// What an attached observer sees, and what this kernel keeps from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Visibility {
    /// One sentence for each thing that is missing.
    pub missing: Vec<String>,
}

impl fmt::Display for Visibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "observed from outside by BPF: calls and sleeps are counted, timed and located in the kernel, with waiters and \
             wakeup latency",
        )?;
        self.missing
            .iter()
            .try_for_each(|missing| write!(f, "; {missing}"))
    }
}

/// Where the kernel describes its types.
pub(crate) const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

pub(crate) struct Tracepoint {
    program: &'static str,
    name: &'static str,
    /// What is lost without it; `None` if it is required.
    without: Option<&'static str>,
}

/// The tracepoints of records, in the order of attaching: those that remove a thread from the maps
/// come before those that add it.
pub(crate) const RECORDS: &[Tracepoint] = &[
    required("exited", "sched_process_exit"),
    optional(
        "executed",
        "sched_process_exec",
        "call sites mix programs when a process calls exec",
    ),
    optional("forked", "sched_process_fork", "children are not followed"),
    CONTENDED,
    CONTEND,
    required("woken", "sched_wakeup"),
    required("switched", "sched_switch"),
    required("leave", "sys_exit"),
    required("enter", "sys_enter"),
];

/// The tracepoints of waiter counts, in the same order.
pub(crate) const WAITERS: &[Tracepoint] = &[
    required("exited", "sched_process_exit"),
    required("forked", "sched_process_fork"),
    CONTENDED,
    CONTEND,
    required("woken", "sched_wakeup"),
    required("switched", "sched_switch"),
];

pub(crate) const CONTENDED: Tracepoint = optional(
    "contended",
    "contention_end",
    "waiters for kernel locks are not told apart",
);
pub(crate) const CONTEND: Tracepoint = optional(
    "contend",
    "contention_begin",
    "waiters for kernel locks are not told apart",
);

pub(crate) const fn required(program: &'static str, name: &'static str) -> Tracepoint {
    Tracepoint {
        program,
        name,
        without: None,
    }
}

pub(crate) const fn optional(
    program: &'static str,
    name: &'static str,
    without: &'static str,
) -> Tracepoint {
    Tracepoint {
        program,
        name,
        without: Some(without),
    }
}

/// Calls whose first argument is a descriptor that they may wait for.
pub(crate) const DESCRIPTOR_FIRST: &[&str] = &[
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "pwrite64",
    "preadv",
    "pwritev",
    "preadv2",
    "pwritev2",
    "recvfrom",
    "sendto",
    "recvmsg",
    "sendmsg",
    "recvmmsg",
    "sendmmsg",
    "accept",
    "accept4",
    "connect",
    "shutdown",
    "sendfile",
    "splice",
    "tee",
    "vmsplice",
    "copy_file_range",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "syncfs",
    "flock",
    "fcntl",
    "ioctl",
    "ftruncate",
    "fallocate",
    "lseek",
    "getdents",
    "getdents64",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "io_uring_enter",
    "fadvise64",
    "readahead",
    "fstat",
    "fchmod",
    "fchown",
    "close",
];

/// Loads everything, attaches nothing.
pub(crate) fn load(
    pids: &Pids,
    limits: &Limits,
    filter: &Filter,
    keep_last: bool,
) -> Result<Ebpf, AttachError> {
    let object = object::attach()?;
    check_privileges()?;
    let waiting = waiting_slots(limits.sleepers_max);
    let (traits, flags) = (traits(filter), |on: bool| u8::from(on));
    let (follow, everywhere) = (
        flags(pids.follow_children),
        flags(limits.waiters_everywhere),
    );
    let (records, last, slept) = (flags(limits.records), flags(keep_last), flags(filter.slept));
    let all = flags(filter.calls.is_empty());
    // Conditions that only this side can judge come after the kernel's, and then one in N is
    // counted here.
    let one_in = if needs_user_space(filter) {
        1
    } else {
        u64::from(filter.one_in.max(1))
    };
    // 0 means no limit; no call takes less than a nanosecond.
    let slower_ns = filter.slower_than_ns.unwrap_or(0);
    let (futex, mask) = (futex(), waiting - 1);
    let btf = kernel_types()?;
    EbpfLoader::new()
        .btf(Some(&btf))
        .map_max_entries("targets", limits.processes_max.max(1))
        .map_max_entries("threads", limits.threads_max.max(1))
        .map_max_entries("calls", limits.sites_max.max(1))
        .map_max_entries("sleeps", limits.sites_max.max(1))
        .map_max_entries("stacks", limits.stacks_max.max(1).next_power_of_two())
        .map_max_entries("places", limits.sleepers_max.max(1))
        .map_max_entries("waiting", waiting)
        .map_max_entries("events", limits.ring_bytes.max(4096).next_power_of_two())
        .override_global("follow_children", &follow, true)
        .override_global("waiters_everywhere", &everywhere, true)
        .override_global("keep_last", &last, true)
        .override_global("keep_records", &records, true)
        .override_global("keep_only_slept", &slept, true)
        .override_global("keep_calls_all", &all, true)
        .override_global("keep_slower_ns", &slower_ns, true)
        .override_global("keep_one_in", &one_in, true)
        .override_global("waiting_mask", &mask, true)
        .override_global("futex_number", &futex, true)
        .override_global("call_traits", &traits, true)
        .load(object)
        .map_err(|error| to_attach_error(&error))
}

/// Loads what counts waiters, attaches nothing.
pub(crate) fn load_waiters(limits: &Limits) -> Result<Ebpf, AttachError> {
    let object = object::waiters()?;
    check_privileges()?;
    let waiting = waiting_slots(limits.sleepers_max);
    let (futex, mask) = (futex(), waiting - 1);
    let traits = traits(&Filter::default());
    let btf = kernel_types()?;
    EbpfLoader::new()
        .btf(Some(&btf))
        .map_max_entries("targets", limits.processes_max.max(1))
        .map_max_entries("asleep", limits.threads_max.max(1))
        .map_max_entries("stacks", limits.stacks_max.max(1).next_power_of_two())
        .map_max_entries("places", limits.sleepers_max.max(1))
        .map_max_entries("waiting", waiting)
        .map_max_entries("events", limits.ring_bytes.max(4096).next_power_of_two())
        .override_global("waiting_mask", &mask, true)
        .override_global("futex_number", &futex, true)
        .override_global("call_traits", &traits, true)
        .load(object)
        .map_err(|error| to_attach_error(&error))
}

/// Loads the program that samples tasks; it runs only when it is read.
pub(crate) fn load_run_queue(processes_max: u32) -> Result<Ebpf, AttachError> {
    let object = object::runnable()?;
    check_privileges()?;
    let btf = kernel_types()?;
    let mut ebpf = EbpfLoader::new()
        .btf(Some(&btf))
        .map_max_entries("members", processes_max)
        .load(object)
        .map_err(|error| to_attach_error(&error))?;
    let load = |ebpf: &mut Ebpf| -> Result<(), String> {
        let program = ebpf.program_mut("sample").ok_or("it was not compiled in")?;
        let program: &mut Iter = program.try_into().map_err(|error| chain(&error))?;
        let loaded = program.load("task", &btf);
        loaded.map_err(|error| load_failure(&error))
    };
    load(&mut ebpf).map_err(|why| AttachError::Load { why })?;
    Ok(ebpf)
}

pub(crate) fn futex() -> u64 {
    headway_debox::calls::number("futex").map_or(u64::MAX, u64::from)
}

/// Whether a filter needs what the kernel part does not know: labels, or return addresses.
pub(crate) fn needs_user_space(filter: &Filter) -> bool {
    !filter.labels.is_empty() || !filter.sites.is_empty()
}

/// Four slots per sleeping thread, so that the few slots behind a hash position are hardly ever all
/// in use.
pub(crate) fn waiting_slots(sleepers_max: u32) -> u32 {
    sleepers_max
        .clamp(2, 1 << 20)
        .saturating_mul(4)
        .next_power_of_two()
}

pub(crate) fn traits(filter: &Filter) -> [u8; CALLS_MAX] {
    let mut traits = [0; CALLS_MAX];
    let mut mark = |number: u32, bit: u8| {
        if let Some(slot) = traits.get_mut(number as usize) {
            *slot |= bit;
        }
    };
    for number in DESCRIPTOR_FIRST
        .iter()
        .filter_map(|name| headway_debox::calls::number(name))
    {
        mark(number, 1);
    }
    filter.calls.iter().for_each(|number| mark(*number, 2));
    traits
}

/// Attaches those of the tracepoints that exist, and returns what is missing without the others.
pub(crate) fn attach(
    ebpf: &mut Ebpf,
    tracepoints: &[Tracepoint],
) -> Result<Visibility, AttachError> {
    let btf = kernel_types()?;
    let mut visibility = Visibility::default();
    for point in tracepoints {
        let Err(why) = attach_one(ebpf, &btf, point) else {
            continue;
        };
        match point.without {
            None => {
                return Err(AttachError::Tracepoint {
                    tracepoint: point.name,
                    why,
                });
            }
            Some(without) => visibility
                .missing
                .push(format!("{without} (tracepoint {}: {why})", point.name)),
        }
    }
    Ok(visibility)
}

fn attach_one(ebpf: &mut Ebpf, btf: &Btf, point: &Tracepoint) -> Result<(), String> {
    let program = tracepoint(ebpf, point.program)?;
    program
        .load(point.name, btf)
        .map_err(|error| load_failure(&error))?;
    program.attach().map_err(|error| chain(&error))?;
    Ok(())
}

fn tracepoint<'e>(ebpf: &'e mut Ebpf, program: &str) -> Result<&'e mut BtfTracePoint, String> {
    let program = ebpf.program_mut(program).ok_or("it was not compiled in")?;
    program.try_into().map_err(|error| chain(&error))
}

/// A program that can be taken from its tracepoint and put back.
#[derive(Debug)]
pub(crate) struct Switchable {
    program: &'static str,
    /// While it is attached.
    link: Option<BtfTracePointLinkId>,
}

impl Switchable {
    /// Loads and attaches it.
    pub fn attached(ebpf: &mut Ebpf, point: &Tracepoint) -> Result<Switchable, String> {
        let btf = kernel_types().map_err(|error| error.to_string())?;
        let program = tracepoint(ebpf, point.program)?;
        program
            .load(point.name, &btf)
            .map_err(|error| load_failure(&error))?;
        let mut switchable = Switchable {
            program: point.program,
            link: None,
        };
        switchable.switch(ebpf, true)?;
        Ok(switchable)
    }

    /// Whether it is attached.
    pub fn is_on(&self) -> bool {
        self.link.is_some()
    }

    /// Attaches or detaches it.
    pub fn switch(&mut self, ebpf: &mut Ebpf, on: bool) -> Result<(), String> {
        let program = tracepoint(ebpf, self.program)?;
        match (on, self.link.take()) {
            (true, None) => self.link = Some(program.attach().map_err(|error| chain(&error))?),
            (false, Some(link)) => program.detach(link).map_err(|error| chain(&error))?,
            (_, link) => self.link = link,
        }
        Ok(())
    }
}

/// The kernel's error, and the verifier's reason, which stands above its last lines of
/// statistics.
fn load_failure(error: &ProgramError) -> String {
    let ProgramError::LoadError {
        io_error,
        verifier_log,
    } = error
    else {
        return chain(error);
    };
    let log = verifier_log.to_string();
    let statistics = [
        "verification time",
        "stack depth",
        "processed ",
        "mark_precise",
    ];
    let reason = (log.lines().rev().map(str::trim))
        .find(|line| !line.is_empty() && !statistics.iter().any(|word| line.starts_with(word)));
    match reason {
        Some(reason) => format!("the kernel refused the program: {io_error} ({reason})"),
        None => format!("the kernel refused the program: {io_error}"),
    }
}

/// Capabilities by their bits (capability.h).
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Checks the privileges before loading, since the kernel's EPERM does not say which one is
/// missing.
pub(crate) fn check_privileges() -> Result<(), AttachError> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = (status.lines())
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .unwrap_or(u64::MAX);
    let has = |capability: u32| effective & (1 << capability) != 0;
    if has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON)) {
        return check_lockdown(Path::new("/sys/kernel/security/lockdown"));
    }
    let lacking: Vec<&str> = [(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")]
        .into_iter()
        .filter_map(|(capability, name)| (!has(capability)).then_some(name))
        .collect();
    let why = format!(
        "this process lacks {}; run it as root, or give the program both: `setcap cap_bpf,cap_perfmon+ep PROGRAM` \
         (kernel.unprivileged_bpf_disabled=0 does not help: it covers no tracing)",
        lacking.join(" and ")
    );
    Err(AttachError::NotPermitted { why })
}

/// The kernel's description of its types.
pub(crate) fn kernel_types() -> Result<Btf, AttachError> {
    types_of(Path::new(KERNEL_TYPES))
}

fn types_of(path: &Path) -> Result<Btf, AttachError> {
    Btf::parse_file(path, Endianness::default())
        .map_err(|error| AttachError::NoBtf { why: chain(&error) })
}

/// An absent file is that of a kernel without lockdown (kernel_lockdown(7)).
fn check_lockdown(path: &Path) -> Result<(), AttachError> {
    let state = std::fs::read_to_string(path).unwrap_or_default();
    if !state.contains("[confidentiality]") {
        return Ok(());
    }
    let why = "the kernel is locked down to keep its memory confidential (/sys/kernel/security/lockdown); boot with \
               lockdown=integrity or without Secure Boot";
    Err(AttachError::NotPermitted {
        why: why.to_owned(),
    })
}

pub(crate) fn to_attach_error(error: &aya::EbpfError) -> AttachError {
    let why = chain(error);
    let kind = os_error(error).map(std::io::Error::kind);
    if kind == Some(std::io::ErrorKind::PermissionDenied) {
        let why =
            format!("{why}; a container's seccomp filter or a security module may forbid bpf(2)");
        return AttachError::NotPermitted { why };
    }
    AttachError::Load { why }
}

#[cfg(test)]
mod tests {
    use headway_debox::policy::Filter;

    use std::path::Path;

    use super::{Visibility, check_lockdown, traits, types_of, waiting_slots};
    use crate::error::AttachError;

    #[test]
    fn kernel_that_does_not_describe_its_types_is_told_how_to_be_built() {
        let folder = tempfile::tempdir().expect("a folder");
        let empty = folder.path().join("vmlinux");
        std::fs::write(&empty, "").expect("written");
        for path in [Path::new("/none"), &empty] {
            let error = types_of(path).expect_err("it has none");
            assert!(matches!(error, AttachError::NoBtf { .. }), "{error}");
            assert!(
                error.to_string().contains("CONFIG_DEBUG_INFO_BTF"),
                "{error}"
            );
        }
    }

    #[test]
    fn lockdown_is_named_if_it_forbids_to_read_the_kernels_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("lockdown");
        let checked = |state: &str| {
            std::fs::write(&file, state).expect("written");
            check_lockdown(&file)
        };
        let error = checked("none integrity [confidentiality]\n").expect_err("it forbids it");
        assert!(matches!(error, AttachError::NotPermitted { .. }), "{error}");
        assert!(error.to_string().contains("lockdown=integrity"), "{error}");
        for state in [
            "[none] integrity confidentiality\n",
            "none [integrity] confidentiality\n",
        ] {
            assert!(checked(state).is_ok(), "{state}");
        }
        assert!(check_lockdown(Path::new("/none")).is_ok());
    }

    #[test]
    fn traits_mark_descriptors_and_wanted_calls_when_both_apply() {
        let number = |name: &str| headway_debox::calls::number(name).expect("a call");
        let filter = Filter {
            calls: vec![number("read"), number("futex"), 9999],
            ..Filter::default()
        };
        let traits = traits(&filter);
        let of = |name: &str| traits[number(name) as usize];
        assert_eq!(
            (of("read"), of("write"), of("futex"), of("openat")),
            (3, 1, 2, 0)
        );
    }

    #[test]
    fn slots_are_a_power_of_two_when_the_limit_is_none() {
        assert_eq!(
            (
                waiting_slots(0),
                waiting_slots(1000),
                waiting_slots(u32::MAX)
            ),
            (8, 4096, 1 << 22)
        );
    }

    #[test]
    fn visibility_names_what_is_missing_when_a_tracepoint_is_missing() {
        let missing = vec!["children are not followed (tracepoint x: gone)".to_owned()];
        let text = Visibility { missing }.to_string();
        assert!(
            text.ends_with("latency; children are not followed (tracepoint x: gone)"),
            "{text}"
        );
    }
}
