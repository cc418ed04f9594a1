//! A request allocates nothing: not in a closed loop, not in an open one, not when it waits.
//!
//! The allocator of this test counts the calls of the engine's thread. What is counted is what lies
//! between two batches of rows, after some have been handed over: buffers have grown to their size
//! by then.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use headway_latency::{Outcome, Row};
use headway_load::engine::{
    self, Address, Arrivals, Document, Mode, Observer, Plan, Schedule, Target,
};
use headway_load::fileset::{Manifest, Popularity, Shape};
use headway_load::specweb99::client::{Clients, Posts, SharedClientState};
use headway_specweb::{Ads, Reset};
use headway_test_support::unused_address;
use support::{Server, closed, response, send};

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

/// As many connections as the runs have.
const SLOTS: u64 = 4;

impl Watch {
    /// Thousands of requests after the first thousand allocated nothing. What a slot makes room for
    /// once it may make late, when a machine that kept the run waiting let it meet something for
    /// the first time.
    fn is_settled(&self, when: &str) {
        let before = self.before.expect("more than a thousand rows");
        let more = self.after - before;
        assert!(
            more <= SLOTS,
            "{when}: {before} allocations and {more} more"
        );
    }
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
fn no_allocation_per_request_after_the_warm_up() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = closed(&server, 9000);
    plan.mode = Mode::Closed { connections: 4 };
    plan.work.documents[0].checksum = Some(headway_load::checksum::of(b"hello"));
    plan.verify = true;
    let kept = watched(&plan);
    kept.is_settled("closed loop");

    plan.mode = Mode::Open {
        schedule: Schedule::constant(8000.0),
        arrivals: Arrivals::Poisson,
        connections_max: 4,
        waiting_max: 60_000,
    };
    let open = watched(&plan);
    open.is_settled("open loop");

    // New connections all the time, and requests that wait for one.
    plan.requests_per_connection = Some(5);
    let new = watched(&plan);
    new.is_settled("new connections");

    let closed_address = Target::new(Address::Inet(unused_address()), "test.example");
    plan.targets = vec![closed_address];
    let refused = watch(&plan);
    assert_eq!(refused.errors, refused.rows);
    refused.is_settled("refused connections");
}

#[test]
fn no_allocation_per_request_when_clients_check_responses() {
    // Static files are right, and the application is none: every page is wrong, and is looked at as
    // far as it goes.
    let manifest = Manifest::new("/nowhere", Shape::SpecWeb99Dynamic { directories: 1 }, 1);
    let first = manifest.files().next().expect("a file");
    let mut content = vec![0; first.size_bytes as usize];
    manifest.content(first.index).fill(0, &mut content);
    let bytes = response(&String::from_utf8(content).expect("text"));
    let server = Server::start(move |_| send(bytes.clone()));
    let documents = manifest.files().map(|file| Document {
        path: file.path.to_owned(),
        size_bytes: Some(file.size_bytes),
        class: file.class,
        checksum: Some(manifest.checksum(file.index)),
    });
    let reset = Reset {
        users: 4,
        seed: 1,
        time_s: 1_700_000_000,
        expired_percent: 10,
    };
    let mut plan = closed(&server, 9000);
    plan.mode = Mode::Closed { connections: 4 };
    plan.conversation = Some(Box::new(Clients {
        knowledge: Arc::new(SharedClientState {
            documents: documents.collect(),
            popularity: Popularity::new(&manifest),
            ads: Ads::generate(&reset),
            reset,
            paths: ["/dynamic".to_owned(), "/cgi".to_owned()],
            posts: Posts::new(4),
        }),
        seed: 1,
    }));
    let watch = watch(&plan);
    assert!(
        watch.rows >= 8000 && watch.errors < watch.rows,
        "{} rows",
        watch.rows
    );
    // Four of five requests open a connection, and the server runs in the same process: if it
    // closes descriptors late, our table grows. That is a few allocations in thousands of requests,
    // not one per request.
    let grown = watch.after - watch.before.expect("a thousand rows");
    assert!(grown <= 8, "{grown} allocations");
}
