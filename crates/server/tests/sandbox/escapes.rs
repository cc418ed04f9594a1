//! What is tried from inside each process: files, programs, the network, other processes, the kernel.

use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use headway_test_support::{is_root, skip};

use super::inject::Argument::{Bytes, Number};
use super::inject::{Argument, Injector};
use super::{Confined, KINDS, is_possible, status_of};

const AT_CWD: i64 = libc::AT_FDCWD as i64;
const READ: i64 = libc::O_RDONLY as i64;
const CREATE: i64 = (libc::O_CREAT | libc::O_WRONLY) as i64;
const STREAM: i64 = libc::SOCK_STREAM as i64;
const DATAGRAM: i64 = libc::SOCK_DGRAM as i64;
const RAW: i64 = libc::SOCK_RAW as i64;
const INET: i64 = libc::AF_INET as i64;
const CHILD: i64 = libc::SIGCHLD as i64;
const ALL: i64 = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as i64;
const PRIVATE: i64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as i64;

/// `struct __user_cap_header_struct` of version 3, for the process itself.
const CAPABILITY_HEADER: [u8; 8] = [0x22, 0x05, 0x08, 0x20, 0, 0, 0, 0];

/// What the ACME process and the span process may do: names are looked up with files of `/etc` and with modules of
/// the C library.
const CLIENTS_MAY: [&str; 7] = [
    "read /etc/passwd",
    "read /etc/passwd by openat2",
    "read /etc/passwd by open",
    "map memory to execute",
    "make the stack executable",
    "make a UDP socket",
    "make a netlink socket",
];

/// The process that has started all others.
const MASTER: &str = "master";

/// What the spawner may do, because the programs which inherit its filter may.
const SPAWNER_MAY: [&str; 10] = [
    // By limits it finds the programs to end.
    "read the victim's limits",
    // It ends orphans, which a spawner before it may have started. Programs are limited to their own.
    "signal all",
    "signal the victim",
    "signal a thread of the victim",
    "open the victim's pidfd",
    // Its user is root in the test, and has no capability.
    "become root",
    "bind a socket",
    "make a UDP socket",
    "make a socket of the cipher interface",
    "make a netlink socket",
];

/// What the master may do, because it does it, or because processes that inherit its filter do.
const MASTER_MAY: [&str; 14] = [
    // Those of its children, which it has to end. Of others it may only ask whether they are there.
    "read the memory of a sibling",
    "signal all",
    "open the victim's pidfd",
    "read the victim's limits",
    // It starts processes as other users, with the capabilities that they need.
    "become root",
    "change groups",
    "raise capabilities",
    // A worker's: its SYN filter, its tracer, its events.
    "load BPF",
    "count events",
    "make an io_uring",
    // Those of programs.
    "bind a socket",
    "make a UDP socket",
    "make a socket of the cipher interface",
    "make a netlink socket",
];

/// A call that a process must not be able to make.
struct Escape<'a> {
    name: &'static str,
    number: i64,
    arguments: Vec<Argument<'a>>,
    /// Whether it changes nothing where it succeeds.
    is_harmless: bool,
}

fn escape<'a>(
    name: &'static str,
    number: i64,
    arguments: impl Into<Vec<Argument<'a>>>,
) -> Escape<'a> {
    Escape {
        name,
        number,
        arguments: arguments.into(),
        is_harmless: false,
    }
}

fn harmless<'a>(
    name: &'static str,
    number: i64,
    arguments: impl Into<Vec<Argument<'a>>>,
) -> Escape<'a> {
    Escape {
        is_harmless: true,
        ..escape(name, number, arguments)
    }
}

/// Paths and processes that are tried.
struct Targets {
    served: Vec<u8>,
    new: Vec<u8>,
    victim_memory: Vec<u8>,
    sibling_memory: Vec<u8>,
    /// The master, or for the master itself a process that it has not started.
    victim: i64,
    /// `struct sockaddr_in` of a listener which is no upstream.
    address: Vec<u8>,
}

impl Targets {
    fn of(confined: &Confined, listener: &TcpListener, own: i32) -> Targets {
        let terminated = |path: &Path| [path.as_os_str().as_bytes(), b"\0"].concat();
        let mut others = confined.server.children("serve-");
        others.retain(|pid| *pid != own);
        let memory = |pid: i32| format!("/proc/{pid}/mem\0").into_bytes();
        let victim = match confined.server.master() {
            master if master == own => std::process::id() as i32,
            master => master,
        };
        let port = listener.local_addr().unwrap().port().to_be_bytes();
        let family = (libc::AF_INET as u16).to_ne_bytes();
        Targets {
            served: terminated(&confined.site.path("root/file.txt")),
            new: terminated(&confined.site.path("root/escaped")),
            victim_memory: memory(victim),
            sibling_memory: memory(others[0]),
            victim: victim.into(),
            address: [&family[..], &port, &[127, 0, 0, 1], &[0; 8]].concat(),
        }
    }
}

fn files(to: &Targets) -> Vec<Escape<'_>> {
    let (at, passwd) = (|| Number(AT_CWD), || Bytes(b"/etc/passwd\0"));
    let (served, new) = (|| Bytes(&to.served), || Bytes(&to.new));
    let how = [0; 24];
    let how: &'static [u8; 24] = Box::leak(Box::new(how));
    vec![
        harmless(
            "read /etc/passwd",
            libc::SYS_openat,
            [at(), passwd(), Number(READ)],
        ),
        harmless(
            "read /etc/passwd by openat2",
            libc::SYS_openat2,
            [at(), passwd(), Bytes(how), Number(24)],
        ),
        harmless(
            "read /etc/passwd by open",
            libc::SYS_open,
            [passwd(), Number(READ)],
        ),
        harmless(
            "list /",
            libc::SYS_openat,
            [at(), Bytes(b"/\0"), Number(READ)],
        ),
        escape(
            "read the memory of the victim",
            libc::SYS_openat,
            [at(), Bytes(&to.victim_memory), Number(READ)],
        ),
        harmless(
            "read the memory of a sibling",
            libc::SYS_openat,
            [at(), Bytes(&to.sibling_memory), Number(READ)],
        ),
        harmless(
            "write a served file",
            libc::SYS_openat,
            [at(), served(), Number(1)],
        ),
        escape(
            "create a file",
            libc::SYS_openat,
            [at(), new(), Number(CREATE), Number(0o600)],
        ),
        escape("truncate a file", libc::SYS_truncate, [served(), Number(0)]),
        escape(
            "remove a file",
            libc::SYS_unlinkat,
            [at(), served(), Number(0)],
        ),
        escape(
            "rename a file",
            libc::SYS_renameat2,
            [at(), served(), at(), new(), Number(0)],
        ),
        escape(
            "link a file",
            libc::SYS_linkat,
            [at(), served(), at(), new(), Number(0)],
        ),
        escape(
            "make a symbolic link",
            libc::SYS_symlinkat,
            [served(), at(), new()],
        ),
        escape(
            "make a directory",
            libc::SYS_mkdirat,
            [at(), new(), Number(0o700)],
        ),
        escape(
            "make a device",
            libc::SYS_mknodat,
            [at(), new(), Number(0o20_600), Number(259)],
        ),
        escape(
            "change permissions",
            libc::SYS_fchmodat,
            [at(), served(), Number(0o777)],
        ),
        escape(
            "change the owner",
            libc::SYS_fchownat,
            [at(), served(), Number(1), Number(1), Number(0)],
        ),
        escape("change the root", libc::SYS_chroot, [Bytes(b"/tmp\0")]),
    ]
}

fn programs() -> Vec<Escape<'static>> {
    let (shell, empty) = (|| Bytes(b"/bin/sh\0"), || Bytes(&[0; 8]));
    vec![
        escape("execute", libc::SYS_execve, [shell(), empty(), empty()]),
        escape(
            "execute by execveat",
            libc::SYS_execveat,
            [Number(AT_CWD), shell(), empty(), empty(), Number(0)],
        ),
        escape("fork", libc::SYS_fork, []),
        escape("fork by vfork", libc::SYS_vfork, []),
        escape("fork by clone", libc::SYS_clone, [Number(CHILD), Number(0)]),
        escape(
            "fork by clone3",
            libc::SYS_clone3,
            [Bytes(&[0; 88]), Number(88)],
        ),
        harmless(
            "map memory to execute",
            libc::SYS_mmap,
            [
                Number(0),
                Number(4096),
                Number(ALL),
                Number(PRIVATE),
                Number(-1),
                Number(0),
            ],
        ),
        escape(
            "make the stack executable",
            libc::SYS_mprotect,
            [Number(0), Number(4096), Number(ALL)],
        ),
    ]
}

fn network(to: &Targets) -> Vec<Escape<'_>> {
    let family = |family: i32| Number(family.into());
    let socket = |name, family, kind| {
        // ICMP, which a raw socket of the Internet may be for.
        let protocol = i64::from(name == "make a raw socket");
        escape(
            name,
            libc::SYS_socket,
            [family, Number(kind), Number(protocol)],
        )
    };
    vec![
        harmless(
            "make a UDP socket",
            libc::SYS_socket,
            [Number(INET), Number(DATAGRAM), Number(0)],
        ),
        socket("make a raw socket", Number(INET), RAW),
        socket("make a netlink socket", family(libc::AF_NETLINK), RAW),
        socket("make a packet socket", family(libc::AF_PACKET), RAW),
        socket(
            "make a socket of the cipher interface",
            family(libc::AF_ALG),
            libc::SOCK_SEQPACKET.into(),
        ),
        escape(
            "bind a socket",
            libc::SYS_bind,
            [Number(0), Bytes(&to.address), Number(16)],
        ),
    ]
}

fn others(to: &Targets) -> Vec<Escape<'_>> {
    let (victim, none) = (|| Number(to.victim), || Number(0));
    vec![
        escape(
            "trace the victim",
            libc::SYS_ptrace,
            [Number(16), victim(), none(), none()],
        ),
        escape(
            "seize the victim",
            libc::SYS_ptrace,
            [Number(libc::PTRACE_SEIZE.into()), victim(), none(), none()],
        ),
        escape(
            "read memory by process_vm_readv",
            libc::SYS_process_vm_readv,
            [victim(), none(), none(), none(), none(), none()],
        ),
        harmless("signal the victim", libc::SYS_kill, [victim(), none()]),
        harmless(
            "signal a thread of the victim",
            libc::SYS_tgkill,
            [victim(), victim(), none()],
        ),
        harmless("signal all", libc::SYS_kill, [Number(-1), none()]),
        harmless(
            "open the victim's pidfd",
            libc::SYS_pidfd_open,
            [victim(), none()],
        ),
        escape(
            "take a descriptor of the victim",
            libc::SYS_pidfd_getfd,
            [none(), none(), none()],
        ),
        escape(
            "change the victim's limits",
            libc::SYS_prlimit64,
            [victim(), Number(7), Bytes(&[0; 16]), none()],
        ),
        harmless(
            "read the victim's limits",
            libc::SYS_prlimit64,
            [victim(), Number(7), none(), Bytes(&[0; 16])],
        ),
    ]
}

fn kernel() -> Vec<Escape<'static>> {
    let (none, tmp) = (|| Number(0), || Bytes(b"/tmp\0"));
    let user = i64::from(libc::CLONE_NEWUSER);
    vec![
        escape(
            "mount",
            libc::SYS_mount,
            [Bytes(b"none\0"), tmp(), Bytes(b"tmpfs\0"), none(), none()],
        ),
        escape("unmount", libc::SYS_umount2, [tmp(), none()]),
        escape("make a user namespace", libc::SYS_unshare, [Number(user)]),
        escape(
            "make a user namespace by clone",
            libc::SYS_clone,
            [Number(user | CHILD), none()],
        ),
        escape("enter a namespace", libc::SYS_setns, [none(), none()]),
        escape(
            "change the root directory",
            libc::SYS_pivot_root,
            [tmp(), tmp()],
        ),
        escape(
            "load BPF",
            libc::SYS_bpf,
            [none(), Bytes(&[0; 72]), Number(72)],
        ),
        escape(
            "count events",
            libc::SYS_perf_event_open,
            [none(), none(), none(), none(), none()],
        ),
        escape(
            "load a module",
            libc::SYS_finit_module,
            [none(), Bytes(b"\0"), none()],
        ),
        escape(
            "use keys of the kernel",
            libc::SYS_keyctl,
            [none(), none(), none()],
        ),
        escape("handle page faults", libc::SYS_userfaultfd, [none()]),
        escape(
            "make an io_uring",
            libc::SYS_io_uring_setup,
            [Number(4), Bytes(&[0; 120])],
        ),
        escape(
            "open by a handle",
            libc::SYS_open_by_handle_at,
            [none(), none(), none()],
        ),
        escape("become root", libc::SYS_setuid, [none()]),
        escape("change groups", libc::SYS_setgroups, [none(), none()]),
        escape(
            "raise capabilities",
            libc::SYS_capset,
            [Bytes(&CAPABILITY_HEADER), Bytes(&[0xff; 24])],
        ),
        escape(
            "set the clock",
            libc::SYS_settimeofday,
            [Bytes(&[0; 16]), none()],
        ),
        escape(
            "set the host name",
            libc::SYS_sethostname,
            [Bytes(b"x"), Number(1)],
        ),
        escape(
            "restart the machine",
            libc::SYS_reboot,
            [none(), none(), none(), none()],
        ),
        escape(
            "load another kernel",
            libc::SYS_kexec_load,
            [none(), none(), none(), none()],
        ),
        escape(
            "log of the kernel",
            libc::SYS_syslog,
            [Number(10), none(), none()],
        ),
    ]
}

/// All attempts in a process of this kind, without what it may do.
fn attempts<'a>(to: &'a Targets, kind: &str) -> Vec<Escape<'a>> {
    let mut all = others(to);
    all.extend(kernel());
    all.extend(network(to));
    let files = files(to);
    match kind {
        // Files are those of its user, and to start programs is what it is for.
        "serve-spawner" | MASTER => {
            let of_others = ["read the memory", "make a device", "change the root"];
            let is_of_other =
                |one: &Escape<'_>| of_others.iter().any(|of| one.name.starts_with(of));
            all.extend(files.into_iter().filter(is_of_other));
            let may: &[&str] = match kind {
                MASTER => &MASTER_MAY,
                _ => &SPAWNER_MAY,
            };
            all.retain(|one| !may.contains(&one.name));
        }
        _ => {
            all.extend(files);
            all.extend(programs());
        }
    }
    if ["serve-acme", "serve-spans"].contains(&kind) {
        all.retain(|one| !CLIENTS_MAY.contains(&one.name) && one.name != "bind a socket");
    }
    all
}

/// A refusal is EPERM (the filter) or EACCES (Landlock). The C library is to use clone(2) where a filter cannot
/// look into what clone3(2) is given.
fn is_refused(name: &str, answer: Result<i64, i32>) -> bool {
    match answer {
        Err(libc::EPERM | libc::EACCES) => true,
        Err(libc::ENOSYS) => name == "fork by clone3",
        _ => false,
    }
}

/// Names of those that succeed.
fn successes(confined: &Confined, kind: &str, harmless_only: bool) -> (usize, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pid = match kind {
        MASTER => confined.server.master(),
        _ => confined.server.children(kind)[0],
    };
    // Where nothing confines the process, most calls would change this machine.
    let filter = status_of(pid, "Seccomp:");
    assert!(harmless_only || filter == "2", "{kind}: {filter}");
    let to = Targets::of(confined, &listener, pid);
    let mut all = attempts(&to, kind);
    // A worker lacks the capability, the master has it.
    let is_harmless = |one: &Escape<'_>| {
        one.is_harmless || (kind == MASTER && one.name.starts_with("read the memory"))
    };
    all.retain(|one| is_harmless(one) || !harmless_only);
    let mut inside = Injector::stop(pid);
    let mut count = all.len();
    let mut found = Vec::new();
    for one in &all {
        let answer = inside.call(one.number, &one.arguments);
        if !is_refused(one.name, answer) {
            found.push(format!("{kind}: {}: {answer:?}", one.name));
        }
    }
    // A worker has a use for sockets, but not for this address; those which connect anywhere may not listen.
    let (name, call) = match kind {
        "serve-spawner" | MASTER => return (count, found),
        "serve-acme" | "serve-spans" => ("bind a TCP socket", libc::SYS_bind),
        _ => ("connect to another port", libc::SYS_connect),
    };
    let socket = inside.call(libc::SYS_socket, &[Number(INET), Number(STREAM), Number(0)]);
    let arguments = [Number(socket.unwrap_or(-1)), Bytes(&to.address), Number(16)];
    let answer = match socket {
        Ok(_) => inside.call(call, &arguments),
        Err(errno) => Err(errno),
    };
    count += 1;
    if !is_refused(name, answer) {
        found.push(format!("{kind}: {name}: {answer:?}"));
    }
    (count, found)
}

/// Needs: root, to trace other processes; Landlock of version 6 (Linux 6.12), and seccomp
#[test]
fn nothing_succeeds_that_code_in_a_confined_process_tries() {
    const NAME: &str = "nothing_succeeds_that_code_in_a_confined_process_tries";
    if !is_root() {
        return skip(NAME, "root, to trace other processes");
    }
    if !is_possible(NAME) {
        return;
    }
    let confined = Confined::start("on");
    confined.is_well();
    confined.has_sent_spans();
    for kind in KINDS.into_iter().chain([MASTER]) {
        let (count, found) = successes(&confined, kind, false);
        assert_eq!(found, [""; 0], "of {count}");
        println!("{kind}: 0 of {count}");
    }
    confined.is_well();
    // The same code does escape where nothing confines it.
    let free = Confined::start("off");
    free.is_well();
    for kind in ["serve-worker", MASTER] {
        let (count, found) = successes(&free, kind, true);
        assert_eq!(found.len(), count, "{found:#?}");
    }
    // It has no capabilities, so less succeeds.
    let (count, found) = successes(&free, "serve-acme", true);
    println!(
        "serve-acme with the sandbox off: {} of {count}",
        found.len()
    );
    assert!(!found.is_empty());
}
