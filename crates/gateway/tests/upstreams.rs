//! Groups of back ends in made-up time.

use headway_gateway::upstream::{
    BACK_ENDS_MAX, Choice, Lease, Outcome, Policy, Stage, Tried, Unavailable, Upstream, may_retry,
};
use headway_http::Method;
use proptest::prelude::*;

const POLICY: Policy = Policy {
    choice: Choice::RoundRobin,
    requests_max: 2,
    attempts_max: 2,
    failures_max: 2,
    failure_window_ms: 1_000,
    ejection_ms: 100,
    ejection_ms_max: 350,
};

fn choose(group: &mut Upstream, now_ms: u64) -> Lease {
    group.choose(now_ms, &mut Tried::default()).unwrap()
}

/// Sends one request, which ends so; the back end that got it.
fn send(group: &mut Upstream, now_ms: u64, outcome: Outcome) -> usize {
    let lease = choose(group, now_ms);
    let back_end = lease.back_end();
    group.end(lease, now_ms, outcome);
    back_end
}

fn fail(group: &mut Upstream, now_ms: u64, times: u32) {
    for _ in 0..times {
        send(group, now_ms, Outcome::Failed);
    }
}

#[test]
fn back_ends_take_turns_when_all_are_fit() {
    let mut group = Upstream::new(3, POLICY, 4);
    let chosen: Vec<usize> = (0..5)
        .map(|_| send(&mut group, 0, Outcome::Answered))
        .collect();
    assert_eq!(chosen, [1, 2, 0, 1, 2]);
}

#[test]
fn least_busy_back_end_is_chosen_when_that_is_the_policy() {
    let policy = Policy {
        choice: Choice::LeastConnections,
        ..POLICY
    };
    let mut group = Upstream::new(3, policy, 0);
    let leases: Vec<Lease> = (0..4).map(|_| choose(&mut group, 0)).collect();
    let chosen: Vec<usize> = leases.iter().map(Lease::back_end).collect();
    assert_eq!(chosen, [0, 1, 2, 0]);
    let mut leases = leases.into_iter();
    group.end(leases.nth(1).unwrap(), 0, Outcome::Answered);
    assert_eq!(choose(&mut group, 0).back_end(), 1);
}

#[test]
fn next_back_end_is_asked_when_one_was_tried() {
    let mut group = Upstream::new(3, POLICY, 0);
    let mut tried = Tried::default();
    let first = group.choose(0, &mut tried).unwrap();
    group.end(first, 0, Outcome::Failed);
    let second = group.choose(0, &mut tried).unwrap();
    assert_eq!((second.back_end(), tried.count()), (1, 2));
    assert_eq!(group.choose(0, &mut tried), Err(Unavailable::Exhausted));
    group.end(second, 0, Outcome::Answered);
}

#[test]
fn nobody_is_asked_when_all_are_busy_or_there_are_none() {
    let mut group = Upstream::new(1, POLICY, 0);
    let leases = [choose(&mut group, 0), choose(&mut group, 0)];
    assert_eq!(
        group.choose(0, &mut Tried::default()),
        Err(Unavailable::Busy)
    );
    for lease in leases {
        group.end(lease, 0, Outcome::Unknown);
    }
    assert_eq!(choose(&mut group, 0).back_end(), 0);
    let mut none = Upstream::new(0, POLICY, 0);
    assert_eq!(
        none.choose(0, &mut Tried::default()),
        Err(Unavailable::Exhausted)
    );
}

#[test]
fn back_end_is_left_alone_when_it_failed_twice_in_a_row() {
    let mut group = Upstream::new(2, POLICY, 0);
    for outcome in [Outcome::Failed, Outcome::Answered, Outcome::Failed] {
        send(&mut group, 10, outcome);
    }
    // 0 has failed twice, 1 has answered.
    let view = group.views(10).next().unwrap();
    assert_eq!((view.ejections, view.ejected_ms), (1, Some(100)));
    for now_ms in [10, 50, 109] {
        assert_eq!(send(&mut group, now_ms, Outcome::Answered), 1, "{now_ms}");
    }
    // Its time is up: one probe, and no second one beside it.
    let probe = choose(&mut group, 110);
    assert_eq!(probe.back_end(), 0);
    assert_eq!(send(&mut group, 110, Outcome::Answered), 1);
    assert_eq!(send(&mut group, 110, Outcome::Answered), 1);
    group.end(probe, 120, Outcome::Answered);
    assert_eq!(send(&mut group, 120, Outcome::Answered), 0);
    assert_eq!(group.views(120).next().unwrap().ejections, 0);
}

#[test]
fn failures_do_not_count_together_when_an_answer_or_much_time_is_between() {
    let mut group = Upstream::new(1, POLICY, 0);
    for (now_ms, outcome) in [
        (0, Outcome::Failed),
        (1, Outcome::Answered),
        (2, Outcome::Failed),
        (1_003, Outcome::Failed),
        (1_004, Outcome::Unknown),
    ] {
        send(&mut group, now_ms, outcome);
        assert_eq!(group.views(now_ms).next().unwrap().ejections, 0, "{now_ms}");
    }
    send(&mut group, 1_005, Outcome::Failed);
    assert_eq!(group.views(1_005).next().unwrap().ejections, 1);
}

#[test]
fn ejections_get_longer_up_to_a_bound_when_probes_fail() {
    let mut group = Upstream::new(1, POLICY, 0);
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
fn late_failures_change_nothing_when_the_back_end_is_ejected_already() {
    let mut group = Upstream::new(
        1,
        Policy {
            requests_max: 9,
            ..POLICY
        },
        0,
    );
    let leases: Vec<Lease> = (0..4).map(|_| choose(&mut group, 0)).collect();
    for (lease, now_ms) in leases.into_iter().zip([1, 2, 50, 103]) {
        group.end(lease, now_ms, Outcome::Failed);
    }
    let view = group.views(103).next().unwrap();
    assert_eq!((view.ejections, view.ejected_ms), (1, None));
}

#[test]
fn probe_is_free_for_another_when_its_client_went_away() {
    let mut group = Upstream::new(2, POLICY, 0);
    for outcome in [Outcome::Failed, Outcome::Answered, Outcome::Failed] {
        send(&mut group, 0, outcome);
    }
    let mut probes = 0;
    for _ in 0..4 {
        probes += usize::from(send(&mut group, 100, Outcome::Unknown) == 0);
    }
    assert_eq!(probes, 2);
}

#[test]
fn first_to_return_is_asked_when_all_are_ejected() {
    let mut group = Upstream::new(2, POLICY, 0);
    for (now_ms, outcome) in [
        (0, Outcome::Failed),
        (5, Outcome::Failed),
        (10, Outcome::Failed),
        (20, Outcome::Failed),
    ] {
        send(&mut group, now_ms, outcome);
    }
    assert!(group.views(20).all(|view| view.ejected_ms.is_some()));
    for _ in 0..3 {
        assert_eq!(send(&mut group, 30, Outcome::Unknown), 0);
    }
}

#[test]
fn request_is_repeated_when_that_cannot_do_it_twice() {
    let (get, post, put) = (Method::Get, Method::Other("POST"), Method::Other("PUT"));
    for (method, stage, body_is_kept, expected) in [
        (post, Stage::Unsent, true, true),
        (post, Stage::Unsent, false, false),
        (post, Stage::Untouched, true, true),
        (post, Stage::Sent, true, false),
        (Method::Other("PATCH"), Stage::Sent, true, false),
        (put, Stage::Sent, true, true),
        (put, Stage::Sent, false, false),
        (get, Stage::Sent, true, true),
        (Method::Head, Stage::Sent, true, true),
        (get, Stage::Answered, true, false),
    ] {
        let found = may_retry(method, stage, body_is_kept);
        assert_eq!(found, expected, "{method:?} {stage:?} {body_is_kept}");
    }
}

proptest! {
    /// Whatever happens: no more requests than allowed, every one given back, and a group with room
    /// is never without an answer to whom to ask.
    #[test]
    fn books_balance_when_requests_end_in_any_order(
        count in 1..=BACK_ENDS_MAX,
        steps in prop::collection::vec((0u64..200, 0u8..5, any::<prop::sample::Index>()), 1..200),
        least in any::<bool>(),
    ) {
        let choice = if least { Choice::LeastConnections } else { Choice::RoundRobin };
        let mut group = Upstream::new(count, Policy { choice, ..POLICY }, 7);
        let mut open: Vec<Lease> = Vec::new();
        let mut now_ms = 0;
        for (pause_ms, action, which) in steps {
            now_ms += pause_ms;
            let outcome = [Outcome::Answered, Outcome::Failed, Outcome::Unknown].get(usize::from(action));
            match outcome {
                Some(outcome) if !open.is_empty() => {
                    let lease = open.swap_remove(which.index(open.len()));
                    group.end(lease, now_ms, *outcome);
                }
                _ => match group.choose(now_ms, &mut Tried::default()) {
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
