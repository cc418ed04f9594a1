//! The clocks of simulated threads. clock_gettime(2) is no system call that can be caught: the vDSO
//! answers it. So this program has a function of that name, which the linker prefers to libc's.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::trap::{is_caught, raw};

/// The monotonic time, in nanoseconds.
static MONOTONIC_NS: AtomicU64 = AtomicU64::new(0);
/// What calendar time is ahead of it.
static CALENDAR_OFFSET_NS: AtomicI64 = AtomicI64::new(0);

/// How long it takes to read the clock, so that time never stands still.
const READ_NS: u64 = 100;

/// Where simulated time begins: Wed, 04 Feb 2026 05:06:07 GMT.
pub const EPOCH_S: i64 = 1_770_181_567;

/// Sets both clocks to their start.
pub fn reset() {
    // Not 0, since `Instant` may be subtracted from.
    MONOTONIC_NS.store(1_000_000_000_000, Ordering::SeqCst);
    CALENDAR_OFFSET_NS.store(EPOCH_S * 1_000_000_000, Ordering::SeqCst);
}

/// The monotonic time in nanoseconds.
pub fn now_ns() -> u64 {
    MONOTONIC_NS.load(Ordering::SeqCst)
}

/// The calendar time in nanoseconds since 1970.
pub fn calendar_ns() -> i64 {
    now_ns() as i64 + CALENDAR_OFFSET_NS.load(Ordering::SeqCst)
}

/// Lets time pass.
pub fn advance(by_ns: u64) {
    MONOTONIC_NS.fetch_add(by_ns, Ordering::SeqCst);
}

/// Steps the calendar, as an operator or NTP does.
pub fn step_calendar(by_ns: i64) {
    CALENDAR_OFFSET_NS.fetch_add(by_ns, Ordering::SeqCst);
}

/// Replaces libc's function for the whole program; threads that are not simulated get real time.
///
/// # Safety
/// `time` points to a timespec, as clock_gettime(2) demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: i32, time: *mut libc::timespec) -> i32 {
    if !is_caught() {
        // SAFETY: the caller's promise.
        return unsafe {
            raw(
                libc::SYS_clock_gettime,
                [clock as u64, time as u64, 0, 0, 0, 0],
            )
        } as i32;
    }
    let ns = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => calendar_ns(),
        _ => now_ns() as i64,
    };
    advance(READ_NS);
    let (tv_sec, tv_nsec) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    // SAFETY: the caller's promise.
    unsafe { time.write(libc::timespec { tv_sec, tv_nsec }) };
    0
}
