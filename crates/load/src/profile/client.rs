//! When the capacity is the client's: the highest rate that the client still offers validly.
//!
//! A closed loop whose client had no time left measures the client. Shares of such a capacity would be loads that the
//! client cannot offer in time, and near 100 % every point would be suspect. So open loops look for a rate
//! that it can, and the shares are of that; the server's own capacity stays unknown, and every output says so.
//!
//! Pure but for [`bound`], which is given the descriptions of the runs: what was tried and how it ended in, the next rate to try out, so
//! that a search that was cut off goes on from the points on disk.

use latency::run::RunDescription;
use latency::run::description::{ClientBound, ProfileInfo};

use super::median;
use crate::verdict::BUSY_SUSPECT;
use crate::words::readable::{number, percent};

/// A client that was at work for longer is the limit: the verdict of the closed loop doubts it from there on.
pub const CLIENT_BUSY: f64 = BUSY_SUSPECT;

/// The first rate tried, as a share of the closed loop's: an open loop is believed while it is at work for less than nine tenths
/// of the time, and a request costs it about the same.
const FIRST: f64 = 0.9;

/// From a rate that was too high to the next lower one, while none was valid.
const DOWN: f64 = 0.8;

/// The search ends when the rate is known to one part in so many.
const RESOLUTION: f64 = 0.05;

/// Or when so many runs have found no valid rate: something else than the rate is wrong, such as a core that is shared.
const NONE_MAX: usize = 5;

/// And after so many runs in any case.
const TRIALS_MAX: usize = 9;

/// A rate that was offered, and whether its run was valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Requests a second.
    pub rate_rps: f64,
    /// The verdict was *valid*.
    pub valid: bool,
}

/// Where the search stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// This rate is to be tried.
    Try(f64),
    /// The highest valid rate that was found, if any.
    Found(Option<f64>),
}

/// The next step after these trials, when the closed loop reached `closed_rps`.
pub fn next(closed_rps: f64, trials: &[Trial]) -> Next {
    let rates = |valid| {
        let those = trials.iter().filter(move |trial| trial.valid == valid);
        those.map(|trial| trial.rate_rps)
    };
    // Beyond the closed loop's own rate nothing is looked for: there the client had no time left at all.
    let high = rates(false).fold(closed_rps, f64::min);
    // A valid rate above one that was not is chance, and what is below both is safer.
    let low = rates(true).filter(|rate| *rate < high).reduce(f64::max);
    match low {
        _ if trials.is_empty() => Next::Try(closed_rps * FIRST),
        _ if trials.len() >= TRIALS_MAX => Next::Found(low),
        None if trials.len() >= NONE_MAX => Next::Found(None),
        None => Next::Try(high * DOWN),
        Some(low) if high - low <= high * RESOLUTION * 1.001 => Next::Found(Some(low)),
        Some(low) => Next::Try(f64::midpoint(low, high)),
    }
}

/// Whether the client was the limit of these closed loops, by the median of the time it was at work. `busy` is the share from which it was.
pub fn bound(closed: &[RunDescription], busy: f64) -> Option<ClientBound> {
    let client = |run: &RunDescription| run.client.as_ref().and_then(|client| client.busy_share);
    let answered = |run: &RunDescription| run.summary.as_ref().map(|summary| summary.rate_rps);
    let busy_share = median(closed.iter().filter_map(client).collect())?;
    let closed_rps = median(closed.iter().filter_map(answered).collect())?;
    (busy_share >= busy).then_some(ClientBound {
        closed_rps,
        busy_share,
        valid_rps: None,
    })
}

/// The capacity in a sentence, with whose it is; nothing while it is not known. No full stop.
///
/// ```
/// use headway_load::profile::capacity_words;
/// use latency::run::{ClientBound, ProfileInfo};
///
/// let bound = ClientBound { closed_rps: 50_000.0, busy_share: 0.97, valid_rps: Some(42_750.0) };
/// let info = ProfileInfo { capacity_rps: Some(42_750.0), client_bound: Some(bound), points: Vec::new() };
/// assert_eq!(
///     capacity_words(&info).as_deref(),
///     Some(
///         "capacity is at least 50,000 requests/s: the client is the limit (at work 97 % of the closed loop); \
///          loads are shares of 42,750/s, the highest rate that it offers validly",
///     )
/// );
/// ```
pub fn capacity_words(info: &ProfileInfo) -> Option<String> {
    let base = info.capacity_rps?;
    let Some(bound) = &info.client_bound else {
        let named = info.points.iter().all(|point| point.relative > 0.0);
        let how = if named { " (named, not measured)" } else { "" };
        return Some(format!("capacity {} requests/s{how}", number(base)));
    };
    let what = match bound.valid_rps {
        Some(_) => "the highest rate that it offers validly",
        None => "since it offered no rate validly",
    };
    Some(format!(
        "capacity is at least {} requests/s: the client is the limit (at work {} of the closed loop); \
         loads are shares of {}/s, {what}",
        number(bound.at_least_rps()),
        percent(bound.busy_share),
        number(base)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latency::run::description::{ClientInfo, Summary};

    /// Follows the search for a client that offers validly up to `limit`; the rates it tried and what it found.
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
    fn nothing_is_found_when_the_client_offers_no_rate() {
        let (tried, found) = search(1000.0, 0.0);
        assert_eq!(found, None);
        assert_eq!(tried.len(), NONE_MAX);
        assert!(tried.is_sorted_by(|a, b| a > b), "{tried:?}");
    }

    #[test]
    fn lower_rate_is_looked_for_when_a_valid_one_stands_above_one_that_is_not() {
        let trials = [(900.0, false), (765.0, true), (832.5, true), (800.0, false)];
        let trials = trials.map(|(rate_rps, valid)| Trial { rate_rps, valid });
        assert_eq!(next(1000.0, &trials), Next::Found(Some(765.0)));
    }

    #[test]
    fn client_is_the_limit_when_it_was_at_work_most_of_the_median_run() {
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
        let found = bound(&runs, CLIENT_BUSY).expect("two of three are at the limit");
        assert_eq!((found.busy_share, found.closed_rps), (0.91, 200.0));
        assert_eq!(bound(&runs[1..2], CLIENT_BUSY), None);
        assert_eq!(
            bound(&[run(0.9, 1.0)], CLIENT_BUSY).map(|found| found.closed_rps),
            Some(1.0)
        );
        assert_eq!(bound(&[], CLIENT_BUSY), None);
    }

    #[test]
    fn capacity_is_said_to_be_the_clients_when_no_rate_was_valid() {
        let bound = ClientBound {
            closed_rps: 800.0,
            busy_share: 1.0,
            valid_rps: None,
        };
        let info = ProfileInfo {
            capacity_rps: Some(800.0),
            client_bound: Some(bound),
            points: Vec::new(),
        };
        let words = capacity_words(&info).expect("a capacity");
        assert!(
            words.starts_with("capacity is at least 800.0 requests/s: the client is the limit")
        );
        assert!(
            words.ends_with("shares of 800.0/s, since it offered no rate validly"),
            "{words}"
        );
        assert_eq!(capacity_words(&ProfileInfo::default()), None);
    }
}
