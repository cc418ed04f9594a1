//! When to order: renewal, and the next try after a failure. Pure: times go in and come out, in seconds since
//! 1970.
//!
//! All jitter follows from the certificate or the name and is not random. So a restart changes no date, and the
//! names of a server are spread over the window of the authority.

use headway_base::random::mixed;
use serde::{Deserialize, Serialize};

use crate::certificate::Facts;

/// The longest time until the next try.
const WAIT_MAX_S: u64 = 12 * 3600;
/// A restarted process tries again after this number of first intervals. An authority may allow five
/// failures per hour and name.
const RESTART_INTERVALS: u64 = 15;

/// The window in which an authority wants a certificate to be renewed (RFC 9773, 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start_s: u64,
    pub(crate) end_s: u64,
}

/// When to renew: at a moment of the window, or after two thirds of the lifetime and up to a thirtieth
/// more.
pub(crate) fn renewal_s(facts: &Facts, window: Option<Window>) -> u64 {
    let chance = chance_of(&facts.serial);
    let lifetime_s = facts.not_after_s.saturating_sub(facts.not_before_s);
    let (start_s, length_s) = match window {
        Some(Window { start_s, end_s }) => (start_s, end_s.saturating_sub(start_s)),
        None => (facts.not_before_s + lifetime_s / 3 * 2, lifetime_s / 30),
    };
    start_s + part(length_s, chance)
}

/// The failed tries since the last certificate of a name. They are kept in a file, so that a process
/// which starts again and again does not ask the authority again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// How many.
    pub(crate) count: u32,
    /// When the last one began.
    pub(crate) tried_s: u64,
    /// The time before which the authority wants no further try (`Retry-After`).
    pub(crate) wait_until_s: u64,
    /// Why the last order failed.
    #[serde(default)]
    pub(crate) why: String,
}

impl Failures {
    /// Whether they are in the future, which means that the clock was wrong.
    pub(crate) fn is_of_future(&self, now_s: u64) -> bool {
        self.tried_s > now_s
    }

    /// When to try again.
    pub(crate) fn next_s(&self, host: &str, retry_ms: u64) -> u64 {
        if self.count == 0 {
            return self.wait_until_s;
        }
        let doublings = (self.count - 1).min(32);
        let retry_s = retry_ms.div_ceil(1000);
        let wait_s = retry_s.saturating_mul(1 << doublings).min(WAIT_MAX_S);
        let chance = chance_of(format!("{host} {}", self.tried_s).as_bytes());
        let wait_s = wait_s + part(wait_s / 10, chance);
        (self.tried_s + wait_s).max(self.wait_until_s)
    }

    /// When a process that has just started tries: the administrator may have removed the cause.
    pub(crate) fn first_s(&self, host: &str, retry_ms: u64) -> u64 {
        let soon_s = self.tried_s + retry_ms.div_ceil(1000) * RESTART_INTERVALS;
        let next_s = self.next_s(host, retry_ms);
        next_s.min(soon_s).max(self.wait_until_s)
    }
}

/// A number which other bytes are unlikely to have.
fn chance_of(bytes: &[u8]) -> u32 {
    let number = bytes
        .iter()
        .fold(1, |sum, byte| mixed(sum ^ u64::from(*byte)));
    (number >> 32) as u32
}

/// A part of a length, at most all of it.
fn part(length: u64, chance: u32) -> u64 {
    let product = u128::from(length) * u128::from(chance);
    (product >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 86_400;

    fn facts(serial: u8) -> Facts {
        Facts {
            not_before_s: 1_000 * DAY_S,
            not_after_s: 1_090 * DAY_S,
            serial: vec![serial, 7],
            authority_key: None,
        }
    }

    #[test]
    fn renewal_without_a_window_is_after_two_thirds_of_the_lifetime() {
        let all: Vec<u64> = (0..100)
            .map(|serial| renewal_s(&facts(serial), None))
            .collect();
        let within = 1_060 * DAY_S..1_063 * DAY_S;
        assert!(all.iter().all(|one| within.contains(one)), "{all:?}");
        assert!(all.iter().any(|one| *one < 1_061 * DAY_S), "{all:?}");
        assert!(all.iter().any(|one| *one > 1_062 * DAY_S), "{all:?}");
        assert_eq!(all[3], renewal_s(&facts(3), None));
    }

    #[test]
    fn renewal_is_within_the_window_of_the_authority() {
        let window = |start_s, end_s| Some(Window { start_s, end_s });
        for serial in 0..100 {
            let found = renewal_s(&facts(serial), window(500, 600));
            assert!((500..600).contains(&found), "{found}");
        }
        // One which ends before it begins is a moment.
        assert_eq!(renewal_s(&facts(1), window(500, 400)), 500);
    }

    #[test]
    fn tries_are_twice_as_far_apart_after_each_failure() {
        let mut failures = Failures::default();
        assert_eq!(failures.next_s("a.example", 60_000), 0);
        failures.tried_s = 5_000;
        for (count, wait_s) in [
            (1, 60),
            (2, 120),
            (3, 240),
            (10, 30_720),
            (11, 43_200),
            (u32::MAX, 43_200),
        ] {
            failures.count = count;
            let found = failures.next_s("a.example", 60_000) - 5_000;
            assert!(
                (wait_s..=wait_s * 11 / 10).contains(&found),
                "{count}: {found}"
            );
        }
    }

    #[test]
    fn authority_decides_when_to_try_again() {
        let failures = Failures {
            count: 1,
            tried_s: 5_000,
            wait_until_s: 90_000,
            ..Failures::default()
        };
        assert_eq!(failures.next_s("a.example", 60_000), 90_000);
        assert_eq!(failures.first_s("a.example", 60_000), 90_000);
    }

    #[test]
    fn failures_of_a_wrong_clock_are_known() {
        let failures = Failures {
            tried_s: 5_000,
            ..Failures::default()
        };
        assert!(failures.is_of_future(4_999) && !failures.is_of_future(5_000));
    }

    #[test]
    fn restarted_process_tries_soon_but_not_at_once() {
        let failures = |count| Failures {
            count,
            tried_s: 5_000,
            ..Failures::default()
        };
        assert_eq!(failures(20).first_s("a.example", 60_000), 5_900);
        let next_s = failures(1).next_s("a.example", 60_000);
        assert_eq!(failures(1).first_s("a.example", 60_000), next_s);
    }
}
