//! The path of a request, end to end, for every event mechanism.

mod support;

use std::fs;

use support::{Served, config};

#[test]
fn files_of_every_size_arrive_whole_by_every_mechanism() {
    let root = tempfile::tempdir().unwrap();
    let sizes = [0, 1, 500, 65_536, 65_537, 262_144, 1_000_003];
    for size in sizes {
        let bytes: Vec<u8> = (0..size).map(|at: usize| (at % 251) as u8).collect();
        fs::write(root.path().join(format!("{size}.bin")), bytes).unwrap();
    }
    for events in ["select", "poll", "epoll"] {
        let events_line = format!("events = {events:?}");
        let mut served = Served::start(config(root.path(), &events_line));
        for size in sizes {
            let reply = served.get(&format!("/{size}.bin"));
            assert_eq!(reply.status, 200, "{events} {size}");
            assert_eq!(
                reply.field("Content-Length"),
                Some(size.to_string().as_str())
            );
            let expected: Vec<u8> = (0..size).map(|at: usize| (at % 251) as u8).collect();
            assert!(
                reply.body == expected,
                "{events}: {size} bytes arrive as they are"
            );
        }
        let snapshot = served.snapshot();
        assert_eq!(snapshot.counters.requests, sizes.len() as u64);
        assert_eq!(snapshot.events, events);
        // The worker is a thread here, so a page fault may have to wait for another thread's mmap; a real
        // worker has its address space to itself. Its calls must not sleep in either.
        let mut sleeps = snapshot.trace.sleeps.iter();
        let slept = sleeps.find(|site| site.call != "elsewhere");
        assert!(slept.is_none(), "{events}: {slept:?}");
    }
}
