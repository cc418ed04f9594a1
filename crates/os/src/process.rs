//! Copies of the process for inspection, and its place among those that want a CPU.
//!
//! `fork` in a program with threads leaves a child that may only make system calls: the one thing
//! the child does here.
//!
//! Sources: fork(2), abort(3), core(5), sched(7).

use std::io;

use rustix::process::{Pid, WaitOptions, waitpid};

/// Forks, lets the copy dump a core, and waits until it has.
///
/// The dump is the kernel's: `RLIMIT_CORE`, which is raised to its hard limit in the copy, and
/// `kernel.core_pattern` decide whether and where.
///
/// # Errors
///
/// `EAGAIN`, `ENOMEM`: no process could be created.
pub fn core_of_a_fork() -> io::Result<()> {
    // SAFETY: the child makes async-signal-safe calls only, and none of ours: it raises a limit and
    // kills itself.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => die_with_core(),
        _ => {
            let child = Pid::from_raw(child).expect("a child's number is positive");
            rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
            Ok(())
        }
    }
}

/// Puts the calling thread, and all that it starts later, before every thread without a real-time
/// priority (`SCHED_FIFO`, the lowest priority): it gets a CPU as soon as it can run.
///
/// For a thread that works for microseconds at a time and must be on time. One that computes takes
/// its CPU away from all other tasks.
///
/// # Errors
///
/// `EPERM` without CAP_SYS_NICE, or in a control group that has no real-time share.
pub fn real_time() -> io::Result<()> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut priority: libc::sched_param = unsafe { std::mem::zeroed() };
    priority.sched_priority = 1;
    // SAFETY: 0 is the calling thread, and the pointer is to a structure of this frame.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The slice of [`lets_others_first`], the longest that the kernel takes.
const LONG_SLICE_NS: u64 = 100_000_000;

/// Makes the calling thread, and all threads that it starts later, run after every ready thread that computes for a
/// short time, without a smaller share of the CPU: it never preempts another thread when it becomes ready
/// (`SCHED_BATCH`), and since Linux 6.12 one with a shorter slice preempts it.
///
/// For a thread that computes for milliseconds beside one that must be on time.
///
/// # Errors
///
/// `EPERM`, `ENOSYS`: a filter of system calls forbids it.
pub fn lets_others_first() -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_BATCH as u32,
        sched_flags: 0,
        sched_nice: rustix::process::getpriority_process(None)?,
        sched_priority: 0,
        sched_runtime: LONG_SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: 0 is the calling thread, and the pointer is to a structure of this frame, with its size.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The calls that wait for events on descriptors.
const EVENT_WAITS: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_io_uring_enter,
];

/// Whether the main thread of a process waits for events now (proc_pid_syscall(5)). A stopped process
/// may seem to. `false` if this process may not look at the other one.
pub fn waits_for_events(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = call
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok());
    number.is_some_and(|number| EVENT_WAITS.contains(&number))
}

fn die_with_core() -> ! {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a structure of this frame.
    unsafe { libc::getrlimit(libc::RLIMIT_CORE, &mut limit) };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above; without success the old limit stands.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
    // A handler of the program's would run in the copy.
    // SAFETY: the default action is a valid one.
    unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
    // SAFETY: abort is async-signal-safe.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::lets_others_first;

    #[test]
    fn thread_that_lets_others_first_is_in_the_batch_class() {
        let policy = std::thread::spawn(|| {
            lets_others_first().unwrap();
            // SAFETY: 0 is the calling thread.
            unsafe { libc::sched_getscheduler(0) }
        });
        assert_eq!(policy.join().unwrap(), libc::SCHED_BATCH);
    }
}
