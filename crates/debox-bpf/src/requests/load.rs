//! Puts `bpf/requests.bpf.c` into the kernel.

use aya::{Ebpf, EbpfLoader};
use headway_debox::Label;
use headway_debox::policy::Filter;

use super::RequestLimits;
use crate::error::AttachError;
use crate::layout::CALLS_MAX;
use crate::load::{
    CONTEND, CONTENDED, DESCRIPTOR_FIRST, Tracepoint, check_privileges, futex, kernel_types,
    optional, required, to_attach_error, waiting_slots,
};
use crate::object;

/// In the order of attaching: those that forget come before those that learn.
pub(super) const TRACEPOINTS: &[Tracepoint] = &[
    required("exited", "sched_process_exit"),
    optional("forked", "sched_process_fork", "children are not followed"),
    required("woken", "sched_wakeup"),
    optional("waking", "sched_waking", "holders of locks are not known"),
    CONTENDED,
    CONTEND,
    required("switched", "sched_switch"),
    required("changed", "inet_sock_set_state"),
    optional(
        "acknowledged",
        "tcp_probe",
        "when clients had received a response is not known; it ends with its last write",
    ),
    required("sent", "sock_send_length"),
    required("received", "sock_recv_length"),
    required("arrived", "sk_data_ready"),
];

/// The ends of calls: the only one of these that each call of each process pays for.
pub(super) const CALLS: Tracepoint = required("leave", "sys_exit");

/// What is not known without it.
pub(super) const WITHOUT_CALLS: &str = "when connections were accepted, how many events a wakeup had, and which calls failed, is not known";

/// The end of Unix sockets, if these are observed.
pub(super) const UNIX: &[Tracepoint] = &[optional(
    "enter",
    "sys_enter",
    "requests on Unix sockets are not seen",
)];

/// What of the kernel's types the program adapts to, if they lack it, and what is not seen then.
const STRUCTURES: &[(&str, &str)] = &[("unix_sock", "requests on Unix sockets are not seen")];

/// What is not seen on a kernel with these types: each has its name among the strings of the file.
pub(super) fn missing_structures(types: &[u8]) -> Vec<String> {
    let has = |name: &str| {
        let text = format!("\0{name}\0");
        types
            .windows(text.len())
            .any(|bytes| bytes == text.as_bytes())
    };
    let missing = STRUCTURES.iter().filter(|(name, _)| !has(name));
    missing
        .map(|(name, without)| format!("{without} (the kernel's BTF has no struct {name})"))
        .collect()
}

// `enum trait` of the kernel's part.
const FIRST_IS_DESCRIPTOR: u8 = 1;
const FIRST_IS_PATH: u8 = 2;
const SECOND_IS_PATH: u8 = 4;
const WAITS_FOR_EVENTS: u8 = 8;
const ACCEPTS: u8 = 16;
const RETURNS_EVENTS: u8 = 32;
const READS: u8 = 64;
const READS_LIST: u8 = 128;

const PATH_FIRST: &[&str] = &[
    "open", "stat", "lstat", "access", "unlink", "mkdir", "rmdir", "rename", "readlink", "execve",
    "chdir", "statfs", "truncate", "chmod", "chown", "creat",
];

const PATH_SECOND: &[&str] = &[
    "openat",
    "openat2",
    "newfstatat",
    "statx",
    "faccessat",
    "faccessat2",
    "unlinkat",
    "mkdirat",
    "readlinkat",
    "renameat",
    "renameat2",
    "utimensat",
];

/// Calls whose sleeps need no kernel stack: what they wait for is known.
const WAITS: &[(&str, Label)] = &[
    ("epoll_wait", Label::EventWait),
    ("epoll_pwait", Label::EventWait),
    ("epoll_pwait2", Label::EventWait),
    ("poll", Label::EventWait),
    ("ppoll", Label::EventWait),
    ("select", Label::EventWait),
    ("pselect6", Label::EventWait),
    ("io_uring_enter", Label::EventWait),
    ("io_getevents", Label::EventWait),
    ("accept", Label::SocketAccept),
    ("accept4", Label::SocketAccept),
    ("nanosleep", Label::Timer),
    ("clock_nanosleep", Label::Timer),
    ("pause", Label::Signal),
    ("rt_sigsuspend", Label::Signal),
    ("rt_sigtimedwait", Label::Signal),
    ("wait4", Label::Child),
    ("waitid", Label::Child),
];

const COUNTED: &[&str] = &[
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "poll",
    "ppoll",
    "select",
    "pselect6",
];

/// `enum sends` of the kernel's part: how a call gets what it sends.
const SENDS: &[(&str, u8)] = &[("write", 1), ("sendto", 1), ("writev", 2), ("sendmsg", 3)];

fn sends() -> [u8; CALLS_MAX] {
    let mut sends = [0; CALLS_MAX];
    for (name, how) in SENDS {
        let number = headway_debox::calls::number(name);
        if let Some(slot) = number.and_then(|number| sends.get_mut(number as usize)) {
            *slot = *how;
        }
    }
    sends
}

/// What a call waits for that says so by its name.
pub(super) fn label_of_call(call: u32) -> Option<Label> {
    let name = headway_debox::calls::name(call);
    (WAITS.iter().find(|(wait, _)| *wait == name)).map(|(_, label)| *label)
}

fn traits() -> [u8; CALLS_MAX] {
    let mut traits = [0; CALLS_MAX];
    let mut mark = |name: &str, bit: u8| {
        let slot =
            headway_debox::calls::number(name).and_then(|number| traits.get_mut(number as usize));
        if let Some(slot) = slot {
            *slot |= bit;
        }
    };
    (DESCRIPTOR_FIRST.iter()).for_each(|name| mark(name, FIRST_IS_DESCRIPTOR));
    PATH_FIRST.iter().for_each(|name| mark(name, FIRST_IS_PATH));
    (PATH_SECOND.iter()).for_each(|name| mark(name, SECOND_IS_PATH));
    (WAITS.iter()).for_each(|(name, _)| mark(name, WAITS_FOR_EVENTS));
    (["accept", "accept4"].iter()).for_each(|name| mark(name, ACCEPTS));
    COUNTED.iter().for_each(|name| mark(name, RETURNS_EVENTS));
    (["read", "recvfrom"].iter()).for_each(|name| mark(name, READS));
    mark("readv", READS_LIST);
    traits
}

/// Loads everything, attaches nothing.
pub(super) fn load(limits: &RequestLimits) -> Result<Ebpf, AttachError> {
    let object = object::requests()?;
    check_privileges()?;
    let waiting = waiting_slots(limits.threads_max);
    let (futex, mask) = (futex(), waiting - 1);
    let call_traits = crate::load::traits(&Filter::default());
    let (traits, sends, heads) = (traits(), sends(), u8::from(limits.heads));
    let close = headway_debox::calls::number("close").map_or(u64::MAX, u64::from);
    let btf = kernel_types()?;
    EbpfLoader::new()
        .btf(Some(&btf))
        .map_max_entries("targets", limits.processes_max.max(1))
        .map_max_entries("activities", limits.threads_max.max(1))
        .map_max_entries("places", limits.threads_max.max(1))
        .map_max_entries("waiting", waiting)
        .map_max_entries("connections", limits.connections_max.max(1))
        .map_max_entries("stacks", limits.stacks_max.max(1).next_power_of_two())
        .map_max_entries("events", limits.ring_bytes.max(4096).next_power_of_two())
        .override_global("waiting_mask", &mask, true)
        .override_global("futex_number", &futex, true)
        .override_global("call_traits", &call_traits, true)
        .override_global("traits", &traits, true)
        .override_global("sends", &sends, true)
        .override_global("wants_heads", &heads, true)
        .override_global("close_number", &close, true)
        .load(object)
        .map_err(|error| to_attach_error(&error))
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;

    use super::{
        ACCEPTS, FIRST_IS_DESCRIPTOR, RETURNS_EVENTS, SECOND_IS_PATH, WAITS_FOR_EVENTS,
        label_of_call, missing_structures, traits,
    };

    #[test]
    fn structure_that_the_kernel_lacks_is_named() {
        let missing = missing_structures(b"\0tcp_sock\0unix_socket\0");
        let text =
            "requests on Unix sockets are not seen (the kernel's BTF has no struct unix_sock)";
        assert_eq!(missing, [text]);
        assert_eq!(missing_structures(b"\0unix_sock\0").len(), 0);
    }

    #[test]
    fn traits_say_what_arguments_and_results_of_a_call_are() {
        let traits = traits();
        let number = |name: &str| headway_debox::calls::number(name).expect("a call");
        let of = |name: &str| traits[number(name) as usize];
        assert_eq!(of("openat"), SECOND_IS_PATH);
        assert_eq!(of("pread64"), FIRST_IS_DESCRIPTOR);
        assert_eq!(of("futex"), 0);
        assert_eq!(
            of("accept4"),
            FIRST_IS_DESCRIPTOR | WAITS_FOR_EVENTS | ACCEPTS
        );
        assert_eq!(of("poll"), WAITS_FOR_EVENTS | RETURNS_EVENTS);
        assert_eq!(label_of_call(number("wait4")), Some(Label::Child));
        assert_eq!(label_of_call(number("read")), None);
    }
}
