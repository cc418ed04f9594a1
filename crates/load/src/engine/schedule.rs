//! When requests are due: arrival times of an open loop, drawn from a seed and a rate over time.
//!
//! Arrivals are made in *expected requests* of the whole run and turned into time by inverting the integral of the
//! rate. For one of N parts they are N apart for constant gaps, and exponentially apart with a mean of N for Poisson.
//! So steps and ramps need no
//! rejection, and the times are the same on every machine: only sums, products, quotients and
//! square roots, which IEEE 754 rounds in one way.

use super::part::Part;
use super::plan::{Arrivals, Schedule};

use headway_base::random::{Draw, Random};

/// The purpose of this stream among those of a seed.
const RANDOM_STREAM: u64 = 1;

/// An endless, ascending stream of instants in nanoseconds since the epoch.
#[derive(Debug)]
pub(crate) struct ArrivalTimes {
    pieces: Vec<Piece>,
    /// The piece in which the latest arrival lay.
    at: usize,
    /// Requests expected until the next arrival.
    expected: f64,
    /// Mean distance of two arrivals in expected requests.
    step: f64,
    gaps: Arrivals,
    random: Random,
}

/// A segment with its place in time and in expected requests.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start_s: f64,
    start_expected: f64,
    /// Where the next piece begins; infinite for the last one.
    end_expected: f64,
    rate_per_s: f64,
    /// Change of the rate, per second.
    slope: f64,
}

impl ArrivalTimes {
    /// Those of a part. The schedule has passed [`super::Plan::check`].
    pub(super) fn new(schedule: &Schedule, gaps: Arrivals, seed: u64, part: Part) -> ArrivalTimes {
        let mut times = ArrivalTimes {
            pieces: pieces(schedule),
            at: 0,
            expected: f64::from(part.before_first()),
            step: f64::from(part.count()),
            gaps,
            random: Random::for_stream(part.seed(seed), RANDOM_STREAM),
        };
        if gaps == Arrivals::Poisson {
            times.expected = times.gap();
        }
        times
    }

    fn gap(&mut self) -> f64 {
        match self.gaps {
            Arrivals::Constant => self.step,
            Arrivals::Poisson => self.step * self.random.exponential(),
        }
    }

    /// The next instant.
    pub(super) fn next_ns(&mut self) -> u64 {
        while self.expected >= self.pieces[self.at].end_expected {
            self.at += 1;
        }
        let at_s = self.pieces[self.at].time_s(self.expected);
        self.expected += self.gap();
        (at_s * 1e9).round() as u64
    }
}

fn pieces(schedule: &Schedule) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(schedule.segments.len() + 1);
    let (mut start_s, mut start_expected, mut rate_per_s) = (0.0, 0.0, 0.0);
    for segment in &schedule.segments {
        rate_per_s = segment.to_per_s;
        let length_s = segment.length.as_secs_f64();
        if length_s > 0.0 {
            let requests = (segment.from_per_s + segment.to_per_s) / 2.0 * length_s;
            pieces.push(Piece {
                start_s,
                start_expected,
                end_expected: start_expected + requests,
                rate_per_s: segment.from_per_s,
                slope: (segment.to_per_s - segment.from_per_s) / length_s,
            });
            start_s += length_s;
            start_expected += requests;
        }
    }
    pieces.push(Piece {
        start_s,
        start_expected,
        end_expected: f64::INFINITY,
        rate_per_s,
        slope: 0.0,
    });
    pieces
}

impl Piece {
    /// Solves `rate·t + slope·t²/2 = expected - start` in the form that is exact for a slope of 0.
    fn time_s(self, expected: f64) -> f64 {
        let due = expected - self.start_expected;
        if due <= 0.0 {
            return self.start_s;
        }
        let squared = self.rate_per_s * self.rate_per_s + 2.0 * self.slope * due;
        self.start_s + 2.0 * due / (self.rate_per_s + squared.max(0.0).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Segment;
    use super::*;
    use std::time::Duration;

    fn segment(from_per_s: f64, to_per_s: f64, length_s: u64) -> Segment {
        Segment {
            from_per_s,
            to_per_s,
            length: Duration::from_secs(length_s),
        }
    }

    fn until(schedule: &Schedule, gaps: Arrivals, end_s: u64) -> Vec<u64> {
        of_part(schedule, gaps, end_s, Part::WHOLE)
    }

    fn of_part(schedule: &Schedule, gaps: Arrivals, end_s: u64, part: Part) -> Vec<u64> {
        let mut times = ArrivalTimes::new(schedule, gaps, 5, part);
        std::iter::from_fn(|| Some(times.next_ns()))
            .take_while(|&at_ns| at_ns < end_s * 1_000_000_000)
            .collect()
    }

    /// The arrivals of all parts, in order.
    fn of_parts(schedule: &Schedule, gaps: Arrivals, end_s: u64, count: u32) -> Vec<u64> {
        let parts = Part::all(count).map(|part| of_part(schedule, gaps, end_s, part));
        let mut all: Vec<u64> = parts.flatten().collect();
        all.sort_unstable();
        all
    }

    fn between(times: &[u64], from_s: u64, to_s: u64) -> usize {
        let range = from_s * 1_000_000_000..to_s * 1_000_000_000;
        times.iter().filter(|at_ns| range.contains(at_ns)).count()
    }

    #[test]
    fn gaps_are_equal_when_arrivals_are_constant() {
        let times = until(&Schedule::constant(4.0), Arrivals::Constant, 2);
        let expected: Vec<u64> = (0..8).map(|n| n * 250_000_000).collect();
        assert_eq!(times, expected);
    }

    #[test]
    fn arrival_counts_are_poisson_when_arrivals_are() {
        let times = until(&Schedule::constant(1000.0), Arrivals::Poisson, 400);
        let count = times.len() as f64;
        // Four standard deviations either way.
        assert!(
            (count - 400_000.0).abs() < 4.0 * 400_000f64.sqrt(),
            "{count}"
        );
        // The variance of counts in windows of 10 ms equals their mean, 10.
        let mut windows = vec![0f64; 40_000];
        times
            .iter()
            .for_each(|at_ns| windows[(at_ns / 10_000_000) as usize] += 1.0);
        let variance = windows.iter().map(|n| (n - 10.0) * (n - 10.0)).sum::<f64>() / 40_000.0;
        assert!((9.5..10.5).contains(&variance), "{variance}");
    }

    #[test]
    fn parts_with_constant_gaps_have_the_arrivals_of_one_loop() {
        let schedule = Schedule {
            segments: vec![segment(0.0, 80.0, 10), segment(40.0, 40.0, 10)],
        };
        let whole = until(&schedule, Arrivals::Constant, 30);
        for count in 2..=5 {
            let parts = of_parts(&schedule, Arrivals::Constant, 30, count);
            assert_eq!(parts, whole, "{count} parts");
        }
    }

    /// Numbers and gaps are compared with those of a Poisson process of the whole rate.
    #[test]
    fn parts_with_poisson_arrivals_are_one_poisson_process_together() {
        for count in [1, 2, 3, 8] {
            let times = of_parts(&Schedule::constant(1000.0), Arrivals::Poisson, 400, count);
            let arrived = times.len() as f64;
            // Four standard deviations either way.
            let deviation = 400_000f64.sqrt();
            assert!((arrived - 400_000.0).abs() < 4.0 * deviation, "{arrived}");
            let mut gaps: Vec<f64> = times
                .windows(2)
                .map(|pair| (pair[1] - pair[0]) as f64 * 1e-6)
                .collect();
            gaps.sort_by(f64::total_cmp);
            // Kolmogorov and Smirnov: the largest distance from the exponential distribution.
            let ranks = (0..).map(|rank| f64::from(rank) / arrived);
            let far = gaps
                .iter()
                .zip(ranks)
                .map(|(gap, rank)| (1.0 - (-gap).exp() - rank).abs());
            let far = far.fold(0.0, f64::max);
            // Exceeded by one seed of 10,000.
            assert!(far < 2.3 / arrived.sqrt(), "{count} parts: {far}");
            // Gaps do not depend on each other: neighbours are not correlated.
            let pairs: Vec<f64> = times
                .windows(3)
                .map(|three| {
                    let [first, second] =
                        [0, 1].map(|at| (three[at + 1] - three[at]) as f64 * 1e-6 - 1.0);
                    first * second
                })
                .collect();
            let correlation = pairs.iter().sum::<f64>() / pairs.len() as f64;
            assert!(
                correlation.abs() < 4.0 / arrived.sqrt(),
                "{count} parts: {correlation}"
            );
        }
    }

    #[test]
    fn parts_draw_different_arrivals_and_the_same_again() {
        let [first, second] = [0, 1].map(|at| {
            let part = Part::all(2).nth(at).unwrap();
            of_part(&Schedule::constant(100.0), Arrivals::Poisson, 10, part)
        });
        assert!(first.iter().all(|at_ns| !second.contains(at_ns)));
        let again = of_parts(&Schedule::constant(100.0), Arrivals::Poisson, 10, 2);
        let mut all = [first, second].concat();
        all.sort_unstable();
        assert_eq!(all, again);
    }

    #[test]
    fn rate_steps_when_segments_differ() {
        let schedule = Schedule {
            segments: vec![
                segment(10.0, 10.0, 10),
                segment(0.0, 0.0, 5),
                segment(50.0, 50.0, 10),
            ],
        };
        let times = until(&schedule, Arrivals::Constant, 40);
        assert_eq!(between(&times, 0, 10), 100);
        assert_eq!(between(&times, 10, 15), 0);
        assert_eq!(between(&times, 15, 25), 500);
        // The rate of the last segment continues.
        assert_eq!(between(&times, 25, 40), 750);
    }

    #[test]
    fn rate_grows_linearly_when_a_segment_is_a_ramp() {
        let schedule = Schedule {
            segments: vec![
                segment(0.0, 100.0, 10),
                segment(100.0, 0.0, 10),
                segment(1.0, 1.0, 1),
            ],
        };
        let times = until(&schedule, Arrivals::Constant, 20);
        for (from_s, to_s, expected) in [(0, 5, 125), (5, 10, 375), (10, 15, 375), (15, 20, 125)] {
            let count = between(&times, from_s, to_s);
            assert!(count.abs_diff(expected) <= 1, "{from_s}..{to_s}: {count}");
        }
        assert!(times.is_sorted());
    }

    #[test]
    fn times_are_the_same_when_the_seed_is() {
        let one = until(&Schedule::constant(100.0), Arrivals::Poisson, 10);
        assert_eq!(
            one,
            until(&Schedule::constant(100.0), Arrivals::Poisson, 10)
        );
        let schedule = Schedule::constant(100.0);
        let mut other = ArrivalTimes::new(&schedule, Arrivals::Poisson, 6, Part::WHOLE);
        assert_ne!(one[0], other.next_ns());
    }
}
