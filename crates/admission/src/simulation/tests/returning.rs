//! Load shedding with clients that return.
//!
//! The crowd is `factor` times what the server answers per second, and each client thinks for one
//! second. If every client were answered at once, the load would be `factor` times the capacity.

use super::*;
use crate::retry_after_s;

/// Time until the controller has learned and the clients are spread over time.
const SETTLING_TIME_S: f64 = 10.0;
const SECONDS: f64 = 25.0;

fn retry_after_values() -> Vec<u64> {
    (0..3).map(|nth| retry_after_s(nth) * 1_000_000).collect()
}

fn crowd(of: Workload, factor: f64, retry_after_us: Vec<u64>) -> Workload {
    Workload {
        returning: Some(ReturningClients {
            clients: (factor * of.capacity()) as u32,
            think_us: 1_000_000,
            retry_after_us,
        }),
        seconds: SECONDS,
        ..of
    }
}

/// Good responses per second divided by what the CPU could do without other work.
fn used(of: &Workload, outcome: &Outcome, from_s: f64, to_s: f64) -> f64 {
    let most = of.capacity() * f64::from(of.requests);
    outcome.responses_per_s(from_s, to_s) / most
}

/// Smallest value of all half seconds.
fn least_used(of: &Workload, outcome: &Outcome) -> f64 {
    let mut at_s = SETTLING_TIME_S;
    let mut least = f64::MAX;
    while at_s < SECONDS {
        least = least.min(used(of, outcome, at_s, at_s + 0.5));
        at_s += 0.5;
    }
    least
}

#[test]
fn goodput_stays_when_clients_return() {
    for of in [small(), heavy()] {
        for factor in [1.5, 6.0] {
            let of = crowd(of.clone(), factor, retry_after_values());
            let outcome = run(&of, AcceptPolicy::Auto, 1);
            let mean = used(&of, &outcome, SETTLING_TIME_S, SECONDS);
            let least = least_used(&of, &outcome);
            assert!(
                mean > 0.98 && least > 0.9,
                "{factor}: {mean:.3}, {least:.3}"
            );
            let lost = outcome.connected_timed_out as f64 / outcome.connected as f64;
            assert!(
                lost < 0.01,
                "{factor}: {lost:.3} of the connected timed out"
            );
        }
    }
}

#[test]
fn most_returning_clients_are_answered_soon_with_load_shedding() {
    let of = crowd(heavy(), 6.0, retry_after_values());
    let (waiting, rejecting) = (
        run(&of, AcceptPolicy::Auto, 1),
        run(&of, AcceptPolicy::Rejecting, 1),
    );
    expect_answers_soon(&waiting, &rejecting);
    // All clients pay for it: a crowd that returns gets its responses as fast as they are made.
    let (served, less) = (
        used(&of, &waiting, SETTLING_TIME_S, SECONDS),
        used(&of, &rejecting, SETTLING_TIME_S, SECONDS),
    );
    assert!(less < served && less > 0.9, "{less:.3} of {served:.3}");
}

#[test]
fn more_clients_are_answered_soon_when_retry_after_varies() {
    let run_with = |retry_after_us: Vec<u64>, seed| {
        let of = crowd(heavy(), 6.0, retry_after_us);
        let outcome = run(&of, AcceptPolicy::Rejecting, seed);
        (
            answered_within(&outcome, 1_000_000),
            least_used(&of, &outcome),
        )
    };
    let seeds = 1..=4;
    let each = f64::from(seeds.clone().count() as u32);
    // The same mean.
    let together = seeds.clone().map(|seed| run_with(vec![2_000_000], seed).0);
    let together = together.sum::<f64>() / each;
    let outcomes: Vec<_> = seeds
        .map(|seed| run_with(retry_after_values(), seed))
        .collect();
    let in_turn = outcomes.iter().map(|(share, _)| share).sum::<f64>() / each;
    assert!(in_turn > together + 0.08, "{in_turn:.2}, {together:.2}");
    for (_, least) in outcomes {
        assert!(
            least > 0.85,
            "{least:.2}: there are always clients to serve"
        );
    }
}

#[test]
fn rejections_take_limited_time_when_clients_return_at_once() {
    for of in [small(), heavy()] {
        let of = crowd(of, 3.0, vec![1_000]);
        let outcome = run(&of, AcceptPolicy::Rejecting, 1);
        let (mean, least) = (
            used(&of, &outcome, SETTLING_TIME_S, SECONDS),
            least_used(&of, &outcome),
        );
        assert!(mean > 0.78 && least > 0.75, "{mean:.3}, {least:.3}");
    }
}
