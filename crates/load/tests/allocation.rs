//! A request allocates nothing: not in a closed loop, not in an open one, not when it waits.
//!
//! The allocator of this test counts the calls of the engine's thread. What is counted is what lies between
//! two batches of rows, after some have been handed over: buffers have grown to their size by then.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use headway_load::engine::{self, Address, Arrivals, Mode, Observer, Plan, Schedule, Target};
use latency::{Outcome, Row};
use support::{Server, closed, nobody, reply, send};

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count_call() {
    // A thread that is ending has no counter any more, and is not the one we look at.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates nothing,
// since the thread-local is constant-initialised and has no destructor.
unsafe impl GlobalAlloc for Counting {
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
static ALLOCATOR: Counting = Counting;

/// Counts rows and the allocations between the first thousand and the last.
#[derive(Default)]
struct Watch {
    rows: u64,
    errors: u64,
    before: Option<u64>,
    after: u64,
}

impl Observer for Watch {
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

fn watched(plan: &Plan) -> Watch {
    let watch = watch(plan);
    assert!(
        watch.rows >= 8000 && watch.errors == 0,
        "{} rows",
        watch.rows
    );
    watch
}

fn watch(plan: &Plan) -> Watch {
    let mut watch = Watch::default();
    engine::run(plan, &mut watch).unwrap();
    watch
}

#[test]
fn nothing_is_allocated_for_a_request_when_the_run_has_warmed_up() {
    let server = Server::start(|_| send(reply("hello")));
    let mut plan = closed(&server, 9000);
    plan.mode = Mode::Closed { connections: 4 };
    plan.work.documents[0].checksum = Some(headway_load::checksum::of(b"hello"));
    plan.verify = true;
    let kept = watched(&plan);
    assert_eq!(kept.before, Some(kept.after), "closed loop");

    plan.mode = Mode::Open {
        schedule: Schedule::constant(8000.0),
        arrivals: Arrivals::Poisson,
        connections_max: 4,
        waiting_max: 60_000,
    };
    let open = watched(&plan);
    assert_eq!(open.before, Some(open.after), "open loop");

    // New connections all the time, and requests that wait for one.
    plan.requests_per_connection = Some(5);
    let new = watched(&plan);
    assert_eq!(new.before, Some(new.after), "new connections");

    let nobody = Target::new(Address::Inet(nobody()), "test.example");
    plan.targets = vec![nobody];
    let refused = watch(&plan);
    assert_eq!(refused.errors, refused.rows);
    assert_eq!(refused.before, Some(refused.after), "refused connections");
}
