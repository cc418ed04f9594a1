//! When the capacity is the client's: the highest rate that the client still offers validly.
//!
//! If the client had no idle time in a closed loop, that loop measured the client. Percentages of
//! such a capacity would be loads that the client cannot offer in time, and near 100 % every point
//! would be suspect. So open loops search for a rate that the client can offer, and the percentages
//! refer to that rate. The server's own capacity stays unknown, and every output says so.
//!
//! Pure, except [`client_bound`], which gets the descriptions of runs: results of earlier trials
//! in, the next rate to try out. An interrupted search continues from the points on disk.

use headway_latency::run::RunDescription;
use headway_latency::run::description::{ClientBound, ProfileInfo};

use super::median;
use crate::verdict::{BUSY_SUSPECT, RUN_QUEUE_INVALID};
use headway_latency::format::{number, percent};

/// From where a client is the bottleneck of its closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Share of the time at work: it had no time left for a faster server. A lower rate leaves it
    /// some, so one is looked for.
    pub busy: f64,
    /// Share of the time that the client waited for a CPU: something else runs on its core, often
    /// the server. Then no rate is valid.
    pub waited: f64,
}

impl Default for Limit {
    /// The bounds of the verdict: doubt of the one, and certainty of the other, since a little of
    /// it is everywhere.
    fn default() -> Limit {
        Limit {
            busy: BUSY_SUSPECT,
            waited: RUN_QUEUE_INVALID,
        }
    }
}

/// The first rate tried, as a share of the closed loop's: an open loop is believed while it is at
/// work for less than nine tenths of the time, and a request costs it about the same.
const FIRST_TRIAL_SHARE: f64 = 0.9;

/// From a rate that was too high to the next lower one, while none was valid.
const STEP_DOWN_FACTOR: f64 = 0.8;

/// The search ends when the rate is known to this relative precision.
const RATE_PRECISION: f64 = 0.05;

/// The search ends when this many runs have found no valid rate: something other than the rate is
/// wrong, such as a shared core.
const INVALID_TRIALS_MAX: usize = 5;

/// The search ends after this many runs in any case.
const TRIALS_MAX: usize = 9;

/// A rate that was offered, and whether its run was valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trial {
    /// Requests per second.
    pub rate_rps: f64,
    /// The verdict was *valid*.
    pub valid: bool,
}

/// Where the search stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    /// The rate to try next.
    Try(f64),
    /// The highest valid rate that was found, if any.
    Found(Option<f64>),
}

/// The next step after these trials, when the closed loop reached `closed_rps`.
pub(super) fn next(closed_rps: f64, trials: &[Trial]) -> Next {
    let rates = |valid| {
        let those = trials.iter().filter(move |trial| trial.valid == valid);
        those.map(|trial| trial.rate_rps)
    };
    // Beyond the closed loop's own rate nothing is looked for: there the client had no time left at
    // all.
    let high = rates(false).fold(closed_rps, f64::min);
    // A valid rate above one that was not is chance, and what is below both is safer.
    let low = rates(true).filter(|rate| *rate < high).reduce(f64::max);
    match low {
        _ if trials.is_empty() => Next::Try(closed_rps * FIRST_TRIAL_SHARE),
        _ if trials.len() >= TRIALS_MAX => Next::Found(low),
        None if trials.len() >= INVALID_TRIALS_MAX => Next::Found(None),
        None => Next::Try(high * STEP_DOWN_FACTOR),
        Some(low) if high - low <= high * RATE_PRECISION * 1.001 => Next::Found(Some(low)),
        Some(low) => Next::Try(f64::midpoint(low, high)),
    }
}

/// Whether the client was the bottleneck of these runs, closed loops or one above the knee, by the medians of what it says of
/// its time.
pub(super) fn client_bound(closed: &[RunDescription], limit: &Limit) -> Option<ClientBound> {
    let of = |value: fn(&RunDescription) -> Option<f64>| {
        median(closed.iter().filter_map(value).collect())
    };
    let closed_rps = of(|run| run.summary.as_ref().map(|summary| summary.rate_rps))?;
    let busy_share = of(|run| run.client.as_ref()?.busy_share).unwrap_or(0.0);
    let waited_share = of(waiting_share).unwrap_or(0.0);
    let bound = busy_share >= limit.busy || waited_share >= limit.waited;
    bound.then_some(ClientBound {
        closed_rps,
        busy_share,
        waited_share,
        valid_rps: None,
    })
}

/// Share of a run that its client waited for a CPU; the time includes the warm-up.
fn waiting_share(run: &RunDescription) -> Option<f64> {
    let length_s = run.load.warmup_s + run.summary.as_ref()?.duration_s;
    let waited_s = run.client.as_ref()?.run_queue_delay_s?;
    (length_s > 0.0).then(|| waited_s / length_s)
}

/// The capacity as a sentence without a full stop, and whether it is the client's; `None` while it
/// is unknown.
///
/// ```
/// use headway_load::profile::capacity_text;
/// use headway_latency::run::{ClientBound, ProfileInfo};
///
/// let bound = ClientBound { closed_rps: 50_000.0, busy_share: 0.97, waited_share: 0.0, valid_rps: Some(42_750.0) };
/// let info = ProfileInfo { capacity_rps: Some(42_750.0), client_bound: Some(bound), points: Vec::new() };
/// assert_eq!(
///     capacity_text(&info).as_deref(),
///     Some(
///         "capacity is at least 50,000 requests/s: the client is the bottleneck (busy 97 % of the closed loop); \
///          loads are shares of 42,750/s, the highest rate that it offers validly",
///     )
/// );
/// ```
pub fn capacity_text(info: &ProfileInfo) -> Option<String> {
    let base = info.capacity_rps?;
    let has_knee = info.points.iter().any(|point| point.of_knee);
    let Some(bound) = &info.client_bound else {
        let named = info.points.iter().all(|point| point.relative > 0.0);
        let how = match (named, has_knee) {
            (true, _) => " (given, not measured)",
            (_, true) => " (the knee: the highest rate answered in time)",
            _ => "",
        };
        return Some(format!("capacity {} requests/s{how}", number(base)));
    };
    let what = match bound.valid_rps {
        Some(_) => ", the highest rate that it offers validly",
        None => ", for which no valid run is known",
    };
    Some(format!(
        "capacity is at least {} requests/s: the client is the bottleneck ({}); loads are shares of {}/s{what}",
        number(bound.at_least_rps()),
        limit_text(bound, has_knee),
        number(base)
    ))
}

/// What limited the client: `busy 97 % of the closed loop`.
pub(super) fn limit_text(bound: &ClientBound, has_knee: bool) -> String {
    let of = match has_knee {
        true => "of the time above the knee",
        false => "of the closed loop",
    };
    match bound.busy_share >= BUSY_SUSPECT || bound.busy_share >= bound.waited_share {
        true => format!("busy {} {of}", percent(bound.busy_share)),
        false => format!(
            "waited for a CPU {} {of}, because others run on it too",
            percent(bound.waited_share)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_latency::run::description::{ClientInfo, Summary};

    /// Follows the search for a client that offers validly up to `limit`; the rates it tried and
    /// what it found.
    fn search(closed: f64, limit: f64) -> (Vec<f64>, Option<f64>) {
        let mut trials = Vec::new();
        loop {
            match next(closed, &trials) {
                Next::Try(rate_rps) => trials.push(Trial {
                    rate_rps,
                    valid: rate_rps <= limit,
                }),
                Next::Found(found) => {
                    return (trials.iter().map(|trial| trial.rate_rps).collect(), found);
                }
            }
        }
    }

    #[test]
    fn rate_is_found_to_one_part_in_twenty_when_the_client_offers_a_part() {
        for percent in 37..=100 {
            let limit = f64::from(percent) * 10.0;
            let (tried, found) = search(1000.0, limit);
            let found = found.expect("a valid rate");
            assert!(found <= limit, "{limit}: {found}");
            // Never beyond the closed loop's rate, so 950 is the most.
            assert!(found >= limit.min(1000.0) * 0.949, "{limit}: {found}");
            assert!(tried.len() <= TRIALS_MAX, "{limit}: {tried:?}");
        }
        assert_eq!(search(1000.0, 2000.0), (vec![900.0, 950.0], Some(950.0)));
    }

    #[test]
    fn no_rate_is_found_when_the_client_offers_none() {
        let (tried, found) = search(1000.0, 0.0);
        assert_eq!(found, None);
        assert_eq!(tried.len(), INVALID_TRIALS_MAX);
        assert!(tried.is_sorted_by(|a, b| a > b), "{tried:?}");
    }

    #[test]
    fn search_continues_below_an_invalid_rate_when_a_higher_one_was_valid() {
        let trials = [(900.0, false), (765.0, true), (832.5, true), (800.0, false)];
        let trials = trials.map(|(rate_rps, valid)| Trial { rate_rps, valid });
        assert_eq!(next(1000.0, &trials), Next::Found(Some(765.0)));
    }

    #[test]
    fn client_is_the_limit_when_it_was_busy_most_of_the_median_run() {
        let run = |busy, rate_rps| RunDescription {
            client: Some(ClientInfo {
                busy_share: Some(busy),
                ..ClientInfo::default()
            }),
            summary: Some(Summary {
                rate_rps,
                ..Summary::default()
            }),
            ..RunDescription::default()
        };
        let runs = [run(0.91, 100.0), run(0.5, 300.0), run(0.95, 200.0)];
        let found = client_bound(&runs, &Limit::default()).expect("two of three are at the limit");
        assert_eq!((found.busy_share, found.closed_rps), (0.91, 200.0));
        assert_eq!(client_bound(&runs[1..2], &Limit::default()), None);
        assert_eq!(
            client_bound(&[run(0.9, 1.0)], &Limit::default()).map(|found| found.closed_rps),
            Some(1.0)
        );
        assert_eq!(client_bound(&[], &Limit::default()), None);
    }

    #[test]
    fn client_is_the_bottleneck_when_it_waited_for_its_cpu() {
        let run = |run_queue_delay_s| {
            let mut run = RunDescription::default();
            run.load.warmup_s = 5.0;
            run.summary = Some(Summary {
                duration_s: 15.0,
                ..Summary::default()
            });
            run.client = Some(ClientInfo {
                run_queue_delay_s: Some(run_queue_delay_s),
                ..ClientInfo::default()
            });
            run
        };
        assert_eq!(client_bound(&[run(1.9)], &Limit::default()), None);
        let found = client_bound(&[run(2.0)], &Limit::default()).expect("a tenth of the time");
        assert_eq!(found.waited_share, 0.1);
        assert!(limit_text(&found, false).starts_with("waited for a CPU 10 %"));
    }

    #[test]
    fn capacity_text_names_the_client_when_no_rate_was_valid() {
        let bound = ClientBound {
            closed_rps: 800.0,
            busy_share: 0.3,
            waited_share: 0.5,
            valid_rps: None,
        };
        let info = ProfileInfo {
            capacity_rps: Some(800.0),
            client_bound: Some(bound),
            points: Vec::new(),
        };
        let text = capacity_text(&info).expect("a capacity");
        assert!(
            text.starts_with("capacity is at least 800 requests/s: the client is the bottleneck")
        );
        assert!(
            text.ends_with("shares of 800/s, for which no valid run is known"),
            "{text}"
        );
        assert_eq!(capacity_text(&ProfileInfo::default()), None);
    }
}
