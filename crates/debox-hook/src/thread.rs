//! The tracing state of a thread. Each call depends on one load of it.
//!
//! ```text
//! New ──first call──► Ready ◄──────────► Inside the tracer ──► In a call
//!                       │ ▲                                       │
//!                       ▼ │ the parent continues                  └─ a signal handler calls: nested
//!                     Vfork
//! ```
//!
//! A call that finds the thread *inside the tracer* comes from the tracer itself or from a signal
//! handler that interrupted it; it is not recorded. A call that finds it *in a call* comes from a
//! signal handler that interrupted a blocked call. It is counted separately, while the sleeps still
//! belong to the outer call. A handler that leaves by `longjmp` leaves the thread in this state.
//! The stack pointer shows that: a call from above the frame of the outer call has left it.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Tracer;

pub(crate) const NEW: u8 = 0;
pub(crate) const READY: u8 = 1;
pub(crate) const INSIDE: u8 = 2;
pub(crate) const IN_CALL: u8 = 3;
pub(crate) const VFORK: u8 = 4;
/// The thread is not traced. Its calls go from the stub straight to libc.
pub const OFF: u8 = 5;

/// A handler that makes more calls than this has probably left by `longjmp`, from a stack of its
/// own.
const NESTED_MAX: u32 = 64;

/// Rounds of destructors (POSIX: four) in which the others go first, since they may make calls.
const ROUNDS_WAITED: u8 = 2;

/// The state of one thread.
#[repr(C)]
pub struct Thread {
    /// The first byte, which stubs read.
    pub(crate) state: Cell<u8>,
    rounds: Cell<u8>,
    pub(crate) vforks: Cell<u32>,
    /// Where the stack was in the call that is under way.
    outer: Cell<usize>,
    nested: Cell<u32>,
    /// The tracer's own, valid unless the state is new or off.
    data: Cell<*mut c_void>,
    errno: Cell<*mut c_int>,
    /// The snapshot of a vfork under way: up to eight words.
    pub(crate) vfork_mark: Cell<[u64; 8]>,
    pub(crate) vfork_site: Cell<usize>,
}

// The thread's variable, defined by hand for two reasons. The stubs read its first byte, so it
// needs a name that they can use. And it is addressed as part of the initial block of each thread
// (initial-exec): a load and an addition, where an ordinary variable of a shared library takes a
// function call. All zero is a new thread.
std::arch::global_asm!(
    ".pushsection .tbss.headway_hook_thread,\"awT\",@nobits",
    ".balign 16",
    ".globl headway_hook_thread",
    ".hidden headway_hook_thread",
    ".type headway_hook_thread,@object",
    ".size headway_hook_thread,{bytes}",
    "headway_hook_thread:",
    ".zero {bytes}",
    ".popsection",
    bytes = const size_of::<Thread>(),
);

impl Thread {
    /// Leaves the tracer for a state, unless the thread was switched off in there, by a callback
    /// perhaps.
    #[inline(always)]
    fn leave_tracer(&self, state: u8) {
        if self.state.get() != OFF {
            self.state.set(state);
        }
    }
}

/// The key whose destructor runs at the end of a thread; zero: none yet, else the key plus one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Makes the key, once.
pub fn create_thread_end_key<T: Tracer>() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut key = 0;
        // SAFETY: the pointer is to a variable of this frame, the destructor is of the right type.
        let failed = unsafe { libc::pthread_key_create(&mut key, Some(ended::<T>)) };
        if failed == 0 {
            KEY.store(key + 1, Ordering::Relaxed);
        }
    });
}

/// Stops tracing the calling thread, until [`switch_on`].
pub fn switch_off() {
    let state = if crate::next::is_filled() { OFF } else { NEW };
    with(|thread| thread.state.set(state));
}

/// Starts tracing the calling thread if it is off or new, else leaves it as it is. False if the
/// tracer refuses.
pub fn switch_on<T: Tracer>() -> bool {
    with(|thread| {
        if matches!(thread.state.get(), NEW | OFF) {
            start::<T>(thread);
        }
        thread.state.get() != OFF
    })
}

/// Stops tracing the calling thread for a call after which it may not be traced any more, and goes
/// on as before if the call fails.
pub(crate) fn switch_off_unless_failed(call: impl FnOnce() -> usize) -> usize {
    let before = with(|thread| thread.state.get());
    switch_off();
    let result = call();
    if result as u32 == u32::MAX {
        with(|thread| thread.state.set(before));
    }
    result
}

/// Runs with the tracer's data of this thread, if there are any; calls made in it pass untraced.
pub fn with_tracer<T: Tracer, R>(f: impl FnOnce(&T) -> R) -> Option<R> {
    with(|thread| {
        // SAFETY: not null only where `start` put it, and it lives until the thread's end.
        let old = unsafe { thread.data.get().cast::<T>().as_ref() };
        let forked = old.is_some_and(|tracer| !tracer.alive());
        let state = thread.state.get();
        if state == NEW || forked && matches!(state, READY | IN_CALL) {
            start::<T>(thread);
        }
        let state = thread.state.get();
        if !matches!(state, READY | IN_CALL) {
            return None;
        }
        // SAFETY: as above.
        let tracer = unsafe { thread.data.get().cast::<T>().as_ref() }?;
        thread.state.set(INSIDE);
        let answer = f(tracer);
        thread.leave_tracer(state);
        Some(answer)
    })
}

/// Runs with the calls made in it untraced. Those of a vfork child are not traced anyway, and its
/// state, which is its parent's, stays as it is.
pub fn untraced<R>(f: impl FnOnce() -> R) -> R {
    with(|thread| {
        let state = thread.state.get();
        if !matches!(state, READY | IN_CALL) {
            return f();
        }
        thread.state.set(INSIDE);
        let answer = f();
        thread.leave_tracer(state);
        answer
    })
}

/// Brings the calling thread into the ready state if it is new, or a forked child's first.
pub(crate) fn prepare_thread<T: Tracer>() {
    trace_call::<T, true>(0, 0, || 0, |result| result);
}

/// Runs with the tracer's data, in a state in which there are some.
pub(crate) fn with_data<T: Tracer, R>(thread: &Thread, f: impl FnOnce(&T) -> R) -> R {
    // SAFETY: the caller has looked at the state; the data live until the thread's end.
    f(unsafe { &*thread.data.get().cast::<T>() })
}

/// Runs with the tracer's data of this thread whatever it is doing, if there are any and they are
/// of this process. Only for what may be done while the tracer itself is at work.
pub fn with_tracer_anyhow<T: Tracer>(f: impl FnOnce(&T)) {
    with(|thread| {
        // SAFETY: not null only where `start` put it, and it lives until the thread's end.
        let tracer = unsafe { thread.data.get().cast::<T>().as_ref() };
        if let Some(tracer) = tracer.filter(|tracer| tracer.alive()) {
            f(tracer);
        }
    });
}

/// Whether the calling code runs inside the tracer: in a callback, or in a signal handler that
/// interrupted it.
pub fn is_inside() -> bool {
    with(|thread| thread.state.get() == INSIDE)
}

/// Whether the calling code runs in a vfork child, which must leave its parent's memory alone.
pub fn in_vfork_child() -> bool {
    with(|thread| thread.state.get() == VFORK)
}

#[inline(always)]
pub(crate) fn with<R>(f: impl FnOnce(&Thread) -> R) -> R {
    let thread: *const Thread;
    // SAFETY: reads the address of the thread's initial block and a constant of the loader's.
    unsafe {
        std::arch::asm!(
            "mov {thread}, qword ptr fs:[0]",
            "add {thread}, qword ptr [rip + headway_hook_thread@GOTTPOFF]",
            thread = out(reg) thread,
            options(pure, nomem, nostack),
        );
    }
    // SAFETY: of the right size and alignment, zero at first, which is a value, and all of it cells
    // of this thread alone.
    f(unsafe { &*thread })
}

/// Makes a call and passes its result to the tracer, in the form that `to_result` gives it.
/// Everything is passed by value: what the rare paths below used by reference would be kept in
/// memory on the frequent path too.
#[inline(always)]
pub(crate) fn trace_call<T: Tracer, const QUIET: bool>(
    number: u32,
    site: usize,
    call: impl FnOnce() -> usize,
    to_result: impl Fn(usize) -> usize,
) -> usize {
    with(move |thread| {
        if thread.state.get() != READY && !enter::<T>(thread) {
            return trace_rare_call::<T, QUIET>(thread, number, site, call, to_result);
        }
        // SAFETY: the state is ready, so `start` put data there, and they live until the thread's
        // end.
        let mut tracer = unsafe { &*thread.data.get().cast::<T>() };
        if !tracer.alive() {
            // A forked child: what the parent had is of no use here.
            thread.state.set(NEW);
            if !enter::<T>(thread) {
                return call();
            }
            // SAFETY: as above.
            tracer = unsafe { &*thread.data.get().cast::<T>() };
        }
        thread.state.set(INSIDE);
        let errno = thread.errno.get();
        // SAFETY: `start` stored the address of this thread's errno.
        let before = unsafe { *errno };
        let snapshot = tracer.begin();
        // SAFETY: as above.
        unsafe { *errno = before };
        thread.outer.set(stack_pointer());
        thread.state.set(IN_CALL);
        let result = call();
        if thread.state.get() == OFF {
            // By a signal handler that came in the call.
            return result;
        }
        if !tracer.alive() {
            // This is the child of a fork that was the call.
            thread.state.set(NEW);
            return result;
        }
        thread.state.set(INSIDE);
        // SAFETY: as above.
        let after = unsafe { *errno };
        if QUIET {
            tracer.end_quiet(snapshot, number, site, to_result(result));
        } else {
            tracer.end(snapshot, number, site, to_result(result));
        }
        // SAFETY: as above.
        unsafe { *errno = after };
        thread.leave_tracer(READY);
        result
    })
}

/// Brings a thread into the ready state if that is possible.
#[cold]
#[inline(never)]
fn enter<T: Tracer>(thread: &Thread) -> bool {
    match thread.state.get() {
        NEW => start::<T>(thread),
        IN_CALL => {
            let abandoned = stack_pointer() > thread.outer.get() || {
                thread.nested.set(thread.nested.get() + 1);
                thread.nested.get() > NESTED_MAX
            };
            // SAFETY: in this state there are data, and they live until the thread's end.
            let tracer = unsafe { &*thread.data.get().cast::<T>() };
            // A child forked by a handler inside a call.
            if abandoned || !tracer.alive() {
                thread.nested.set(0);
                thread.state.set(READY);
            }
        }
        _ => {}
    }
    thread.state.get() == READY
}

fn start<T: Tracer>(thread: &Thread) {
    thread.state.set(INSIDE);
    // SAFETY: valid for the calling thread as long as it lives.
    let errno = unsafe { libc::__errno_location() };
    thread.errno.set(errno);
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: null or what it returned before.
    let data = unsafe { T::start(thread.data.get().cast()) };
    thread.data.set(data.cast());
    let state = match data.is_null() {
        false => READY,
        // The stubs of a thread that is off jump to libc's functions, which have to be known.
        true if crate::next::is_filled() => OFF,
        true => NEW,
    };
    thread.state.set(state);
    let key = KEY.load(Ordering::Relaxed);
    if key != 0 && !data.is_null() {
        // SAFETY: the key was made; its value is only ever looked at by `ended`.
        unsafe { libc::pthread_setspecific(key - 1, data.cast()) };
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// A call in a state other than ready: nested, inside the tracer, or of a thread that is not
/// traced.
#[cold]
#[inline(never)]
fn trace_rare_call<T: Tracer, const QUIET: bool>(
    thread: &Thread,
    number: u32,
    site: usize,
    call: impl FnOnce() -> usize,
    to_result: impl Fn(usize) -> usize,
) -> usize {
    match thread.state.get() {
        IN_CALL if !QUIET => {}
        INSIDE => {
            T::count_skipped_call(site);
            return call();
        }
        VFORK => {
            T::count_vfork_call(site);
            return call();
        }
        _ => return call(),
    }
    let outer = thread.outer.get();
    let errno = thread.errno.get();
    // SAFETY: in this state there are data, and they live until the thread's end.
    let tracer = unsafe { &*thread.data.get().cast::<T>() };
    let snapshot = tracer.begin_nested();
    thread.outer.set(stack_pointer());
    let result = call();
    if thread.state.get() == OFF {
        return result;
    }
    if !tracer.alive() {
        thread.state.set(NEW);
        return result;
    }
    thread.state.set(INSIDE);
    // SAFETY: `start` stored the address of this thread's errno.
    let after = unsafe { *errno };
    tracer.end_nested(snapshot, number, site, to_result(result));
    // SAFETY: as above.
    unsafe { *errno = after };
    thread.outer.set(outer);
    thread.leave_tracer(IN_CALL);
    result
}

/// The destructor of [`KEY`]: puts itself off until the other destructors have made their calls.
unsafe extern "C" fn ended<T: Tracer>(data: *mut c_void) {
    with(|thread| {
        let rounds = thread.rounds.get();
        let key = KEY.load(Ordering::Relaxed);
        if rounds < ROUNDS_WAITED {
            thread.rounds.set(rounds + 1);
            // SAFETY: the key was made.
            unsafe { libc::pthread_setspecific(key - 1, data) };
            return;
        }
        thread.state.set(OFF);
        let tracer = thread.data.replace(std::ptr::null_mut()).cast::<T>();
        // SAFETY: the data of this thread, of a child's parent perhaps, which is not alive then.
        if !tracer.is_null() && unsafe { (*tracer).alive() } {
            // SAFETY: nothing refers to the data: the state is off.
            unsafe { T::stop(tracer) };
        }
    });
}

/// Where the stack is, roughly: an address in the frame of the caller.
#[inline(always)]
fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}
