//! Interposes libc: exports libc's system-call functions, calls the next function of the same name,
//! and passes each call to a [`Tracer`].
//!
//! Each exported function is a stub of a few instructions. For a thread that is not traced it jumps
//! to libc's function. Otherwise it passes the return address (the call site) as one more argument,
//! and goes to [`five`] or [`seven`]. All arguments of these functions are integers or pointers, so
//! they are passed on unchanged, whatever their types. A variadic `open` with two arguments and one
//! with three are the same here, and an unset register is passed on unset.
//!
//! On the way there is no lock, no allocation and, after the first call of a thread, no system call
//! of ours. `errno` and the result are those of libc's function. A call made by a signal handler or
//! by the tracer itself is recognised ([`thread`]). No frame here owns anything that must be
//! dropped, so a thread may be cancelled in a call, and `longjmp` may leave one.
//!
//! The hook does not see what libc does internally: `printf` writes, and `getaddrinfo` opens
//! sockets, by internal names. Functions of libc that often sleep that way have stubs of their own
//! ([`quiet`]). Such calls count only if they slept, since it is unknown whether they made a call
//! at all.
//!
//! Sources: dlsym(3) for `RTLD_NEXT`; System V ABI, AMD64 supplement, 3.2; AAPCS64, 6.4.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod functions;
mod jumps;
mod next;
mod stubs;
pub mod thread;
mod vfork;
pub mod wipe_on_fork;

pub use functions::{COUNT, Function};
pub use jumps::make_jumps_direct;
pub use next::{NEXT, function, prepare, raw};
pub use stubs::{five, number_of, quiet, seven, syscall_of};
pub use vfork::{after_vfork, before_clone, before_vfork, failed};

/// Observes the calls of one thread. A value belongs to one thread, which gets it at its first call
/// and loses it at its end.
///
/// # Safety
///
/// [`Tracer::start`] must return memory that stays in place until [`Tracer::stop`], and in which
/// [`Tracer::alive`] can be called even in a forked child.
pub unsafe trait Tracer: Sized {
    /// What is remembered from before a call to after it.
    type Snapshot: Copy;

    /// Begins with the calling thread; null if it shall never be traced. May allocate and
    /// wait. `old` is what this thread had before it was switched off or the process forked, or
    /// null.
    ///
    /// # Safety
    ///
    /// `old` comes from this function, in this process or in the one it was forked from.
    unsafe fn start(old: *mut Self) -> *mut Self;

    /// Ends with a thread. It is the calling thread.
    ///
    /// # Safety
    ///
    /// `tracer` comes from [`Tracer::start`] and is not used afterwards.
    unsafe fn stop(tracer: *mut Self);

    /// False in a forked child, whose copy is unusable because kernel rings are not inherited.
    fn alive(&self) -> bool;

    /// Takes a snapshot before a call.
    fn begin(&self) -> Self::Snapshot;

    /// After a call made from `site`, which returned `result`: all ones if it failed, however the
    /// function reports that. `errno` may be changed.
    fn end(&self, snapshot: Self::Snapshot, number: u32, site: usize, result: usize);

    /// After a call made while another one of the thread was under way.
    fn end_nested(&self, snapshot: Self::Snapshot, number: u32, site: usize, result: usize);

    /// Before a call made while another one is under way: must leave what that one has slept so
    /// far.
    fn begin_nested(&self) -> Self::Snapshot;

    /// After a call of libc that may or may not have made system calls: count it only if it slept.
    fn end_quiet(&self, snapshot: Self::Snapshot, number: u32, site: usize, result: usize);

    /// The thread made a child that shares its memory and its thread-local storage; tracing it ends
    /// here.
    fn shares_memory(&self);

    /// Counts a call made from `site` that was not traced, since the thread is inside the tracer.
    fn count_skipped_call(site: usize);

    /// Counts a call made from `site` by a vfork child, which was not traced.
    fn count_vfork_call(site: usize);

    /// The process is about to be confined by seccomp(2): from now on a call of the tracer's own
    /// could kill it.
    fn confining();

    /// The process has confined itself, or the call failed.
    fn confined(succeeded: bool);

    /// The calling thread is about to give up the CPU's counter. Returns the last time that it may
    /// read.
    fn gives_up_clock() -> u64;

    /// The thread has given up the CPU's counter at a time of [`Tracer::gives_up_clock`], and what
    /// it starts inherits that: from now on reading a clock could kill it. It is not traced any
    /// more.
    fn gave_up_clock(moment_ns: u64);
}
