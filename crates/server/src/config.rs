//! TOML and command line, merged into one checked [`Config`].
//!
//! A [`Config`] that exists is good: its roots are directories, its numbers are within the limits
//! of this machine, nothing contradicts. The master hands it to the workers as JSON. It says
//! nothing about how it came to be; [`settings`] has what was written, and where.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

pub mod settings;
pub mod units;
mod accept;
mod check;
mod hosts;
mod handlers;
mod locations;
mod upstreams;
mod headers;
mod memory;
mod strategy;
mod error;
mod print;

pub use accept::{EarlyReject, ListenerMode};
pub use check::{Environment, raise_descriptor_limit};
pub use error::{ConfigError, Source};
pub use locations::{Cgi, Handler, Location, PathMatch, SpecWeb99, Streams};
pub(crate) use memory::REST_BYTES;
pub use memory::{Memory, available_now, default_kept_bytes};
pub use settings::Settings;
pub use strategy::{HelperBackend, Opening, Preset, SendMethod};
pub use units::AcceptBatch;
pub use upstreams::{Protocol, Upstreams};

/// The checked configuration of one server.
///
/// Sizes are in bytes and times in milliseconds. Numbers called "a worker" hold in each worker
/// process separately, because the limits behind them (descriptors, memory of a cache) are per
/// process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Addresses to listen on, at least one. Port 0 lets the kernel choose.
    pub listen: Vec<SocketAddr>,
    /// Worker processes, at least one.
    pub workers: usize,
    /// Virtual hosts, at least one; the first is the default host.
    pub hosts: Vec<Host>,
    /// The event mechanism: `select`, `poll`, `epoll`, `epoll-edge` or `io_uring`.
    pub events: String,
    /// Connections accepted at most a wake-up.
    pub accept_batch: AcceptBatch,
    /// What is done with clients that cannot be served in time.
    pub early_reject: EarlyReject,
    /// Whether each worker has listeners of its own.
    pub listeners: ListenerMode,
    /// Whether a new connection is read from as soon as it is accepted.
    pub eager_read: bool,
    /// Whether a reply is written as soon as it is there, without asking whether the socket takes
    /// it.
    pub eager_write: bool,
    /// Whether connections are accepted whenever one has closed, too.
    pub accept_on_close: bool,
    /// Whether a connection is read from until it has nothing more.
    pub full_read: bool,
    /// Whether names, open files and the contents of small files are kept between requests.
    pub caching: bool,
    /// Length of the kernel's accept queue, of each listener of each worker.
    pub backlog: u32,
    /// Open connections at most, a worker.
    pub max_connections: u32,
    /// Open connections at most from one address, a worker; 0 is no bound.
    pub max_connections_per_address: u32,
    /// Whether the kernel keeps a connection back until its first data has come.
    pub defer_accept: bool,
    /// Requests at most on one connection; 0 is no bound.
    pub max_requests_per_connection: u32,
    /// For the whole request head, from its first byte or the accept.
    pub header_timeout_ms: u64,
    /// For the whole request body.
    pub body_timeout_ms: u64,
    /// Without any progress in sending.
    pub send_timeout_ms: u64,
    /// Between two requests of a connection.
    pub idle_timeout_ms: u64,
    /// For requests in flight after a stop signal.
    pub drain_timeout_ms: u64,
    /// A longer request head is answered 431.
    pub max_header_bytes: usize,
    /// A longer request target is answered 414.
    pub max_target_bytes: usize,
    /// A longer request body is refused with 413, a shorter one is drained.
    pub max_body_bytes: u64,
    /// Who does what may wait.
    pub helper_backend: HelperBackend,
    /// Helper processes at least, a worker.
    pub helpers_min: usize,
    /// Helper processes at most, a worker.
    pub helpers_max: usize,
    /// Jobs waiting for a helper at most, a worker; beyond, new requests are answered 503, and
    /// those a helper has worked for go on.
    pub helper_queue_max: usize,
    /// Names in the cache at most, a worker.
    pub file_cache_entries: usize,
    /// Descriptors held by the name cache at most, a worker.
    pub file_cache_descriptors: usize,
    /// Memory for the contents of small files at most, a worker.
    pub response_cache_max_bytes: u64,
    /// Small files that stay in the page cache for all workers, at most; 0: none do.
    pub pin_max_bytes: u64,
    /// Files up to this size are sent from memory.
    pub small_file_max_bytes: u64,
    /// How a name that is not cached becomes an open file.
    pub opening: Opening,
    /// How files above that size are found resident and leave.
    pub send: SendMethod,
    /// Bytes of files mapped, or believed to be in memory because they were used lately, at most, a
    /// worker. Of no meaning to the ways of sending that do neither.
    pub mapped_max_bytes: u64,
    /// Memory for the windows of larger files on their way at most, a worker.
    pub chunk_cache_max_bytes: u64,
    /// Bytes one connection may send before the others have their turn.
    pub write_quantum_bytes: u64,
    /// Cached names older than this are checked again before use.
    pub revalidate_ms: u64,
    /// Where long request bodies wait for their program, as files without names: an existing
    /// directory.
    #[serde(default)]
    pub temp_directory: PathBuf,
    /// The value of the `Server` field; `None` hides the field.
    pub server_header: Option<String>,
    /// Extra response fields by path prefix.
    pub headers: Vec<ExtraHeader>,
    /// Media types by file name extension (without the dot), before the built-in table.
    pub mime_types: Vec<(String, String)>,
    /// The access log; `None` writes none.
    pub log: Option<LogConfig>,
    /// Where the status page listens; `None` is nowhere.
    pub status: Option<SocketAddr>,
    /// Whether the workers trace themselves.
    pub trace: bool,
}

/// A configuration that passed, and what a person should know about it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// It works, but perhaps not as meant.
    pub warnings: Vec<ConfigError>,
}

impl Config {
    /// Descriptors a worker has open at most, which its limit on them allows.
    pub fn descriptors_needed(&self) -> u32 {
        let own = check::RESERVED_DESCRIPTORS as usize + self.helpers_max;
        let needed = self.max_connections as usize + self.file_cache_descriptors + own;
        u32::try_from(needed).unwrap_or(u32::MAX)
    }

    /// Memory that a worker may fill with the contents of files.
    pub fn memory_bytes(&self) -> u64 {
        let windows_bytes = match self.send {
            SendMethod::Copy => self.chunk_cache_max_bytes,
            // Mapped pages are the page cache's, and go when it needs them to.
            _ => 0,
        };
        self.response_cache_max_bytes + windows_bytes
    }

    /// How many workers take clients from one queue.
    pub fn sharers(&self) -> u32 {
        match self.listeners {
            ListenerMode::Reuseport => 1,
            ListenerMode::Shared | ListenerMode::SharedThundering => self.workers as u32,
        }
    }

    /// Whether workers take clients by shares: from one queue, and each knows how many the others
    /// have.
    pub fn is_balanced(&self) -> bool {
        self.listeners == ListenerMode::Shared && self.workers > 1
    }

    /// Whether a fork helper is needed: some location starts programs, and not from the worker
    /// itself.
    pub fn needs_fork_helper(&self) -> bool {
        let mut locations = self.hosts.iter().flat_map(|host| &host.locations);
        locations.any(Location::needs_fork_helper)
    }

    /// Checks settings against themselves and against this machine.
    ///
    /// `source` is the file they came from, if any, so that errors name its lines. All errors are
    /// returned, not only the first.
    pub fn check(
        settings: &Settings,
        source: Option<Source<'_>>,
        environment: &Environment,
    ) -> Result<Checked, Vec<ConfigError>> {
        check::check(settings, source, environment)
    }
}

/// One virtual host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Lower-case names, `a.example` or `*.example`; empty for a default host without a name.
    pub names: Vec<String>,
    /// The document root: an absolute path to an existing directory.
    pub root: PathBuf,
    /// Names tried, in order, in a directory.
    pub index: Vec<String>,
    /// Whether a directory without an index file is listed.
    pub listing: bool,
    /// Whether names that begin with a dot are served; otherwise they are answered 404.
    pub dotfiles: bool,
    /// Whether `.br`, `.zst` and `.gz` siblings are served.
    pub precompressed: bool,
    /// Bodies of error responses, by status: absolute paths to existing files.
    pub error_pages: BTreeMap<u16, PathBuf>,
    /// Paths that programs answer, those of the top level included.
    #[serde(default)]
    pub locations: Vec<Location>,
}

/// A response field added to every response whose path begins with `prefix`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraHeader {
    /// The path prefix, with its leading slash.
    pub prefix: String,
    /// The field's name.
    pub name: String,
    /// The field's value.
    pub value: String,
}

/// The access log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogConfig {
    /// The file, appended to and created when missing.
    pub path: PathBuf,
    /// The format of its lines.
    pub format: LogFormat,
}

/// The format of an access log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// The NCSA common log format.
    Common,
    /// The common format with referer and user agent.
    #[default]
    Combined,
    /// One JSON object a line.
    Json,
}
