//! The plan of a run: servers, requests, rate and length. Pure data, checked once.
//!
//! [`Plan::check`] refuses what could not be measured (a rate of 0, no connection, no document), so
//! that the loop needs no such cases. Names are resolved before: a plan holds addresses only.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::conversation::Conversation;
use super::method::Method;
pub use super::protocol::Protocol;
use super::proxy_header::ProxyVersion;
use crate::tls::TlsClient;

/// A whole run.
#[derive(Debug)]
pub struct Plan {
    /// The servers, at most 256. Requests (open loop) or connections (closed loop) are distributed
    /// over them by weight.
    pub targets: Vec<Target>,
    /// What to ask for, and in which order.
    pub work: Work,
    /// When to ask.
    pub mode: Mode,
    /// Requests per connection before the client closes it; `None`: as many as the server
    /// lets it. The last one says `Connection: close`.
    pub requests_per_connection: Option<u32>,
    /// How long a request may take, from its *intended* start to its last byte. Then its connection
    /// is closed, and it is a row with the time it took.
    pub timeout: Option<Duration>,
    /// Pause of a closed-loop client between a response and its next request.
    pub think: Duration,
    /// For how long a client waits after its connection is established; the time belongs to its
    /// first request.
    pub first_pause: Duration,
    /// Over how long the clients of a closed loop begin, at equal distances; zero is all at once.
    pub ramp: Duration,
    /// What each client asks, and how it judges responses; `None`: all are alike and ask by `work`. With a limit on bandwidth a client then begins its next request when its
    /// line has carried the last response, so that the limit holds over all of its requests.
    pub conversation: Option<Box<dyn Conversation>>,
    /// The most that a connection reads, in bits of header and body per second (SPECweb99:
    /// 400,000).
    pub bandwidth_bits_per_s: Option<u64>,
    /// Requests whose intended start is earlier are marked as warm-up.
    pub warmup: Duration,
    /// After the time that [`Stop`] gives, requests are started for this long at most. It ends when the
    /// measured ones have ended, which so meet the same load. Each loop decides by itself. These
    /// requests are marked as the warm-up is.
    pub cooldown: Duration,
    /// When to stop starting requests.
    pub stop: Stop,
    /// Decides the documents drawn and the arrival times, on every machine alike.
    pub seed: u64,
    /// Whether the content of complete responses is compared with [`Document::checksum`].
    pub verify: bool,
    /// The one status that counts as success; `None`: any of 200 to 299.
    pub expect_status: Option<u16>,
    /// The method of every request.
    pub method: Method,
    /// Headers added to every request, name and value. `Host` and `User-Agent` replace those that
    /// the client would send.
    pub headers: Vec<(String, String)>,
    /// The body of every request, at most [`BODY_BYTES_MAX`]; empty: none.
    pub body: Vec<u8>,
    /// The version of HTTP, and what a connection carries.
    pub protocol: Protocol,
    /// The header of the PROXY protocol with which connections begin; `None`: they have none.
    pub proxy_version: Option<ProxyVersion>,
}

/// A request is put together in memory before it is sent.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// A server.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where the server listens.
    pub address: Address,
    /// The value of the `Host` field.
    pub host: String,
    /// Share of the requests or connections, relative to the other targets. At least 1.
    pub weight: u32,
    /// Which local addresses its connections come from.
    pub sources: Sources,
    /// How its connections use TLS; `None`: they do not.
    pub tls: Option<TlsClient>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// IPv4 or IPv6.
    Inet(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Inet(address) => address.fmt(formatter),
            Address::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// Local addresses. Each has some 28,000 ports towards one server address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sources {
    /// The kernel chooses.
    #[default]
    Any,
    /// The addresses of the list in turn; one that has no port left is skipped.
    List(Vec<IpAddr>),
    /// The kernel's choice while it has ports, then all of 127.0.0.0/8 but its first and last, one
    /// after the other as their ports run out. For an IPv4 server on this machine.
    Loopback,
}

/// What to ask for.
#[derive(Debug)]
pub struct Work {
    /// Everything that may be asked for.
    pub documents: Vec<Document>,
    /// Which document is asked for next.
    pub order: RequestOrder,
}

impl Work {
    /// Requests paths in turn, of unknown size and content.
    pub fn paths<I: IntoIterator<Item = S>, S: Into<String>>(paths: I) -> Work {
        let documents = paths.into_iter().map(Document::path).collect();
        Work {
            documents,
            order: RequestOrder::RoundRobin,
        }
    }
}

/// One thing that can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Path and query as they go on the wire, already percent-encoded: `/dir00042/class1_5`.
    pub path: String,
    /// The body's length, if known: another one is [`headway_latency::Outcome::Length`].
    pub size_bytes: Option<u64>,
    /// SPECweb class 0 to 3, 255 for none. It goes into the row.
    pub class: u8,
    /// [`crate::checksum`] of the body, if known.
    pub checksum: Option<u64>,
}

impl Document {
    /// A document of which only the path is known.
    pub fn path(path: impl Into<String>) -> Document {
        Document {
            path: path.into(),
            size_bytes: None,
            class: u8::MAX,
            checksum: None,
        }
    }
}

/// In which order documents are asked for.
#[derive(Debug, Default)]
pub enum RequestOrder {
    /// The first, the second … and again.
    #[default]
    RoundRobin,
    /// As a popularity draws them.
    Drawn(Box<dyn Popularity>),
}

/// A distribution over [`Work::documents`].
pub trait Popularity: fmt::Debug + Send + Sync {
    /// The endless stream that belongs to a seed: the same one for the same seed, on every machine.
    fn draws(&self, seed: u64) -> Box<dyn Draws>;
}

/// A stream of indices of [`Work::documents`]. Called once per request; it should not allocate.
pub trait Draws {
    /// The next index.
    fn next(&mut self) -> u32;
}

/// When to ask.
#[derive(Clone, Debug)]
pub enum Mode {
    /// Infinite demand: each client asks again when it has its response (and has thought about it).
    Closed {
        /// How many clients, with one connection each.
        connections: u32,
    },
    /// Requests arrive by a schedule, whatever becomes of earlier ones. Each takes an idle
    /// connection, or a new one, or waits for one.
    Open {
        /// The rate over time.
        schedule: Schedule,
        /// How arrivals lie in that rate.
        arrivals: Arrivals,
        /// Connections open at once.
        connections_max: u32,
        /// Requests that may wait for a connection; a further one is an error at once
        /// ([`headway_latency::Outcome::NoConnection`]).
        waiting_max: u32,
    },
}

/// How arrivals lie in a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Independent of each other: exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// A rate over time: segments one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// In order. The final rate of the last one continues.
    pub segments: Vec<Segment>,
}

/// A piece of a schedule: the rate goes in a straight line from one value to another. A step is two
/// segments, each with one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Requests per second at its start.
    pub from_per_s: f64,
    /// Requests per second at its end.
    pub to_per_s: f64,
    /// Length of the segment.
    pub length: Duration,
}

impl Schedule {
    /// One rate, in requests per second, without end.
    pub fn constant(rate_per_s: f64) -> Schedule {
        Schedule {
            segments: vec![Segment {
                from_per_s: rate_per_s,
                to_per_s: rate_per_s,
                length: Duration::ZERO,
            }],
        }
    }

    /// Requests per second at this time of the run.
    pub fn rate_at(&self, seconds: f64) -> f64 {
        let mut begin_s = 0.0;
        for segment in &self.segments {
            let length_s = segment.length.as_secs_f64();
            if seconds < begin_s + length_s {
                let share = (seconds - begin_s).max(0.0) / length_s;
                return segment.from_per_s + share * (segment.to_per_s - segment.from_per_s);
            }
            begin_s += length_s;
        }
        self.segments.last().map_or(0.0, |last| last.to_per_s)
    }
}

/// When to stop starting requests: whichever comes first. With neither, the observer stops the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stop {
    /// After this long, counted from the end of the warm-up.
    pub duration: Option<Duration>,
    /// After this many requests, without those of the warm-up.
    pub requests: Option<u64>,
}

/// Why a plan cannot be carried out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No server, or more than a row can name.
    #[error("{0} targets: there must be 1 to 256")]
    Targets(usize),
    /// A target would never be asked.
    #[error("the weight of target {0} is 0: give it at least 1, or leave it out")]
    Weight(String),
    /// A list of source addresses is empty, or of another family than the target.
    #[error("source addresses for {target}: {reason}")]
    Sources {
        /// The target.
        target: String,
        /// The contradiction.
        reason: &'static str,
    },
    /// Nothing to ask for.
    #[error("no document to ask for")]
    NoDocument,
    /// The text would break the request line, or add lines of its own.
    #[error("{what} {text:?} cannot go into a request: {reason}")]
    NotSendable {
        /// `path`, `host` or `header`.
        what: &'static str,
        /// The text that was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A number that must not be 0 is.
    #[error("{0} is 0: give at least 1")]
    Zero(&'static str),
    /// A rate that is no rate.
    #[error(
        "rate {0} requests/s: a schedule needs finite rates, none below 0, and ends in one above 0"
    )]
    Rate(f64),
    /// More than a run can hold.
    #[error("{what} is {value}: at most {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The value that was given.
        value: u64,
        /// The largest value.
        max: u64,
    },
    /// A setting that HTTP/2 does not have, or that this client does not support with it.
    #[error("HTTP/2: {0}")]
    Http2(String),
    /// Verification was asked for, and there is nothing to compare with.
    #[error("{0} has no checksum to verify its content by")]
    NoChecksum(String),
}

/// Connections, waiting requests: a slot or a place in the queue is allocated for each before the
/// run.
pub(super) const COUNT_MAX: u32 = 1_000_000;

impl Plan {
    /// A closed loop of `connections` clients on one server, with every choice at its plainest.
    pub fn closed(target: Target, work: Work, connections: u32) -> Plan {
        Plan::new(target, work, Mode::Closed { connections })
    }

    /// An open loop with Poisson arrivals on one server, with at most `connections_max` connections
    /// and as many waiting requests. Everything else has its simplest value.
    pub fn open(target: Target, work: Work, schedule: Schedule, connections_max: u32) -> Plan {
        let mode = Mode::Open {
            schedule,
            arrivals: Arrivals::Poisson,
            connections_max,
            waiting_max: connections_max,
        };
        Plan::new(target, work, mode)
    }

    fn new(target: Target, work: Work, mode: Mode) -> Plan {
        Plan {
            targets: vec![target],
            work,
            mode,
            requests_per_connection: None,
            timeout: None,
            think: Duration::ZERO,
            first_pause: Duration::ZERO,
            ramp: Duration::ZERO,
            conversation: None,
            bandwidth_bits_per_s: None,
            warmup: Duration::ZERO,
            cooldown: Duration::ZERO,
            stop: Stop::default(),
            seed: 1,
            verify: false,
            expect_status: None,
            method: Method::Get,
            headers: Vec::new(),
            body: Vec::new(),
            protocol: Protocol::Http1,
            proxy_version: None,
        }
    }

    /// Checks that the plan can be carried out.
    ///
    /// # Errors
    /// The first thing found, in the words a user can act on.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.targets.is_empty() || self.targets.len() > 256 {
            return Err(PlanError::Targets(self.targets.len()));
        }
        self.targets.iter().try_for_each(Target::check)?;
        self.work.check(self.verify)?;
        self.mode.check()?;
        for (name, value) in &self.headers {
            sendable(
                "header",
                name,
                is_token(name),
                "its name is not an HTTP token",
            )?;
            sendable(
                "header",
                value,
                is_line(value),
                "it has a control character",
            )?;
        }
        self.protocol.check(self)?;
        bounded("the body", self.body.len() as u64, BODY_BYTES_MAX as u64)?;
        for (what, zero) in [
            (
                "requests per connection",
                self.requests_per_connection == Some(0),
            ),
            (
                "bandwidth",
                self.bandwidth_bits_per_s.is_some_and(|bits| bits < 8),
            ),
            ("the timeout", self.timeout == Some(Duration::ZERO)),
            ("the number of requests", self.stop.requests == Some(0)),
            ("the duration", self.stop.duration == Some(Duration::ZERO)),
        ] {
            if zero {
                return Err(PlanError::Zero(what));
            }
        }
        Ok(())
    }
}

impl Target {
    /// A server that is asked under this `Host`, with weight 1 and whatever local address fits.
    pub fn new(address: Address, host: impl Into<String>) -> Target {
        Target {
            address,
            host: host.into(),
            weight: 1,
            sources: Sources::Any,
            tls: None,
        }
    }

    fn check(&self) -> Result<(), PlanError> {
        let fits = is_line(&self.host) && !self.host.contains(' ');
        sendable("host", &self.host, fits, "it has a space or a control byte")?;
        if self.weight == 0 {
            return Err(PlanError::Weight(self.address.to_string()));
        }
        let reason = match (&self.address, &self.sources) {
            (_, Sources::Any) => return Ok(()),
            (Address::Unix(_), _) => "a Unix socket has none",
            (Address::Inet(SocketAddr::V6(_)), Sources::Loopback) => {
                "127.0.0.0/8 reaches IPv4 servers only"
            }
            (Address::Inet(to), Sources::Loopback) if !to.ip().is_loopback() => {
                "127.0.0.0/8 reaches servers on this machine only"
            }
            (Address::Inet(_), Sources::Loopback) => return Ok(()),
            (Address::Inet(_), Sources::List(list)) if list.is_empty() => "the list is empty",
            (Address::Inet(to), Sources::List(list)) => {
                match list.iter().all(|from| from.is_ipv4() == to.is_ipv4()) {
                    true => return Ok(()),
                    false => "IPv4 and IPv6 do not mix",
                }
            }
        };
        let target = self.address.to_string();
        Err(PlanError::Sources { target, reason })
    }
}

impl Work {
    fn check(&self, verify: bool) -> Result<(), PlanError> {
        if self.documents.is_empty() {
            return Err(PlanError::NoDocument);
        }
        for document in &self.documents {
            let path = &document.path;
            let printable = path.bytes().all(|byte| byte.is_ascii_graphic());
            sendable(
                "path",
                path,
                path.starts_with('/'),
                "it does not begin with /",
            )?;
            sendable("path", path, printable, "it is not percent-encoded")?;
            if verify && document.checksum.is_none() {
                return Err(PlanError::NoChecksum(path.clone()));
            }
        }
        let count = self.documents.len() as u64;
        bounded("the number of documents", count, u32::MAX.into())
    }
}

impl Mode {
    fn check(&self) -> Result<(), PlanError> {
        match self {
            Mode::Closed { connections } => {
                let connections = (*connections).into();
                bounded("the number of connections", connections, COUNT_MAX.into())?;
                nonzero("the number of connections", connections)
            }
            Mode::Open {
                schedule,
                connections_max,
                waiting_max,
                ..
            } => {
                let connections = (*connections_max).into();
                bounded("the number of connections", connections, COUNT_MAX.into())?;
                bounded(
                    "the queue",
                    (*waiting_max).into(),
                    100 * u64::from(COUNT_MAX),
                )?;
                nonzero("the number of connections", connections)?;
                schedule.check()
            }
        }
    }
}

impl Schedule {
    fn check(&self) -> Result<(), PlanError> {
        let rates = self
            .segments
            .iter()
            .flat_map(|segment| [segment.from_per_s, segment.to_per_s]);
        for rate in rates {
            if !rate.is_finite() || rate < 0.0 {
                return Err(PlanError::Rate(rate));
            }
            bounded("the rate", rate as u64, 10_000_000)?;
        }
        match self.segments.last() {
            Some(last) if last.to_per_s > 0.0 => Ok(()),
            Some(last) => Err(PlanError::Rate(last.to_per_s)),
            None => Err(PlanError::Rate(0.0)),
        }
    }
}

pub(super) fn nonzero(what: &'static str, value: u64) -> Result<(), PlanError> {
    match value {
        0 => Err(PlanError::Zero(what)),
        _ => Ok(()),
    }
}

pub(super) fn bounded(what: &'static str, value: u64, max: u64) -> Result<(), PlanError> {
    match value > max {
        true => Err(PlanError::TooLarge { what, value, max }),
        false => Ok(()),
    }
}

fn sendable(
    what: &'static str,
    text: &str,
    fits: bool,
    reason: &'static str,
) -> Result<(), PlanError> {
    match fits {
        true => Ok(()),
        false => Err(PlanError::NotSendable {
            what,
            text: text.into(),
            reason,
        }),
    }
}

fn is_line(text: &str) -> bool {
    !text.bytes().any(|byte| byte.is_ascii_control())
}

/// Whether a text is an HTTP token, RFC 9110 section 5.6.2.
pub(crate) fn is_token(text: &str) -> bool {
    let separators = b"\"(),/:;<=>?@[\\]{}";
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !separators.contains(&byte))
}
