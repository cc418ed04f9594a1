//! vfork: the child runs in its parent's memory, on its parent's stack, as its parent's thread,
//! while the parent waits.
//!
//! A function that calls `vfork` and returns would return twice through one frame, so the stub
//! makes the call itself and keeps its return address in a register, as libc does. Before it and,
//! in the parent, after it come the two halves here. In between every call is the child's and
//! passes untraced: what it wrote would be its parent's.
//!
//! Source: vfork(2).

use crate::Tracer;
use crate::thread::{self, INSIDE, READY, VFORK};

/// Before the call, in the parent.
///
/// Does not compile where a snapshot is longer than eight words.
pub extern "C" fn before_vfork<T: Tracer>(site: usize) {
    const {
        assert!(size_of::<T::Snapshot>() <= 64 && align_of::<T::Snapshot>() <= 8);
    }
    // A call that does nothing brings a new thread, or a forked child's, into the ready state.
    thread::prepare_thread::<T>();
    thread::with(|thread| {
        if thread.state.get() == READY {
            thread.state.set(INSIDE);
            let snapshot = thread::with_data::<T, _>(thread, |tracer| tracer.begin());
            let mut words = [0_u64; 8];
            // SAFETY: the snapshot is plain data and no longer than the words.
            unsafe { words.as_mut_ptr().cast::<T::Snapshot>().write(snapshot) };
            thread.vfork_mark.set(words);
            thread.vfork_site.set(site);
            thread.vforks.set(1);
            thread.state.set(VFORK);
        } else if thread.state.get() == VFORK {
            thread.vforks.set(thread.vforks.get() + 1);
        }
    });
}

/// After the call, in the parent, with the kernel's answer. Returns what `vfork` returns.
pub extern "C" fn after_vfork<T: Tracer>(answer: isize) -> isize {
    thread::with(|thread| {
        if thread.state.get() != VFORK {
            return;
        }
        thread.vforks.set(thread.vforks.get() - 1);
        if thread.vforks.get() > 0 {
            return;
        }
        thread.state.set(INSIDE);
        let words = thread.vfork_mark.get();
        // SAFETY: `before_vfork` wrote a snapshot there.
        let snapshot = unsafe { words.as_ptr().cast::<T::Snapshot>().read() };
        thread::with_data::<T, _>(thread, |tracer| {
            let number = libc::SYS_vfork as u32;
            let result = if answer < 0 {
                usize::MAX
            } else {
                answer as usize
            };
            // SAFETY: no precondition.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: valid for the calling thread at all times.
            let before = unsafe { *errno };
            tracer.end(snapshot, number, thread.vfork_site.get(), result);
            // SAFETY: as above.
            unsafe { *errno = before };
        });
        thread.state.set(READY);
    });
    if answer < 0 { failed(answer) } else { answer }
}

/// Before a clone(2) made by libc's function; returns the address of that function.
///
/// A child that shares memory but has no thread-local storage of its own would write into the data
/// of this thread. So this thread is not traced any more. Threads (`CLONE_SETTLS`) and forks are
/// not concerned.
pub extern "C" fn before_clone<T: Tracer>(flags: usize) -> usize {
    let flags = flags as libc::c_int;
    let shares = flags & libc::CLONE_VM != 0 && flags & libc::CLONE_SETTLS == 0;
    if shares && !thread::in_vfork_child() {
        thread::with_tracer(|tracer: &T| tracer.shares_memory());
        thread::switch_off();
    }
    let index = crate::Function::clone as usize;
    crate::function(index).map_or(0, |function| function as usize)
}

/// What a failed call returns: stores the kernel's answer in `errno`.
pub extern "C" fn failed(answer: isize) -> isize {
    // SAFETY: no precondition.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid for the calling thread at all times.
    unsafe { *errno = -answer as i32 };
    -1
}
