//! How many slow clients a server satisfies: the static part of SPECweb99's score.
//!
//! SPECweb99 limits each simultaneous connection to 400 kbit/s and calls it conforming if it gets
//! 320 kbit/s on average over its requests and fewer than a hundredth of them fail. The score here
//! is the largest number of connections tried of which nineteen in twenty conform. The dynamic
//! third of SPECweb99's requests is left out: it would measure an application beside the server. So
//! a score is comparable with others of this kind and not with published ones; `bench/score` has
//! the whole.
//!
//! Source: dissertation section 4.6; SPECweb99 release 1.02 run rules, section 2.3.

use std::collections::HashMap;
use std::path::Path;

use headway_lab::servers::{Family, Kind};
use headway_latency::row::{Outcome as End, Row};
use serde::{Deserialize, Serialize};

use super::run::RunError;

/// The limit of a connection in bits per second.
pub(super) const CONNECTION_BITS_PER_S_MAX: u64 = 400_000;

/// The bits per second that a conforming connection receives at least.
const RATE_MIN_BITS_PER_S: f64 = 320_000.0;

/// No try is shorter: the largest file takes 18 s at most at that rate, and in ten seconds one
/// connection in thirteen would be busy with a file that began before, and could not be judged.
pub(super) const SECONDS_MIN: f64 = 20.0;

/// The share of its requests that may fail.
const ERROR_SHARE_MAX: f64 = 0.01;

/// The share of connections that must conform.
const CONFORMING_SHARE_MIN: f64 = 0.95;

/// Connections that one client process has descriptors for on a machine with the usual limits.
const CONNECTIONS_MAX: u64 = 15_000;

/// Connections at most to a server with a process or a thread for each: more would fill the memory
/// before they fill a CPU.
const PROCESSES_MAX: u64 = 4096;

/// A client whose CPU is busy for a larger share paces its connections late itself.
const CLIENT_BUSY_SHARE_MAX: f64 = 0.8;

/// Numbers of connections that are tried at most, and how near together the last two are.
const TRIALS_MAX: usize = 12;
const RESULT_PRECISION: f64 = 0.03;

/// A server's score in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The server's word.
    pub server: String,
    /// The configuration's notation.
    pub configuration: String,
    /// The share that the server had of each of its CPUs; `None`: all of them.
    #[serde(default)]
    pub share: Option<f64>,
    /// Connections; `None` if not even the fewest conformed.
    pub connections: Option<u64>,
    /// More could not be tried.
    pub at_least: bool,
    /// The share of time for which the client's CPU was busy, if it was the client that could
    /// not satisfy more.
    #[serde(default)]
    pub client_busy: Option<f64>,
    /// What was tried, in order.
    pub tried: Vec<ConnectionTrial>,
    /// Why there is no score.
    pub failed: Option<String>,
}

/// The result of a trial with one number of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionTrial {
    /// Connections that asked.
    pub connections: u64,
    /// The share of them that conformed.
    pub conforming: f64,
    /// The share of time for which the client's CPU was busy.
    #[serde(default)]
    pub client_busy: f64,
}

impl Score {
    /// The score's name: server, configuration, and what the server had of it.
    pub fn name(&self) -> String {
        let share = self.share.map_or(String::new(), |share| {
            format!(" at {:.0} % of its CPUs", share * 100.0)
        });
        format!("{} {}{share}, connections", self.server, self.configuration)
    }

    /// Connections, if that is an exact number and not a limit.
    pub fn exact(&self) -> Option<u64> {
        self.connections.filter(|_| !self.at_least)
    }

    /// The result as text: `1024`, `at least 4096`, or why there is none.
    pub fn result_text(&self) -> String {
        let found = match (&self.failed, self.connections, self.at_least) {
            (Some(why), ..) => why.clone(),
            (None, None, _) if self.client_busy.is_some() => "not known".into(),
            (None, None, _) => "none conformed".into(),
            (None, Some(connections), true) => format!("at least {connections}"),
            (None, Some(connections), false) => connections.to_string(),
        };
        match self.client_busy {
            Some(share) => format!(
                "{found} (more were too many for the client, which was busy {:.0} % of the time)",
                share * 100.0
            ),
            None => found,
        }
    }
}

impl ConnectionTrial {
    fn conforms(&self) -> bool {
        self.conforming >= CONFORMING_SHARE_MIN
    }

    fn is_bound_by_client(&self) -> bool {
        self.client_busy > CLIENT_BUSY_SHARE_MAX
    }
}

/// The most connections that can be tried with a server.
fn connections_max(kind: Kind) -> u64 {
    match kind.family() {
        Family::Apache { .. } | Family::Civetweb => PROCESSES_MAX,
        _ => CONNECTIONS_MAX,
    }
}

/// Searches, beginning with what the server's throughput would be enough for.
pub(super) fn search(
    kind: Kind,
    bits_per_s: f64,
    mut attempt: impl FnMut(u64) -> Result<ConnectionTrial, RunError>,
) -> Result<Score, RunError> {
    let most = connections_max(kind);
    let (mut low, mut high): (u64, Option<u64>) = (0, None);
    let mut client_busy = None;
    let mut next = ((bits_per_s / CONNECTION_BITS_PER_S_MAX as f64) as u64).clamp(16, most);
    let mut tried = Vec::new();
    while tried.len() < TRIALS_MAX {
        let found = attempt(next)?;
        tried.push(found);
        match found.conforms() {
            true => low = next,
            false => {
                high = Some(next);
                client_busy = found.is_bound_by_client().then_some(found.client_busy);
            }
        }
        next = match high {
            None if low == most => break,
            None => (low * 2).min(most),
            Some(high) if are_near(low, high) => break,
            Some(high) => low.midpoint(high).max(1),
        };
    }
    // Nothing failed, or the tries were used up before the two came near each other.
    let is_open = high.is_none_or(|high| !are_near(low, high));
    Ok(Score {
        connections: (low > 0).then_some(low),
        at_least: is_open || client_busy.is_some(),
        client_busy,
        tried,
        ..Score::default()
    })
}

fn are_near(low: u64, high: u64) -> bool {
    (high - low) as f64 <= RESULT_PRECISION * high as f64 || high - low <= 1
}

/// Outcome of the connections of a run.
pub(super) fn conforming(run: &Path, connections: u64) -> Result<ConnectionTrial, RunError> {
    let unread = |error: headway_latency::OpenError| {
        RunError::Failed(format!("reading what the client has measured: {error}"))
    };
    let run = headway_latency::Run::open(run).map_err(unread)?;
    let client = run.description().client.as_ref();
    let client_busy = client
        .and_then(|client| client.busy_share)
        .unwrap_or_default();
    let mut clients: HashMap<u32, Client> = HashMap::new();
    for batch in run.rows().map_err(unread)? {
        for row in batch.map_err(unread)?.iter().filter(|row| !row.warmup) {
            clients.entry(row.connection).or_default().add(row);
        }
    }
    let fine = clients.values().filter(|client| client.conforms()).count();
    Ok(ConnectionTrial {
        connections,
        // Those that were not answered once do not conform either.
        conforming: fine as f64 / connections as f64,
        client_busy,
    })
}

/// What one connection got.
#[derive(Default)]
struct Client {
    bits: f64,
    seconds: f64,
    requests: u64,
    errors: u64,
}

impl Client {
    fn add(&mut self, row: &Row) {
        // Cut off by the end of the run, which is no failure.
        if row.error == End::Abandoned {
            return;
        }
        self.requests += 1;
        self.errors += u64::from(row.error != End::Ok);
        self.bits += row.bytes as f64 * 8.0;
        self.seconds += row.end_ns.saturating_sub(row.start_ns) as f64 / 1e9;
    }

    fn conforms(&self) -> bool {
        self.requests > 0
            && self.errors as f64 <= ERROR_SHARE_MAX * self.requests as f64
            && self.bits >= RATE_MIN_BITS_PER_S * self.seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a server that satisfies `capacity` connections.
    fn searched(kind: Kind, capacity: u64, bits_per_s: f64) -> Score {
        let found = search(kind, bits_per_s, |connections| {
            Ok(ConnectionTrial {
                connections,
                conforming: if connections <= capacity { 1.0 } else { 0.5 },
                ..ConnectionTrial::default()
            })
        });
        found.expect("a score")
    }

    #[test]
    fn score_is_near_the_capacity_after_a_wrong_first_guess() {
        for (capacity, guess) in [(1000, 4e8), (1000, 4e9), (1000, 1e6), (7000, 2e9)] {
            let score = searched(Kind::Nginx, capacity, guess);
            let found = score.connections.expect("some");
            assert!(
                found <= capacity && found as f64 >= capacity as f64 * 0.93,
                "{capacity}: {score:?}"
            );
            assert!(!score.at_least && score.tried.len() <= TRIALS_MAX);
        }
    }

    #[test]
    fn score_is_a_lower_limit_when_more_cannot_be_tried() {
        let score = searched(Kind::ApachePrefork, 1_000_000, 9e9);
        assert_eq!(
            (score.connections, score.at_least),
            (Some(PROCESSES_MAX), true)
        );
        // Twelve tries from 16 on are used up while the last two are still far apart.
        let far = searched(Kind::Nginx, 8_500, 0.0);
        assert!(far.at_least && far.tried.len() == TRIALS_MAX, "{far:?}");
        let none = searched(Kind::Nginx, 0, 4e6);
        assert_eq!((none.connections, none.at_least), (None, false));
        assert_eq!(none.result_text(), "none conformed");
    }

    #[test]
    fn score_is_a_lower_limit_when_the_client_was_busy() {
        // The first guess is too many for the client; what ends the search is the server's at 300
        // and the client's at 1000.
        for (capacity, bound) in [(300, false), (1000, true)] {
            let found = search(Kind::Nginx, 2e9, |connections| {
                Ok(ConnectionTrial {
                    connections,
                    conforming: if connections <= capacity { 1.0 } else { 0.5 },
                    client_busy: connections as f64 / 1000.0,
                })
            });
            let found = found.expect("a score");
            assert_eq!(
                (found.at_least, found.result_text().contains("client")),
                (bound, bound),
                "{found:?}"
            );
        }
    }

    #[test]
    fn connection_conforms_when_it_is_fast_and_its_requests_succeed() {
        let client = |bits: f64, errors| Client {
            bits,
            seconds: 10.0,
            requests: 200,
            errors,
        };
        assert!(client(3.3e6, 0).conforms() && client(3.3e6, 2).conforms());
        assert!(!client(3.1e6, 0).conforms() && !client(3.3e6, 3).conforms());
        assert!(!Client::default().conforms(), "never answered");
    }
}
