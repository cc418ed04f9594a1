//! The part of one client in a load that several machines share.
//!
//! All have the same settings, those of the whole. The parts of rates are equal; those of connections
//! and requests differ by at most one. Each part has a seed of its own, since equal seeds would send
//! equal requests at equal moments.

use super::{CONNECTIONS_CLOSED, Demand, SessionError, Settings};
use crate::engine::Part;
use headway_base::random::{Draw, SplitMix64};
use headway_latency::run::AgentInfo;

/// The settings of one client.
pub(super) fn part(whole: &Settings, agent: AgentInfo) -> Result<Settings, SessionError> {
    let AgentInfo { index, count } = agent;
    let few = |what: &str| {
        let text = format!("--agent {index}/{count}: there are fewer {what} than agents");
        SessionError::Use(text)
    };
    let share = |number: u64| Part::new(index, count).share_u64(number);
    let mut part = whole.clone();
    let connections = match &mut part.demand {
        // The limit of an open loop is that of the machine, unless there is one for all.
        Demand::Open { schedule, .. } => {
            for step in &mut schedule.0 {
                step.from /= f64::from(count);
                step.to /= f64::from(count);
            }
            whole.connections
        }
        Demand::Closed => Some(whole.connections.unwrap_or(CONNECTIONS_CLOSED)),
    };
    part.connections = connections.map(|number| share(number.into()) as u32);
    part.requests = whole.requests.map(share);
    if part.connections == Some(0) {
        return Err(few("connections"));
    }
    if part.requests == Some(0) {
        return Err(few("requests"));
    }
    // As exact as a number in JSON has to be.
    part.seed = SplitMix64::for_stream(whole.seed, index.into()).next_u64() >> 11;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::settings::tests::settings;

    #[test]
    fn parts_add_up_to_the_whole_and_have_seeds_of_their_own() {
        let mut whole = settings(Demand::Closed);
        (whole.connections, whole.requests) = (Some(10), Some(11));
        let parts: Vec<Settings> = (0..4)
            .map(|index| part(&whole, AgentInfo { index, count: 4 }).expect("enough for all"))
            .collect();
        let connections: Vec<u32> = parts.iter().filter_map(|part| part.connections).collect();
        let requests: Vec<u64> = parts.iter().filter_map(|part| part.requests).collect();
        assert_eq!(connections, [3, 3, 2, 2]);
        assert_eq!(requests, [3, 3, 3, 2]);
        let mut seeds: Vec<u64> = parts.iter().map(|part| part.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 4);
        assert!(!seeds.contains(&whole.seed));
    }

    #[test]
    fn default_number_of_connections_is_divided_in_a_closed_loop() {
        let whole = settings(Demand::Closed);
        let found = part(&whole, AgentInfo { index: 1, count: 2 }).expect("64 connections");
        assert_eq!(found.connections, Some(CONNECTIONS_CLOSED / 2));
    }

    #[test]
    fn more_agents_than_connections_or_requests_are_an_error() {
        let mut whole = settings(Demand::Closed);
        let agent = AgentInfo { index: 2, count: 3 };
        whole.connections = Some(2);
        let error = part(&whole, agent)
            .expect_err("the third has none")
            .to_string();
        assert!(
            error.contains("--agent 2/3: there are fewer connections"),
            "{error}"
        );
        (whole.connections, whole.requests) = (Some(3), Some(2));
        let error = part(&whole, agent)
            .expect_err("the third has none")
            .to_string();
        assert!(error.contains("fewer requests"), "{error}");
    }
}
