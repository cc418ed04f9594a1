//! An allocator which counts the calls of each thread, and an observer which reads its count.
//!
//! What is counted is what lies between two batches of rows, after some have been handed over:
//! buffers have grown to their size by then. A test program which includes this file has this
//! allocator.

#![allow(dead_code)] // Each suite is a crate of its own and uses a part of this.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use headway_latency::{Outcome, Row};
use headway_load::engine::{self, Observer, Plan};

struct CountingAllocator;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count_call() {
    // A thread that is ending has no counter any more, and is not the one we look at.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates nothing,
// since the thread-local is constant-initialised and has no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_call();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_call();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Counts rows and the allocations between the first thousand and the last.
#[derive(Default)]
pub struct AllocationWatch {
    pub rows: u64,
    pub errors: u64,
    pub before: Option<u64>,
    pub after: u64,
}

/// As many connections as the runs have.
const SLOTS: u64 = 4;

impl AllocationWatch {
    /// Thousands of requests after the first thousand allocated nothing. What a slot makes room for
    /// once it may make late, when a machine that kept the run waiting let it meet something for
    /// the first time.
    pub fn is_settled(&self, when: &str) {
        let before = self.before.expect("more than a thousand rows");
        let more = self.after - before;
        assert!(
            more <= SLOTS,
            "{when}: {before} allocations and {more} more"
        );
    }
}

impl Observer for AllocationWatch {
    fn rows(&mut self, batch: &mut Vec<Row>) {
        self.rows += batch.len() as u64;
        self.errors += batch.iter().filter(|row| row.error != Outcome::Ok).count() as u64;
        batch.clear();
        self.after = CALLS.get();
        if self.rows >= 1000 {
            self.before.get_or_insert(self.after);
        }
    }
}

/// Runs a plan and counts.
pub fn watch(plan: &Plan) -> AllocationWatch {
    let mut watch = AllocationWatch::default();
    engine::run(plan, &mut watch).unwrap();
    watch
}
