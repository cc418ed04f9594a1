//! The functions of `include/debox.h`.
//!
//! Errors are C's: -1 and `errno`. What a program passes is checked as far as it can be: a null
//! pointer, a size, a text; that a buffer is as long as it says is the program's promise.

use std::ffi::{CStr, c_char, c_int, c_void};

use headway_debox::policy::{Filter, Reaction, ReactionRule, Rule, Trigger};
use headway_debox::{Limits, Record, TraceLevel, calls};
use headway_debox_hook::thread::{
    create_thread_end_key, is_inside, switch_off, switch_on, with_tracer, with_tracer_anyhow,
};

use crate::info::{DeBoxInfo, SLEEPS, TRACE, copy, level_number};
use crate::thread::{Settings, Thread, set_settings};

/// A function of the program that is called with the record of a call.
pub type DeBoxCallback = unsafe extern "C" fn(*const DeBoxInfo, *const c_void, *mut c_void);

/// Starts, changes or, with null, stops the records of the calling thread; see `debox.h`. The size
/// is that of the structure's first version.
///
/// # Safety
///
/// `buffer` is null or valid until this thread passes another one or ends.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn DeBoxControl(
    buffer: *mut DeBoxInfo,
    sleeps_max: c_int,
    trace_max: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { debox_control_sized(buffer, size_of::<DeBoxInfo>(), sleeps_max, trace_max) }
}

/// As [`DeBoxControl`], with the size of the structure the program was compiled with.
///
/// # Safety
///
/// As [`DeBoxControl`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_control_sized(
    buffer: *mut DeBoxInfo,
    size: usize,
    sleeps_max: c_int,
    trace_max: c_int,
) -> c_int {
    if buffer.is_null() {
        switch_off();
        set_settings(None);
        // This may come from a callback, or from a handler of a signal that arrived during a call.
        // That call must not write into the buffer any more either.
        with_tracer_anyhow(Thread::remove_buffer);
        return 0;
    }
    let within = |count: c_int, max: usize| usize::try_from(count).ok().filter(|n| *n <= max);
    let (Some(sleeps_max), Some(trace_max)) =
        (within(sleeps_max, SLEEPS), within(trace_max, TRACE))
    else {
        return fail(libc::EINVAL);
    };
    // The structure only grows at its end, and this is the first version of it.
    if size < size_of::<DeBoxInfo>() || !buffer.is_aligned() {
        return fail(libc::EINVAL);
    }
    // The record passed to the callback is in use, and so are the arrays that other limits would
    // replace.
    if is_inside() {
        return fail(libc::EBUSY);
    }
    let settings = Settings {
        buffer,
        size,
        limits: Limits {
            sleeps_max,
            trace_max,
            resolve: sleeps_max > 0,
            wakeup: sleeps_max > 0,
            own_faults: true,
        },
    };
    create_thread_end_key::<Thread>();
    set_settings(Some(settings));
    let renewed = with_tracer(|thread: &Thread| {
        thread.apply_settings(settings);
        // SAFETY: the caller's promise.
        let buffer = unsafe { &mut *buffer };
        buffer.begin(size, thread.debox().level());
    });
    if renewed.is_none() && !switch_on::<Thread>() {
        set_settings(None);
        return fail(libc::ENOMEM);
    }
    // SAFETY: the caller's promise.
    let buffer = unsafe { &mut *buffer };
    with_tracer(|thread: &Thread| buffer.begin(size, thread.debox().level()));
    0
}

/// Called before a call whose record is wanted, in programs that are linked statically.
#[unsafe(no_mangle)]
pub extern "C" fn debox_begin() {
    let errno = errno();
    with_tracer(|thread: &Thread| thread.begin_explicit());
    set_errno(errno);
}

/// After it. `number` is the system call's.
#[unsafe(no_mangle)]
pub extern "C" fn debox_end(number: c_int, site: *const c_void) {
    let errno = errno();
    with_tracer(|thread: &Thread| thread.end_explicit(number as u32, site as usize));
    set_errno(errno);
}

/// Adds a reaction of the calling thread; see `debox.h`.
///
/// # Safety
///
/// `text` is a text. `callback` may be called with `context` as long as the thread lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_react(
    text: *const c_char,
    callback: Option<DeBoxCallback>,
    context: *mut c_void,
) -> c_int {
    if text.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    if is_inside() {
        return fail(libc::EBUSY);
    }
    let number = with_tracer(|thread: &Thread| {
        let rule = match callback {
            Some(callback) => {
                let reaction = callback_reaction(callback, context, thread.debox().level().clone());
                Rule::new(text.parse::<Trigger>().ok()?, reaction)
            }
            None => to_rule(text.parse::<ReactionRule>().ok()?),
        };
        Some(thread.add_rule(rule))
    });
    match number {
        Some(Some(number)) => number as c_int,
        Some(None) => fail(libc::EINVAL),
        // Records are off.
        None => fail(libc::ENXIO),
    }
}

/// Removes the reactions of the calling thread; a reaction may call it too.
#[unsafe(no_mangle)]
pub extern "C" fn debox_forget_reactions() {
    with_tracer_anyhow(Thread::remove_rules);
}

/// Copies the name of a system call; returns the length of the whole name, as `snprintf` does.
///
/// # Safety
///
/// `name` has room for `size` bytes, or `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_call_name(number: c_int, name: *mut c_char, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { copy_text(name, size, calls::name(number as u32)) }
}

/// How much the calling thread's records show, with a sentence about it; -1 if records are off.
///
/// # Safety
///
/// As [`debox_call_name`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_trace_level(text: *mut c_char, size: usize) -> c_int {
    let answer = with_tracer(|thread: &Thread| {
        let level = thread.debox().level();
        (level_number(level), level.to_string())
    });
    let Some((number, sentence)) = answer else {
        return fail(libc::ENXIO);
    };
    // SAFETY: the caller's promise.
    unsafe { copy_text(text, size, &sentence) };
    number
}

/// The library's version, a text of its own.
#[unsafe(no_mangle)]
pub extern "C" fn debox_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// # Safety
///
/// `room` has room for `size` bytes, or `size` is 0.
pub(crate) unsafe fn copy_text(room: *mut c_char, size: usize, text: &str) -> c_int {
    if !room.is_null() && size > 0 {
        // SAFETY: the caller's promise.
        copy(unsafe { std::slice::from_raw_parts_mut(room, size) }, text);
    }
    text.len() as c_int
}

fn callback_reaction(callback: DeBoxCallback, context: *mut c_void, level: TraceLevel) -> Reaction {
    // A buffer of the rule's own, so that a callback sees the record that made it be called
    // whatever happens to the thread's.
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut info: Box<DeBoxInfo> = unsafe { Box::new_zeroed().assume_init() };
    Reaction::Callback(Box::new(move |record: &Record, site: u64| {
        info.begin(size_of::<DeBoxInfo>(), &level);
        info.fill(record, site as usize);
        let site = std::ptr::without_provenance(site as usize);
        // SAFETY: the promise made to `debox_react`.
        unsafe { callback(&raw const *info, site, context) };
    }))
}

fn to_rule(parsed: ReactionRule) -> Rule {
    let trigger = parsed.trigger.clone();
    let act = ReactionRule {
        trigger: Trigger {
            when: Filter::default(),
            times_max: 0,
        },
        action: parsed.action,
    };
    Rule::new(
        trigger,
        Reaction::Callback(Box::new(move |record, site| {
            // A failure cannot be reported: the streams belong to the program.
            let _ = act.execute(record, site);
        })),
    )
}

pub(crate) fn fail(number: c_int) -> c_int {
    set_errno(number);
    -1
}

fn errno() -> c_int {
    // SAFETY: no precondition.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: valid for the calling thread at all times.
    unsafe { *location }
}

fn set_errno(number: c_int) {
    // SAFETY: no precondition.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: valid for the calling thread at all times.
    unsafe { *location = number };
}
