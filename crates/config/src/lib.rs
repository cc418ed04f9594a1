//! Reads a TOML file and the command line into one checked [`Config`].
//!
//! A [`Config`] is always valid: its roots are directories, its numbers fit this machine, and no
//! two settings contradict each other. The master passes it to the workers as JSON. [`settings`]
//! holds what was written, and where. What a program contains besides the server comes as a value:
//! [`KnownExtensions`].
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

pub mod account;
pub mod keys;
pub mod settings;
pub mod units;
pub mod value;
pub mod research;
mod endpoint;
mod error;
mod error_log;
mod fallback;
mod extensions;
mod listen;
mod log_daemon;
mod log_format;
mod logs;
mod memory;
mod networks;
mod otlp;
mod path_match;
mod ranges;
mod redirect;
mod strategy;
mod tls;
mod accept;
mod acme;
mod build;
mod canonical;
mod check;
mod cors;
mod files;
mod host_listeners;
mod document_root;
mod hosts;
mod handlers;
mod locations;
mod upstream_names;
mod upstreams;
mod users;
mod variables;
mod header_rule;
mod headers;
mod hints;
mod include;
mod print;

pub use accept::{EarlyReject, ListenerMode};
pub use account::Account;
pub use acme::{AcmeChallenge, AcmeConfig};
pub use check::{Environment, raise_descriptor_limit};
pub use cors::CorsRule;
pub use endpoint::{Endpoint, FileMode, UnixRights};
use error::PlacedFile;
pub use error::{ConfigError, ConfigFile};
pub use error_log::{ErrorFormat, ErrorLevel, ErrorLog};
pub use extensions::{KnownApplications, KnownExtensions, ResearchTable};
pub use fallback::Fallback;
pub use files::{EtagSource, Symlinks};
pub use header_rule::{HeaderAction, HeaderRule, StatusRange};
pub use headway_gateway::client_address::UNIX_CLIENT;
pub use locations::{Cgi, HandlerConfig, Location, NamedApplication, Streams};
pub use log_daemon::LogDaemon;
pub use log_format::{LogField, LogFormat, LogPart, LogTemplate};
pub use logs::{LogConfig, LogFile};
pub use memory::{Memory, available_now, default_kept_bytes};
pub use networks::{Access, Network, Networks, TrustedProxies};
pub use otlp::{OtlpConfig, Percent};
pub use path_match::PathMatch;
pub use redirect::Redirect;
pub use research::{RESEARCH_TABLE, ResearchConfig, SendOrder, SendVariant};
pub use settings::Settings;
pub use strategy::{HelperBackend, Opening, Sandbox, SendMethod};
pub use tls::{
    CipherSuite, ClientCertificate, Handshakes, Offload, TlsConfig, TlsIdentity, TlsVersion,
};
pub use units::AcceptBatch;
pub use upstream_names::{Resolved, UpstreamEntry, resolve};
pub use upstreams::{Protocol, Upstreams};

/// The checked configuration of one server.
///
/// Sizes are in bytes and times in milliseconds. Limits "per worker" apply to each worker process
/// separately, because descriptors and caches belong to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Addresses to listen on, at least one: the plain ones, then those of TLS. Port 0 lets the kernel
    /// choose.
    pub listen: Vec<Endpoint>,
    /// Permissions and owner of those of `listen` which are Unix sockets.
    #[serde(default)]
    pub unix_rights: UnixRights,
    /// TLS, if some of the listeners speak it.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// Automatic certificates. The last of `hosts` is then that of their challenges.
    #[serde(default)]
    pub acme: Option<AcmeConfig>,
    /// Worker processes, at least one.
    pub workers: usize,
    /// Virtual hosts, at least one; the first is the default host.
    pub hosts: Vec<Host>,
    /// Document roots whose file system did not answer when they were looked at.
    #[serde(default)]
    pub silent_roots: Vec<PathBuf>,
    /// The event mechanism: `select`, `poll`, `epoll`, `epoll-edge` or `io_uring`.
    pub events: String,
    /// Connections to accept per wakeup.
    pub accept_batch: AcceptBatch,
    /// What to do with connections that cannot be served under overload.
    pub early_reject: EarlyReject,
    /// How workers share the listening sockets.
    pub listeners: ListenerMode,
    /// Length of the accept queue of each listener.
    pub backlog: u32,
    /// Limit on open connections per worker.
    pub max_connections: u32,
    /// Limit on open connections from one address, of all workers together; 0 means no limit.
    pub max_connections_per_address: u32,
    /// The proxies in front of the server which are believed.
    pub proxies: TrustedProxies,
    /// Whether a connection stays in the kernel until its first bytes arrive.
    pub defer_accept: bool,
    /// Limit on requests per connection; 0 means no limit.
    pub max_requests_per_connection: u32,
    /// Limit on requests of one HTTP/2 connection at a time; 0 means no HTTP/2.
    #[serde(default)]
    pub http2_streams_max: u32,
    /// Timeout of the request header, from its first byte or from the accept.
    pub header_timeout_ms: u64,
    /// Timeout of the request body.
    pub body_timeout_ms: u64,
    /// Timeout without progress while sending.
    pub send_timeout_ms: u64,
    /// Timeout between two requests of a connection.
    pub idle_timeout_ms: u64,
    /// Timeout of requests in flight after a stop signal.
    pub drain_timeout_ms: u64,
    /// Time without progress after which a worker is replaced; 0 means never.
    #[serde(default)]
    pub worker_timeout_ms: u64,
    /// Longest request header; a longer one gets 431.
    pub max_header_bytes: usize,
    /// Longest request target; a longer one gets 414.
    pub max_target_bytes: usize,
    /// Longest request body; a longer one gets 413.
    pub max_body_bytes: u64,
    /// Least rate of a client that sends a body or reads a handler's response, in bytes per second; 0
    /// means none.
    pub min_transfer_rate: u64,
    /// Memory for bodies and responses that wait, for all workers together.
    pub buffer_memory_max_bytes: u64,
    /// Disk space for them, for all workers together.
    pub buffer_disk_max_bytes: u64,
    /// Files for them, per worker.
    pub buffer_files_max: usize,
    /// What does the work that may block.
    pub helper_backend: HelperBackend,
    /// Lowest number of helper processes per worker.
    pub helpers_min: usize,
    /// Highest number of helper processes per worker.
    pub helpers_max: usize,
    /// Jobs that may wait for a helper per worker. Beyond this, new requests get 503; requests that
    /// a helper has worked for continue.
    pub helper_queue_max: usize,
    /// Entries in the file cache per worker.
    pub file_cache_entries: usize,
    /// Open files in the file cache per worker.
    pub file_cache_descriptors: usize,
    /// Memory that a worker may need in addition to that of files.
    pub worker_base_bytes: u64,
    /// Memory of the response cache per worker.
    pub response_cache_max_bytes: u64,
    /// Memory for files in the content store, for all workers together; 0 stores none.
    pub content_store_max_bytes: u64,
    /// Memory for small files pinned in the page cache, for all workers together; 0 pins none.
    pub pin_max_bytes: u64,
    /// Files up to this size go through the response cache.
    pub small_file_max_bytes: u64,
    /// How larger files are checked for residency and sent.
    pub send: SendMethod,
    /// What the entity tag of a file is made of.
    pub etag: EtagSource,
    /// Memory for chunks of larger files per worker.
    pub chunk_cache_max_bytes: u64,
    /// Bytes one connection may send before others get a turn.
    pub write_quantum_bytes: u64,
    /// Age after which a cached file is checked again.
    pub revalidate_ms: u64,
    /// How much longer a busy entry is used while its check would block.
    pub stale_while_revalidate_ms: u64,
    /// How often names of upstreams are resolved again; 0 means never.
    #[serde(default)]
    pub resolve_interval_ms: u64,
    /// Directory of temporary files, which must exist. The files have no names.
    #[serde(default)]
    pub temp_directory: PathBuf,
    /// User of all processes but the master; `None` is that of the master.
    #[serde(default)]
    pub user: Option<Account>,
    /// User of the programs that the server starts; `None` is `user`.
    #[serde(default)]
    pub program_user: Option<Account>,
    /// Whether processes are confined to what their work needs.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// Value of the `Server` header; `None` omits it.
    pub server_header: Option<String>,
    /// Rules for response headers of all hosts, in the order of the file.
    pub headers: Vec<HeaderRule>,
    /// Rules for pages of other origins, of all hosts.
    #[serde(default)]
    pub cors: Vec<CorsRule>,
    /// Media types by file name extension (without the dot), in addition to the built-in table.
    pub mime_types: Vec<(String, String)>,
    /// The access log; `None` writes none.
    pub log: Option<LogConfig>,
    /// Which messages go to standard error.
    #[serde(default)]
    pub error_log: ErrorLog,
    /// Whether each request has an ID and a trace, which handlers get.
    #[serde(default)]
    pub trace_context: bool,
    /// Where spans of requests go; `None` makes none.
    #[serde(default)]
    pub otlp: Option<OtlpConfig>,
    /// Whether responses say how long the request was in each stage.
    #[serde(default)]
    pub server_timing: bool,
    /// Address of the status page; `None` serves none.
    pub status: Option<SocketAddr>,
    /// Whether workers record their own system calls.
    pub trace: bool,
    /// The values of `[research]`, or those of Headway.
    #[serde(default)]
    pub research: ResearchConfig,
}

/// Files of this size and smaller ones are not in the content store: one call that copies header and body
/// costs less than two that do not.
pub const STORED_FILE_BYTES_MIN: u64 = 16 << 10;

/// A valid configuration with its warnings.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// Settings that work, but perhaps not as intended.
    pub warnings: Vec<ConfigError>,
}

impl Config {
    /// Most descriptors that a worker has open; the limit on open files allows them.
    pub fn descriptors_needed(&self) -> u32 {
        let own = check::RESERVED_DESCRIPTORS as usize + build::most_helpers(self.helpers_max);
        let needed = self.max_connections as usize + self.file_cache_descriptors + own;
        u32::try_from(needed).unwrap_or(u32::MAX)
    }

    /// Memory for what the content store has for one worker alone.
    pub fn content_store_bytes_per_worker(&self) -> u64 {
        self.content_store_max_bytes / self.workers.max(1) as u64
    }

    /// Files that the content store may have. Each takes a descriptor in every worker that serves it. They
    /// are taken from those of the file cache.
    pub fn content_store_descriptors(&self) -> usize {
        let files = self.content_store_max_bytes / STORED_FILE_BYTES_MIN;
        (files as usize).min(self.file_cache_descriptors / 4)
    }

    /// Memory that a worker may fill with the contents of files.
    pub fn memory_bytes(&self) -> u64 {
        let windows_bytes = match self.copies_files() {
            true => self.chunk_cache_max_bytes,
            // Mapped pages belong to the page cache and can be reclaimed.
            false => 0,
        };
        self.response_cache_max_bytes + windows_bytes
    }

    /// Workers per listening socket.
    pub fn workers_per_listener(&self) -> u32 {
        match self.listeners {
            ListenerMode::Reuseport => 1,
            ListenerMode::Shared => self.workers as u32,
        }
    }

    /// Whether files are sent through the worker's memory.
    pub fn copies_files(&self) -> bool {
        self.send != SendMethod::Sendfile && self.research.send_method.is_none()
    }

    /// The name of the way in which files are sent.
    pub fn send_name(&self) -> String {
        match self.research.send_method {
            Some(method) => method.to_string(),
            None => self.send.to_string(),
        }
    }

    /// Whether the kernel wakes one of several workers for each connection to a shared socket.
    pub fn wakes_one_worker(&self) -> bool {
        self.listeners == ListenerMode::Shared && !self.research.thundering_herd
    }

    /// Whether workers balance connections among themselves: they share one socket and know the
    /// load of the others.
    pub fn is_balanced(&self) -> bool {
        self.wakes_one_worker() && self.workers > 1
    }

    /// Whether workers share their numbers of connections per address.
    pub fn shares_addresses(&self) -> bool {
        self.max_connections_per_address > 0 && self.workers > 1
    }

    /// The virtual hosts that were configured: all but that of challenges.
    pub fn sites(&self) -> &[Host] {
        let challenges = usize::from(self.acme.is_some());
        &self.hosts[..self.hosts.len() - challenges]
    }

    /// How many of the listeners speak no TLS. They are the first ones.
    pub fn plain_listeners(&self) -> usize {
        let tls = self.tls.as_ref();
        tls.map_or(self.listen.len(), |tls| tls.first_listener)
    }

    /// Whether the spawner is needed: some location starts programs, and not from the worker
    /// itself.
    pub fn needs_spawner(&self) -> bool {
        let mut locations = self.hosts.iter().flat_map(|host| &host.locations);
        locations.any(Location::needs_spawner)
    }

    /// Checks settings against each other and against this machine.
    ///
    /// `source` is the file they came from, so that errors name its lines. All errors are returned.
    pub fn check(
        settings: &Settings,
        source: Option<ConfigFile<'_>>,
        environment: &Environment,
    ) -> Result<Checked, Vec<ConfigError>> {
        let sources = source.map(PlacedFile::only).into_iter().collect();
        check::check(settings, sources, environment)
    }

    /// Reads a file and what it includes, puts the settings of the command line over it, and checks them.
    ///
    /// All errors are returned in the order of the lines: of the syntax, of keys and types, and of
    /// values.
    pub fn load(
        source: ConfigFile<'_>,
        options: Settings,
        environment: &Environment,
    ) -> Result<Checked, Vec<ConfigError>> {
        let read = include::read(source, environment.extensions);
        let (mut settings, mut errors) = (read.settings, read.errors);
        settings.overlay(options, environment.extensions);
        match check::check(&settings, include::placed(&read.files), environment) {
            Ok(checked) if errors.is_empty() => return Ok(checked),
            Ok(_) => {}
            Err(more) => {
                // A line that could not be read has had its message.
                let lines: Vec<_> = errors.iter().map(ConfigError::line).collect();
                errors.extend(more.into_iter().filter(|one| !one.repeats(&lines)));
            }
        }
        errors.sort_by_key(ConfigError::line);
        Err(errors)
    }
}

/// One virtual host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Lower-case names, `a.example` or `*.example`; empty for a default host without a name.
    pub names: Vec<String>,
    /// The addresses at which it is served, some of [`Config::listen`]; empty for all.
    #[serde(default)]
    pub listen: Vec<Endpoint>,
    /// The name, perhaps with scheme and port, to which its other names redirect.
    #[serde(default)]
    pub canonical: Option<String>,
    /// These other names. They are those of the next host.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Whether it has only the redirect of the host before.
    #[serde(default)]
    pub is_alias: bool,
    /// The document root: an absolute path to an existing directory.
    pub root: PathBuf,
    /// Its own access log; `None` for that of the top level.
    #[serde(default)]
    pub log: Option<LogFile>,
    /// Its own certificate, which is also among those of [`TlsConfig`].
    #[serde(default)]
    pub tls: Option<TlsIdentity>,
    /// File names to try in a directory, in order.
    pub index: Vec<String>,
    /// Whether a directory without an index file is listed.
    pub listing: bool,
    /// Whether names that begin with a dot are served; otherwise they get 404.
    pub dotfiles: bool,
    /// Whether precompressed files (`.br`, `.zst`, `.gz`) are served.
    pub precompressed: bool,
    /// Which symbolic links are followed.
    pub symlinks: Symlinks,
    /// Whose requests are answered.
    #[serde(default)]
    pub access: Access,
    /// What is served in place of a path that does not exist, in this order.
    #[serde(default)]
    pub fallback: Vec<Fallback>,
    /// Whether paths that end in `.html` redirect to those without. The first fallback is then `$path.html`.
    #[serde(default)]
    pub clean_urls: bool,
    /// Bodies of error responses, by status: absolute paths to existing files.
    pub error_pages: BTreeMap<u16, PathBuf>,
    /// Paths that a handler answers, including those of the top level.
    #[serde(default)]
    pub locations: Vec<Location>,
    /// Rules for response headers of this host; those of the top level apply before them.
    #[serde(default)]
    pub headers: Vec<HeaderRule>,
    /// Rules for pages of other origins; those of the top level are for what these leave.
    #[serde(default)]
    pub cors: Vec<CorsRule>,
}
