//! Too few descriptors. A file of its own, since the limit is the whole process's.

mod support;

use std::time::Duration;

use headway_latency::Outcome;
use headway_load::engine::{Mode, Plan, Schedule, Work};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Server, Step, closed, count, run};

/// The number the next descriptor gets: the lowest free one.
fn next_descriptor() -> u64 {
    use std::os::fd::AsRawFd;
    let (one, _other) = support::pair();
    one.as_raw_fd() as u64
}

#[test]
fn outcome_is_no_descriptor_at_the_limit() {
    let server = Server::start(|_| vec![Step::Ignore]);
    let mut plan = closed(&server, 1);
    plan.mode = Mode::Closed { connections: 40 };
    plan.stop.requests = Some(40);
    plan.timeout = Some(Duration::from_millis(500));
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(next_descriptor() + 10),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let (rows, measured) = run(&plan);
    // The server's own descriptors come out of the same ten.
    assert!(
        count(&rows, Outcome::NoDescriptor) >= 20,
        "{:?}",
        measured.outcomes
    );
    assert_eq!(
        measured.limits.descriptors,
        count(&rows, Outcome::NoDescriptor) as u64
    );
    let message = measured.failure.unwrap().message;
    assert!(message.starts_with("socket("), "{message}");

    // An open loop continues as well, and every arrival is a row.
    let mut plan = Plan::open(
        server.target(),
        Work::paths(["/"]),
        Schedule::constant(1000.0),
        40,
    );
    plan.stop.requests = Some(40);
    plan.timeout = Some(Duration::from_millis(500));
    let (rows, _) = run(&plan);
    assert!(count(&rows, Outcome::NoDescriptor) >= 20);
    setrlimit(Resource::Nofile, limit).unwrap();
}
