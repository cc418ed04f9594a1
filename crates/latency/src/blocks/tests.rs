//! How often the intervals are wrong, and what they find, on simulated runs.

use super::*;
use crate::baseline::{Finding, against};
use crate::{Analysis, Analyzer, RunDescription};
use headway_base::random::{Draw, SplitMix64};

const STEP_S: f64 = 0.1;
const SECONDS: f64 = 30.0;
const RATE: f64 = 300.0;

/// A run of 30 s, and the intervals that its requests would have if they were independent.
struct Simulated {
    analysis: Analysis,
    response: Histogram,
}

fn normal(random: &mut SplitMix64) -> f64 {
    let radius = (-2.0 * random.positive_fraction().ln()).sqrt();
    radius * (std::f64::consts::TAU * random.positive_fraction()).cos()
}

/// An open loop with Poisson arrivals. Latencies are log-normal around a level that wanders with a
/// correlation time of half a second. Every two seconds the server stops for 20 ms on average, and
/// all that arrive meanwhile wait.
fn simulate(random: &mut SplitMix64, factor: f64) -> Simulated {
    let (mut at_s, mut response) = (0.0, Histogram::new());
    let mut steps = vec![Coarse::default(); (SECONDS / STEP_S) as usize];
    let (mut level, mut stall_end_s) = (0.03 * normal(random), 0.0);
    let mut stall_s = 2.0 * random.exponential();
    loop {
        let gap_s = random.exponential() / RATE;
        at_s += gap_s;
        if at_s >= SECONDS {
            break;
        }
        let kept = (-gap_s / 0.5_f64).exp();
        level = kept * level + 0.03 * (1.0 - kept * kept).sqrt() * normal(random);
        while stall_s <= at_s {
            stall_end_s = stall_s + 0.02 * random.exponential();
            stall_s += 2.0 * random.exponential();
        }
        let own_s = 1e-3 * (level + 0.25 * normal(random)).exp();
        let latency_s = factor * (own_s + (stall_end_s - at_s).max(0.0));
        let ns = (latency_s * 1e9) as u64;
        response.record_ns(ns);
        let step = (((at_s + latency_s) / STEP_S) as usize).min(steps.len() - 1);
        steps[step].record_ns(ns);
    }
    let steps: Vec<_> = steps.iter().map(|step| (step, step.count())).collect();
    let mut analysis = Analyzer::new(&RunDescription::default()).finish();
    analysis.achieved_rps = response.count() as f64 / SECONDS;
    analysis.joint_intervals = intervals(&response, &steps, steps.len(), STEP_S);
    analysis.response = Some(crate::analysis::Distribution {
        mean_us: response.mean_ns() / 1e3,
        p50_us: response.percentile(50.0) as f64 / 1e3,
        p90_us: response.percentile(90.0) as f64 / 1e3,
        p99_us: response.percentile(99.0) as f64 / 1e3,
        ..Default::default()
    });
    Simulated { analysis, response }
}

/// Of `pairs` pairs, those in which some figure of the second is slower, and those in which one
/// is faster.
fn found(pairs: u64, factor: f64) -> (u64, u64) {
    let mut random = SplitMix64(2026);
    let (mut slower, mut faster) = (0, 0);
    for _ in 0..pairs {
        let [before, now] = [1.0, factor].map(|factor| simulate(&mut random, factor).analysis);
        let found = against(&before, &now).expect("both have responses");
        let some = |finding| found.changes.iter().any(|change| change.finding == finding);
        slower += u64::from(some(Finding::Slower));
        faster += u64::from(some(Finding::Faster));
    }
    (slower, faster)
}

#[test]
fn equal_servers_seem_to_differ_in_at_most_five_of_a_hundred_pairs() {
    let (slower, faster) = found(200, 1.0);
    assert!(slower + faster <= 10, "{slower} slower, {faster} faster");
}

#[test]
fn server_slower_by_five_percent_is_found_in_nine_of_ten_pairs() {
    let (slower, faster) = found(100, 1.05);
    assert!(
        slower >= 90 && faster <= 1,
        "{slower} slower, {faster} faster"
    );
}

/// The simulation is no use if it has no correlation: independent requests would have the error
/// of a binomial count.
#[test]
fn blocks_see_that_the_requests_of_a_run_depend_on_each_other() {
    let mut random = SplitMix64(7);
    let (mut wider, runs) = (0.0, 20);
    for _ in 0..runs {
        let run = simulate(&mut random, 1.0);
        let joint = run.analysis.joint_intervals.expect("300 steps");
        let found = joint.p50_us.expect("9,000 requests");
        let half = QUANTILE * (0.25 / run.response.count() as f64).sqrt();
        let at = |share: f64| run.response.percentile(100.0 * share) as f64 / 1e3;
        wider += (found.high - found.low) / (at(0.5 + half) - at(0.5 - half));
    }
    assert!(wider / f64::from(runs) > 1.4, "{}", wider / f64::from(runs));
}

#[test]
fn there_are_no_intervals_for_a_short_run_and_none_of_a_percentile_with_few_beyond() {
    let mut response = Histogram::new();
    let mut step = Coarse::default();
    for us in 1..=100 {
        response.record_ns(us * 1_000);
        step.record_ns(us * 1_000);
    }
    let steps = [(&step, 100)];
    assert!(intervals(&response, &steps, BLOCKS - 1, STEP_S).is_none());
    let found = intervals(&response, &steps, BLOCKS, STEP_S).expect("as many steps as blocks");
    assert!(found.p50_us.is_some() && found.p99_us.is_none());
}

#[test]
fn rate_of_a_run_that_stands_still_for_half_of_it_has_a_wide_interval() {
    let mut step = Coarse::default();
    (0..10).for_each(|_| step.record_ns(1_000_000));
    let mut response = Histogram::new();
    response.record_n(1_000_000, 160);
    let steps = [(&step, 10); BLOCKS];
    let rate = |steps: &[StepOf<'_>], whole_steps| {
        let found = intervals(&response, steps, whole_steps, 1.0).expect("enough steps");
        found.rate_rps.expect("responses")
    };
    let even = rate(&steps, BLOCKS);
    assert_eq!((even.low, even.high), (10.0, 10.0));
    let half = rate(&steps, 2 * BLOCKS);
    assert!(half.low < 2.0 && half.high > 8.0, "{half:?}");
}
