//! What a worker keeps of clients whose floods it has ended: next to nothing. What a request to an upstream costs it:
//! few allocations (`upstreams`).
//!
//! The worker runs in a thread of this program, whose allocations are counted. What the allocator has of the system
//! would tell less, since it keeps memory that is free.

#[path = "../support/mod.rs"]
mod support;
mod upstreams;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use headway_test_support::http2::*;
use support::{Served, config};

struct CountingAllocator;

/// Bytes that are allocated now.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
/// Allocations so far, and blocks that were made longer.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Held by the test that counts.
static COUNTING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread's allocations are among [`ALLOCATIONS`].
    static IS_COUNTED: Cell<bool> = const { Cell::new(true) };
}

fn count(bytes: i64) {
    LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed);
    ALLOCATIONS.fetch_add((bytes > 0 && IS_COUNTED.get()).into(), Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A request whose header is so long, in frames of their own.
const HEADER_BYTES: usize = 50_000;
/// Clients that flood: fewer than a worker holds.
const CLIENTS: i64 = 10;

fn long_request() -> Vec<u8> {
    let long = block(&[("x", "y".repeat(HEADER_BYTES))]);
    let all = [request_block("GET", "/a"), long].concat();
    let mut parts = all.chunks(16 << 10);
    let first = parts.next().unwrap();
    let mut bytes = frame(HEADERS, END_STREAM, 1, first);
    for part in parts {
        bytes.extend(frame(CONTINUATION, 0, 1, part));
    }
    bytes.extend(frame(CONTINUATION, END_HEADERS, 1, b""));
    bytes
}

/// Has a session grow, and floods until the server ends it. The connection stays open.
fn flood(served: &Served) -> TcpStream {
    let mut client = served.connect();
    client
        .write_all(&[hello(&[]), long_request()].concat())
        .unwrap();
    while !Frame::read(&mut client).unwrap().is_last() {}
    client
        .write_all(&frame(PING, ACK, 0, &[0; 8]).repeat(5_000))
        .unwrap();
    while Frame::read(&mut client).unwrap().kind != GOAWAY {}
    client
}

#[test]
fn session_of_a_client_that_has_flooded_is_free_while_its_connection_is_held() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a"), "hello").unwrap();
    let more = "max-header-size = '64KiB'\nmax-connections = 800";
    let mut served = Served::start(config(root.path(), more));
    // What is made once.
    let _first = flood(&served);
    served.snapshot();
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| flood(&served)).collect();
    let counters = served.snapshot().counters;
    let grown = LIVE_BYTES.load(Ordering::Relaxed) - before;
    println!("{grown} bytes");
    assert_eq!(counters.http2_connections_flooded, 1 + CLIENTS as u64);
    assert_eq!(counters.connections_closed, 0);
    assert!(grown < CLIENTS * HEADER_BYTES as i64 / 2, "{grown}");
    drop(clients);
    served.drain();
}
