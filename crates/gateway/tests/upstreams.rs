//! Upstream selection in simulated time.

use headway_gateway::upstream::{
    AttemptStage, Lease, LoadBalancing, TriedUpstreams, UPSTREAMS_MAX, Unavailable,
    UpstreamOutcome, UpstreamPolicy, UpstreamSelector, may_retry,
};
use headway_http::Method;
use proptest::prelude::*;

const POLICY: UpstreamPolicy = UpstreamPolicy {
    load_balancing: LoadBalancing::RoundRobin,
    requests_max: 2,
    attempts_max: 2,
    failures_max: 2,
    failure_window_ms: 1_000,
    ejection_ms: 100,
    ejection_ms_max: 350,
};

fn choose(group: &mut UpstreamSelector, now_ms: u64) -> Lease {
    group
        .choose(now_ms, &mut TriedUpstreams::default())
        .unwrap()
}

/// Sends one request with this outcome; returns the upstream that got it.
fn send(group: &mut UpstreamSelector, now_ms: u64, outcome: UpstreamOutcome) -> usize {
    let lease = choose(group, now_ms);
    let upstream = lease.upstream();
    group.end(lease, now_ms, outcome);
    upstream
}

fn fail(group: &mut UpstreamSelector, now_ms: u64, times: u32) {
    for _ in 0..times {
        send(group, now_ms, UpstreamOutcome::Failed);
    }
}

#[test]
fn round_robin_alternates_between_healthy_upstreams() {
    let mut group = UpstreamSelector::new(3, POLICY, 4);
    let chosen: Vec<usize> = (0..5)
        .map(|_| send(&mut group, 0, UpstreamOutcome::Answered))
        .collect();
    assert_eq!(chosen, [1, 2, 0, 1, 2]);
}

#[test]
fn least_connections_chooses_the_least_busy_upstream() {
    let policy = UpstreamPolicy {
        load_balancing: LoadBalancing::LeastConnections,
        ..POLICY
    };
    let mut group = UpstreamSelector::new(3, policy, 0);
    let leases: Vec<Lease> = (0..4).map(|_| choose(&mut group, 0)).collect();
    let chosen: Vec<usize> = leases.iter().map(Lease::upstream).collect();
    assert_eq!(chosen, [0, 1, 2, 0]);
    let mut leases = leases.into_iter();
    group.end(leases.nth(1).unwrap(), 0, UpstreamOutcome::Answered);
    assert_eq!(choose(&mut group, 0).upstream(), 1);
}

#[test]
fn selector_skips_upstreams_already_tried() {
    let mut group = UpstreamSelector::new(3, POLICY, 0);
    let mut tried = TriedUpstreams::default();
    let first = group.choose(0, &mut tried).unwrap();
    group.end(first, 0, UpstreamOutcome::Failed);
    let second = group.choose(0, &mut tried).unwrap();
    assert_eq!((second.upstream(), tried.count()), (1, 2));
    assert_eq!(group.choose(0, &mut tried), Err(Unavailable::Exhausted));
    group.end(second, 0, UpstreamOutcome::Answered);
}

#[test]
fn selector_returns_none_when_all_are_busy_or_missing() {
    let mut group = UpstreamSelector::new(1, POLICY, 0);
    let leases = [choose(&mut group, 0), choose(&mut group, 0)];
    assert_eq!(
        group.choose(0, &mut TriedUpstreams::default()),
        Err(Unavailable::Busy)
    );
    for lease in leases {
        group.end(lease, 0, UpstreamOutcome::Unknown);
    }
    assert_eq!(choose(&mut group, 0).upstream(), 0);
    let mut none = UpstreamSelector::new(0, POLICY, 0);
    assert_eq!(
        none.choose(0, &mut TriedUpstreams::default()),
        Err(Unavailable::Exhausted)
    );
}

#[test]
fn upstream_is_ejected_after_two_failures_in_a_row() {
    let mut group = UpstreamSelector::new(2, POLICY, 0);
    for outcome in [
        UpstreamOutcome::Failed,
        UpstreamOutcome::Answered,
        UpstreamOutcome::Failed,
    ] {
        send(&mut group, 10, outcome);
    }
    // 0 has failed twice, 1 has answered.
    let view = group.views(10).next().unwrap();
    assert_eq!((view.ejections, view.ejected_ms), (1, Some(100)));
    for now_ms in [10, 50, 109] {
        assert_eq!(
            send(&mut group, now_ms, UpstreamOutcome::Answered),
            1,
            "{now_ms}"
        );
    }
    // The ejection is over: one probe, and no second one at the same time.
    let probe = choose(&mut group, 110);
    assert_eq!(probe.upstream(), 0);
    assert_eq!(send(&mut group, 110, UpstreamOutcome::Answered), 1);
    assert_eq!(send(&mut group, 110, UpstreamOutcome::Answered), 1);
    group.end(probe, 120, UpstreamOutcome::Answered);
    assert_eq!(send(&mut group, 120, UpstreamOutcome::Answered), 0);
    assert_eq!(group.views(120).next().unwrap().ejections, 0);
}

#[test]
fn failure_count_restarts_after_a_response_or_the_failure_window() {
    let mut group = UpstreamSelector::new(1, POLICY, 0);
    for (now_ms, outcome) in [
        (0, UpstreamOutcome::Failed),
        (1, UpstreamOutcome::Answered),
        (2, UpstreamOutcome::Failed),
        (1_003, UpstreamOutcome::Failed),
        (1_004, UpstreamOutcome::Unknown),
    ] {
        send(&mut group, now_ms, outcome);
        assert_eq!(group.views(now_ms).next().unwrap().ejections, 0, "{now_ms}");
    }
    send(&mut group, 1_005, UpstreamOutcome::Failed);
    assert_eq!(group.views(1_005).next().unwrap().ejections, 1);
}

#[test]
fn ejection_doubles_up_to_its_limit_when_probes_fail() {
    let mut group = UpstreamSelector::new(1, POLICY, 0);
    fail(&mut group, 0, 2);
    let mut now_ms = 0;
    for expected_ms in [100, 200, 350, 350] {
        let left_ms = group.views(now_ms).next().unwrap().ejected_ms;
        assert_eq!(left_ms, Some(expected_ms));
        now_ms += expected_ms;
        fail(&mut group, now_ms, 1);
    }
}

#[test]
fn late_failures_do_not_extend_an_ejection() {
    let mut group = UpstreamSelector::new(
        1,
        UpstreamPolicy {
            requests_max: 9,
            ..POLICY
        },
        0,
    );
    let leases: Vec<Lease> = (0..4).map(|_| choose(&mut group, 0)).collect();
    for (lease, now_ms) in leases.into_iter().zip([1, 2, 50, 103]) {
        group.end(lease, now_ms, UpstreamOutcome::Failed);
    }
    let view = group.views(103).next().unwrap();
    assert_eq!((view.ejections, view.ejected_ms), (1, None));
}

#[test]
fn probe_is_freed_when_its_client_disconnects() {
    let mut group = UpstreamSelector::new(2, POLICY, 0);
    for outcome in [
        UpstreamOutcome::Failed,
        UpstreamOutcome::Answered,
        UpstreamOutcome::Failed,
    ] {
        send(&mut group, 0, outcome);
    }
    let mut probes = 0;
    for _ in 0..4 {
        probes += usize::from(send(&mut group, 100, UpstreamOutcome::Unknown) == 0);
    }
    assert_eq!(probes, 2);
}

#[test]
fn upstream_whose_ejection_ends_first_is_chosen_when_all_are_ejected() {
    let mut group = UpstreamSelector::new(2, POLICY, 0);
    for (now_ms, outcome) in [
        (0, UpstreamOutcome::Failed),
        (5, UpstreamOutcome::Failed),
        (10, UpstreamOutcome::Failed),
        (20, UpstreamOutcome::Failed),
    ] {
        send(&mut group, now_ms, outcome);
    }
    assert!(group.views(20).all(|view| view.ejected_ms.is_some()));
    for _ in 0..3 {
        assert_eq!(send(&mut group, 30, UpstreamOutcome::Unknown), 0);
    }
}

#[test]
fn retry_is_allowed_only_when_it_is_safe() {
    let (get, post, put) = (Method::Get, Method::Other("POST"), Method::Other("PUT"));
    for (method, stage, body_is_kept, expected) in [
        (post, AttemptStage::Unsent, true, true),
        (post, AttemptStage::Unsent, false, false),
        (post, AttemptStage::Untouched, true, true),
        (post, AttemptStage::Sent, true, false),
        (Method::Other("PATCH"), AttemptStage::Sent, true, false),
        (put, AttemptStage::Sent, true, true),
        (put, AttemptStage::Sent, false, false),
        (get, AttemptStage::Sent, true, true),
        (Method::Head, AttemptStage::Sent, true, true),
        (get, AttemptStage::Answered, true, false),
    ] {
        let found = may_retry(method, stage, body_is_kept);
        assert_eq!(found, expected, "{method:?} {stage:?} {body_is_kept}");
    }
}

proptest! {
    /// In any order of events: no more requests than allowed, each returned once, and a pool with
    /// room always has an upstream to offer.
    #[test]
    fn active_requests_return_to_zero_in_any_order_of_completion(
        count in 1..=UPSTREAMS_MAX,
        steps in prop::collection::vec((0u64..200, 0u8..5, any::<prop::sample::Index>()), 1..200),
        least in any::<bool>(),
    ) {
        let load_balancing = if least { LoadBalancing::LeastConnections } else { LoadBalancing::RoundRobin };
        let mut group = UpstreamSelector::new(count, UpstreamPolicy { load_balancing, ..POLICY }, 7);
        let mut open: Vec<Lease> = Vec::new();
        let mut now_ms = 0;
        for (pause_ms, action, which) in steps {
            now_ms += pause_ms;
            let outcome = [UpstreamOutcome::Answered, UpstreamOutcome::Failed, UpstreamOutcome::Unknown].get(usize::from(action));
            match outcome {
                Some(outcome) if !open.is_empty() => {
                    let lease = open.swap_remove(which.index(open.len()));
                    group.end(lease, now_ms, *outcome);
                }
                _ => match group.choose(now_ms, &mut TriedUpstreams::default()) {
                    Ok(lease) => open.push(lease),
                    Err(why) => {
                        prop_assert_eq!(why, Unavailable::Busy);
                        prop_assert_eq!(open.len(), count * 2);
                    }
                },
            }
            let counted: u32 = group.views(now_ms).map(|view| view.requests).sum();
            prop_assert_eq!(counted as usize, open.len());
            prop_assert!(group.views(now_ms).all(|view| view.requests <= 2));
        }
    }
}
