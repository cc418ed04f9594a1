//! What is known of each back end: how much it has to do, and whether it is left alone.
//!
//! Every worker learns for itself, from its own requests. In the sum of several the requests are
//! added, and of what is believed the worst counts, with the number of workers that leave a back
//! end alone.

use serde::{Deserialize, Serialize};

/// One back end of one location.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackEnd {
    /// The location, by its prefix or suffix.
    pub location: String,
    /// Where it is.
    pub address: String,
    /// Requests under way.
    pub requests: u64,
    /// Connections that wait for the next request.
    pub idle: u64,
    /// Failures in a row since it was left alone last.
    pub failures: u64,
    /// How often it has been left alone since it answered last.
    pub ejections: u64,
    /// Workers that leave it alone now.
    pub left_alone: u64,
    /// How much longer the last of them does, in milliseconds.
    pub left_alone_ms: u64,
}

impl BackEnd {
    /// Adds what another worker knows to the list of all.
    pub fn merge(all: &mut Vec<BackEnd>, other: &BackEnd) {
        let same =
            |one: &&mut BackEnd| one.location == other.location && one.address == other.address;
        let Some(one) = all.iter_mut().find(same) else {
            return all.push(other.clone());
        };
        one.requests += other.requests;
        one.idle += other.idle;
        one.failures = one.failures.max(other.failures);
        one.ejections = one.ejections.max(other.ejections);
        one.left_alone += other.left_alone;
        one.left_alone_ms = one.left_alone_ms.max(other.left_alone_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_added_and_the_worst_is_believed_when_workers_differ() {
        let one = BackEnd {
            location: "/app/".into(),
            address: "127.0.0.1:1".into(),
            requests: 2,
            idle: 1,
            failures: 2,
            ..BackEnd::default()
        };
        let worse = BackEnd {
            failures: 0,
            ejections: 3,
            left_alone: 1,
            left_alone_ms: 900,
            ..one.clone()
        };
        let elsewhere = BackEnd {
            location: ".php".into(),
            ..one.clone()
        };
        let mut all = Vec::new();
        for other in [&one, &worse, &elsewhere] {
            BackEnd::merge(&mut all, other);
        }
        let expected = BackEnd {
            requests: 4,
            idle: 2,
            failures: 2,
            ..worse
        };
        assert_eq!(all, [expected, elsewhere]);
    }
}
