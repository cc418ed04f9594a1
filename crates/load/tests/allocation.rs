//! A request allocates nothing: not in a closed loop, not in an open one, not when it waits.
//!
//! The allocator of this test counts the calls of the engine's thread.

#[path = "support/allocations.rs"]
mod allocations;
mod support;

use allocations::{AllocationWatch, watch};
use headway_load::engine::{Address, Arrivals, Mode, Plan, Schedule, Target};
use headway_test_support::unused_address;
use support::{Server, closed, response, send};

fn watched(plan: &Plan) -> AllocationWatch {
    let watch = watch(plan);
    assert!(
        watch.rows >= 8000 && watch.errors == 0,
        "{} rows",
        watch.rows
    );
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
