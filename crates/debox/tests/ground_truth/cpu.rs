//! What is no sleep: losing the CPU. And sums that must agree with the kernel's own: the
//! CPU clock of the thread, its count of voluntary switches, the wait for a CPU after a
//! wakeup.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headway_debox::{Debox, Label, Limits};
use headway_os::ticks::monotonic_ns;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::truth::{
    Attempt, Block, InvalidAttempt, SleepMonitor, alone, check_sleeps, debox_or_skip, prove_in_turn,
};
use headway_test_support::skip;

/// Confines the calling thread to the first CPU it may use.
fn pin() {
    let allowed = sched_getaffinity(None).expect("the thread exists");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let mut set = CpuSet::new();
    set.set(first.expect("some CPU is allowed"));
    sched_setaffinity(None, &set).expect("a subset of the allowed CPUs");
}

fn spin(length: Duration) {
    let start = Instant::now();
    while start.elapsed() < length {
        std::hint::spin_loop();
    }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Voluntary switches of the calling thread, counted by the kernel.
fn voluntary_switches() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a structure of this frame.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    assert_eq!(answer, 0);
    // SAFETY: zeroed, then filled in.
    unsafe { usage.assume_init() }.ru_nvcsw as u64
}

#[test]
fn preemptions_are_distinguished_from_sleeps_when_two_threads_share_a_cpu() {
    let test = "preemptions_are_distinguished_from_sleeps_when_two_threads_share_a_cpu";
    let turn = alone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        pin();
        scope.spawn(|| {
            pin();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        prove_in_turn(&turn, test, |debox| {
            let mut used_ns = 0;
            debox.call(0, || {
                let before_ns = cpu_ns();
                spin(Duration::from_millis(60));
                used_ns = cpu_ns() - before_ns;
            });
            let record = debox.last().expect("a record");
            assert!(record.preemptions.count > 0, "{record:#?}");
            // The kernel's own clock of the thread has to agree, but for the clock readings
            // themselves.
            let tolerance_ns = (used_ns / 20).max(50_000);
            if record.cpu_ns().abs_diff(used_ns) >= tolerance_ns {
                // It leaves out what a hypervisor took, which no record of the machine's own can
                // show.
                return Err(InvalidAttempt(format!("{used_ns} ns used: {record:#?}")));
            }
            Ok(Attempt {
                sleeps: Vec::new(),
                blocks: Vec::new(),
            })
        });
    });
}

/// Ends the threads that read the flag, also when a test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes the calling thread run before all ordinary ones.
fn become_real_time() -> Result<(), String> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a structure of this frame; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } {
        0 => Ok(()),
        _ => Err(format!(
            "sched_setscheduler: {}",
            std::io::Error::last_os_error()
        )),
    }
}

/// Needs: root or CAP_SYS_NICE: real-time priority
#[test]
fn wait_for_a_cpu_is_separate_when_it_follows_a_sleep() {
    let test = "wait_for_a_cpu_is_separate_when_it_follows_a_sleep";
    let refused = std::thread::spawn(become_real_time)
        .join()
        .expect("no panic");
    if let Err(why) = refused {
        return skip(test, &why);
    }
    let turn = alone();
    pin();
    let sleep = Duration::from_millis(5);
    prove_in_turn(&turn, test, |debox| {
        let asleep = SleepMonitor::of_this_thread();
        let (taken_ns, released_ns) = std::thread::scope(|scope| {
            // Not pinned until it has seen the sleep: it would keep the other from falling asleep.
            let hog = scope.spawn(|| {
                become_real_time().expect("allowed above");
                asleep.wait();
                pin();
                let taken_ns = monotonic_ns();
                spin(Duration::from_millis(25));
                (taken_ns, monotonic_ns())
            });
            asleep.arm();
            debox.call(libc::SYS_nanosleep as u32, || std::thread::sleep(sleep));
            hog.join().expect("no panic")
        });
        let record = debox.last().expect("a record");
        let start_ns = record.start_ns;
        let runnable_ns = start_ns + sleep.as_nanos() as u64;
        let waited_ns = record.wakeup_ns.expect("asked for");
        let injected_ns = released_ns.saturating_sub(runnable_ns);
        // The hog may come too late on a busy machine, even after all is over; then nothing is
        // injected.
        if taken_ns >= runnable_ns || injected_ns < 10_000_000 {
            return Err(InvalidAttempt(format!(
                "{taken_ns}: taken after {runnable_ns}"
            )));
        }
        assert!(waited_ns > injected_ns / 2, "{injected_ns} ns: {record:#?}");
        drop(record);
        Ok(Attempt {
            sleeps: vec![(Label::Timer, 1)],
            blocks: vec![Block {
                begin_ns: (start_ns, start_ns),
                end_ns: (runnable_ns, runnable_ns + 200_000),
            }],
        })
    });
}

#[test]
fn count_is_the_kernels_own_when_a_call_sleeps_many_times() {
    let test = "count_is_the_kernels_own_when_a_call_sleeps_many_times";
    let _alone = alone();
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    let mut switches = 0;
    debox.call(libc::SYS_nanosleep as u32, || {
        let before = voluntary_switches();
        (0..150).for_each(|_| std::thread::sleep(Duration::from_micros(30)));
        switches = voluntary_switches() - before;
    });
    let record = debox.last().expect("a record");
    assert_eq!((record.slept_count(), record.lost), (switches, 0));
    check_sleeps(&record, &[(Label::Timer, switches as u32)]);
}

#[test]
fn missing_sleeps_are_counted_as_lost_when_one_call_overflows_the_ring() {
    let test = "missing_sleeps_are_counted_as_lost_when_one_call_overflows_the_ring";
    let _alone = alone();
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    let mut switches = 0;
    debox.call(libc::SYS_nanosleep as u32, || {
        let before = voluntary_switches();
        (0..2000).for_each(|_| std::thread::sleep(Duration::from_micros(20)));
        switches = voluntary_switches() - before;
    });
    {
        let record = debox.last().expect("a record");
        let missing = switches - record.slept_count();
        assert!(missing > 0, "the ring holds all of {switches} sleeps");
        // A sleep leaves three records; if it is missing, the second of them is lost at least.
        assert!(record.lost >= missing, "{missing} missing: {}", record.lost);
    }
    // The loss was that call's, and no other's.
    debox.call(libc::SYS_nanosleep as u32, || {
        std::thread::sleep(Duration::from_millis(1));
    });
    let record = debox.last().expect("a record");
    check_sleeps(&record, &[(Label::Timer, 1)]);
}

#[test]
fn sleeps_beyond_the_limit_are_counted_when_the_record_is_small() {
    let _alone = alone();
    let test = "sleeps_beyond_the_limit_are_counted_when_the_record_is_small";
    if debox_or_skip(test).is_none() {
        return;
    }
    let debox = Debox::enable(Limits {
        sleeps_max: 0,
        trace_max: 4,
        ..Limits::default()
    });
    debox.call(libc::SYS_nanosleep as u32, || {
        std::thread::sleep(Duration::from_millis(1));
    });
    let record = debox.last().expect("a record");
    assert_eq!((record.sleeps().len(), record.sleeps_dropped), (0, 1));
    assert_eq!(record.trace().len(), 4);
    assert!(record.trace_dropped > 0, "{record:#?}");
    assert_eq!(record.slept_count(), 1);
}
