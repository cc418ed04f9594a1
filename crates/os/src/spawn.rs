//! Starts a program: the cheap way, and the way it used to be done.
//!
//! What it does: makes a process that is a session of its own, dies with the process that made it,
//! has three descriptors and no other, no capabilities (`no_new_privs`), default signals, its
//! limits and its directory, and then executes a program. What it refuses: to let anything but
//! async-signal-safe calls run between, and to search for the program: the path is what is
//! executed.
//!
//! [`SpawnMethod::Vfork`] is what `posix_spawn` does in the C library: the child borrows the
//! parent's memory while the parent waits, so nothing is copied and the cost does not depend on how
//! large the parent is. `posix_spawn` itself cannot set limits or a death signal, which is why it
//! is done again here. [`SpawnMethod::Fork`] copies the parent's page tables and descriptors first;
//! it is here to be measured.
//!
//! [`Limits::process_tag`] is for finding the program's descendants wherever they are: in another
//! group, another session, to another parent. Of what the kernel has a child inherit, hard limits
//! are the one thing that an ordinary process cannot take back and that others may read. That of
//! `RLIMIT_RTTIME` is free: it is about real-time processes, and a process tag is a limit of more
//! than a hundred thousand years.
//!
//! Sources: clone(2), vfork(2), posix_spawn(3), signal-safety(7), prctl(2) on `PR_SET_PDEATHSIG`,
//! getrlimit(2), prlimit(2); Ruan's dissertation (2005), 2.5.4, on what `fork` costs a server.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::confine::enter_domain;
use crate::privileges::{CapabilitySet, close_on_exec_from, drop_capabilities};

/// The child's stack until it executes the program; it calls nothing but system calls.
const STACK_WORDS: usize = 4096;
/// The highest signal number there is (signal(7)).
const SIGNAL_LAST: c_int = 64;
/// What a child that could not execute its program ends with, as shells do.
pub const EXIT_NOT_STARTED: i32 = 127;

/// No process_tag is less, so that no tag is a plausible limit: microseconds.
pub const PROCESS_TAG_MIN: u64 = 1 << 62;

/// How the child process is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnMethod {
    /// The child shares the memory of the parent, which waits until the program is executed.
    Vfork,
    /// The child gets a copy of the parent. Why it could not execute its program the parent is not
    /// told: it ends with [`EXIT_NOT_STARTED`].
    Fork,
}

/// Bounds of a program and of all it starts, each process by itself; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of address space (`RLIMIT_AS`).
    pub memory_bytes: u64,
    /// CPU time of each process in seconds (`RLIMIT_CPU`).
    pub cpu_s: u64,
    /// Processes and threads of the same user (`RLIMIT_NPROC`), those of other programs included.
    /// The limit does not hold for root.
    pub processes: u64,
    /// Open descriptors (`RLIMIT_NOFILE`, the soft one).
    pub descriptors: u64,
    /// A number by which the program and all its descendants are known ([`process_tag_of`]), from
    /// [`PROCESS_TAG_MIN`] on. None is given where a lower limit stands in its place.
    pub process_tag: u64,
}

/// What to execute.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// The file.
    pub path: &'a CStr,
    /// All arguments, the name it is called by included.
    pub arguments: &'a [CString],
    /// All variables, each `NAME=value`.
    pub environment: &'a [CString],
    /// The directory in which the program starts.
    pub directory: &'a CStr,
    /// Standard input.
    pub input: BorrowedFd<'a>,
    /// Standard output.
    pub output: BorrowedFd<'a>,
    /// Standard error.
    pub error: BorrowedFd<'a>,
    /// Limits of the program. Core files are always off.
    pub limits: Limits,
    /// A ruleset of Landlock that the program and its descendants are under.
    pub domain: Option<BorrowedFd<'a>>,
}

/// What was tried when starting failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnStage {
    /// Making the process.
    Create,
    /// Becoming a session and a group, and dying with the parent.
    Group,
    /// Setting limits.
    Limit,
    /// Entering the directory.
    Directory,
    /// Putting the descriptors in place, and closing all others.
    Descriptors,
    /// Giving up capabilities.
    Privileges,
    /// Executing the program.
    Execute,
}

impl SpawnStage {
    /// All steps; a step's place here plus 1 is its number.
    const ALL: [SpawnStage; 7] = [
        SpawnStage::Create,
        SpawnStage::Group,
        SpawnStage::Limit,
        SpawnStage::Directory,
        SpawnStage::Descriptors,
        SpawnStage::Privileges,
        SpawnStage::Execute,
    ];

    /// A number other than 0, to pass to another process.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The step with this number.
    pub fn from_number(number: u8) -> Option<SpawnStage> {
        SpawnStage::ALL
            .get(usize::from(number).checked_sub(1)?)
            .copied()
    }

    /// The system call behind the step.
    pub fn call(self) -> &'static str {
        match self {
            SpawnStage::Create => "clone",
            SpawnStage::Group => "setsid",
            SpawnStage::Limit => "setrlimit",
            SpawnStage::Directory => "chdir",
            SpawnStage::Descriptors => "dup2",
            SpawnStage::Privileges => "capset",
            SpawnStage::Execute => "execve",
        }
    }
}

/// Why a program could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnError {
    /// The step that failed.
    pub step: SpawnStage,
    /// Why the step failed.
    pub errno: Errno,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.step.call(), self.errno)
    }
}

impl std::error::Error for SpawnError {}

/// Has a command start in a session of its own, without the terminal of this process, and so in a
/// process group of its own.
pub fn in_new_session(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    let new_session = || rustix::process::setsid().map(drop).map_err(io::Error::from);
    // SAFETY: setsid(2) is async-signal-safe, and the closure allocates nothing.
    unsafe { command.pre_exec(new_session) }
}

/// Starts a program. The caller reaps it.
///
/// The program is killed when the calling *thread* ends (prctl(2)), so call it from one that lives
/// as long as the process.
///
/// # Errors
/// [`SpawnError`]; nothing is left behind then. `EAGAIN` and `ENOMEM` of [`SpawnStage::Create`] may
/// pass; `EACCES` of [`SpawnStage::Execute`] is a file that is not executable, `ENOENT` one that is
/// not there or whose interpreter is not, `ENOEXEC` one that is no program.
///
/// # Example
/// ```
/// use headway_os::spawn::{Limits, Program, SpawnMethod, spawn};
/// use std::os::fd::AsFd;
/// let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
/// let program = Program {
///     path: c"/bin/sh",
///     arguments: &[c"sh".into(), c"-c".into(), c"exit 3".into()],
///     environment: &[],
///     directory: c"/",
///     input: null.as_fd(),
///     output: null.as_fd(),
///     error: null.as_fd(),
///     limits: Limits::default(),
///     domain: None,
/// };
/// let pid = spawn(&program, SpawnMethod::Vfork)?;
/// let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?.unwrap();
/// assert_eq!(status.exit_status(), Some(3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn spawn(program: &Program<'_>, way: SpawnMethod) -> Result<Pid, SpawnError> {
    let arguments = pointers(program.arguments);
    let environment = pointers(program.environment);
    let plan = Plan {
        path: program.path.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        directory: program.directory.as_ptr(),
        descriptors: [program.input, program.output, program.error].map(|fd| fd.as_raw_fd()),
        limits: program.limits,
        domain: program.domain.map(|ruleset| ruleset.as_raw_fd()),
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        step: AtomicU8::new(0),
        errno: AtomicI32::new(0),
    };
    // A handler of the parent's that ran in the child would run on the parent's memory.
    let before = block_signals();
    let made = match way {
        SpawnMethod::Vfork => vfork(&plan),
        SpawnMethod::Fork => fork(&plan),
    };
    set_signals(&before);
    let pid = made.map_err(|errno| SpawnError {
        step: SpawnStage::Create,
        errno,
    })?;
    match SpawnStage::from_number(plan.step.load(Ordering::Relaxed)) {
        None => Ok(pid),
        Some(step) => {
            // It has ended already, or is about to: there is nothing left to execute.
            let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
            let errno = Errno::from_raw_os_error(plan.errno.load(Ordering::Relaxed));
            Err(SpawnError { step, errno })
        }
    }
}

/// What the child has to do, put together before it is made: it may not allocate.
struct Plan {
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    directory: *const c_char,
    descriptors: [RawFd; 3],
    limits: Limits,
    /// A ruleset, which this process holds open.
    domain: Option<RawFd>,
    parent: libc::pid_t,
    /// Where the start failed, and why; 0 for not at all. Written by a child that shares our
    /// memory.
    step: AtomicU8,
    errno: AtomicI32,
}

/// The process_tag that a process was started with, or inherited: [`Limits::process_tag`].
///
/// # Errors
/// `ESRCH` if there is no such process, `EPERM` if it is another user's (and this one has no
/// CAP_SYS_RESOURCE).
pub fn process_tag_of(pid: Pid) -> Result<Option<u64>, Errno> {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let number = pid.as_raw_nonzero().get();
    // SAFETY: nothing is set, and the other pointer is to a structure of this frame.
    done(unsafe { libc::prlimit(number, libc::RLIMIT_RTTIME, ptr::null(), &raw mut now) })?;
    Ok(is_process_tag(now.rlim_max).then_some(now.rlim_max))
}

/// Whether a hard limit of `RLIMIT_RTTIME` is a process_tag.
pub fn is_process_tag(limit: u64) -> bool {
    (PROCESS_TAG_MIN..libc::RLIM_INFINITY).contains(&limit)
}

/// Pointers to texts as execve(2) requires them, ended by a null pointer.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    let pointers = strings.iter().map(|string| string.as_ptr());
    pointers.chain(std::iter::once(ptr::null())).collect()
}

fn vfork(plan: &Plan) -> Result<Pid, Errno> {
    let mut stack = vec![0_u128; STACK_WORDS];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let argument = ptr::from_ref(plan).cast_mut().cast::<c_void>();
    // SAFETY: the stack is ours, aligned, grows down from `top`, and outlives its use: with
    // CLONE_VFORK the call returns when the child has executed its program or has ended. `plan` and
    // all it points to do too.
    let made = unsafe { libc::clone(run, top.cast(), flags, argument) };
    pid_of(made)
}

fn fork(plan: &Plan) -> Result<Pid, Errno> {
    // SAFETY: the child makes async-signal-safe calls only and does not return from `run`.
    let made = unsafe { libc::fork() };
    if made == 0 {
        run(ptr::from_ref(plan).cast_mut().cast());
    }
    pid_of(made)
}

fn pid_of(made: c_int) -> Result<Pid, Errno> {
    match made {
        -1 => Err(last_errno()),
        pid => Pid::from_raw(pid).ok_or(Errno::INVAL),
    }
}

/// The child, from its first instruction to the program's.
extern "C" fn run(plan: *mut c_void) -> c_int {
    // SAFETY: the caller passes a plan that lives until this process executes or ends.
    let plan = unsafe { &*plan.cast::<Plan>() };
    let (step, errno) = prepare_and_execute(plan);
    plan.errno.store(errno.raw_os_error(), Ordering::Relaxed);
    plan.step.store(step.number(), Ordering::Relaxed);
    // SAFETY: ends the child without running anything of the parent's.
    unsafe { libc::_exit(EXIT_NOT_STARTED) }
}

/// What is done before the program is executed.
type Preparation = fn(&Plan) -> Result<(), Errno>;

/// Comes back only with what went wrong.
fn prepare_and_execute(plan: &Plan) -> (SpawnStage, Errno) {
    // Limits last: the program's may be below the numbers of descriptors that the parent has, among
    // which ours are moved.
    let steps: [(SpawnStage, Preparation); 5] = [
        (SpawnStage::Group, join_group),
        (SpawnStage::Directory, enter),
        (SpawnStage::Descriptors, place_descriptors),
        (SpawnStage::Limit, set_limits),
        (SpawnStage::Privileges, drop_privileges),
    ];
    for (step, take) in steps {
        if let Err(errno) = take(plan) {
            return (step, errno);
        }
    }
    default_signals();
    // SAFETY: the strings and both lists are complete, and live until the program is executed.
    unsafe { libc::execve(plan.path, plan.arguments, plan.environment) };
    (SpawnStage::Execute, last_errno())
}

fn join_group(plan: &Plan) -> Result<(), Errno> {
    // A session of its own, and with it a group: a program of another user must not have the
    // terminal of the server's user, into which it could type.
    // SAFETY: no arguments.
    value(unsafe { libc::setsid() })?;
    // SAFETY: the arguments are what this option takes, as long integers.
    done(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) })?;
    // SAFETY: no arguments.
    let parent = unsafe { libc::getppid() };
    // It may have died before the line above; then nothing would ever end this process.
    match parent == plan.parent {
        true => Ok(()),
        false => Err(Errno::SRCH),
    }
}

fn set_limits(plan: &Plan) -> Result<(), Errno> {
    let limits = plan.limits;
    limit(libc::RLIMIT_CORE, 0)?;
    if limits.process_tag > 0 {
        limit(libc::RLIMIT_RTTIME, limits.process_tag)?;
    }
    if limits.memory_bytes > 0 {
        limit(libc::RLIMIT_AS, limits.memory_bytes)?;
    }
    if limits.cpu_s > 0 {
        limit(libc::RLIMIT_CPU, limits.cpu_s)?;
    }
    if limits.processes > 0 {
        limit(libc::RLIMIT_NPROC, limits.processes)?;
    }
    if limits.descriptors > 0 {
        let mut now = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the pointer is to a structure of this frame.
        done(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now) })?;
        now.rlim_cur = now.rlim_max.min(limits.descriptors);
        // SAFETY: as above.
        done(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now) })?;
    }
    Ok(())
}

/// Both limits: a program may not raise what it was given.
fn limit(resource: libc::__rlimit_resource_t, most: u64) -> Result<(), Errno> {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a structure of this frame.
    done(unsafe { libc::getrlimit(resource, &raw mut now) })?;
    now.rlim_max = now.rlim_max.min(most);
    now.rlim_cur = now.rlim_max;
    // SAFETY: as above.
    done(unsafe { libc::setrlimit(resource, &raw const now) })
}

fn enter(plan: &Plan) -> Result<(), Errno> {
    // SAFETY: a string that ends in a zero.
    done(unsafe { libc::chdir(plan.directory) })
}

/// To 0, 1 and 2. Those that have one of these numbers are moved out of the way first.
fn place_descriptors(plan: &Plan) -> Result<(), Errno> {
    let mut sources = plan.descriptors;
    for source in &mut sources {
        if *source <= 2 {
            // SAFETY: integers.
            *source = value(unsafe { libc::fcntl(*source, libc::F_DUPFD_CLOEXEC, 3) })?;
        }
    }
    for (target, source) in (0..).zip(sources) {
        // SAFETY: integers. The duplicate is not close-on-exec.
        done(unsafe { libc::dup2(source, target) })?;
    }
    // Among the others may be one that this process has inherited itself.
    close_on_exec_from(3)
}

fn drop_privileges(plan: &Plan) -> Result<(), Errno> {
    drop_capabilities(CapabilitySet::empty())?;
    match plan.domain {
        // SAFETY: the parent holds it open until this process executes or ends, and the duplicates of the
        // program's own descriptors have other numbers.
        Some(ruleset) => enter_domain(unsafe { BorrowedFd::borrow_raw(ruleset) }),
        None => Ok(()),
    }
}

/// What the parent ignores (Rust's runtime: SIGPIPE) the program would ignore too, and what it
/// blocks it would never get.
fn default_signals() {
    for signal in 1..=SIGNAL_LAST {
        // SAFETY: the default action is a valid one. Signals that cannot be changed answer an
        // error.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    set_signals(&no_signals());
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a structure of this frame.
    unsafe { libc::sigemptyset(&raw mut set) };
    set
}

/// Blocks every signal in this thread and returns what was blocked before.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (no_signals(), no_signals());
    // SAFETY: the pointer is to a structure of this frame.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: as above. It fails only for an action that does not exist.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    before
}

fn set_signals(set: &libc::sigset_t) {
    // SAFETY: the pointer is to a set that lives, and the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, ptr::null_mut()) };
}

fn done(answer: c_int) -> Result<(), Errno> {
    value(answer).map(drop)
}

fn value(answer: c_int) -> Result<c_int, Errno> {
    match answer {
        -1 => Err(last_errno()),
        value => Ok(value),
    }
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests;
