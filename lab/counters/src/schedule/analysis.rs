//! Everything that is asked of a matrix, in one call.

use serde::Serialize;

use super::matrix::SlowDowns;
use super::pairing::{self, Costs, Schedule};
use super::rounds::{self, SpeedupsAfterRounds};
use super::trials::{self, Distribution, Trials};

/// The shares of random schedules for which an analysis has the speed-up that they do not exceed.
pub const QUANTILES: [f64; 7] = [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99];

/// What a matrix shows about pairing its programs. Speed-ups are shares: 0.2 is 20 %.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Number of programs.
    pub programs: usize,
    /// The seed of everything random in it.
    pub seed: u64,
    /// The schedule with the least speed-up, exactly.
    pub worst: Schedule,
    /// Random schedules.
    pub random: Distribution,
    /// Speed-ups of random schedules by the share of them that has no more, as in [`QUANTILES`].
    pub quantiles: Vec<Quantile>,
    /// The schedule with the largest speed-up, exactly.
    pub best: Schedule,
    /// What an ideal scheduler gains over a random one: the best speed-up less the mean of random
    /// ones.
    pub ideal_over_random: f64,
    /// Schedulers that pair at random again in each round.
    pub rounds: Vec<SpeedupsAfterRounds>,
}

/// A share of the random schedules, and the speed-up that they do not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantile {
    /// Share of the schedules, from 0 to 1.
    pub share: f64,
    /// As a share of 1.
    pub speed_up: f64,
}

/// Analyses a matrix; schedulers that pair again in each round do so for the given number of
/// rounds. The same settings give the same result.
///
/// ```
/// use headway_counters::schedule::{SlowDowns, analysis, trials::Trials};
/// let matrix = SlowDowns::parse("program,gzip,mcf\ngzip,,1.25\nmcf,1.75,\n")?;
/// let trials = Trials { count: 100, seed: 1, threads: 1 };
/// let found = analysis::run(&matrix, &trials, 4);
/// // Two units of work in the mean of 1.25 and 1.75: a third more.
/// assert!((found.best.speed_up - 1.0 / 3.0).abs() < 1e-9);
/// # Ok::<(), headway_counters::schedule::MatrixError>(())
/// ```
pub fn run(matrix: &SlowDowns, trials: &Trials, rounds: u32) -> Analysis {
    let costs = Costs::of(matrix);
    let (worst, best) = (pairing::worst(matrix), pairing::best(matrix));
    let random = trials::run(&costs, trials, (worst.speed_up, best.speed_up));
    let quantiles = QUANTILES.map(|share| Quantile {
        share,
        speed_up: random.quantile(share),
    });
    Analysis {
        programs: costs.programs(),
        seed: trials.seed,
        ideal_over_random: best.speed_up - random.mean,
        worst,
        quantiles: quantiles.to_vec(),
        random,
        best,
        rounds: rounds::run(&costs, trials, rounds),
    }
}
