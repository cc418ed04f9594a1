//! Stands between a program and libc: exports libc's system-call functions, calls the next ones of
//! that name, and lets a [`Tracer`] look at each call.
//!
//! Each exported function is a stub of a few instructions: for a thread that is not traced it jumps
//! to libc's function; else it passes the return address, which is the call site, as one more
//! argument, and goes to [`five`] or [`seven`]. All arguments of these functions are integers or
//! pointers, so they are passed on as they came, whatever their types: a variadic `open` with two
//! arguments and one with three are the same here, and a register nobody filled is passed on
//! unfilled.
//!
//! What holds on the way: no lock, no allocation, no system call of ours after the first call of a
//! thread; `errno` and the result are those of libc's function; a call made by a signal handler or
//! by the tracer itself is told apart ([`thread`]). No frame here owns anything that would have to
//! be dropped, so a thread may be cancelled in a call and `longjmp` may leave one.
//!
//! It does not see what libc does inside itself: `printf` writes by an internal name, `getaddrinfo`
//! opens sockets by one. Functions of libc that often sleep there have stubs of their own
//! ([`quiet`]): they count only if they slept, because whether they made a call at all cannot be
//! told otherwise.
//!
//! Sources: dlsym(3) for `RTLD_NEXT`; System V ABI, AMD64 supplement, 3.2; AAPCS64, 6.4.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod functions;
mod jumps;
mod next;
mod stubs;
pub mod thread;
mod vfork;
pub mod wiped;

pub use functions::{COUNT, Function};
pub use jumps::shorten;
pub use next::{NEXT, function, prepare, raw};
pub use stubs::{five, number_of, quiet, seven, syscall_of};
pub use vfork::{after_vfork, before_clone, before_vfork, failed};

/// What looks at the calls of one thread. A value of it belongs to one thread, which gets it at its
/// first call and loses it at its end.
///
/// # Safety
///
/// [`Tracer::start`] must return memory that stays where it is until [`Tracer::stop`], and in which
/// [`Tracer::alive`] can be asked even in a forked child.
pub unsafe trait Tracer: Sized {
    /// What is remembered from before a call to after it.
    type Mark: Copy;

    /// Begins with the calling thread; null if it shall not be traced, for good. May allocate and
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

    /// False in a forked child, whose copy is of no use: kernel rings are not inherited.
    fn alive(&self) -> bool;

    /// Before a call.
    fn begin(&self) -> Self::Mark;

    /// After a call made from `site`, which returned `result`: all ones if it failed, in whatever
    /// way the function says so. `errno` may be changed.
    fn end(&self, mark: Self::Mark, number: u32, site: usize, result: usize);

    /// After a call made while another one of the thread was under way.
    fn end_nested(&self, mark: Self::Mark, number: u32, site: usize, result: usize);

    /// Before a call made while another one is under way: must leave what that one has slept so
    /// far.
    fn begin_nested(&self) -> Self::Mark;

    /// After a call of libc that may or may not have made system calls: count it only if it slept.
    fn end_quiet(&self, mark: Self::Mark, number: u32, site: usize, result: usize);

    /// The thread made a child that shares its memory and its thread-local storage; tracing it ends
    /// here.
    fn shares_memory(&self);

    /// A call made from `site` was let pass: the thread is inside the tracer.
    fn passed(site: usize);

    /// A call of a vfork child was let pass.
    fn of_vfork();

    /// The process is about to give up system calls (seccomp(2)): from now on one of the tracer's
    /// own could be its end.
    fn confining();

    /// It has done so, or the call failed.
    fn confined(succeeded: bool);
}
