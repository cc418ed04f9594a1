//! The state of each upstream: its load, and whether it is ejected.
//!
//! Every worker learns this from its own requests. In the sum over workers the loads add up, and
//! of the other numbers the worst one counts, with the number of workers that have ejected the
//! upstream.

use serde::{Deserialize, Serialize};

/// One upstream of one location.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Upstream {
    /// The location, by its prefix or suffix.
    pub location: String,
    /// The upstream's address.
    pub address: String,
    /// Requests under way.
    pub requests_active: u64,
    /// Keep-alive connections that wait for the next request.
    pub idle_connections: u64,
    /// Consecutive failures since the last ejection.
    pub consecutive_failures: u64,
    /// Ejections since the last answer.
    pub ejections: u64,
    /// Workers that have ejected it now.
    pub ejected: u64,
    /// Time until the last of these workers tries it again, in milliseconds.
    pub ejection_remaining_ms: u64,
}

impl Upstream {
    /// Adds what another worker knows to the list of all.
    pub fn merge(all: &mut Vec<Upstream>, other: &Upstream) {
        let same =
            |one: &&mut Upstream| one.location == other.location && one.address == other.address;
        let Some(one) = all.iter_mut().find(same) else {
            return all.push(other.clone());
        };
        let add = |one: &mut u64, other| *one = one.saturating_add(other);
        add(&mut one.requests_active, other.requests_active);
        add(&mut one.idle_connections, other.idle_connections);
        add(&mut one.ejected, other.ejected);
        one.consecutive_failures = one.consecutive_failures.max(other.consecutive_failures);
        one.ejections = one.ejections.max(other.ejections);
        one.ejection_remaining_ms = one.ejection_remaining_ms.max(other.ejection_remaining_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_upstream_adds_requests_and_shows_the_longest_ejection() {
        let one = Upstream {
            location: "/app/".into(),
            address: "127.0.0.1:1".into(),
            requests_active: 2,
            idle_connections: 1,
            consecutive_failures: 2,
            ..Upstream::default()
        };
        let worse = Upstream {
            consecutive_failures: 0,
            ejections: 3,
            ejected: 1,
            ejection_remaining_ms: 900,
            ..one.clone()
        };
        let elsewhere = Upstream {
            location: ".php".into(),
            ..one.clone()
        };
        let mut all = Vec::new();
        for other in [&one, &worse, &elsewhere] {
            Upstream::merge(&mut all, other);
        }
        let expected = Upstream {
            requests_active: 4,
            idle_connections: 2,
            consecutive_failures: 2,
            ..worse
        };
        assert_eq!(all, [expected, elsewhere]);
    }
}
