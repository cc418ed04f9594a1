//! Records need no allocation: a worker opens and seals them into buffers that it has.
//!
//! Each allocation of this program's Rust code is counted. Those of the cryptographic library, which is written in C,
//! are not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use headway_tls::{PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX, Received};
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

#[allow(dead_code, reason = "the other tests need more")]
mod support;

use support::*;

struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and is not the one we look at.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates nothing, since the
// thread-local is constant-initialised and has no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn allocations(mut work: impl FnMut()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const RECORDS: usize = 100;
/// The first records fill buffers that are kept.
const WARM_UP: usize = 2;

#[test]
fn records_are_opened_and_sealed_without_an_allocation_with_every_suite() {
    for suite in ALL_CIPHER_SUITES {
        let version = match suite.version().version {
            rustls::ProtocolVersion::TLSv1_3 => V13,
            _ => V12,
        };
        let is_rsa = format!("{:?}", suite.suite()).contains("ECDHE_RSA");
        let kind = if is_rsa { Kind::Rsa } else { Kind::P256 };
        let identity = identity(&["a.example"], kind);
        let provider = provider_with(&[*suite]);
        let config = config_with(provider, version, std::slice::from_ref(&identity));
        let config = Arc::new(config);
        for length in [1, 1300, PLAINTEXT_BYTES_MAX] {
            let client = connect(&config, "a.example");
            let mut pair = shake(&simple_acceptor(&identity), client);
            let counts = count_of_records(&mut pair, length);
            assert_eq!(counts, (0, 0), "{:?} {length}", suite.suite());
        }
    }
}

/// Allocations for opening and for sealing records of this length, after the first ones.
fn count_of_records(pair: &mut Pair, length: usize) -> (u64, u64) {
    let data = pattern(length);
    let sealed: Vec<Vec<u8>> = (0..RECORDS)
        .map(|_| client_seal(&mut pair.client, &data))
        .collect();
    let mut out = vec![0; RECORD_BYTES_MAX];
    let mut open = |record: &[u8]| {
        assert_eq!(pair.server.open(record, &mut out), Received::Data(length));
    };
    sealed[..WARM_UP].iter().for_each(|record| open(record));
    let opened = allocations(|| sealed[WARM_UP..].iter().for_each(|record| open(record)));
    let mut out = Vec::with_capacity(2 * RECORD_BYTES_MAX);
    let mut seal = || {
        out.clear();
        pair.server.seal([&data[..]], 0, &mut out).unwrap();
        assert!(out.len() > length);
    };
    (0..WARM_UP).for_each(|_| seal());
    let sealed = allocations(|| (WARM_UP..RECORDS).for_each(|_| seal()));
    (opened, sealed)
}
