//! Clients that come again: what turning them away is worth when the load does not end with them.
//!
//! A crowd of `factor` times what the server answers in a second, who think for a second each: at
//! most, and if everybody were answered at once, `factor` times the capacity.

use super::*;
use crate::accept::control::RETRY_AFTER_S;

/// Until the controller knows what can be served, and the crowd is mixed.
const SETTLED_S: f64 = 10.0;
const SECONDS: f64 = 25.0;

fn told_in_turn() -> Vec<u64> {
    RETRY_AFTER_S.map(|seconds| seconds * 1_000_000).to_vec()
}

fn crowd(of: Workload, factor: f64, told_us: Vec<u64>) -> Workload {
    Workload {
        returning: Some(Returning {
            clients: (factor * of.capacity()) as u32,
            think_us: 1_000_000,
            told_us,
        }),
        seconds: SECONDS,
        ..of
    }
}

/// Good replies a second by what the processor could do if it did nothing else.
fn used(of: &Workload, outcome: &Outcome, from_s: f64, to_s: f64) -> f64 {
    let most = of.capacity() * f64::from(of.requests);
    outcome.replies_per_s(from_s, to_s) / most
}

/// The least of all half seconds.
fn least_used(of: &Workload, outcome: &Outcome) -> f64 {
    let mut at_s = SETTLED_S;
    let mut least = f64::MAX;
    while at_s < SECONDS {
        least = least.min(used(of, outcome, at_s, at_s + 0.5));
        at_s += 0.5;
    }
    least
}

#[test]
fn goodput_is_held_when_a_crowd_comes_again_and_again() {
    for of in [small(), heavy()] {
        for factor in [1.5, 6.0] {
            let of = crowd(of.clone(), factor, told_in_turn());
            let outcome = run(&of, Policy::Auto, 1);
            let mean = used(&of, &outcome, SETTLED_S, SECONDS);
            let least = least_used(&of, &outcome);
            assert!(
                mean > 0.98 && least > 0.9,
                "{factor}: {mean:.3}, {least:.3}"
            );
            let lost = outcome.connected_timed_out as f64 / outcome.connected as f64;
            assert!(lost < 0.01, "{factor}: {lost:.3} of the connected gave up");
        }
    }
}

#[test]
fn most_learn_soon_what_becomes_of_them_when_those_who_are_turned_away_come_again() {
    let of = crowd(heavy(), 6.0, told_in_turn());
    let (waiting, rejecting) = (run(&of, Policy::Auto, 1), run(&of, Policy::Rejecting, 1));
    expect_soon_told(&waiting, &rejecting);
    // It is paid for by all: a crowd that comes again gets its replies as fast as they are made.
    let (served, less) = (
        used(&of, &waiting, SETTLED_S, SECONDS),
        used(&of, &rejecting, SETTLED_S, SECONDS),
    );
    assert!(less < served && less > 0.9, "{less:.3} of {served:.3}");
}

#[test]
fn more_learn_soon_what_becomes_of_them_when_they_are_told_different_times_to_come_again() {
    let told = |told_us: Vec<u64>, seed| {
        let of = crowd(heavy(), 6.0, told_us);
        let outcome = run(&of, Policy::Rejecting, seed);
        (told_within(&outcome, 1_000_000), least_used(&of, &outcome))
    };
    let seeds = 1..=4;
    let each = f64::from(seeds.clone().count() as u32);
    // The same in the mean.
    let together = seeds.clone().map(|seed| told(vec![2_000_000], seed).0);
    let together = together.sum::<f64>() / each;
    let outcomes: Vec<_> = seeds.map(|seed| told(told_in_turn(), seed)).collect();
    let in_turn = outcomes.iter().map(|(share, _)| share).sum::<f64>() / each;
    assert!(in_turn > together + 0.08, "{in_turn:.2}, {together:.2}");
    for (_, least) in outcomes {
        assert!(
            least > 0.85,
            "{least:.2}: there is always somebody to serve"
        );
    }
}

#[test]
fn telling_takes_its_share_and_no_more_when_those_who_are_told_come_again_at_once() {
    for of in [small(), heavy()] {
        let of = crowd(of, 3.0, vec![1_000]);
        let outcome = run(&of, Policy::Rejecting, 1);
        let (mean, least) = (
            used(&of, &outcome, SETTLED_S, SECONDS),
            least_used(&of, &outcome),
        );
        assert!(mean > 0.78 && least > 0.75, "{mean:.3}, {least:.3}");
    }
}
