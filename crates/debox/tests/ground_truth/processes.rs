//! Children, copies made by fork and vfork, threads made later, and time that passes.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use headway_debox::{Debox, Label, Limits, TraceLevel};
use headway_os::ticks::monotonic_ns;
use rustix::mm::{MapFlags, ProtFlags};

use crate::truth::{
    Attempt, Block, DELAY, SleepMonitor, alone, block_until_released, check_sleeps, debox_or_skip,
    prove,
};

const NANOSLEEP: u32 = libc::SYS_nanosleep as u32;

#[test]
fn timer_is_named_when_a_thread_sleeps_for_a_time() {
    prove("timer_is_named_when_a_thread_sleeps_for_a_time", |debox| {
        debox.call(NANOSLEEP, || std::thread::sleep(DELAY));
        let start_ns = debox.last().expect("a record").start_ns;
        let end_ns = start_ns + DELAY.as_nanos() as u64;
        Attempt {
            sleeps: vec![(Label::Timer, 1)],
            // The kernel may let a timer expire some 50 µs late (PR_SET_TIMERSLACK).
            blocks: vec![Block {
                begin_ns: (start_ns, start_ns),
                end_ns: (end_ns, end_ns + 100_000),
            }],
        }
    });
}

/// A word that parent and child share.
fn shared_word() -> &'static AtomicU64 {
    let bytes = rustix::param::page_size();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
    let map =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::SHARED) }
            .expect("a page");
    // SAFETY: mapped, zeroed, aligned, and never unmapped.
    unsafe { &*map.cast::<AtomicU64>() }
}

/// Forks. The child may only make system calls and use what it was given.
fn fork(child: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child runs `child`, which keeps to async-signal-safe calls, and ends without
    // running anything of the parent's.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = child();
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(status) };
    }
    assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
    pid
}

fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the pointer is to a local.
    let answer = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(answer, pid);
    assert!(libc::WIFEXITED(status), "status {status}");
    libc::WEXITSTATUS(status)
}

/// Waits until a child has stopped itself.
fn wait_until_stopped(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the pointer is to a local.
    let answer = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
    assert!(answer == pid && libc::WIFSTOPPED(status), "status {status}");
}

#[test]
fn child_is_named_when_a_process_waits_for_its_exit() {
    let end_ns = shared_word();
    prove(
        "child_is_named_when_a_process_waits_for_its_exit",
        |debox| {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            // The child stops, since its end takes the kernel milliseconds that no clock here
            // measures.
            let pid = fork(|| {
                let _ = rustix::io::read(&reader, &mut [0]);
                end_ns.store(monotonic_ns(), Ordering::Release);
                // SAFETY: async-signal-safe; it is for this process.
                unsafe { libc::raise(libc::SIGSTOP) }
            });
            let ((), mut block) = block_until_released(
                debox,
                libc::SYS_wait4,
                || wait_until_stopped(pid),
                || {
                    rustix::io::write(&writer, &[1]).expect("room");
                },
            );
            // SAFETY: our child, not waited for yet.
            unsafe { libc::kill(pid, libc::SIGCONT) };
            assert_eq!(wait_for(pid), 0);
            let record = debox.last().expect("a record");
            let call_end_ns = record.start_ns + record.wall_ns - record.wakeup_ns.unwrap_or(0);
            block.end_ns = (end_ns.load(Ordering::Acquire), call_end_ns);
            Attempt {
                sleeps: vec![(Label::Child, 1)],
                blocks: vec![block],
            }
        },
    );
}

#[test]
fn forked_child_sees_no_sleeps_and_the_parent_continues_when_both_use_the_handle() {
    let _alone = alone();
    let test = "forked_child_sees_no_sleeps_and_the_parent_continues_when_both_use_the_handle";
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    let pid = debox.call(libc::SYS_fork as u32, || {
        fork(|| {
            // The child comes back from the call it was made in, then makes one of its own.
            debox.call(NANOSLEEP, || _ = rustix::thread::nanosleep(&short()));
            let record = debox.last();
            let empty = record.is_some_and(|r| r.sleeps().is_empty() && r.faults_minor.is_none());
            i32::from(!(empty && matches!(debox.level(), TraceLevel::Off { .. })))
        })
    });
    assert_eq!(debox.call(libc::SYS_wait4 as u32, || wait_for(pid)), 0);
    assert_eq!(*debox.level(), TraceLevel::Stacks);
    debox.call(NANOSLEEP, || std::thread::sleep(Duration::from_millis(1)));
    check_sleeps(&debox.last().expect("a record"), &[(Label::Timer, 1)]);
}

fn short() -> rustix::thread::Timespec {
    rustix::thread::Timespec {
        tv_sec: 0,
        tv_nsec: 3_000_000,
    }
}

/// What a child of vfork does: it shares the memory, and the parent waits until it has gone.
extern "C" fn vforked(debox: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent passes its handle and is stopped while the child runs.
    let debox = unsafe { &*debox.cast::<Debox>() };
    for _ in 0..3 {
        debox.call(NANOSLEEP, || _ = rustix::thread::nanosleep(&short()));
    }
    0
}

#[test]
fn parents_record_is_whole_when_a_child_of_vfork_used_the_handle() {
    let _alone = alone();
    let test = "parents_record_is_whole_when_a_child_of_vfork_used_the_handle";
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    // A stack of its own, since `vfork` itself returns twice on one, which a compiler must know of.
    let mut stack = vec![0_u128; 16 * 1024];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let handle = ptr::from_ref(&debox).cast_mut().cast();
    let pid = debox.call(libc::SYS_vfork as u32, || {
        // SAFETY: the stack outlives the child, since the parent stops until the child has gone.
        unsafe { libc::clone(vforked, top.cast(), flags, handle) }
    });
    assert!(pid > 0, "clone: {}", std::io::Error::last_os_error());
    {
        let record = debox.last().expect("a record");
        assert_eq!(record.number, libc::SYS_vfork as u32);
        check_sleeps(&record, &[(Label::Child, 1)]);
        assert!(record.blocked_ns() > 9_000_000, "{record:#?}");
    }
    assert_eq!(wait_for(pid), 0);
}

#[test]
fn sleeps_of_a_thread_made_later_are_its_own_when_both_sleep() {
    let _alone = alone();
    let test = "sleeps_of_a_thread_made_later_are_its_own_when_both_sleep";
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    let stop = AtomicBool::new(false);
    let seen = AtomicI64::new(-1);
    let asleep = SleepMonitor::of_this_thread();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let debox = Debox::enable(Limits::default());
            asleep.wait();
            for _ in 0..3 {
                debox.call(NANOSLEEP, || std::thread::sleep(Duration::from_millis(1)));
                let record = debox.last().expect("a record");
                check_sleeps(&record, &[(Label::Timer, 1)]);
            }
            seen.store(3, Ordering::Release);
            stop.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            rustix::io::write(&writer, &[1]).expect("room");
        });
        asleep.arm();
        debox
            .call(libc::SYS_read as u32, || {
                rustix::io::read(&reader, &mut [0])
            })
            .expect("a byte");
    });
    check_sleeps(&debox.last().expect("a record"), &[(Label::Pipe, 1)]);
    assert_eq!(seen.load(Ordering::Acquire), 3);
}
