//! The next functions of the same names (those of libc), looked up once, before the first call.
//!
//! The table is filled when the library is loaded. An earlier call, from another library's
//! constructor, fills it. A call that comes while it is being filled, from an allocator that
//! `dlsym` uses, goes to the kernel without libc.

use std::ffi::{c_char, c_long};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use crate::functions::{ARITIES, COUNT, NAMES, RAW};
use crate::vfork::failed;

/// The functions; the stubs read this table too.
pub static NEXT: [AtomicPtr<()>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];
static STATE: AtomicU8 = AtomicU8::new(EMPTY);

const EMPTY: u8 = 0;
const FILLING: u8 = 1;
const FILLED: u8 = 2;

/// Fills the table, unless that is done or under way.
pub fn prepare() {
    let first = STATE.compare_exchange(EMPTY, FILLING, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        return;
    }
    for (slot, name) in NEXT.iter().zip(NAMES) {
        // SAFETY: every name ends with a zero byte. A name that this libc does not have gives null,
        // and then nothing was linked to it either.
        let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
        slot.store(function.cast(), Ordering::Release);
    }
    STATE.store(FILLED, Ordering::Release);
}

/// Whether the table is filled.
pub(crate) fn is_filled() -> bool {
    STATE.load(Ordering::Acquire) == FILLED
}

/// The next function of that name; `None` if it is not known yet.
#[inline(always)]
pub fn function(index: usize) -> Option<*mut ()> {
    let function = NEXT[index].load(Ordering::Acquire);
    if function.is_null() {
        return resolve_late(index);
    }
    Some(function)
}

#[cold]
#[inline(never)]
fn resolve_late(index: usize) -> Option<*mut ()> {
    prepare();
    let function = NEXT[index].load(Ordering::Acquire);
    (!function.is_null()).then_some(function)
}

/// Makes the call without libc's function; `ENOSYS` if no call has the same arguments.
///
/// # Safety
///
/// The arguments must be right for the function.
#[cold]
#[inline(never)]
pub unsafe fn raw_of(index: usize, arguments: [usize; 7]) -> usize {
    let Some(call) = RAW[index] else {
        return failed(-(libc::ENOSYS as isize)) as usize;
    };
    let mut exact = [0; 6];
    for (exact, given) in exact.iter_mut().zip(arguments).take(ARITIES[index]) {
        *exact = given;
    }
    // SAFETY: the caller's promise.
    unsafe { raw_call(call as usize, exact) }
}

/// As [`raw`], with the answer in libc's form: -1 and `errno`.
///
/// # Safety
///
/// As for [`raw`].
#[cold]
pub(crate) unsafe fn raw_call(number: usize, arguments: [usize; 6]) -> usize {
    // SAFETY: the caller's promise.
    let answer = unsafe { raw(number as c_long, arguments) };
    if answer > -4096_isize as usize {
        return failed(answer as isize) as usize;
    }
    answer
}

/// A system call, past libc and all that stands before it. The kernel's answer: errors are small
/// negative numbers.
///
/// # Safety
///
/// The arguments must be right for the call.
#[inline]
pub unsafe fn raw(call: c_long, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let answer;
    // SAFETY: the kernel's convention: number in rax, six registers, rcx and r11 lost.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") call as usize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}
