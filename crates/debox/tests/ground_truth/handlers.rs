//! Signal handlers that make calls of their own, inside a call of the program.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use headway_debox::{Debox, Label};

use crate::truth::{DELAY, SleepMonitor, alone, check_sleeps, debox_or_skip};

/// The handle of the thread that is interrupted.
static HANDLE: AtomicPtr<Debox> = AtomicPtr::new(ptr::null_mut());
static INNER_COUNT: AtomicU64 = AtomicU64::new(0);
static INNER_NUMBER: AtomicU32 = AtomicU32::new(0);

extern "C" fn sleep_in_handler(_: libc::c_int) {
    // SAFETY: set while the handle lives, and the handler runs on its thread.
    let Some(debox) = (unsafe { HANDLE.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let moment = rustix::thread::Timespec {
        tv_sec: 0,
        tv_nsec: 10_000_000,
    };
    debox.call(libc::SYS_nanosleep as u32, || {
        let _ = rustix::thread::nanosleep(&moment);
    });
    if let Some(record) = debox.last() {
        INNER_NUMBER.store(record.number, Ordering::Release);
        let timers = record
            .sleeps()
            .iter()
            .filter(|sleep| sleep.label == Label::Timer);
        INNER_COUNT.fetch_add(
            timers.map(|sleep| u64::from(sleep.count)).sum(),
            Ordering::AcqRel,
        );
    }
}

/// Handles SIGUSR1 by the function above; interrupted calls go on.
fn install() {
    // SAFETY: an all-zero structure is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = sleep_in_handler as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler is async-signal-safe: it makes system calls and fills a buffer made
    // before.
    let answer = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) };
    assert_eq!(answer, 0);
}

fn interrupt(thread: libc::pthread_t) {
    // SAFETY: the thread waits for a pipe that only we write.
    unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
}

#[test]
fn each_call_has_its_own_sleeps_when_a_handler_interrupts_one_that_sleeps() {
    let _alone = alone();
    let test = "each_call_has_its_own_sleeps_when_a_handler_interrupts_one_that_sleeps";
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    install();
    INNER_COUNT.store(0, Ordering::Release);
    HANDLE.store(ptr::from_ref(&debox).cast_mut(), Ordering::Release);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    // SAFETY: returns the calling thread's own handle.
    let thread = unsafe { libc::pthread_self() };
    let asleep = SleepMonitor::of_this_thread();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            asleep.wait();
            interrupt(thread);
            // The handler has slept, and the pipe is waited for again.
            while INNER_COUNT.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(DELAY);
            rustix::io::write(&writer, &[1]).expect("room");
        });
        asleep.arm();
        debox
            .call(libc::SYS_read as u32, || {
                rustix::io::read(&reader, &mut [0])
            })
            .expect("a byte");
    });
    HANDLE.store(ptr::null_mut(), Ordering::Release);
    assert_eq!(
        INNER_NUMBER.load(Ordering::Acquire),
        libc::SYS_nanosleep as u32
    );
    assert_eq!(INNER_COUNT.load(Ordering::Acquire), 1);
    let record = debox.last().expect("a record");
    assert_eq!(record.number, libc::SYS_read as u32);
    // Before the handler and after it; the handler's own sleep is in the handler's record.
    check_sleeps(&record, &[(Label::Pipe, 2)]);
    assert_eq!(debox.dropped(), 0);
}

#[test]
fn handlers_call_is_dropped_and_counted_when_the_record_is_being_read() {
    let _alone = alone();
    let test = "handlers_call_is_dropped_and_counted_when_the_record_is_being_read";
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    install();
    debox.call(libc::SYS_getpid as u32, std::process::id);
    HANDLE.store(ptr::from_ref(&debox).cast_mut(), Ordering::Release);
    {
        let record = debox.last().expect("a record");
        // SAFETY: returns the calling thread's own handle.
        interrupt(unsafe { libc::pthread_self() });
        assert_eq!(record.number, libc::SYS_getpid as u32);
    }
    HANDLE.store(ptr::null_mut(), Ordering::Release);
    assert_eq!(debox.dropped(), 1);
    debox.call(libc::SYS_getppid as u32, std::process::id);
    let record = debox.last().expect("a record");
    assert_eq!(record.number, libc::SYS_getppid as u32);
    // What the handler slept is not this call's.
    check_sleeps(&record, &[]);
}
