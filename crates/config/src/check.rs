//! Turns written settings into effective ones: defaults, limits, contradictions.
//!
//! The check reads the filesystem (roots, error pages, the directory of the log) but changes
//! nothing and binds no address, so it can run beside a running server. It reports all errors.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use super::build::build;
use super::document_root::Patience;
use super::error::{Findings, PlacedFile};
use super::memory::Memory;
use super::ranges::span;
use super::settings::Settings;
use super::units::Bytes;
use super::{Checked, Config, ConfigError, Endpoint, Location, memory};
use crate::extensions::KnownExtensions;

/// Descriptors a worker needs in addition to connections and cached files: listeners, control
/// socket, log, event mechanism, perf ring, and some that are about to be closed.
pub(super) const RESERVED_DESCRIPTORS: u64 = 160;

/// The resources of this machine, and of this program, that the check needs.
#[derive(Clone, Copy, Debug)]
pub struct Environment {
    /// CPUs this process may use.
    pub cpus: usize,
    /// The limit on open descriptors of a process (`RLIMIT_NOFILE`).
    pub nofile: u64,
    /// The limit of the kernel on accept queues (`net.core.somaxconn`).
    pub somaxconn: u32,
    /// Memory available to all workers together.
    pub memory: Memory,
    /// Memory one process may have (`RLIMIT_AS`, `RLIMIT_DATA`).
    pub process_memory_bytes: u64,
    /// What the program contains besides the server.
    pub extensions: KnownExtensions,
    /// How long the file systems of document roots, certificates and error pages may take to answer, all together.
    /// Without it the check waits.
    pub files_wait: Option<Duration>,
}

impl Environment {
    /// Detects the limits and resources, for a program without extensions. The descriptor limit
    /// is the hard one: see [`raise_descriptor_limit`].
    pub fn detect() -> Environment {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Environment {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            nofile: limit.maximum.unwrap_or(1 << 20),
            somaxconn: headway_os::listen::backlog_max(),
            memory: memory::available(),
            process_memory_bytes: memory::process_bytes(),
            extensions: KnownExtensions::NONE,
            files_wait: None,
        }
    }
}

/// Raises the soft limit on descriptors to the hard one; children inherit it.
///
/// The soft limit is low only for programs that use the fixed `select` sets of glibc.
pub fn raise_descriptor_limit() -> std::io::Result<()> {
    let resource = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(resource);
    limit.current = limit.maximum;
    Ok(rustix::process::setrlimit(resource, limit)?)
}

/// Checks settings against themselves and this machine.
pub(super) fn check(
    settings: &Settings,
    sources: Vec<PlacedFile<'_>>,
    environment: &Environment,
) -> Result<Checked, Vec<ConfigError>> {
    let mut to = Findings::new(sources, environment.extensions.research);
    to.patience = Patience::new(environment.files_wait);
    let config = build(settings, environment, &mut to);
    check_contradictions(&config, settings, environment, &mut to);
    match to.errors.is_empty() {
        true => Ok(Checked {
            config,
            warnings: to.warnings,
        }),
        false => Err(to.errors),
    }
}

/// Reports contradictions between settings that are valid on their own.
fn check_contradictions(
    config: &Config,
    from: &Settings,
    environment: &Environment,
    to: &mut Findings<'_>,
) {
    let mut locations = config.hosts.iter().flat_map(|host| &host.locations);
    if config.program_user.is_some() && locations.any(Location::forks_in_worker) {
        let problem = "programs of fork-in-server run as the worker's user; remove one";
        to.usage_error("program-user", span(&from.program_user), problem.into());
    }
    if config.helpers_min > config.helpers_max {
        let (min, max) = (config.helpers_min, config.helpers_max);
        let position = span(&from.helpers_min).or(span(&from.helpers_max));
        to.usage_error(
            "helpers-min",
            position,
            format!("{min} is more than helpers-max, {max}"),
        );
    }
    if config.max_target_bytes > config.max_header_bytes {
        let (target, head) = (
            Bytes(config.max_target_bytes as u64),
            Bytes(config.max_header_bytes as u64),
        );
        let position = span(&from.max_target_size).or(span(&from.max_header_size));
        let problem =
            format!("{target} is more than max-header-size, {head}, which includes the target");
        to.usage_error("max-target-size", position, problem);
    }
    if config.response_cache_max_bytes > 0
        && config.small_file_max_bytes > config.response_cache_max_bytes
    {
        let position = span(&from.small_file_max).or(span(&from.response_cache_max));
        let (small, all) = (
            Bytes(config.small_file_max_bytes),
            Bytes(config.response_cache_max_bytes),
        );
        let problem =
            format!("{small} is more than response-cache-max, {all}: such a file would never fit");
        to.usage_error("small-file-max", position, problem);
    }
    if config.pin_max_bytes > 0 && config.small_file_max_bytes == 0 {
        let problem = "with small-file-max = 0 there are no small files; remove it";
        to.usage_error("pin-max", span(&from.pin_max), problem.into());
    }
    let there = (environment.memory.bytes, environment.process_memory_bytes);
    let taken = (config.memory_bytes(), config.worker_base_bytes);
    memory::check_memory(config.workers, taken, there, from, to);
    if config.backlog > environment.somaxconn {
        let problem = format!(
            "the kernel reduces {} to {} (sysctl net.core.somaxconn)",
            config.backlog, environment.somaxconn
        );
        to.warning("backlog", span(&from.backlog), problem);
    }
    if let Some(status) = config.status {
        check_status(status, config, span(&from.status), to);
    }
}

fn check_status(
    status: SocketAddr,
    config: &Config,
    position: Option<Range<usize>>,
    to: &mut Findings<'_>,
) {
    let status = Endpoint::from(status);
    if config.listen.iter().any(|listen| overlap(listen, &status)) {
        let problem = format!("{status} is also a listen address; choose another port");
        to.usage_error("status", position.clone(), problem);
    }
    if status
        .tcp()
        .is_some_and(|address| !address.ip().is_loopback())
    {
        let problem = format!("{status} is not a loopback address: other machines can read it");
        to.warning("status", position, problem);
    }
}

/// Whether both cannot be listened on at the same time.
pub(super) fn overlap(left: &Endpoint, right: &Endpoint) -> bool {
    let (Some(left), Some(right)) = (left.tcp(), right.tcp()) else {
        return left == right;
    };
    let everywhere = left.ip().is_unspecified() || right.ip().is_unspecified();
    left.port() != 0
        && left.port() == right.port()
        && left.is_ipv4() == right.is_ipv4()
        && (everywhere || left.ip() == right.ip())
}
