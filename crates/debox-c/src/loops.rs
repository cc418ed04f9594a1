//! Watches of event loops, for C and for languages which call C: turns, lag, metrics.
//!
//! A watch is never freed, since threads may be in it at any time. The functions of a turn make no
//! system call after the first turn of a thread, and never wait.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use headway_debox::{LoopWatch, watch_loop};

use crate::control::{copy_text, fail};
use crate::functions::unrecorded;

/// Starts a watch of an event loop; see `debox.h`.
#[unsafe(no_mangle)]
pub extern "C" fn debox_watch_loop() -> *const LoopWatch {
    let mut watch: *const LoopWatch = std::ptr::null();
    unrecorded(|| {
        watch = Box::leak(Box::new(watch_loop()));
        Ok(0)
    });
    watch
}

/// The calling thread has come back from its wait for events; see `debox.h`.
///
/// # Safety
///
/// `watch` is null or of [`debox_watch_loop`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_turn_begin(watch: *const LoopWatch) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_watch(watch, LoopWatch::begin_turn) }
}

/// The calling thread is about to wait for events; see `debox.h`.
///
/// # Safety
///
/// As [`debox_turn_begin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_turn_end(watch: *const LoopWatch) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_watch(watch, LoopWatch::end_turn) }
}

/// A timer of the loop was late by this much; see `debox.h`.
///
/// # Safety
///
/// As [`debox_turn_begin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_loop_lag(watch: *const LoopWatch, late_ns: u64) -> c_int {
    let late = Duration::from_nanos(late_ns);
    // SAFETY: the caller's promise.
    unsafe { with_watch(watch, |watch| watch.observe_lag(late)) }
}

/// The metrics as a text; see `debox.h`.
///
/// # Safety
///
/// As [`debox_turn_begin`], and `text` has room for `size` bytes, or `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_loop_metrics(
    watch: *const LoopWatch,
    text: *mut c_char,
    size: usize,
) -> c_int {
    let mut metrics = String::new();
    // SAFETY: the caller's promise.
    let answer = unsafe { with_watch(watch, |watch| metrics = watch.metrics()) };
    match answer {
        // SAFETY: the caller's promise.
        0 => unsafe { copy_text(text, size, &metrics) },
        error => error,
    }
}

/// # Safety
///
/// As [`debox_turn_begin`].
unsafe fn with_watch(watch: *const LoopWatch, act: impl FnOnce(&LoopWatch)) -> c_int {
    // SAFETY: the caller's promise; a watch is never freed.
    let Some(watch) = (unsafe { watch.as_ref() }) else {
        return fail(libc::EINVAL);
    };
    unrecorded(|| {
        act(watch);
        Ok(0)
    })
}
