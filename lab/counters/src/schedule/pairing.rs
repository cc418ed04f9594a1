//! What a pair costs, what a schedule gains, and the best and the worst schedule, which `matching`
//! finds exactly.

use serde::Serialize;

use super::matching::{self, Weights};
use super::matrix::SlowDowns;

/// What the program without a partner costs: its own time alone.
pub const COST_ALONE: f64 = 1.0;

/// Weights become integers of this many bits: the exact schedules are exact up to one part in 2⁴⁰
/// of the largest cost.
const WEIGHT_BITS: i32 = 40;

/// The costs of all pairs of a matrix, in units of one program's time alone.
///
/// With an odd number of programs there is one more slot, and the program paired with it runs alone
/// at the cost of [`COST_ALONE`].
#[derive(Clone, Debug)]
pub struct Costs {
    programs: usize,
    /// Programs, and the empty place if their number is odd.
    vertices: usize,
    costs: Vec<f64>,
}

/// A pairing of all programs, and what it gains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Schedule {
    /// The programs that run side by side.
    pub pairs: Vec<[String; 2]>,
    /// The program that runs alone, when their number is odd.
    pub alone: Option<String>,
    /// The time for all, in units of one program's time alone.
    pub run_time: f64,
    /// What that saves against one after another: programs ÷ run time − 1.
    pub speed_up: f64,
}

impl Costs {
    /// The mean of both directions for each pair.
    pub fn of(matrix: &SlowDowns) -> Costs {
        let programs = matrix.names().len();
        let vertices = programs + programs % 2;
        let cost = |a: usize, b: usize| {
            if a == programs || b == programs {
                COST_ALONE
            } else {
                (matrix.slow_down(a, b) + matrix.slow_down(b, a)) / 2.0
            }
        };
        let all = (0..vertices * vertices).map(|cell| cost(cell / vertices, cell % vertices));
        Costs {
            programs,
            vertices,
            costs: all.collect(),
        }
    }

    /// How many programs there are.
    pub fn programs(&self) -> usize {
        self.programs
    }

    /// Programs, and one more if their number is odd: an even number of places to be paired.
    pub(super) fn vertices(&self) -> usize {
        self.vertices
    }

    /// The cost of two places side by side.
    ///
    /// # Panics
    /// For a number that no place has.
    pub fn cost(&self, a: usize, b: usize) -> f64 {
        self.costs[a * self.vertices + b]
    }

    /// What a schedule of this run time gains.
    pub fn speed_up(&self, run_time: f64) -> f64 {
        self.programs as f64 / run_time - 1.0
    }

    /// Each place's partner in the pairing of the least (or largest) cost.
    fn extreme(&self, is_best: bool) -> Vec<usize> {
        let largest = self.costs.iter().copied().fold(COST_ALONE, f64::max);
        let scale = 2f64.powi(WEIGHT_BITS) / largest;
        let sign = if is_best { -1 } else { 1 };
        let weights = Weights::new(self.vertices, |a, b| {
            sign * (self.cost(a, b) * scale).round() as i64
        });
        matching::heaviest(&weights)
    }
}

/// The schedule with the largest speed-up that any pairing has. O(n³): 26 programs take about a
/// millisecond.
pub fn best(matrix: &SlowDowns) -> Schedule {
    extreme(matrix, true)
}

/// The schedule with the smallest speed-up that any pairing has.
pub fn worst(matrix: &SlowDowns) -> Schedule {
    extreme(matrix, false)
}

fn extreme(matrix: &SlowDowns, is_best: bool) -> Schedule {
    let costs = Costs::of(matrix);
    let partner = costs.extreme(is_best);
    let name = |program: usize| matrix.names()[program].clone();
    let (mut pairs, mut alone, mut run_time) = (Vec::new(), None, 0.0);
    for (a, &b) in partner.iter().enumerate().filter(|(a, b)| *a < **b) {
        run_time += costs.cost(a, b);
        if b == costs.programs {
            alone = Some(name(a));
        } else {
            pairs.push([name(a), name(b)]);
        }
    }
    Schedule {
        pairs,
        alone,
        run_time,
        speed_up: costs.speed_up(run_time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::draw;

    /// The run times of all pairings of the places that are left.
    fn all_run_times(costs: &Costs, left: &[usize]) -> Vec<f64> {
        let Some((&first, rest)) = left.split_first() else {
            return vec![0.0];
        };
        let with = |&other: &usize| {
            let others: Vec<usize> = rest.iter().copied().filter(|&v| v != other).collect();
            let cost = costs.cost(first, other);
            all_run_times(costs, &others)
                .into_iter()
                .map(move |time| cost + time)
        };
        rest.iter().flat_map(with).collect()
    }

    #[test]
    fn best_and_worst_are_those_of_all_pairings_when_they_can_be_tried() {
        for programs in [2, 3, 5, 7, 8] {
            for seed in 0..60 {
                let matrix = draw::matrix(programs, (-0.3, 0.6), seed).unwrap();
                let costs = Costs::of(&matrix);
                let all: Vec<usize> = (0..costs.vertices()).collect();
                let times = all_run_times(&costs, &all);
                let least = times.iter().copied().fold(f64::INFINITY, f64::min);
                let most = times.iter().copied().fold(0.0, f64::max);
                if programs == 8 {
                    assert_eq!(times.len(), 105);
                }
                assert!((best(&matrix).run_time - least).abs() < 1e-9, "seed {seed}");
                assert!((worst(&matrix).run_time - most).abs() < 1e-9, "seed {seed}");
            }
        }
    }

    #[test]
    fn every_program_runs_once_when_the_number_is_odd() {
        let matrix = draw::matrix(9, draw::PAPER_SPEED_UP, 5).unwrap();
        let schedule = best(&matrix);
        let mut all: Vec<String> = schedule.pairs.iter().flatten().cloned().collect();
        all.extend(schedule.alone);
        all.sort();
        assert_eq!(all, matrix.names());
        assert_eq!(schedule.pairs.len(), 4);
    }

    #[test]
    fn cost_is_the_mean_of_both_directions_and_one_alone() {
        let matrix = SlowDowns::parse("x,a,b,c\na,,1.2,1.9\nb,1.6,,1.9\nc,1.9,1.9,\n").unwrap();
        let schedule = best(&matrix);
        assert_eq!(schedule.pairs, [["a", "b"]]);
        assert_eq!(schedule.alone.as_deref(), Some("c"));
        assert!((schedule.run_time - 2.4).abs() < 1e-12);
        assert!((schedule.speed_up - 0.25).abs() < 1e-12);
    }
}
