//! Waiters counted for processes that record their own calls.

use headway_debox_bpf::{Limits, Lost, ObservedSleep, Resource, WaiterObserver};

#[allow(dead_code, reason = "each test binary uses its part")]
mod common;
use common::{Program, Sleeper};

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn waiters_of_children_are_counted_beside_when_they_sleep_on_one_futex() {
    let test = "waiters_of_children_are_counted_beside_when_they_sleep_on_one_futex";
    // Compiled before: the compiler's hundreds of stacks would collide with those of the program.
    let program = Program::compiled(true);
    let mut observer = match WaiterObserver::children(&Limits::default()) {
        Ok(observer) => observer,
        Err(error) if common::is_unsupported(&error) => {
            return headway_test_support::skip(test, &error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    let mut sleeper = Sleeper::of(program, "futex", 3);
    sleeper.run();
    sleeper.finish();
    observer.poll();
    // The kernel does not report every return of a thread; such a sleep is reported all the same.
    // Two stacks with one hash lose one of them.
    let stacks_lost = observer.lost().stacks;
    let lost = Lost {
        events: 0,
        stacks: 0,
        ..observer.lost()
    };
    assert!(lost.is_none(), "{lost}");
    let sleeps = observer.sleeps();
    // Sleeps of this process itself are not reported, only those of its children.
    let own = std::process::id();
    assert!(sleeps.iter().all(|sleep| sleep.pid != own), "{sleeps:#?}");
    let futex = headway_debox::calls::number("futex");
    // Joining a thread waits on a futex as well, but in the first thread.
    let mut waits: Vec<&ObservedSleep> = (sleeps.iter())
        .filter(|sleep| sleep.pid == sleeper.pid() && sleep.tid != sleep.pid)
        .filter(|sleep| sleep.call == futex && sleep.resource == Resource::Futex)
        .collect();
    waits.sort_by_key(|sleep| sleep.start_ns);
    let counts: Vec<(u64, u64)> = (waits.iter())
        .map(|sleep| (sleep.waiters_entry, sleep.waiters_exit))
        .collect();
    assert_eq!(counts, [(0, 2), (1, 1), (2, 0)], "{waits:#?}");
    assert!(waits.iter().all(|sleep| sleep.start_ns < sleep.end_ns));
    assert!(
        waits
            .iter()
            .all(|sleep| stacks_lost > 0 || !observer.stack(sleep.stack).is_empty())
    );
}
