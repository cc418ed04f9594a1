//! The search for a knee: the highest rate of an open loop that a server answers in time.
//!
//! From a first rate the search doubles or halves until one rate is answered in time and a higher one is
//! not, then divides what is between them. Each probe is a measurement of its own at a plain rate (the
//! caller makes it), so a search that was interrupted finds its first probes done. What is refused here: any
//! other shape than one threshold. A rate above a bad one is never tried.

/// Where the search begins, of the capacity: near it, and rarely above the knee.
const START_SHARE: f64 = 0.8;

/// Two rates are near enough when the higher is this many times the lower.
const NEAR: f64 = 1.05;

/// Probes of a search near a capacity at most: enough for a knee between an eighth and eight times of the
/// start.
pub const PROBES_MAX: u32 = 10;

/// Probes of most searches near a capacity, for an estimate of the time.
pub const PROBES_USUAL: u32 = 7;

/// Probes of a search without a capacity: enough for 100,000 times the start.
pub const PROBES_FROM_MAX: u32 = 24;

/// The share of the scheduled requests that is answered at a knee.
pub const ANSWERED_MIN: f64 = 0.97;

/// A search between a rate that is good and one that is not.
///
/// ```
/// use headway_load::knee::{Search, Step};
///
/// let mut search = Search::from_rate(100.0);
/// while let Step::Probe(rate_rps) = search.step() {
///     search.take(rate_rps, rate_rps <= 4_980.0);
/// }
/// assert!(matches!(search.step(), Step::Found(knee) if (4_740.0..=4_980.0).contains(&knee)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    start: f64,
    good: Option<f64>,
    bad: Option<f64>,
    probes: u32,
    probes_max: u32,
}

/// What a search does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// This rate is to be tried.
    Probe(f64),
    /// The knee.
    Found(f64),
    /// Every rate that was tried was answered in time; this is the highest.
    AtLeast(f64),
    /// No rate that was tried was answered in time; this is the lowest.
    Below(f64),
}

impl Search {
    /// A search that starts near a capacity.
    pub fn near(capacity_rps: f64) -> Search {
        Search {
            probes_max: PROBES_MAX,
            ..Search::from_rate(START_SHARE * capacity_rps)
        }
    }

    /// A search that starts at this rate, wherever the knee may be.
    pub fn from_rate(rate_rps: f64) -> Search {
        Search {
            start: rate_rps,
            good: None,
            bad: None,
            probes: 0,
            probes_max: PROBES_FROM_MAX,
        }
    }

    /// What to do now.
    pub fn step(&self) -> Step {
        let ended = self.probes >= self.probes_max;
        match (self.good, self.bad) {
            (Some(good), Some(bad)) if ended || bad <= NEAR * good => Step::Found(good),
            (Some(good), Some(bad)) => Step::Probe(rounded((good * bad).sqrt())),
            (Some(good), None) if ended => Step::AtLeast(good),
            (None, Some(bad)) if ended => Step::Below(bad),
            (Some(good), None) => Step::Probe(rounded(2.0 * good)),
            (None, Some(bad)) => Step::Probe(rounded(bad / 2.0)),
            (None, None) => Step::Probe(rounded(self.start)),
        }
    }

    /// Takes what came of a probe.
    pub fn take(&mut self, rate_rps: f64, is_good: bool) {
        self.probes += 1;
        match is_good {
            true => self.good = Some(rate_rps),
            false => self.bad = Some(rate_rps),
        }
    }
}

/// Four digits: the rate is printed, and is part of what its measurement is found by.
fn rounded(rate_rps: f64) -> f64 {
    let digits = rate_rps.log10().floor();
    let unit = 10_f64.powf(digits - 3.0);
    let rounded = (rate_rps / unit).round() * unit;
    // A multiple of 0.1 is no float: without this 812.3 would be 812.3000000000001.
    format!("{rounded:.6}").parse().unwrap_or(rounded)
}

/// Whether a rate was answered in time: as many requests as chance lets expect, with a mean within the limit.
pub fn is_good(
    answered_rps: f64,
    offered_rps: f64,
    seconds: f64,
    mean_ms: Option<f64>,
    limit_ms: f64,
) -> bool {
    let kept_up = !is_behind(answered_rps, offered_rps, seconds);
    kept_up && mean_ms.is_some_and(|mean_ms| mean_ms <= limit_ms)
}

/// Whether a server was overrun: it answered less than 97 % of what was asked in an open loop, and
/// the chance in the arrivals does not explain it.
pub fn is_behind(answered_rps: f64, offered_rps: f64, seconds: f64) -> bool {
    let offered = offered_rps * seconds;
    answered_rps * seconds < ANSWERED_MIN * offered - 3.0 * offered.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server of one queue does at a rate: exponential service times, and what comes above
    /// its rate is not answered.
    fn queue(service_rps: f64) -> impl Fn(f64) -> (f64, f64) {
        move |offered: f64| match offered < service_rps {
            true => (offered, 1e3 / (service_rps - offered)),
            false => (service_rps, f64::INFINITY),
        }
    }

    /// Runs a search on a server; gives what was found and the rates that were tried.
    fn search(
        capacity: f64,
        limit_ms: f64,
        server: impl Fn(f64) -> (f64, f64),
    ) -> (Step, Vec<f64>) {
        let mut search = Search::near(capacity);
        let mut tried = Vec::new();
        loop {
            match search.step() {
                Step::Probe(rate) => {
                    tried.push(rate);
                    let (answered, mean_ms) = server(rate);
                    search.take(rate, is_good(answered, rate, 30.0, Some(mean_ms), limit_ms));
                }
                ended => return (ended, tried),
            }
        }
    }

    #[test]
    fn knee_is_found_within_five_percent_wherever_the_capacity_was() {
        // The mean of a queue is 50 ms at 20 requests per second below its rate.
        let knee = 4_980.0;
        for share in [0.15, 0.3, 0.6, 0.9, 1.0, 1.2, 2.0, 5.0, 8.0] {
            let (found, tried) = search(share * 5_000.0, 50.0, queue(5_000.0));
            let Step::Found(rate) = found else {
                panic!("capacity {share}: {found:?} after {tried:?}");
            };
            assert!(
                rate <= knee && rate * NEAR >= knee * 0.999,
                "capacity {share}: {rate} after {tried:?}"
            );
            assert!(tried.len() <= PROBES_MAX as usize, "{tried:?}");
        }
    }

    #[test]
    fn knee_is_found_from_any_first_rate_when_there_is_no_capacity() {
        let server = queue(5_000.0);
        for start in [0.1, 100.0, 90_000.0] {
            let mut search = Search::from_rate(start);
            while let Step::Probe(rate) = search.step() {
                let (answered, mean_ms) = server(rate);
                search.take(rate, is_good(answered, rate, 30.0, Some(mean_ms), 50.0));
            }
            let Step::Found(rate) = search.step() else {
                panic!("{start}: {search:?}");
            };
            assert!(rate <= 4_980.0 && rate * NEAR >= 4_975.0, "{start}: {rate}");
        }
    }

    #[test]
    fn latency_limits_the_knee_before_the_goodput_does() {
        // 1 ms of mean latency: 1,000 requests per second below the rate of the queue.
        let (found, tried) = search(5_000.0, 1.0, queue(5_000.0));
        let Step::Found(rate) = found else {
            panic!("{found:?}")
        };
        assert!((3_800.0..=4_000.0).contains(&rate), "{rate} of {tried:?}");
    }

    #[test]
    fn goodput_limits_the_knee_when_the_server_rejects_early() {
        // Never slow, but it answers at most 5,000 per second.
        let rejecting = |offered: f64| (offered.min(5_000.0), 1.0);
        let (found, tried) = search(5_000.0, 50.0, rejecting);
        let Step::Found(rate) = found else {
            panic!("{found:?}")
        };
        // 97 % of 5,155 are 5,000; chance in the arrivals allows some more.
        assert!((4_950.0..=5_200.0).contains(&rate), "{rate} of {tried:?}");
    }

    #[test]
    fn search_ends_when_every_rate_is_good_or_none_is() {
        let (always, tried) = search(100.0, 50.0, |offered| (offered, 1.0));
        assert_eq!(always, Step::AtLeast(tried[tried.len() - 1]));
        assert_eq!(tried.len(), PROBES_MAX as usize);
        let (never, tried) = search(100.0, 50.0, |offered| (offered, 60.0));
        assert_eq!(never, Step::Below(tried[tried.len() - 1]));
    }

    #[test]
    fn rates_have_four_digits() {
        assert_eq!(rounded(6_543.21), 6_543.0);
        assert_eq!(rounded(812.345), 812.3);
        assert_eq!(rounded(12_345.6), 12_350.0);
        assert_eq!(rounded(0.81), 0.81);
    }

    #[test]
    fn server_is_behind_when_more_is_missing_than_chance_explains() {
        assert!(!is_behind(98.0, 100.0, 1.0));
        assert!(!is_behind(75.0, 100.0, 1.0), "three times the square root");
        assert!(is_behind(60.0, 100.0, 1.0));
        assert!(!is_behind(3_880.0, 4_000.0, 6.0));
        assert!(is_behind(3_700.0, 4_000.0, 6.0));
        assert!(!is_behind(5_000.0, 4_000.0, 6.0));
    }
}
