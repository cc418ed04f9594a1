//! The rules of a SPECweb99-like measurement: which connections conform, what the score is, and how
//! long each kind of request took.
//!
//! A connection conforms when it received at least [`RATE_MIN_BITS_PER_S`] over the measured time
//! and fewer than a hundredth of its requests failed. What counts are the requests that ended after
//! the warm-up (a large file may have been asked for before) and the bodies of right and complete
//! replies; the time runs from the intended start of the first one to the end of the last, so
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

/// What it has to receive to conform.
pub const RATE_MIN_BITS_PER_S: f64 = 320_000.0;

/// From this share of failed requests on it does not.
pub const ERRORS_MAX_SHARE: f64 = 0.01;

/// A load is held when this share of its connections conforms. The value is ours: we know no
/// published figure.
pub const HELD_MIN_SHARE: f64 = 0.95;

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

/// What `run.json` says of a SPECweb99-like run.
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
    /// The limit on each connection.
    pub rate_max_bits_per_s: u64,
    /// What it has to receive to conform.
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
    /// Where it is, relative to the run; empty in its own `run.json`.
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
    /// Correct replies per second, of all connections together, over the mean time that they were
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
    /// Requests.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// From the actual start to the first byte of complete replies: what the server made of it.
    pub first_byte: Option<Times>,
    /// From the intended start to the last byte of complete replies: with what the limit on the
    /// line adds.
    pub response: Option<Times>,
}

/// A distribution in the form of Table 2.6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// 5th percentile.
    pub p5_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// Mean.
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
    /// Why it could not be read, or is no log.
    pub fault: Option<String>,
}

impl LogInfo {
    /// Whether it is whole, in order, and holds what was acknowledged.
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
        self.held = Some(share >= HELD_MIN_SHARE && log);
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
/// assert_eq!(iteration.conforming, 0, "a connection without replies does not conform");
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
            // What came of a wrong or torn reply was no service.
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
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A reply of 15,000 bytes, which takes 300 ms at 400,000 bit/s, after a wait for the server.
    fn row(connection: u32, number: u64, wait_ms: u64, error: Outcome) -> Row {
        let start_ns = 1_000 * MS + number * (300 + wait_ms) * MS;
        Row {
            intended_ns: start_ns,
            start_ns,
            first_byte_ns: start_ns + wait_ms * MS,
            end_ns: start_ns + (300 + wait_ms) * MS,
            size_bytes: 15_000,
            bytes: 15_000,
            status: 200,
            error,
            connection,
            ordinal: 0,
            class: RequestKind::Static.class(1),
            target: 0,
            warmup: false,
        }
    }

    fn run(waits_ms: &[u64]) -> Iteration {
        let mut conformance = Conformance::new(waits_ms.len() as u32, 0);
        for (connection, &wait_ms) in (0..).zip(waits_ms) {
            (0..200).for_each(|number| {
                conformance.push(&row(connection, number, wait_ms, Outcome::Ok))
            });
        }
        conformance.finish()
    }

    #[test]
    fn connection_conforms_as_long_as_waiting_costs_a_fifth_when_times_are_known() {
        // 15,000 bytes at 320,000 bit/s are 375 ms: 300 of the line and 75 of waiting.
        let found = run(&[0, 50, 75, 76, 300]);
        assert_eq!(
            (found.connections, found.conforming, found.erring),
            (5, 3, 0)
        );
        assert_eq!(
            found.rates_bits_per_s,
            [400_000, 342_857, 320_000, 319_148, 200_000]
        );
        assert_eq!(found.rate_least_bits_per_s(), 200_000);
        assert_eq!(found.requests, 1000);
        // 200 requests in 60, 70, 75, 75.2 and 120 s: a thousand in 80.04 s.
        assert!((found.rate_rps - 1000.0 / 80.04).abs() < 1e-9);
    }

    #[test]
    fn connection_does_not_conform_when_a_hundredth_of_its_requests_failed() {
        let mut conformance = Conformance::new(3, 0);
        for number in 0..200 {
            let failed = |most| {
                if number < most {
                    Outcome::Content
                } else {
                    Outcome::Ok
                }
            };
            conformance.push(&row(0, number, 0, failed(1)));
            conformance.push(&row(1, number, 0, failed(2)));
        }
        let found = conformance.finish();
        assert_eq!(
            (found.conforming, found.erring),
            (1, 2),
            "2 of 200 is too much, and the third did nothing"
        );
        assert_eq!(
            found.rates_bits_per_s,
            [398_000, 396_000, 0],
            "wrong replies are no service"
        );
        assert_eq!(found.errors, 3);
    }

    #[test]
    fn rate_is_the_limit_when_a_reply_was_ahead_of_it() {
        let mut conformance = Conformance::new(1, 0);
        let mut quick = row(0, 0, 0, Outcome::Ok);
        quick.end_ns = quick.start_ns + MS;
        conformance.push(&quick);
        assert_eq!(conformance.finish().rates_bits_per_s, [400_000]);
    }

    #[test]
    fn rows_do_not_count_when_they_ended_in_the_warm_up_or_were_cut_off() {
        let mut conformance = Conformance::new(1, 31_000 * MS);
        let mut warm = row(0, 0, 5_000, Outcome::TimedOut);
        warm.warmup = true;
        conformance.push(&warm);
        conformance.push(&row(0, 900, 0, Outcome::Abandoned));
        for number in 100..300 {
            conformance.push(&row(0, number, 0, Outcome::Ok));
        }
        let found = conformance.finish();
        assert_eq!(
            (found.conforming, found.requests, found.errors),
            (1, 200, 0)
        );
    }

    #[test]
    fn connection_conforms_when_one_large_file_takes_all_of_the_measured_time() {
        let mut conformance = Conformance::new(1, 5_000 * MS);
        let large = Row {
            bytes: 900_000,
            end_ns: 19_000 * MS,
            warmup: true,
            ..row(0, 0, 0, Outcome::Ok)
        };
        conformance.push(&large);
        let found = conformance.finish();
        assert_eq!((found.conforming, found.requests), (1, 0));
        assert_eq!(found.rates_bits_per_s, [400_000]);
    }

    #[test]
    fn rows_are_counted_by_the_kind_of_their_class() {
        let mut conformance = Conformance::new(1, 0);
        for (number, kind) in (0..).zip(RequestKind::ALL) {
            for class in 0..4 {
                assert_eq!(RequestKind::of_class(kind.class(class)), Some(kind));
            }
            let mut row = row(0, number, 10 * (number + 1), Outcome::Ok);
            row.class = kind.class(2);
            conformance.push(&row);
        }
        assert_eq!(RequestKind::of_class(Row::NO_CLASS), None);
        let found = conformance.finish().kinds;
        let median = |name: &str| {
            let kind = found.iter().find(|one| one.kind == name).expect(name);
            (kind.first_byte.expect("a reply").p50_us / 1e3).round()
        };
        assert_eq!(median("static"), 10.0);
        assert_eq!(median("CGI GET"), 50.0);
        assert_eq!(median("dynamic"), 30.0);
        let all = found.iter().find(|one| one.kind == "all").expect("the sum");
        assert_eq!(all.requests, 5);
        assert!(
            all.response.expect("replies").mean_us
                > all.first_byte.expect("replies").mean_us + 299_000.0
        );
    }

    #[test]
    fn score_is_the_median_and_needs_a_right_log_when_all_is_done() {
        let iteration = |conforming| Iteration {
            connections: 100,
            conforming,
            ..Iteration::default()
        };
        let mut info = SpecWeb99Info {
            connections: 100,
            iterations: vec![iteration(97), iteration(100)],
            ..SpecWeb99Info::default()
        };
        info.conclude(3);
        assert_eq!((info.score, info.held), (None, None), "one is missing");
        info.iterations.push(iteration(96));
        info.conclude(3);
        assert_eq!(
            (info.score, info.held),
            (Some(97), Some(false)),
            "nobody has seen the log"
        );
        info.log = Some(LogInfo::default());
        info.conclude(3);
        assert_eq!((info.score, info.held), (Some(97), Some(true)));
        info.log = Some(LogInfo {
            missing: 1,
            ..LogInfo::default()
        });
        info.conclude(3);
        assert_eq!(info.held, Some(false));
        info.iterations[0].conforming = 94;
        info.iterations[2].conforming = 93;
        info.log = Some(LogInfo::default());
        info.conclude(3);
        assert_eq!((info.score, info.held), (Some(94), Some(false)));
        assert_eq!(info.median().map(|one| one.conforming), Some(94));
    }
}
