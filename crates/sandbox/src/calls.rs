//! Which system calls each kind of process may make: the table.
//!
//! A call is in it if it acts only on the process itself and on descriptors which it has, or if the kind needs
//! it. So a new version of the C library may use other calls of the same sort. Never in it are calls that
//! execute, trace, mount, change users or namespaces, load code into the kernel, or make names in the file
//! system, except for those that the log process and helpers need.
//!
//! Sources: syscalls(2), the groups of systemd.exec(5).

use rustix::process::getpid;
use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition};

use crate::{Connect, Kind, Rules};

/// cachestat(2), which libc does not name everywhere.
const CACHESTAT: i64 = 451;
/// `PROT_EXEC` of mmap(2).
const EXECUTABLE: u64 = libc::PROT_EXEC as u64;
/// What a new thread of a program has, and a new process has not.
const THREAD: u64 = libc::CLONE_THREAD as u64;
/// Flags of clone(2) which make a namespace.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// A call, and what its arguments have to be; no condition means anything.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    pub(crate) number: i64,
    pub(crate) conditions: Vec<Condition>,
}

/// What one argument has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    /// Some of its bits, those of `mask`, are a value.
    Bits { argument: u8, mask: u64, value: u64 },
    /// It is not this value.
    Not { argument: u8, value: u64 },
}

impl Condition {
    pub(crate) fn compile(self) -> Result<SeccompCondition, BackendError> {
        match self {
            Condition::Bits {
                argument,
                mask,
                value,
            } => {
                let masked = SeccompCmpOp::MaskedEq(mask);
                SeccompCondition::new(argument, SeccompCmpArgLen::Dword, masked, value)
            }
            // All bits, since it may be an address.
            Condition::Not { argument, value } => {
                let other = SeccompCmpOp::Ne;
                SeccompCondition::new(argument, SeccompCmpArgLen::Qword, other, value)
            }
        }
    }
}

/// Memory, time, signals to itself, and bytes through descriptors that it has.
const OWN: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_membarrier,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getattr,
    libc::SYS_getcpu,
    libc::SYS_getpriority,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getitimer,
    libc::SYS_times,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_prctl,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_ppoll,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Messages between the processes of the server.
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_memfd_create,
];

/// The older names of these which x86-64 has.
#[cfg(target_arch = "x86_64")]
const OWN_OLDER: &[i64] = &[
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_getrlimit,
    libc::SYS_time,
    libc::SYS_getpgrp,
    libc::SYS_pause,
];
#[cfg(not(target_arch = "x86_64"))]
const OWN_OLDER: &[i64] = &[];

/// Connections, pipes and the wait for events.
const EVENTS: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_listen,
    libc::SYS_socketpair,
    libc::SYS_pipe2,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_pselect6,
];

#[cfg(target_arch = "x86_64")]
const EVENTS_OLDER: &[i64] = &[
    libc::SYS_pipe,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_select,
];
#[cfg(not(target_arch = "x86_64"))]
const EVENTS_OLDER: &[i64] = &[];

/// Files: opening, which Landlock limits, and all that is done with an open one.
const FILES: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_copy_file_range,
    libc::SYS_readahead,
    libc::SYS_fadvise64,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    CACHESTAT,
];

#[cfg(target_arch = "x86_64")]
const FILES_OLDER: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_access,
];
#[cfg(not(target_arch = "x86_64"))]
const FILES_OLDER: &[i64] = &[];

/// Keeping memory out of swap space.
const LOCKED_MEMORY: &[i64] = &[
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
];

/// What no process of the server needs, and no program of a site. Programs could not do most of it anyway, since
/// they have no capabilities; but it is much code of the kernel, in which mistakes are found.
const REFUSED: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_vhangup,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

/// The same, of x86-64 only.
#[cfg(target_arch = "x86_64")]
const REFUSED_OLDER: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_OLDER: &[i64] = &[];

/// What workers and helpers need at their start, and programs do not.
const REFUSED_TO_PROGRAMS: &[i64] = &[
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// All that a process with these rules may call.
pub(crate) fn allowed(rules: &Rules) -> Vec<Allowed> {
    let kind = rules.kind;
    let mut table = any(&[OWN, OWN_OLDER]);
    // To itself alone: abort(3).
    let own = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
    table.push(when(libc::SYS_tgkill, &[(0, u64::MAX, own)]));
    // Its own limits.
    table.push(when(libc::SYS_prlimit64, &[(0, u64::MAX, 0)]));
    if matches!(kind, Kind::Acme | Kind::Spans) {
        // The C library loads modules for names.
        table.extend(any(&[&[libc::SYS_mmap, libc::SYS_mprotect]]));
        table.push(when(libc::SYS_clone, &[(0, THREAD, THREAD)]));
        // The other filter answers ([`hidden`]); of two errors the kernel takes that of the newest filter.
        table.extend(any(&[&[libc::SYS_clone3]]));
    } else {
        table.push(when(libc::SYS_mmap, &[(2, EXECUTABLE, 0)]));
        table.push(when(libc::SYS_mprotect, &[(2, EXECUTABLE, 0)]));
    }
    table.extend(any(&[FILES, FILES_OLDER]));
    match kind {
        Kind::Worker | Kind::Acme | Kind::Spans => table.extend(any(&[EVENTS, EVENTS_OLDER])),
        // For temporary files on a file system without O_TMPFILE.
        Kind::Helper => table.extend(any(&[&[libc::SYS_unlinkat]])),
        Kind::Log | Kind::Store | Kind::Handshakes | Kind::Spawner | Kind::Master => {}
    }
    if let Kind::Worker | Kind::Store = kind {
        table.extend(any(&[LOCKED_MEMORY]));
    }
    if rules.io_uring {
        table.extend(any(&[&[
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
        ]]));
    }
    table.extend(connections(rules));
    table
}

fn connections(rules: &Rules) -> Vec<Allowed> {
    match rules.connect {
        Connect::Nowhere => Vec::new(),
        Connect::Daemons => {
            let datagram = (1, 0xf, libc::SOCK_DGRAM as u64);
            let unix = (0, u64::MAX, libc::AF_UNIX as u64);
            let socket = when(libc::SYS_socket, &[unix, datagram]);
            any(&[&[libc::SYS_connect]])
                .into_iter()
                .chain([socket])
                .collect()
        }
        Connect::Ports(_) => {
            let families = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];
            let mut table = sockets(&families, &[libc::SOCK_STREAM]);
            table.extend(any(&[&[libc::SYS_connect]]));
            table
        }
        Connect::Anywhere => {
            let families = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];
            let mut table = sockets(&families, &[libc::SOCK_STREAM, libc::SOCK_DGRAM]);
            // The C library asks the kernel for the addresses of this machine.
            let routes = [
                (0, u64::MAX, libc::AF_NETLINK as u64),
                (2, u64::MAX, libc::NETLINK_ROUTE as u64),
            ];
            table.push(when(libc::SYS_socket, &routes));
            table.extend(any(&[&[libc::SYS_connect, libc::SYS_bind]]));
            table
        }
    }
}

/// Sockets of these families and kinds.
fn sockets(families: &[libc::c_int], kinds: &[libc::c_int]) -> Vec<Allowed> {
    let pairs = families
        .iter()
        .flat_map(|family| kinds.iter().map(move |kind| (*family, *kind)));
    let socket = |(family, kind): (libc::c_int, libc::c_int)| {
        // The type has flags above these bits.
        let conditions = [(0, u64::MAX, family as u64), (1, 0xf, kind as u64)];
        when(libc::SYS_socket, &conditions)
    };
    pairs.map(socket).collect()
}

/// Calls which look as if the kernel did not have them.
pub(crate) fn hidden(kind: Kind) -> Vec<Allowed> {
    match kind {
        // What a filter cannot look into; clone(2) does the same.
        Kind::Acme | Kind::Spans | Kind::Spawner | Kind::Master => any(&[&[libc::SYS_clone3]]),
        _ => Vec::new(),
    }
}

/// What programs may not call.
pub(crate) fn refused_to_programs() -> Vec<Allowed> {
    let mut table = any(&[REFUSED_TO_PROGRAMS]);
    table.extend(refused());
    table
}

/// What the master may not call. All that it starts inherits this, so it is no list of what it needs itself.
pub(crate) fn refused_to_master() -> Vec<Allowed> {
    let mut table = refused();
    let is = |argument, value: libc::c_int| (argument, u64::MAX, value as u64);
    let raw = (1, 0xf, libc::SOCK_RAW as u64);
    table.push(when(libc::SYS_socket, &[is(0, libc::AF_PACKET)]));
    table.push(when(libc::SYS_socket, &[is(0, libc::AF_INET), raw]));
    table.push(when(libc::SYS_socket, &[is(0, libc::AF_INET6), raw]));
    for device in [libc::S_IFCHR, libc::S_IFBLK] {
        let (mask, device) = (u64::from(libc::S_IFMT), u64::from(device));
        table.push(when(libc::SYS_mknodat, &[(2, mask, device)]));
        #[cfg(target_arch = "x86_64")]
        table.push(when(libc::SYS_mknod, &[(1, mask, device)]));
    }
    table
}

fn refused() -> Vec<Allowed> {
    let mut table = any(&[REFUSED, REFUSED_OLDER]);
    // To change limits of others: with limit 0 for descriptors a worker of the same user could not accept. The
    // spawner reads them, to find its programs.
    let not_null = |argument| Condition::Not { argument, value: 0 };
    table.push(Allowed {
        number: libc::SYS_prlimit64,
        conditions: vec![not_null(0), not_null(2)],
    });
    for flag in NAMESPACES {
        let flag = u64::from(flag.cast_unsigned());
        table.push(when(libc::SYS_clone, &[(0, flag, flag)]));
    }
    table
}

fn any(groups: &[&[i64]]) -> Vec<Allowed> {
    let all = groups.iter().flat_map(|group| group.iter());
    all.map(|number| when(*number, &[])).collect()
}

fn when(number: i64, conditions: &[(u8, u64, u64)]) -> Allowed {
    let conditions = conditions
        .iter()
        .map(|(argument, mask, value)| Condition::Bits {
            argument: *argument,
            mask: *mask,
            value: *value,
        });
    Allowed {
        number,
        conditions: conditions.collect(),
    }
}
