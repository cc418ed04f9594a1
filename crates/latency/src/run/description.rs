//! `run.json`: what ran, where, with which settings, and what came out in a few figures.
//!
//! The file begins with its format and version. A field that this version does not know is ignored,
//! a field that is absent has its default, and a *newer version* is refused: it is raised only when
//! an old reader would misunderstand. Lengths of time are seconds unless the name ends in another
//! unit.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::specweb99::SpecWeb99Info;

/// The name in the `format` field of `run.json`.
pub const FORMAT_NAME: &str = "headway-run";

/// The newest version of the run directory that this program reads and the one it writes.
pub const FORMAT_VERSION: u32 = 1;

/// What a file is, and in which version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// The name of the format.
    pub name: String,
    /// Raised when an old reader would misunderstand.
    pub version: u32,
}

impl Default for Format {
    fn default() -> Format {
        Format {
            name: FORMAT_NAME.into(),
            version: FORMAT_VERSION,
        }
    }
}

/// What a run directory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One measurement: rows, cells.
    #[default]
    Load,
    /// Several, each a run directory below `points/`.
    Profile,
    /// The iterations of a SPECweb99-like run, each a run directory below `iterations/`.
    #[serde(rename = "specweb99")]
    SpecWeb99,
}

/// The whole of `run.json`.
///
/// ```
/// use headway_latency::RunDescription;
///
/// let text = r#"{ "format": { "name": "headway-run", "version": 1 }, "label": "nginx" }"#;
/// let description: RunDescription = serde_json::from_str(text)?;
/// assert_eq!(description.label.as_deref(), Some("nginx"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunDescription {
    /// Format and version; [`Format::default`] for what this program writes.
    pub format: Format,
    /// One measurement or a profile.
    pub kind: Kind,
    /// Whether the run reached its end; false while it runs and after a kill.
    pub complete: bool,
    /// Wall-clock time of the epoch, RFC 3339.
    pub started: String,
    /// Wall-clock time of the epoch, nanoseconds since 1970-01-01 UTC.
    pub epoch_unix_ns: u64,
    /// The command line, program first.
    pub command: Vec<String>,
    /// The name in tables and reports, for example `nginx 1.22`.
    pub label: Option<String>,
    /// The machine and the program that measured.
    pub environment: Environment,
    /// What was asked, as the user named it; a row's `target` is an index into it.
    pub targets: Vec<String>,
    /// The server, as its responses named it.
    pub server: Option<ServerInfo>,
    /// The set of files that was asked for.
    pub fileset: Option<FileSetInfo>,
    /// The offered load.
    pub load: LoadInfo,
    /// What the client found out about itself.
    pub client: Option<ClientInfo>,
    /// Which part of the load this client had, if several machines shared it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentInfo>,
    /// The clock of this machine against that of agent 0, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockInfo>,
    /// The runs that this one was merged from. Number `n` of them has the connections whose number
    /// modulo the length of this list is `n`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<MergedAgent>,
    /// Rows that the client could not keep. What they would have said is not in the figures.
    #[serde(skip_serializing_if = "is_zero")]
    pub rows_dropped: u64,
    /// Headline figures, for a look without reading the rows.
    pub summary: Option<Summary>,
    /// The points of a profile.
    pub profile: Option<ProfileInfo>,
    /// Conformance and score of a SPECweb99-like run, or of one of its iterations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub specweb99: Option<SpecWeb99Info>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The part of one client in a load that several share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentInfo {
    /// Which one, from 0.
    pub index: u32,
    /// Number of clients.
    pub count: u32,
}

/// One of the runs that a merged run is made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MergedAgent {
    /// The directory that was merged.
    pub directory: String,
    /// The index of the client, if it had one.
    pub index: Option<u32>,
    /// The host name.
    pub host: String,
    /// Requests, errors included, warm-up excluded.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// How much later than the first client it began to measure, by the clocks of the machines.
    pub start_delay_ms: f64,
    /// Its clock against that of agent 0, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockInfo>,
    /// The verdict on this client.
    pub verdict: Verdict,
    /// Why, one sentence each.
    pub reasons: Vec<String>,
}

/// The machine and the program that measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Host name.
    pub host: String,
    /// Operating system and release, as `uname` says it.
    pub kernel: String,
    /// CPUs that are online.
    pub cpus: u32,
    /// The model name of the first CPU.
    pub cpu_model: String,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// The CPUs that the client may run on, as a list such as `0-3,6`.
    pub client_affinity: String,
    /// The frequency governor of the first CPU, if there is one.
    pub governor: Option<String>,
    /// The version of headway.
    pub headway_version: String,
    /// What else is worth knowing, by name.
    pub extra: BTreeMap<String, String>,
}

/// The server, as its responses named it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerInfo {
    /// The `Server` field of its responses, as it was.
    pub field: String,
    /// The product, if the field has one.
    pub name: Option<String>,
    /// The version of the product, if the header has one.
    pub version: Option<String>,
}

/// The set of files that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileSetInfo {
    /// The directory of the set.
    pub path: String,
    /// `specweb99`, `specweb96`, `uniform` or `from-log`.
    pub profile: String,
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of files.
    pub files: u64,
    /// The seed of its content.
    pub seed: u64,
    /// The checksum of its parameters, from the manifest.
    pub checksum: String,
}

/// How requests were started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A fixed number of connections, each asking again when answered (infinite demand).
    #[default]
    Closed,
    /// By a schedule, whatever the responses do.
    Open,
}

/// How the starts of an open loop are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Independent arrivals, exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// One piece of a schedule: the rate goes from one value to the other in a straight line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScheduleStep {
    /// Length of the step.
    pub duration_s: f64,
    /// Requests per second at its start.
    pub from_rps: f64,
    /// Requests per second at its end.
    pub to_rps: f64,
}

/// The offered load. An absent value is one that the run did not limit or does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadInfo {
    /// Closed or open.
    pub mode: Mode,
    /// Spacing of the starts of an open loop.
    pub arrivals: Option<Arrivals>,
    /// Requests per second of an open loop; the mean of the measured part if a schedule changes it.
    pub rate_rps: Option<f64>,
    /// Connections of a closed loop, or the most that an open loop may have.
    pub connections: Option<u64>,
    /// The method of the requests; absent for `GET`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// What clients do, if it comes from a scenario file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario: Option<ScenarioInfo>,
    /// Headers added to every request, `Name: value`; values that are secrets are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Length of the body of every request.
    #[serde(skip_serializing_if = "is_zero")]
    pub body_bytes: u64,
    /// `h2` for HTTP/2, `http/1.0`; absent for HTTP/1.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Requests that a connection of HTTP/2 carries at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<u64>,
    /// Loops of the client, each on a thread of its own; absent for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u64>,
    /// Why the client has this number, if it chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads_why: Option<String>,
    /// Requests on one connection before it is closed.
    pub requests_per_connection: Option<u64>,
    /// After which a request is an error.
    pub timeout_ms: Option<f64>,
    /// Pause of a connection between response and next request.
    pub think_ms: f64,
    /// For how long a client was silent once its connection had come about.
    pub first_pause_ms: f64,
    /// Bits per second that one connection may receive.
    pub bandwidth_bits_per_s: Option<u64>,
    /// Steps and ramps of an open loop, in order.
    pub schedule: Vec<ScheduleStep>,
    /// Length of the warm-up, which the figures exclude.
    pub warmup_s: f64,
    /// Length of the cool-down, in which requests went on that the figures exclude.
    pub cooldown_s: f64,
    /// Length asked for, without the warm-up and the cool-down.
    pub duration_s: Option<f64>,
    /// Number of requests asked for.
    pub requests: Option<u64>,
    /// The seed of the request stream.
    pub seed: u64,
    /// Whether the content of responses was compared with its checksum.
    pub verify: bool,
    /// Whether each client kept the cookies of responses and sent them back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cookies: bool,
    /// The measured part on the clock of the rows; rates refer to it. Absent: first intended start
    /// to last start or response.
    pub measured: Option<Window>,
}

/// The scenario of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScenarioInfo {
    /// The file.
    pub path: String,
    /// The checksum of the file and of its CSV file.
    pub checksum: String,
    /// The names of its steps. The class of a row is an index into them.
    pub steps: Vec<String>,
}

/// A span on the clock of the rows, nanoseconds since the run's epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// The start.
    pub start_ns: u64,
    /// The end.
    pub end_ns: u64,
}

/// Whether the figures are the server's or the client's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing says that the client was the bottleneck.
    #[default]
    Valid,
    /// Something does; the reasons say what.
    Suspect,
    /// The figures are the client's own limits, or the work was not the one described.
    Invalid,
}

/// What the client found out about itself. An absent value could not be measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientInfo {
    /// The conclusion.
    pub verdict: Verdict,
    /// Why, one sentence each; empty when valid.
    pub reasons: Vec<String>,
    /// Share of the time that the client's loop was not waiting for events.
    pub busy_share: Option<f64>,
    /// Time that the client was ready to run and did not, from `/proc/self/schedstat`.
    pub run_queue_delay_s: Option<f64>,
    /// Median of actual minus intended start.
    pub lag_p50_us: Option<f64>,
    /// 99th percentile of it.
    pub lag_p99_us: Option<f64>,
    /// Largest of it.
    pub lag_max_us: Option<f64>,
    /// Requests that started later than the client tolerates.
    pub late_starts: u64,
    /// Local ports that were free for use: source addresses × ports.
    pub ports_available: Option<u64>,
    /// The most local ports in use at the same time.
    pub ports_used: Option<u64>,
    /// The limit of open descriptors.
    pub descriptors_limit: Option<u64>,
    /// The most descriptors open at the same time.
    pub descriptors_used: Option<u64>,
    /// Connections opened during the run.
    pub connections_opened: Option<u64>,
    /// What TLS did; absent where it was not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsInfo>,
}

/// TLS, as the client saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsInfo {
    /// Version and cipher suite of the first connection.
    pub protocol: String,
    /// Handshakes that were completed.
    pub handshakes: u64,
    /// Those which resumed an earlier session.
    pub resumed: u64,
}

/// Headline figures of the measured part; latency from the intended start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Requests, errors included, warm-up excluded.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Length of the measured part.
    pub duration_s: f64,
    /// Complete responses per second.
    pub rate_rps: f64,
    /// Body bytes per second.
    pub throughput_bytes_per_s: f64,
    /// Mean latency. This and the percentiles are `None` where the analysis has none.
    pub mean_us: Option<f64>,
    /// Median latency.
    pub p50_us: Option<f64>,
    /// 95th percentile.
    pub p95_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
}

/// The points of a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileInfo {
    /// Requests per second at relative load 1: the throughput of the closed loop, the knee, or the capacity
    /// that was given; with `client_bound` the rate that the client can offer. Absent until it is
    /// known.
    pub capacity_rps: Option<f64>,
    /// Present when the client was the bottleneck of the closed loop, so that the server's own
    /// capacity is not known.
    pub client_bound: Option<ClientBound>,
    /// The measurements, capacity runs first.
    pub points: Vec<Point>,
}

/// A clock against that of agent 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockInfo {
    /// What has to be added to a time of this clock.
    pub offset_ns: i64,
    /// The true offset is at most this far from it.
    pub error_ns: u64,
}

impl RunDescription {
    /// The epoch by the clock that several machines share, if they measured their offsets.
    pub fn common_epoch_ns(&self) -> u64 {
        let offset_ns = self.clock.map_or(0, |clock| clock.offset_ns);
        self.epoch_unix_ns.saturating_add_signed(offset_ns)
    }
}

impl Point {
    /// Whether it is one of a search, and no load of the profile.
    pub fn is_of_search(&self) -> bool {
        self.of_client || self.of_knee
    }
}

/// The client was the bottleneck of the runs that looked for a server's capacity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientBound {
    /// Responses per second in the closed loop, or at a rate above the knee. The server can answer at least this.
    pub closed_rps: f64,
    /// Share of that time that the client's loop was at work.
    pub busy_share: f64,
    /// Share of that time that the client waited for a CPU.
    pub waited_share: f64,
    /// The highest rate that was offered in an open loop with the verdict *valid*, and the base of
    /// the shares then; absent if there was none, or none was looked for because something else ran
    /// on the client's core; `closed_rps` is the base then.
    pub valid_rps: Option<f64>,
}

impl ClientBound {
    /// The most responses per second that were measured; the capacity is at least that.
    pub fn at_least_rps(&self) -> f64 {
        self.closed_rps.max(self.valid_rps.unwrap_or(0.0))
    }
}

/// One measurement of a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Share of the capacity that was offered; 0 for a run that looks for the capacity.
    pub relative: f64,
    /// Requests per second that were offered; in a closed loop, answered.
    pub rate_rps: f64,
    /// Which repetition, from 1.
    pub repeat: u32,
    /// The measurement's directory, relative to the profile: `points/0.20-1`, `points/capacity-1`,
    /// `points/client-1`, `points/knee-1`.
    pub directory: String,
    /// An open loop that looks for the rate which the client can offer; its relative load is 0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_client: bool,
    /// An open loop of the search for the knee; its relative load is 0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_knee: bool,
    /// Whether the measurement is finished.
    pub done: bool,
}
