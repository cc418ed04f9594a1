//! Waiters counted beside processes that record their calls themselves.

use headway_debox_bpf::{Beside, Limits, Resource, SeenSleep};

#[allow(dead_code, reason = "each test binary uses its part")]
mod common;
use common::Sleeper;

#[test]
fn waiters_of_children_are_counted_beside_when_they_sleep_on_one_futex() {
    let test = "waiters_of_children_are_counted_beside_when_they_sleep_on_one_futex";
    let mut beside = match Beside::children(&Limits::default()) {
        Ok(beside) => beside,
        Err(error) if common::is_lack(&error) => return common::skip(test, &error.to_string()),
        Err(error) => panic!("{error}"),
    };
    let mut sleeper = Sleeper::start("futex", 3);
    sleeper.run();
    sleeper.finish();
    beside.poll();
    assert!(beside.lost().is_none(), "{}", beside.lost());
    let sleeps = beside.sleeps();
    // What this process itself slept is not told, only what its children did.
    let own = std::process::id();
    assert!(sleeps.iter().all(|sleep| sleep.pid != own), "{sleeps:#?}");
    let futex = headway_debox::calls::number("futex");
    // Joining a thread waits on a futex as well, but in the first thread.
    let mut waits: Vec<&SeenSleep> = (sleeps.iter())
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
            .all(|sleep| !beside.stack(sleep.stack).is_empty())
    );
}
