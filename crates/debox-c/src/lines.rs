//! File and line of the kernel functions in a record's sleeps, added on request.
//!
//! The lines are in the kernel's debug file, which takes seconds and memory to read, and a lookup
//! allocates. So no call waits for it and no signal handler runs it: a record comes without lines,
//! and `debox_lines` adds them.

use std::ffi::c_int;
use std::io::{Error, ErrorKind};
use std::sync::{Mutex, OnceLock, PoisonError};

use headway_debox::{KernelLines, kernel_symbols};
use headway_debox_hook::thread::{is_inside, with_tracer};

use crate::control::fail;
use crate::info::{DeBoxInfo, SLEEPS, copy};
use crate::thread::Thread;

/// The debug file, read at the first request.
static LINES: OnceLock<Mutex<Result<KernelLines, Error>>> = OnceLock::new();

/// Fills in `blockingFile` and `blockingLine` of a record; see `debox.h`.
///
/// # Safety
///
/// `info` is null or a record of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn debox_lines(info: *mut DeBoxInfo) -> c_int {
    if info.is_null() || !info.is_aligned() {
        return fail(libc::EINVAL);
    }
    if is_inside() {
        return fail(libc::EBUSY);
    }
    // SAFETY: the caller's promise.
    let info = unsafe { &mut *info };
    let mut answer = None;
    // Inside the tracer, so that the calls that read the file do not replace the last record of the
    // program.
    with_tracer(|_: &Thread| answer = Some(add_lines(info)));
    match answer.unwrap_or_else(|| add_lines(info)) {
        Ok(found) => found,
        Err(number) => fail(number),
    }
}

/// How many sleeps have a line now, or the error's number.
fn add_lines(info: &mut DeBoxInfo) -> Result<c_int, c_int> {
    if LINES.get().is_none() && headway_debox::is_confined() {
        return Err(libc::EPERM);
    }
    let symbols = kernel_symbols().ok_or(libc::EACCES)?;
    let lines = LINES.get_or_init(|| Mutex::new(KernelLines::find(symbols)));
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = lines.as_ref().map_err(|error| match error.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        _ => libc::ENOEXEC,
    })?;
    let sleeps = usize::try_from(info.numPerSleepInfo).map_or(0, |count| count.min(SLEEPS));
    let mut found = 0;
    for sleep in &mut info.psi[..sleeps] {
        // The address is that of a return, which may already be the next line's.
        let inside = sleep.blockingAddress.checked_sub(1);
        if let Some(line) = inside.and_then(|address| lines.line(address)) {
            copy(&mut sleep.blockingFile, &line.file);
            sleep.blockingLine = line.line as c_int;
            found += 1;
        }
    }
    Ok(found)
}
