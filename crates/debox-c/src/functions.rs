//! Kernel functions of a call with their times, added to a record's call trace on request.
//!
//! The functions come from the kernel's tracer, separately from the records, and make calls several
//! times as long. So no record waits for them: a program asks to follow its thread, and
//! `debox_functions` replaces the stacks of one record by them. The tracer's instance is removed at
//! the program's end; that of a program that was killed is removed when the next one is started.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use headway_debox::{FunctionTimes, Functions, FunctionsError};
use headway_debox_hook::thread::{is_inside, with_tracer};
use rustix::thread::gettid;

use crate::control::fail;
use crate::info::{CallTrace, DeBoxInfo, TRACE};
use crate::thread::Thread;

/// The tracer, and the process that owns it. A forked child finds its parent's here, which it must
/// not remove.
static TIMES: Mutex<Option<(u32, FunctionTimes)>> = Mutex::new(None);

/// Follows the calling thread and what it starts, or ends all that; see `debox.h`.
#[unsafe(no_mangle)]
pub extern "C" fn debox_follow_functions(on: c_int) -> c_int {
    inside_tracer(|| match on {
        0 => {
            drop(times().take());
            Ok(0)
        }
        _ => follow(),
    })
}

/// Replaces the call trace of a record by the functions of its call; see `debox.h`.
///
/// # Safety
///
/// `info` is null or a record of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_functions(info: *mut DeBoxInfo) -> c_int {
    if info.is_null() || !info.is_aligned() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let info = unsafe { &mut *info };
    inside_tracer(|| {
        let mut times = times();
        let (_, times) = times.as_mut().ok_or(libc::ENXIO)?;
        let found = times.read_call(thread_id(), info.startNs, info.callNs);
        Ok(fill_call_trace(&found.map_err(number)?, info))
    })
}

/// As [`unrecorded`], unless the process is confined.
fn inside_tracer(act: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    match headway_debox::is_confined() && !is_inside() {
        true => fail(libc::EPERM),
        false => unrecorded(act),
    }
}

/// Runs inside the tracer, so that our own calls do not replace the last record of the program.
pub(crate) fn unrecorded(act: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    if is_inside() {
        return fail(libc::EBUSY);
    }
    let (mut act, mut answer) = (Some(act), None);
    with_tracer(|_: &Thread| answer = act.take().map(|act| act()));
    // A thread without records has no tracer to be inside of.
    let answer = answer.or_else(|| act.take().map(|act| act()));
    answer.map_or(0, |answer| answer.unwrap_or_else(fail))
}

fn follow() -> Result<c_int, c_int> {
    static AT_EXIT: Once = Once::new();
    let mut times = times();
    if times.is_none() {
        *times = Some((
            std::process::id(),
            FunctionTimes::start(TRACE).map_err(number)?,
        ));
        AT_EXIT.call_once(|| {
            // SAFETY: the function may be called at any exit, and is there as long as this library.
            // Refused, it leaves the tracer to the next thread that starts one.
            let _ = unsafe { libc::atexit(at_exit) };
        });
    }
    let (_, times) = times.as_mut().ok_or(libc::ENXIO)?;
    times.follow(&[thread_id()]).map_err(number)?;
    Ok(0)
}

/// Statics are not dropped, and the kernel would keep the instance.
extern "C" fn at_exit() {
    if let Ok(mut times) = TIMES.try_lock() {
        leak_if_forked(&mut times);
        drop(times.take());
    }
}

fn times() -> MutexGuard<'static, Option<(u32, FunctionTimes)>> {
    let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    leak_if_forked(&mut times);
    times
}

/// Lets go of a parent's tracer without taking it away.
fn leak_if_forked(times: &mut Option<(u32, FunctionTimes)>) {
    let own = std::process::id();
    if times.as_ref().is_some_and(|(process, _)| *process != own) {
        std::mem::forget(times.take());
    }
}

fn thread_id() -> u32 {
    gettid().as_raw_nonzero().get() as u32
}

/// How many entries the call trace has now; 0, and it is left as it was, if no function is known.
fn fill_call_trace(found: &Functions, info: &mut DeBoxInfo) -> c_int {
    let many = found.functions.len().min(TRACE);
    if many == 0 {
        return 0;
    }
    for (entry, function) in info.ct.iter_mut().zip(&found.functions) {
        *entry = CallTrace {
            callSite: function.address as usize,
            deltaTime: function.length_ns as i64,
            depth: c_int::from(function.depth),
            reserved: 0,
        };
    }
    info.traceDepth = many as c_int;
    info.numTraceDropped = c_int::try_from(found.dropped).unwrap_or(c_int::MAX);
    info.traceDepth
}

fn number(error: FunctionsError) -> c_int {
    match error {
        FunctionsError::NoTracefs => libc::ENOENT,
        FunctionsError::NotPermitted => libc::EACCES,
        FunctionsError::NoTracer | FunctionsError::NoInstances | FunctionsError::Format => {
            libc::EOPNOTSUPP
        }
        FunctionsError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EIO,
    }
}
