//! The steps of a run: requests offered, answered and failed in each, and their latencies.
//!
//! One structure serves two purposes: the timeline of a report, and the blocks that the bootstrap
//! resamples. A step is 0.1 s or a round multiple of it, so that a run of the described length has
//! at most 300 steps; if a run is longer, neighbouring steps are joined. Responses belong to the
//! step in which they ended, offered requests to the step of their intended start.

use super::{Timeline, TimelinePoint};
use crate::coarse::Coarse;
use crate::row::{Outcome, Row};
use crate::run::RunDescription;

/// The most steps of a run of the described length.
const STEPS_WANTED: f64 = 300.0;

/// The limit of steps, at which neighbours are joined.
const STEPS_MAX: usize = 600;

/// Lengths that are easy to read on an axis, in seconds.
const LENGTHS_S: [f64; 14] = [
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 3600.0,
];

/// What happened in one step.
#[derive(Clone, Debug, Default)]
pub(super) struct TimelineStep {
    offered: u64,
    pub(super) complete: u64,
    errors: u64,
    pub(super) response: Coarse,
    pub(super) service: Coarse,
    pub(super) complete_response: Coarse,
}

impl TimelineStep {
    fn merge(&mut self, other: &TimelineStep) {
        self.offered += other.offered;
        self.complete += other.complete;
        self.errors += other.errors;
        self.response.add(&other.response, 1);
        self.service.add(&other.service, 1);
        self.complete_response.add(&other.complete_response, 1);
    }
}

/// The steps of a run, from the start of its measured part.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    start_ns: u64,
    step_ns: u64,
    steps: Vec<TimelineStep>,
}

impl Steps {
    pub(super) fn new(description: &RunDescription) -> Steps {
        let load = &description.load;
        let warmup_ns = (load.warmup_s.max(0.0) * 1e9) as u64;
        let measured_s = load
            .measured
            .map(|window| window.end_ns.saturating_sub(window.start_ns) as f64 / 1e9);
        let length_s = measured_s.or(load.duration_s).unwrap_or(STEPS_WANTED);
        let fits = |length: &f64| length_s / length <= STEPS_WANTED;
        let step_s = LENGTHS_S
            .into_iter()
            .find(fits)
            .unwrap_or(LENGTHS_S[LENGTHS_S.len() - 1]);
        Steps {
            start_ns: load.measured.map_or(warmup_ns, |window| window.start_ns),
            step_ns: (step_s * 1e9) as u64,
            steps: Vec::new(),
        }
    }

    /// Adds a row of the measured part. An abandoned request was offered, and has no end.
    pub(super) fn push(&mut self, row: &Row) {
        self.at(row.intended_ns).offered += 1;
        if row.error == Outcome::Abandoned {
            return;
        }
        let step = self.at(row.end_ns);
        if row.error.has_latency() {
            step.response.record_ns(row.response_ns());
            if row.had_connection() {
                step.service.record_ns(row.service_ns());
            }
        }
        if row.error == Outcome::Ok {
            step.complete += 1;
            step.complete_response.record_ns(row.response_ns());
        } else {
            step.errors += 1;
        }
    }

    /// The step of an instant. What was before the beginning belongs to the first.
    fn at(&mut self, ns: u64) -> &mut TimelineStep {
        let index = |step_ns| ns.saturating_sub(self.start_ns) / step_ns;
        while index(self.step_ns) >= STEPS_MAX as u64 {
            let halved = |pair: &[TimelineStep]| {
                let mut step = pair[0].clone();
                pair[1..].iter().for_each(|other| step.merge(other));
                step
            };
            self.steps = self.steps.chunks(2).map(halved).collect();
            self.step_ns *= 2;
        }
        let index = index(self.step_ns) as usize;
        if index >= self.steps.len() {
            self.steps.resize_with(index + 1, TimelineStep::default);
        }
        &mut self.steps[index]
    }

    /// Adds the steps of another run, each to the step in which it begins when they are of other
    /// length.
    pub(super) fn merge(&mut self, other: &Steps) {
        for (index, step) in (0..).zip(&other.steps) {
            self.at(self.start_ns + index * other.step_ns).merge(step);
        }
    }

    pub(super) fn steps(&self) -> &[TimelineStep] {
        &self.steps
    }

    /// The length of a step in seconds.
    pub(super) fn step_s(&self) -> f64 {
        self.step_ns as f64 / 1e9
    }

    /// The timeline, without latencies if they are withheld.
    pub(super) fn finish(&self, withheld: bool) -> Timeline {
        let step_s = self.step_s();
        let point = |(index, step): (usize, &TimelineStep)| {
            let [p50, p99] = step.response.percentiles([50.0, 99.0]);
            let some = |ns: f64| (!withheld && step.response.count() > 0).then_some(ns / 1e3);
            TimelinePoint {
                at_s: index as f64 * step_s,
                offered_rps: step.offered as f64 / step_s,
                rate_rps: step.complete as f64 / step_s,
                errors: step.errors,
                p50_us: some(p50),
                p99_us: some(p99),
            }
        };
        Timeline {
            step_s,
            points: self.steps.iter().enumerate().map(point).collect(),
        }
    }
}
