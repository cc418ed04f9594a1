//! What has to hold in every order.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;

use crate::address_line::{COUNT_BITS, count, publish};
use crate::published::Published;

/// Tags of two addresses.
const TAG: u64 = 1 << COUNT_BITS;
const OTHER_TAG: u64 = 2 << COUNT_BITS;

fn line() -> [AtomicU64; 1] {
    [AtomicU64::new(0)]
}

#[test]
fn one_of_two_workers_sees_the_other_when_both_publish_at_once() {
    loom::model(|| {
        let lines = Arc::new([line(), line()]);
        let take = |lines: &[[AtomicU64; 1]; 2], own: usize| {
            publish(&lines[own], TAG, 1);
            count(&lines[1 - own], TAG)
        };
        let theirs = lines.clone();
        let other = thread::spawn(move || take(&theirs, 1));
        let seen = take(&lines, 0) + other.join().unwrap();
        assert!(seen >= 1, "both took the last connection of an address");
    });
}

#[test]
fn connections_of_another_address_are_not_counted_when_its_word_is_used_again() {
    loom::model(|| {
        let line = Arc::new(line());
        let theirs = line.clone();
        // What `publish` stores, without its loads: loom remembers only the last access to a word.
        let writer = thread::spawn(move || {
            for value in [TAG | 1, 0, OTHER_TAG | 7] {
                theirs[0].store(value, Relaxed);
            }
        });
        let seen = count(&line[..], TAG);
        assert!(seen <= 1, "{seen}");
        writer.join().unwrap();
    });
}

/// A value which loom watches: reading it is an error unless it was made before.
struct Watched(loom::cell::UnsafeCell<u64>);

// SAFETY: it is written when it is made and only read since; loom checks that this order is seen.
unsafe impl Sync for Watched {}

#[test]
fn both_threads_read_one_whole_value_when_both_make_it() {
    loom::model(|| {
        let value = Arc::new(Published::new());
        let take = |value: &Published<Watched>, number| {
            let watched = value.get_or_publish(|| Watched(loom::cell::UnsafeCell::new(number)));
            // SAFETY: only read since it was made.
            watched.0.with(|number| unsafe { *number })
        };
        let theirs = value.clone();
        let other = thread::spawn(move || take(&theirs, 2));
        let ours = take(&value, 1);
        assert_eq!(ours, other.join().unwrap());
    });
}
