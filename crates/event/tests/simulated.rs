//! What only the simulated mechanism does: it misbehaves on request, and again with the same seed.

use crate::support;
use std::collections::HashSet;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use headway_event::{Clock, Events, Interest, Plan, Ready, Token};
use support::ready_now;

const SOCKETS: u64 = 20;

/// Sockets that stay readable, registered under the tokens 0, 1, 2 …
fn readable_sockets(events: &mut Events) -> Vec<(UnixStream, UnixStream)> {
    let pairs: Vec<_> = (0..SOCKETS).map(|_| support::pair()).collect();
    for (token, (near, far)) in (0..).zip(&pairs) {
        (&mut &*far).write_all(b"x").unwrap();
        events
            .add(near.as_fd(), Token(token), Interest::READ)
            .unwrap();
    }
    pairs
}

fn history(plan: Plan) -> Vec<Vec<u64>> {
    let mut events = Events::simulated(plan);
    let _sockets = readable_sockets(&mut events);
    let tokens = |ready: Vec<Ready>| ready.iter().map(|ready| ready.token.0).collect();
    (0..50).map(|_| tokens(ready_now(&mut events))).collect()
}

fn disturbing_plan(seed: u64) -> Plan {
    Plan::new(seed)
        .reordered()
        .events_max(3)
        .spurious_wakeups(20)
}

#[test]
fn history_repeats_when_the_seed_is_the_same() {
    assert_eq!(history(disturbing_plan(5)), history(disturbing_plan(5)));
    assert_ne!(history(disturbing_plan(5)), history(disturbing_plan(6)));
}

#[test]
fn every_socket_is_reported_when_three_events_come_per_wait() {
    let history = history(disturbing_plan(5));
    assert!(history.iter().all(|wait| wait.len() <= 3));
    assert!(
        history.iter().any(Vec::is_empty),
        "some wakeups have no events"
    );
    let served: HashSet<u64> = history.into_iter().flatten().collect();
    assert_eq!(served, (0..SOCKETS).collect());
}

#[test]
fn every_ready_socket_is_reported_when_the_plan_disturbs_nothing() {
    let all: Vec<u64> = (0..SOCKETS).collect();
    assert!(history(Plan::new(5)).iter().all(|wait| *wait == all));
}

#[test]
fn spurious_events_are_reported_when_the_plan_has_them() {
    let mut events = Events::simulated(Plan::new(3).spurious_readiness(100));
    let (near, far) = support::pair();
    events.add(near.as_fd(), Token(1), Interest::READ).unwrap();
    let spurious = Ready {
        token: Token(1),
        readable: true,
        writable: false,
        hangup: false,
    };
    assert_eq!(ready_now(&mut events), [spurious]);
    events
        .modify(near.as_fd(), Token(1), Interest::NONE)
        .unwrap();
    assert_eq!(
        ready_now(&mut events),
        [],
        "spurious events respect the interest"
    );
    drop(far);
}

#[test]
fn scripted_events_come_before_real_ones() {
    let event = |token, readable, writable| Ready {
        token: Token(token),
        readable,
        writable,
        hangup: false,
    };
    let plan = Plan::new(0)
        .then(&[
            event(2, true, true),
            event(1, true, false),
            event(9, true, true),
        ])
        .then(&[])
        .then(&[event(1, false, true)]);
    let mut events = Events::simulated(plan);
    let (near, far) = support::pair();
    events.add(near.as_fd(), Token(1), Interest::READ).unwrap();
    events.add(far.as_fd(), Token(2), Interest::WRITE).unwrap();
    assert_eq!(
        ready_now(&mut events),
        [event(2, false, true), event(1, true, false)]
    );
    assert_eq!(ready_now(&mut events), []);
    assert_eq!(ready_now(&mut events), [], "writing was of no interest");
    assert_eq!(
        ready_now(&mut events),
        [event(2, false, true)],
        "after the script, the real events"
    );
}

#[test]
fn simulated_clock_takes_the_timeout_when_nothing_is_ready() {
    let clock = Clock::simulated();
    let mut events = Events::simulated(Plan::new(0).clock(&clock));
    let (near, mut far) = support::pair();
    events.add(near.as_fd(), Token(1), Interest::READ).unwrap();
    let mut ready = Vec::new();
    events
        .wait(&mut ready, Some(Duration::from_secs(86_400)))
        .unwrap();
    assert_eq!((ready.len(), clock.now_ms()), (0, 86_400_000));
    far.write_all(b"x").unwrap();
    events
        .wait(&mut ready, Some(Duration::from_secs(86_400)))
        .unwrap();
    assert_eq!(
        (ready.len(), clock.now_ms()),
        (1, 86_400_000),
        "an event takes no time"
    );
}

#[test]
fn timeout_is_rounded_up_when_it_is_not_whole_milliseconds() {
    // Rounded down, a loop would spin through the last fraction before each deadline.
    let clock = Clock::simulated();
    let mut events = Events::simulated(Plan::new(0).clock(&clock));
    events
        .wait(&mut Vec::new(), Some(Duration::from_micros(2_001)))
        .unwrap();
    assert_eq!(clock.now_ms(), 3);
}

#[test]
fn deadlock_is_reported_when_nothing_could_end_the_wait() {
    let mut events = Events::simulated(Plan::new(0).clock(&Clock::simulated()));
    let error = events.wait(&mut Vec::new(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
}
