//! The rules of a SPECweb99-like measurement: which connections conform, what the score is, and how
//! long each kind of request took.
//!
//! A connection conforms when it received at least [`RATE_MIN_BITS_PER_S`] over the measured time
//! and fewer than a hundredth of its requests failed. What counts are the requests that ended after
//! the warm-up (a large file may have been asked for before) and the bodies of right and complete
//! responses; the time runs from the intended start of the first one to the end of the last, so
//! connecting, waiting and failing cost it. The score of an iteration is the number of connections
//! that conform; that of a run is the median of its iterations.
//!
//! Pure: rows in, figures out, so a run directory can be judged again. The row's `connection` is
//! the simulated connection of the benchmark here, which opens many of TCP one after the other, and
//! its `class` says kind and size ([`RequestKind`]).
//!
//! Sources: Ruan's dissertation (2005) sections 1.1 and 2.6.1 with Tables 2.6 and 2.9; SPECweb99's
//! public run rules.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::row::{Outcome, Row};
use crate::run::description::Verdict;

/// The most that a connection may receive.
pub const RATE_MAX_BITS_PER_S: u64 = 400_000;

/// The least that a connection has to receive to conform.
pub const RATE_MIN_BITS_PER_S: f64 = 320_000.0;

/// From this share of failed requests on it does not.
pub const ERRORS_MAX_SHARE: f64 = 0.01;

/// A load is held when this share of its connections conforms. The value is ours: we know no
/// published figure.
pub const CONFORMING_SHARE_MIN: f64 = 0.95;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A file as it is.
    Static,
    /// A file in a page.
    Standard,
    /// A file in a page, with an advertisement by profile and cookie.
    Custom,
    /// A record in a log, and a file in a page.
    Post,
    /// A file in a page, made by a process that was started for it.
    Cgi,
}

impl RequestKind {
    /// All kinds, in the order of their codes.
    pub const ALL: [RequestKind; 5] = [
        RequestKind::Static,
        RequestKind::Standard,
        RequestKind::Custom,
        RequestKind::Post,
        RequestKind::Cgi,
    ];

    /// The word for it in tables.
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Static => "static",
            RequestKind::Standard => "standard GET",
            RequestKind::Custom => "custom GET",
            RequestKind::Post => "POST",
            RequestKind::Cgi => "CGI GET",
        }
    }

    /// The class of a row: four times the kind and the class of the file, 0 to 3.
    pub fn class(self, of_file: u8) -> u8 {
        4 * self as u8 + of_file % 4
    }

    /// The kind of a row's class; `None` for a row without one.
    pub fn of_class(class: u8) -> Option<RequestKind> {
        RequestKind::ALL.get(usize::from(class / 4)).copied()
    }
}

/// The part of `run.json` for a SPECweb99-like run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpecWeb99Info {
    /// Simultaneous connections.
    pub connections: u64,
    /// Median of the conforming connections of the iterations; absent until all are done.
    pub score: Option<u64>,
    /// Whether enough connections conform that the load counts as held, and the log is correct.
    pub held: Option<bool>,
    /// Whether the file set had the size that the rule asks for.
    pub data_rule: bool,
    /// Whether only static files were asked for, against the rule of the mix.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub static_only: bool,
    /// The limit on each connection.
    pub rate_max_bits_per_s: u64,
    /// The least that a connection has to receive to conform.
    pub rate_min_bits_per_s: f64,
    /// How long connections took to begin, at equal distances, before each iteration.
    pub ramp_s: f64,
    /// Where the application is: of dynamic requests, and of those with a process each.
    pub paths: [String; 2],
    /// The measurements, in order.
    pub iterations: Vec<Iteration>,
    /// What the log of posts was found to be; absent until it was fetched.
    pub log: Option<LogInfo>,
}

/// One iteration of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Iteration {
    /// The iteration's directory, relative to the run; empty in its own `run.json`.
    pub directory: String,
    /// Connections that were simulated.
    pub connections: u64,
    /// Connections that conform.
    pub conforming: u64,
    /// Connections that do not conform because of too many errors.
    pub erring: u64,
    /// Bits per second that each connection received, by its number.
    pub rates_bits_per_s: Vec<u64>,
    /// Requests of the measured time.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Correct responses per second, of all connections together, over the mean time that they were
    /// measured.
    pub rate_rps: f64,
    /// By kind; then all dynamic ones together, and all.
    pub kinds: Vec<KindFigures>,
    /// Whether the figures are the server's or the client's; absent where the run says so itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Why, one sentence each; empty when valid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

impl Iteration {
    /// The share of the connections that conform.
    pub fn conforming_share(&self) -> f64 {
        self.conforming as f64 / self.connections.max(1) as f64
    }

    /// The mean of what connections received.
    pub fn rate_mean_bits_per_s(&self) -> f64 {
        let sum: u64 = self.rates_bits_per_s.iter().sum();
        sum as f64 / self.rates_bits_per_s.len().max(1) as f64
    }

    /// The lowest rate of a connection.
    pub fn rate_least_bits_per_s(&self) -> u64 {
        self.rates_bits_per_s.iter().copied().min().unwrap_or(0)
    }
}

/// The figures of a kind of request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindFigures {
    /// [`RequestKind::name`], or `dynamic`, or `all`.
    pub kind: String,
    /// Number of requests.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// From the actual start to the first byte of complete responses: what the server made of it.
    pub first_byte: Option<Times>,
    /// From the intended start to the last byte of complete responses: with what the limit on the
    /// line adds.
    pub response: Option<Times>,
}

/// A distribution in the form of Table 2.6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// 5th percentile.
    pub p5_us: f64,
    /// Median response time.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// Mean response time.
    pub mean_us: f64,
}

/// What the log of posts was found to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogInfo {
    /// Records in it.
    pub records: u64,
    /// Posts that were acknowledged.
    pub acknowledged: u64,
    /// Acknowledged posts that are not in it.
    pub missing: u64,
    /// Records out of a client's order, or twice.
    pub out_of_order: u64,
    /// Records without a post.
    pub unknown: u64,
    /// Why the log could not be read, or is no log.
    pub fault: Option<String>,
}

impl LogInfo {
    /// Whether the log is whole, in order, and holds what was acknowledged.
    pub fn is_right(&self) -> bool {
        (self.missing, self.out_of_order, self.unknown) == (0, 0, 0) && self.fault.is_none()
    }
}

impl SpecWeb99Info {
    /// Sets score and verdict from the iterations and the log; does nothing while an iteration is
    /// missing.
    pub fn conclude(&mut self, iterations: usize) {
        let mut conforming: Vec<u64> = self.iterations.iter().map(|one| one.conforming).collect();
        conforming.sort_unstable();
        if conforming.is_empty() || conforming.len() < iterations {
            return;
        }
        // Of an even number the lower one: a score is a number of connections that conformed.
        let score = conforming[(conforming.len() - 1) / 2];
        let share = score as f64 / self.connections.max(1) as f64;
        let log = self.log.as_ref().is_some_and(LogInfo::is_right);
        self.score = Some(score);
        self.held = Some(share >= CONFORMING_SHARE_MIN && log);
    }

    /// The iteration with the score of the run.
    pub fn median(&self) -> Option<&Iteration> {
        let score = self.score?;
        self.iterations.iter().find(|one| one.conforming == score)
    }
}

/// Collects rows of one iteration.
///
/// ```
/// use headway_latency::specweb99::Conformance;
///
/// let iteration = Conformance::new(10, 0).finish();
/// assert_eq!(iteration.conforming, 0, "a connection without responses does not conform");
/// ```
#[derive(Clone, Debug)]
pub struct Conformance {
    connections: Vec<Connection>,
    /// The end of the warm-up on the clock of the rows.
    from_ns: u64,
    kinds: [KindTally; RequestKind::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    bytes: u64,
    first_ns: u64,
    last_ns: u64,
    requests: u64,
    errors: u64,
}

#[derive(Clone, Debug, Default)]
struct KindTally {
    requests: u64,
    errors: u64,
    first_byte: Histogram,
    response: Histogram,
}

impl Conformance {
    /// For this many connections, measured from this instant on; a connection without a row does
    /// not conform.
    pub fn new(connections: u32, from_ns: u64) -> Conformance {
        let connection = Connection {
            bytes: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            requests: 0,
            errors: 0,
        };
        Conformance {
            connections: vec![connection; connections as usize],
            from_ns,
            kinds: Default::default(),
        }
    }

    /// Counts a row, unless it ended within the warm-up or was cut off by the end of the run. One
    /// that began in the warm-up counts for its connection alone.
    pub fn push(&mut self, row: &Row) {
        let early = row.warmup && row.end_ns <= self.from_ns;
        if early || row.error == Outcome::Abandoned {
            return;
        }
        let good = row.error == Outcome::Ok;
        if let Some(connection) = self.connections.get_mut(row.connection as usize) {
            connection.requests += 1;
            connection.errors += u64::from(!good);
            connection.first_ns = connection.first_ns.min(row.intended_ns);
            connection.last_ns = connection.last_ns.max(row.end_ns);
            // What came of a wrong or torn response was no service.
            connection.bytes += if good { row.bytes } else { 0 };
        }
        let Some(kind) = RequestKind::of_class(row.class).filter(|_| !row.warmup) else {
            return;
        };
        let counts = &mut self.kinds[kind as usize];
        counts.requests += 1;
        counts.errors += u64::from(!good);
        if good {
            let first_byte_ns = row.first_byte_ns.saturating_sub(row.start_ns);
            counts.first_byte.record_ns(first_byte_ns);
            counts.response.record_ns(row.response_ns());
        }
    }

    /// The figures.
    pub fn finish(&self) -> Iteration {
        let sum = |of: fn(&Connection) -> u64| self.connections.iter().map(of).sum::<u64>();
        let good = sum(|one| one.requests - one.errors);
        // Connections end apart: some still receive a large file when others have nothing more to
        // ask for.
        let length_ns = sum(Connection::length_ns) as f64 / self.connections.len().max(1) as f64;
        let conforms = |one: &&Connection| one.conforms();
        Iteration {
            directory: String::new(),
            connections: self.connections.len() as u64,
            conforming: self.connections.iter().filter(conforms).count() as u64,
            erring: self.connections.iter().filter(|one| one.errs()).count() as u64,
            rates_bits_per_s: self
                .connections
                .iter()
                .map(|one| one.rate() as u64)
                .collect(),
            requests: self.kinds.iter().map(|kind| kind.requests).sum(),
            errors: self.kinds.iter().map(|kind| kind.errors).sum(),
            rate_rps: good as f64 * 1e9 / length_ns.max(1.0),
            kinds: self.figures(),
            verdict: None,
            reasons: Vec::new(),
        }
    }

    fn figures(&self) -> Vec<KindFigures> {
        let named = RequestKind::ALL.iter().zip(&self.kinds);
        let mut figures: Vec<KindFigures> = named
            .map(|(kind, counts)| counts.figures(kind.name()))
            .collect();
        let merged = |all_counts: &[KindTally]| {
            let mut sum = KindTally::default();
            all_counts.iter().for_each(|counts| sum.add(counts));
            sum
        };
        figures.push(merged(&self.kinds[1..]).figures("dynamic"));
        figures.push(merged(&self.kinds).figures("all"));
        figures
    }
}

impl Connection {
    fn length_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
    }

    /// Bits per second, limited to the configured rate. A connection may be a tenth of a second
    /// ahead, which would be visible with few requests.
    fn rate(&self) -> f64 {
        let length_ns = self.length_ns();
        match length_ns {
            0 => 0.0,
            _ => (self.bytes as f64 * 8e9 / length_ns as f64).min(RATE_MAX_BITS_PER_S as f64),
        }
    }

    fn errs(&self) -> bool {
        self.requests == 0 || self.errors as f64 >= self.requests as f64 * ERRORS_MAX_SHARE
    }

    fn conforms(&self) -> bool {
        !self.errs() && self.rate() >= RATE_MIN_BITS_PER_S
    }
}

impl KindTally {
    fn add(&mut self, other: &KindTally) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.first_byte.merge(&other.first_byte);
        self.response.merge(&other.response);
    }

    fn figures(&self, kind: &str) -> KindFigures {
        KindFigures {
            kind: kind.to_owned(),
            requests: self.requests,
            errors: self.errors,
            first_byte: times(&self.first_byte),
            response: times(&self.response),
        }
    }
}

fn times(of: &Histogram) -> Option<Times> {
    let us = |percent| of.percentile(percent) as f64 / 1e3;
    (of.count() > 0).then(|| Times {
        p5_us: us(5.0),
        p50_us: us(50.0),
        p95_us: us(95.0),
        mean_us: of.mean_ns() / 1e3,
    })
}

#[cfg(test)]
mod tests;
