//! The ring against the running kernel: real sleeps, a ring too small, a ring that wrapped many
//! times.

use std::time::Duration;

use headway_os::perf::{Detail, Record, Ring, STACK_FRAMES_MAX};
use headway_test_support::skip;

/// The smallest ring there is; a page of 4096 bytes holds about 30 sleeps.
const SMALL_PAGES: usize = 1;

/// A count of sleeps whose records fill the smallest ring many times, whatever the page size.
fn many() -> u64 {
    (rustix::param::page_size() / 4) as u64
}

fn ring_or_skip(test: &str, detail: Detail) -> Option<Ring> {
    match Ring::open(detail, SMALL_PAGES) {
        Ok(ring) => Some(ring),
        Err(error) => {
            skip(test, &format!("perf_event_open: {error}"));
            None
        }
    }
}

/// May, seldom, not sleep at all: when the timer fires before the thread has left the CPU. So
/// the tests count what the ring saw, not what they asked for.
fn sleep() {
    std::thread::sleep(Duration::from_micros(20));
}

#[derive(Debug, Default)]
struct RecordCounts {
    samples: u64,
    outs: u64,
    sleeps: u64,
    ins: u64,
    lost: u64,
}

impl RecordCounts {
    fn add(&mut self, record: Record<'_>) {
        match record {
            Record::Sample { stack, .. } => {
                assert!(!stack.is_empty() && stack.len() <= STACK_FRAMES_MAX);
                // The kernel's half of the addresses, without the markers at the very end of it.
                let kernel = 1 << 63..u64::MAX - 4095;
                assert!(stack.iter().all(|address| kernel.contains(address)));
                self.samples += 1;
            }
            Record::SwitchOut { preempted, .. } => {
                self.outs += 1;
                self.sleeps += u64::from(!preempted);
            }
            Record::SwitchIn { .. } => self.ins += 1,
            Record::Lost { count } => self.lost += count,
            Record::Other => {}
        }
    }
}

fn time_ns(record: Record<'_>) -> Option<u64> {
    match record {
        Record::SwitchOut { time_ns, .. } | Record::SwitchIn { time_ns } => Some(time_ns),
        _ => None,
    }
}

#[test]
fn records_are_complete_when_the_ring_wraps() {
    let test = "records_are_complete_when_the_ring_wraps";
    let Some(ring) = ring_or_skip(test, Detail::Stacks) else {
        return;
    };
    let mut last_ns = 0;
    let mut counts = RecordCounts::default();
    for _ in 0..many() {
        sleep();
        ring.drain(|record| {
            if let Some(time_ns) = time_ns(record) {
                assert!(time_ns > last_ns, "records are in the order of time");
                last_ns = time_ns;
            }
            counts.add(record);
        });
    }
    assert!(
        ring.tail() > 16 * many(),
        "it went round at least four times"
    );
    // Each time off the CPU leaves one record of each kind.
    assert!(counts.sleeps > many() / 2, "{counts:?}");
    assert_eq!(counts.samples, counts.outs);
    assert_eq!(counts.ins, counts.outs);
    assert_eq!(counts.lost, 0);
}

#[test]
fn losses_are_counted_when_the_ring_is_too_small() {
    let test = "losses_are_counted_when_the_ring_is_too_small";
    let Some(ring) = ring_or_skip(test, Detail::Stacks) else {
        return;
    };
    for _ in 0..many() {
        sleep();
    }
    let mut counts = RecordCounts::default();
    ring.drain(|record| counts.add(record));
    assert!(counts.sleeps > 0 && counts.sleeps < many(), "{counts:?}");
    // The next record that fits is preceded by the announcement of what did not.
    for _ in 0..5 {
        sleep();
    }
    ring.drain(|record| counts.add(record));
    assert!(counts.lost > 0, "{counts:?}");
    // A sleep is three records, each either seen or lost; half of the sleeps is safely less than
    // all.
    let records = counts.samples + counts.outs + counts.ins + counts.lost;
    assert!(records > 3 * many() / 2, "{counts:?}");
    if let Some(lost) = ring.lost() {
        assert_eq!(lost, counts.lost);
    }
}

#[test]
fn times_have_no_stacks_when_only_switches_are_recorded() {
    let test = "times_have_no_stacks_when_only_switches_are_recorded";
    let Some(ring) = ring_or_skip(test, Detail::SwitchesOnly) else {
        return;
    };
    for _ in 0..5 {
        sleep();
    }
    let mut counts = RecordCounts::default();
    ring.drain(|record| counts.add(record));
    assert!(counts.sleeps > 0, "{counts:?}");
    assert_eq!(counts.samples, 0);
    assert_eq!(counts.ins, counts.outs);
}

#[test]
fn records_are_delivered_once_when_the_callback_drains_too() {
    let test = "records_are_delivered_once_when_the_callback_drains_too";
    let Some(ring) = ring_or_skip(test, Detail::SwitchesOnly) else {
        return;
    };
    for _ in 0..5 {
        sleep();
    }
    let mut times = Vec::new();
    ring.drain(|outer| {
        times.extend(time_ns(outer));
        ring.drain(|inner| times.extend(time_ns(inner)));
    });
    assert!(times.len() >= 2, "{times:?}");
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
}

#[test]
fn open_is_refused_when_the_pages_are_no_power_of_two() {
    for pages in [0, 3] {
        let error = Ring::open(Detail::SwitchesOnly, pages).expect_err("no power of two");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}
