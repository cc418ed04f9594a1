//! The engine with simulated events, and with connections that are not complete when `connect`
//! returns.
//!
//! Events are late, reordered, few or spurious; every request still ends as it
//! should.

use crate::support;
use headway_event::{Events, Plan as SimulationPlan};
use headway_latency::Outcome;
use headway_load::engine::{self, Address, Arrivals, Mode, Plan, Schedule, Target};
use headway_test_support::{skip, unused_address};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use support::{
    RowCollector, Server, Step, check, closed, closed_to, count, outcomes, response, run, send,
};

fn simulated_events(seed: u64) -> Events {
    let plan = SimulationPlan::new(seed).reordered().events_max(2);
    Events::simulated(plan.spurious_wakeups(20).spurious_readiness(30))
}

fn mixed_server() -> Server {
    Server::start(|request| match request.ordinal % 5 {
        0 => vec![Step::Dribble(response("hello"))],
        1 => send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        2 => send(response(&"x".repeat(200_000))),
        3 => send(response("hello")),
        _ => vec![
            Step::Send(b"HTTP/1.1 200 OK\r\n\r\nhello".to_vec()),
            Step::Close,
        ],
    })
}

#[test]
fn every_request_is_answered_when_events_are_spurious_in_a_closed_loop() {
    for seed in 0..4 {
        let server = mixed_server();
        let mut plan = closed(&server, 120);
        plan.mode = Mode::Closed { connections: 7 };
        plan.bandwidth_bits_per_s = (seed == 3).then_some(80_000_000);
        let mut collector = RowCollector::default();
        let measured = engine::run_on(&plan, &mut collector, simulated_events(seed)).unwrap();
        check(&collector.rows, &measured);
        assert_eq!(count(&collector.rows, Outcome::Ok), 120, "seed {seed}");
    }
}

#[test]
fn every_request_is_answered_when_events_are_spurious_in_an_open_loop() {
    for seed in 4..8 {
        let server = mixed_server();
        let mut plan = closed(&server, 120);
        plan.mode = Mode::Open {
            schedule: Schedule::constant(1000.0),
            arrivals: Arrivals::Poisson,
            connections_max: 5,
            waiting_max: 120,
        };
        plan.requests_per_connection = Some(7);
        plan.seed = seed;
        let mut collector = RowCollector::default();
        let measured = engine::run_on(&plan, &mut collector, simulated_events(seed)).unwrap();
        check(&collector.rows, &measured);
        assert_eq!(count(&collector.rows, Outcome::Ok), 120, "seed {seed}");
    }
}

/// A mapped address is no loopback address by its form, so its connection is waited for as one to
/// another machine is.
fn mapped(address: SocketAddr) -> Target {
    let ip = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    Target::new(Address::Inet((ip, address.port()).into()), "test.example")
}

/// Needs: IPv6 on the loopback interface
#[test]
fn connection_is_waited_for_when_it_is_not_complete_at_once() {
    let server = mixed_server();
    let Address::Inet(address) = server.address else {
        unreachable!("the server listens on TCP");
    };
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip(
            "connection_is_waited_for_when_it_is_not_complete_at_once",
            "no IPv6 loopback",
        );
    }
    let mut plan = closed_to(mapped(address), 40);
    plan.mode = Mode::Closed { connections: 4 };
    assert_eq!(count(&run(&plan).0, Outcome::Ok), 40);
    let mut collector = RowCollector::default();
    engine::run_on(&plan, &mut collector, simulated_events(9)).unwrap();
    assert_eq!(count(&collector.rows, Outcome::Ok), 40);
    let (rows, measured) = run(&closed_to(mapped(unused_address()), 2));
    assert_eq!(outcomes(&rows), [Outcome::Refused; 2]);
    assert!(
        measured
            .failure
            .unwrap()
            .message
            .starts_with("connect([::ffff:127.0.0.1]:")
    );
}

/// A listener whose accept queue is full drops SYNs; the client's kernel retransmits them.
#[test]
fn outcome_is_timed_out_when_the_accept_queue_is_full() {
    let listener = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
    let mut plan: Plan = closed_to(Target::new(Address::Inet(address), "test.example"), 8);
    plan.mode = Mode::Closed { connections: 8 };
    plan.timeout = Some(Duration::from_millis(200));
    let (rows, measured) = run(&plan);
    // The queue has room for one connection, which is never accepted.
    let (without, with) = (
        count(&rows, Outcome::ConnectTimedOut),
        count(&rows, Outcome::TimedOut),
    );
    assert_eq!(without + with, 8, "{:?}", measured.outcomes);
    assert!((1..=2).contains(&with), "{:?}", measured.outcomes);
    assert!(rows.iter().all(|row| row.response_ns() >= 200_000_000));
}
