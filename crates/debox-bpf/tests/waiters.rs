//! Waiters in a thread's own records.

use crate::common;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headway_debox::{Debox, Label, Limits};
use headway_debox_bpf::Waiters;

/// Sleeps until the word is not zero any more and the futex is woken.
fn park_on(word: &AtomicU32) {
    rustix::thread::futex::wait(word, rustix::thread::futex::Flags::PRIVATE, 0, None).ok();
}

/// Returns once the kernel shows a thread of this process asleep in futex.
fn wait_until_asleep(tid: i32) {
    let path = format!("/proc/self/task/{tid}/syscall");
    let number = format!("{} ", libc::SYS_futex);
    while !std::fs::read_to_string(&path).is_ok_and(|text| text.starts_with(&number)) {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn own_record_names_the_waiters_when_another_thread_sleeps_on_the_same_word() {
    let test = "own_record_names_the_waiters_when_another_thread_sleeps_on_the_same_word";
    let waiters = match Waiters::start() {
        Ok(waiters) => waiters,
        Err(error) if common::is_unsupported(&error) => {
            return headway_test_support::skip(test, &error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    static WORD: AtomicU32 = AtomicU32::new(0);
    let (sender, receiver) = std::sync::mpsc::channel();
    let other = {
        let sender = sender.clone();
        std::thread::spawn(move || {
            sender
                .send(rustix::thread::gettid().as_raw_nonzero().get())
                .expect("it is received");
            park_on(&WORD);
        })
    };
    wait_until_asleep(receiver.recv().expect("a number"));
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let waker = std::thread::spawn(move || {
        wait_until_asleep(own);
        WORD.store(1, Ordering::Relaxed);
        let wake = |count| {
            rustix::thread::futex::wake(&WORD, rustix::thread::futex::Flags::PRIVATE, count)
        };
        wake(2).expect("two sleepers");
    });
    let debox = Debox::enable(Limits::default());
    debox.call(libc::SYS_futex as u32, || park_on(&WORD));
    if !matches!(debox.level(), headway_debox::TraceLevel::Stacks) {
        return headway_test_support::skip(test, &debox.level().to_string());
    }
    assert!(waiters.merge(&debox), "{:?}", debox.last());
    let record = debox.last().expect("a record");
    let [sleep] = record.sleeps() else {
        panic!("one sleep: {record:?}");
    };
    assert_eq!(
        (sleep.label, sleep.waiters_entry),
        (Label::Futex, Some(1)),
        "{record:?}"
    );
    drop(record);
    waker.join().expect("the waker");
    other.join().expect("the other");
}
