//! A matrix at random, to try the analysis without measuring: no figure in it belongs to a real
//! program.
//!
//! What the dissertation reports of its matrix is the range of the speed-ups that schedules have,
//! 12 % to 26 %. Here the speed-up of each *pair* is drawn uniformly from a range, and the two
//! directions of a pair share its cost unevenly.

use super::matrix::{MatrixError, PROGRAMS_MAX, SlowDowns};

use headway_base::random::{Draw, SplitMix64};

/// The range that the dissertation's schedules have, section 4.7.
pub const PAPER_SPEED_UP: (f64, f64) = (0.12, 0.26);

/// The most by which the two slow-downs of a pair are away from their mean, as a share of it.
const UNEVEN_SHARE_MAX: f64 = 0.1;

/// A matrix of `programs` named p1, p2 …, each pair's speed-up drawn from `lowest` to `highest`,
/// both as shares (0.12 is 12 %), above −1 and not more than 1. The same seed gives the same
/// matrix.
///
/// # Errors
/// [`MatrixError::Programs`] for fewer than two or too many.
pub fn matrix(programs: usize, speed_up: (f64, f64), seed: u64) -> Result<SlowDowns, MatrixError> {
    if !(2..=PROGRAMS_MAX).contains(&programs) {
        return Err(MatrixError::Programs(programs));
    }
    let mut random = SplitMix64::for_stream(seed, u64::MAX);
    let (lowest, highest) = speed_up;
    // Both directions of a pair are drawn when the first of them is asked for, which is the one
    // above the diagonal.
    let mut below = vec![0.0; programs * programs];
    let width = programs.to_string().len();
    let names = (1..=programs)
        .map(|number| format!("p{number:0width$}"))
        .collect();
    SlowDowns::new(names, |row, column| {
        if column < row {
            return below[row * programs + column];
        }
        // Two programs' work alone over the time for both, less one, is the speed-up of a pair.
        let cost = 2.0 / (1.0 + lowest + (highest - lowest) * random.fraction());
        let uneven = (2.0 * random.fraction() - 1.0) * UNEVEN_SHARE_MAX;
        below[column * programs + row] = cost * (1.0 - uneven);
        cost * (1.0 + uneven)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Costs;

    #[test]
    fn every_pair_is_within_the_range_when_a_matrix_is_drawn() {
        let matrix = matrix(26, PAPER_SPEED_UP, 3).unwrap();
        let costs = Costs::of(&matrix);
        let pairs = (0..26).flat_map(|a| (0..a).map(move |b| (a, b)));
        let gains: Vec<f64> = pairs.map(|(a, b)| 2.0 / costs.cost(a, b) - 1.0).collect();
        assert!(
            gains.iter().all(|gain| (0.1199..=0.2601).contains(gain)),
            "{gains:?}"
        );
        let least = gains.iter().copied().fold(1.0, f64::min);
        let most = gains.iter().copied().fold(0.0, f64::max);
        assert!(least < 0.13 && most > 0.25, "{least} {most}");
        assert_ne!(matrix.slow_down(0, 1), matrix.slow_down(1, 0));
        assert_eq!(matrix.names()[0], "p01");
    }

    #[test]
    fn matrix_is_another_when_the_seed_is() {
        let of = |seed| matrix(5, PAPER_SPEED_UP, seed).unwrap();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
