//! The ring against the running kernel: real sleeps, a ring too small, a ring gone round many times.

use std::io::Write;
use std::time::Duration;

use headway_os::perf::{Detail, Record, Ring, STACK_FRAMES_MAX};

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

fn skip(test: &str, reason: &str) {
    println!("SKIP: {reason}");
    if let Some(path) = std::env::var_os("HEADWAY_SKIP_LOG") {
        let mut log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .expect("the skip log can be appended to");
        writeln!(log, "{test}: {reason}").expect("the skip log can be written");
    }
}

fn sleep() {
    std::thread::sleep(Duration::from_micros(20));
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    samples: u64,
    sleeps: u64,
    ins: u64,
    lost: u64,
}

impl Tally {
    /// Preemptions are left out: they depend on what else the machine does.
    fn add(&mut self, record: Record<'_>) {
        match record {
            Record::Sample { stack, .. } => {
                assert!(!stack.is_empty() && stack.len() <= STACK_FRAMES_MAX);
                // The kernel's half of the addresses, without the markers at the very end of it.
                let kernel = 1 << 63..u64::MAX - 4095;
                assert!(stack.iter().all(|address| kernel.contains(address)));
                self.samples += 1;
            }
            Record::SwitchOut { preempted, .. } => self.sleeps += u64::from(!preempted),
            Record::SwitchIn { .. } => self.ins += 1,
            Record::Lost { count } => self.lost += count,
            Record::Other => {}
        }
    }
}

#[test]
fn records_stay_whole_when_the_ring_goes_round() {
    let Some(ring) = ring_or_skip(
        "records_stay_whole_when_the_ring_goes_round",
        Detail::Stacks,
    ) else {
        return;
    };
    let mut last_ns = 0;
    let mut tally = Tally::default();
    for _ in 0..many() {
        sleep();
        ring.drain(|record| {
            if let Record::SwitchOut { time_ns, .. } | Record::SwitchIn { time_ns } = record {
                assert!(time_ns >= last_ns, "records are in the order of time");
                last_ns = time_ns;
            }
            tally.add(record);
        });
    }
    assert!(
        ring.tail() > 16 * many(),
        "it went round at least four times"
    );
    assert_eq!(tally.sleeps, many());
    assert!(tally.samples >= many() && tally.ins >= many());
    assert_eq!(tally.lost, 0);
}

#[test]
fn losses_are_counted_when_the_ring_is_too_small() {
    let Some(ring) = ring_or_skip(
        "losses_are_counted_when_the_ring_is_too_small",
        Detail::Stacks,
    ) else {
        return;
    };
    for _ in 0..many() {
        sleep();
    }
    let mut tally = Tally::default();
    ring.drain(|record| tally.add(record));
    assert!(tally.sleeps > 0 && tally.sleeps < many(), "{tally:?}");
    // The next record that fits is preceded by the announcement of what did not.
    sleep();
    ring.drain(|record| tally.add(record));
    assert!(tally.lost > 0, "{tally:?}");
    // A sleep is at least three records, each either seen or lost.
    assert!(
        tally.samples + tally.sleeps + tally.ins + tally.lost >= 3 * (many() + 1),
        "{tally:?}"
    );
    if let Some(lost) = ring.lost() {
        assert_eq!(lost, tally.lost);
    }
}

#[test]
fn times_without_stacks_come_when_only_switches_are_asked_for() {
    let test = "times_without_stacks_come_when_only_switches_are_asked_for";
    let Some(ring) = ring_or_skip(test, Detail::SwitchesOnly) else {
        return;
    };
    sleep();
    let mut tally = Tally::default();
    ring.drain(|record| tally.add(record));
    assert_eq!((tally.sleeps, tally.samples), (1, 0));
    assert!(tally.ins >= 1);
}

#[test]
fn nothing_is_delivered_twice_when_a_visit_drains_too() {
    let test = "nothing_is_delivered_twice_when_a_visit_drains_too";
    let Some(ring) = ring_or_skip(test, Detail::SwitchesOnly) else {
        return;
    };
    sleep();
    let mut outer = 0;
    let mut inner = 0;
    ring.drain(|_| {
        outer += 1;
        ring.drain(|_| inner += 1);
    });
    assert_eq!(outer, 1);
    assert!(inner >= 1);
    assert_eq!(ring.head(), ring.tail());
}

#[test]
fn open_is_refused_when_the_pages_are_no_power_of_two() {
    for pages in [0, 3] {
        let error = Ring::open(Detail::SwitchesOnly, pages).expect_err("no power of two");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}
