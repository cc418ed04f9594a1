//! The ring with a thread in place of the kernel, so that Miri can try the orders in which both go on.

use super::*;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
/// Room for four records.
const DATA_WORDS: usize = 8;
const RECORDS: u64 = if cfg!(miri) { 20 } else { 2_000 };

/// The words of a mapping, which both threads reach.
#[derive(Clone, Copy)]
struct Words(*mut u64);

// SAFETY: the counters are only accessed as atomics, and they say whose turn the other words are; that is under test.
unsafe impl Send for Words {}

impl Words {
    fn counter(self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: within the leaked memory.
        let word = unsafe { self.0.add(offset / 8) };
        // SAFETY: aligned, never freed, and only accessed as an atomic.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Writes records as `perf_output_begin` and `perf_output_end` do; ends early when told.
    fn write_records(self, over: &AtomicBool) {
        let (head, tail) = (
            self.counter(DATA_HEAD_OFFSET),
            self.counter(DATA_TAIL_OFFSET),
        );
        for number in 0..RECORDS {
            let at = number * 16;
            while at + 16 - tail.load(Ordering::Acquire) > DATA_WORDS as u64 * 8 {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::yield_now();
            }
            let header = u64::from(RECORD_SWITCH) | 16 << 48;
            for (index, value) in [(0, header), (1, number)] {
                let word = PAGE_BYTES / 8 + (at as usize / 8 + index) % DATA_WORDS;
                // SAFETY: within the leaked memory.
                let word = unsafe { self.0.add(word) };
                // SAFETY: the tail says that the reader has done with it.
                unsafe { word.write(value) };
            }
            head.store(at + 16, Ordering::Release);
        }
    }
}

#[test]
fn every_record_is_read_whole_and_once_when_the_ring_is_written_meanwhile() {
    let words = vec![0_u64; PAGE_BYTES / 8 + DATA_WORDS].leak();
    let words = Words(words.as_mut_ptr());
    let map = NonNull::new(words.0.cast()).expect("memory");
    // SAFETY: the data begins inside the memory.
    let data = unsafe { map.add(PAGE_BYTES) }.cast();
    // Never dropped, which would unmap it.
    let ring = std::mem::ManuallyDrop::new(Ring {
        event: None,
        reports_lost: false,
        map,
        map_bytes: 0,
        data,
        data_bytes: DATA_WORDS as u64 * 8,
        tail: Cell::new(0),
        fork_guard: ForkGuard::current(),
    });
    let over = &AtomicBool::new(false);
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || words.write_records(over));
        let patience = Instant::now() + Duration::from_secs(60);
        while (times.len() as u64) < RECORDS && Instant::now() < patience {
            ring.drain(|record| match record {
                Record::SwitchIn { time_ns } => times.push(time_ns),
                other => panic!("{other:?}"),
            });
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(
        times.iter().copied().eq(0..RECORDS),
        "{} records",
        times.len()
    );
}
