//! From what was written to what holds: defaults, limits, contradictions.
//!
//! The check reads the filesystem (roots, error pages, the log's directory) but changes nothing and
//! binds nothing, so it may run beside a server in service. It reports everything it finds, not
//! only the first mistake.

use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use toml::Spanned;

use super::error::{Findings, Source};
use super::memory::Memory;
use super::settings::{Item, Settings};
use super::units::{Bytes, Helpers, Millis};
use super::{
    Checked, Config, ConfigError, HelperBackend, LogConfig, Opening, SendMethod, accept, headers,
    hosts, locations, memory,
};

/// Descriptors a worker needs beside connections and cached files: listeners, control, log, event
/// mechanism, perf ring, and some air for descriptors on their way to be closed.
pub(super) const RESERVED_DESCRIPTORS: u64 = 160;
/// More connections than this are not a sensible default for one worker.
const DEFAULT_CONNECTIONS: u64 = 15_000;
const LISTENERS_MAX: usize = 64;
const HOUR_MS: u64 = 3_600_000;

/// What the check needs to know about this machine.
#[derive(Clone, Copy, Debug)]
pub struct Environment {
    /// Processors this process may use.
    pub cpus: usize,
    /// The limit on open descriptors a process (`RLIMIT_NOFILE`).
    pub nofile: u64,
    /// The kernel's bound on accept queues (`net.core.somaxconn`).
    pub somaxconn: u32,
    /// Memory there is for all workers together.
    pub memory: Memory,
    /// Memory one process may have (`RLIMIT_AS`, `RLIMIT_DATA`).
    pub process_memory_bytes: u64,
}

impl Environment {
    /// Asks the kernel. The descriptor limit is the hard one: see [`raise_descriptor_limit`].
    pub fn detect() -> Environment {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Environment {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            nofile: limit.maximum.unwrap_or(1 << 20),
            somaxconn: headway_os::listen::longest_queue(),
            memory: memory::available(),
            process_memory_bytes: memory::process_bytes(),
        }
    }
}

/// Raises the soft limit on descriptors to the hard one; children inherit it.
///
/// The soft limit is low only for programs that use glibc's `select` sets; ours grow.
pub fn raise_descriptor_limit() -> std::io::Result<()> {
    let resource = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(resource);
    limit.current = limit.maximum;
    Ok(rustix::process::setrlimit(resource, limit)?)
}

/// Checks settings against themselves and this machine.
pub(super) fn check(
    settings: &Settings,
    source: Option<Source<'_>>,
    environment: &Environment,
) -> Result<Checked, Vec<ConfigError>> {
    let mut to = Findings::new(source);
    let config = build(settings, environment, &mut to);
    agree(&config, settings, environment, &mut to);
    match to.errors.is_empty() {
        true => Ok(Checked {
            config,
            warnings: to.warnings,
        }),
        false => Err(to.errors),
    }
}

fn build(from: &Settings, environment: &Environment, to: &mut Findings<'_>) -> Config {
    let cpus = environment.cpus.min(256);
    let workers = number("workers", &from.workers, cpus, 1..=256, to);
    let helpers_most = memory::default_helpers_max(workers, environment.memory);
    let (helper_backend, helpers_min, helpers_max) = helpers(from, helpers_most, to);
    let policy = accept::policy(from, to);
    let hosts = hosts::hosts(from, to);
    let others = helpers_max + locations::descriptors(&hosts);
    let (max_connections, file_cache_descriptors) =
        descriptors(from, others, policy.micro, environment, to);
    let (opening, send) = axes(from);
    let small_file = send.default_small_file_bytes();
    // Without small files in memory there is nothing to take memory for.
    let small_files = policy.caching && small_file > 0;
    let keep = match small_files {
        true => memory::default_keep_bytes(workers, environment.memory),
        false => 0,
    };
    let keep = size("pin-max", &from.pin_max, keep, 0..=1 << 40, to);
    let content = match small_files {
        true => memory::default_content_bytes(workers, keep > 0, environment.memory),
        false => 0,
    };
    let content = size(
        "response-cache-max",
        &from.response_cache_max,
        content,
        0..=1 << 40,
        to,
    );
    Config {
        listen: listen(from, to),
        workers,
        hosts,
        events: events(from, policy.micro, to),
        accept_batch: policy.count,
        early_reject: policy.early_reject,
        listeners: policy.listeners,
        eager_read: policy.eager_read,
        eager_write: policy.eager_write,
        accept_on_close: policy.on_close,
        full_read: policy.full_read,
        caching: policy.caching,
        backlog: accept::backlog(from, policy, environment.somaxconn, to),
        max_connections,
        max_connections_per_address: number(
            "max-connections-per-address",
            &from.max_connections_per_address,
            0,
            0..=u32::MAX,
            to,
        ),
        defer_accept: value(&from.defer_accept).unwrap_or(!policy.micro),
        max_requests_per_connection: number(
            "max-requests-per-connection",
            &from.max_requests_per_connection,
            0,
            0..=u32::MAX,
            to,
        ),
        header_timeout_ms: time("header-timeout", &from.header_timeout, 10_000, 1, to),
        body_timeout_ms: time("body-timeout", &from.body_timeout, 10_000, 1, to),
        send_timeout_ms: time("send-timeout", &from.send_timeout, 30_000, 1, to),
        idle_timeout_ms: time("idle-timeout", &from.idle_timeout, 60_000, 1, to),
        drain_timeout_ms: time("drain-timeout", &from.drain_timeout, 10_000, 0, to),
        max_header_bytes: size(
            "max-header-size",
            &from.max_header_size,
            16 << 10,
            512..=1 << 20,
            to,
        ) as usize,
        max_target_bytes: size(
            "max-target-size",
            &from.max_target_size,
            8 << 10,
            64..=1 << 20,
            to,
        ) as usize,
        max_body_bytes: size(
            "max-body-size",
            &from.max_body_size,
            1 << 20,
            0..=1 << 40,
            to,
        ),
        helper_backend,
        helpers_min,
        helpers_max,
        helper_queue_max: number(
            "helper-queue-max",
            &from.helper_queue_max,
            4096,
            1..=1 << 20,
            to,
        ),
        file_cache_entries: number(
            "file-cache-entries",
            &from.file_cache_entries,
            50_000,
            1..=100_000_000,
            to,
        ),
        file_cache_descriptors,
        response_cache_max_bytes: content,
        pin_max_bytes: keep,
        small_file_max_bytes: size(
            "small-file-max",
            &from.small_file_max,
            match content {
                0 => small_file,
                _ => small_file.min(content),
            },
            0..=16 << 20,
            to,
        ),
        opening,
        send,
        mapped_max_bytes: size(
            "mapped-max",
            &from.mapped_max,
            memory::default_mapped_bytes(workers, environment.memory),
            memory::WINDOW_BYTES_LEAST..=1 << 46,
            to,
        ),
        chunk_cache_max_bytes: size(
            "chunk-cache-max",
            &from.chunk_cache_max,
            memory::default_window_bytes(workers, environment.memory),
            memory::WINDOW_BYTES_LEAST..=1 << 40,
            to,
        ),
        write_quantum_bytes: size(
            "write-quantum",
            &from.write_quantum,
            1 << 20,
            4096..=1 << 30,
            to,
        ),
        revalidate_ms: time(
            "revalidate",
            &from.revalidate,
            opening.default_revalidate_ms(),
            0,
            to,
        ),
        temp_directory: temp_directory(&from.temp_directory, to),
        server_header: headers::server(from, to),
        headers: headers::extra(from, to),
        mime_types: headers::mime_types(from, to),
        log: log(from, to),
        status: from.status.as_ref().map(|status| status.get_ref().0),
        trace: value(&from.trace).unwrap_or(true),
    }
}

/// The values on both axes: those given, else the preset's.
fn axes(from: &Settings) -> (Opening, SendMethod) {
    let (opening, send) = value(&from.preset).unwrap_or_default().axes();
    (
        value(&from.opening).unwrap_or(opening),
        value(&from.send).unwrap_or(send),
    )
}

/// Who helps, and the least and the most helpers.
fn helpers(from: &Settings, most: usize, to: &mut Findings<'_>) -> (HelperBackend, usize, usize) {
    let given = from
        .helpers
        .as_ref()
        .map(|item| (*item.get_ref(), item.span()));
    let Some((Helpers::Processes(count), place)) = given else {
        let means = match given {
            Some((_, place)) => {
                ring_is_there(place, to);
                HelperBackend::IoUring
            }
            None => HelperBackend::Processes,
        };
        let min = number("helpers-min", &from.helpers_min, 1, 1..=256, to);
        // Who asks for more at least than is the rule at most has asked for as many at most.
        let most = most.max(min);
        let max = number("helpers-max", &from.helpers_max, most, 1..=256, to);
        return (means, min, max);
    };
    let place = Some(place);
    if count.min < 1 || count.max > 256 {
        to.wrong("helpers", place, format!("{count} is not within 1 to 256"));
    } else if from.helpers_min.is_some() || from.helpers_max.is_some() {
        let problem = "it says the least and the most; leave out helpers-min and helpers-max";
        to.wrong("helpers", place, problem.into());
    }
    (HelperBackend::Processes, count.min, count.max)
}

/// A machine may forbid it; a worker would find out too late.
fn ring_is_there(place: Range<usize>, to: &mut Findings<'_>) {
    // In a thread that ends with it: see `events`.
    let tried = std::thread::spawn(|| headway_os::work::WorkRing::new(1, 1).map(drop)).join();
    if let Ok(Err(error)) = tried {
        let problem = format!(
            "{}; use processes, such as 1-16",
            headway_event::explain_ring(error)
        );
        to.lacking("helpers", Some(place), problem);
    }
}

/// Contradictions between settings that are each possible.
fn agree(config: &Config, from: &Settings, environment: &Environment, to: &mut Findings<'_>) {
    if config.helpers_min > config.helpers_max {
        let (min, max) = (config.helpers_min, config.helpers_max);
        let place = span(&from.helpers_min).or(span(&from.helpers_max));
        to.wrong(
            "helpers-min",
            place,
            format!("{min} is more than helpers-max, {max}"),
        );
    }
    if config.max_target_bytes > config.max_header_bytes {
        let (target, head) = (
            Bytes(config.max_target_bytes as u64),
            Bytes(config.max_header_bytes as u64),
        );
        let place = span(&from.max_target_size).or(span(&from.max_header_size));
        let problem =
            format!("{target} is more than max-header-size, {head}, and the target is in the head");
        to.wrong("max-target-size", place, problem);
    }
    if config.response_cache_max_bytes > 0
        && config.small_file_max_bytes > config.response_cache_max_bytes
    {
        let place = span(&from.small_file_max).or(span(&from.response_cache_max));
        let (small, all) = (
            Bytes(config.small_file_max_bytes),
            Bytes(config.response_cache_max_bytes),
        );
        let problem =
            format!("{small} is more than response-cache-max, {all}: such a file never fits");
        to.wrong("small-file-max", place, problem);
    }
    if config.pin_max_bytes > 0 && config.small_file_max_bytes == 0 {
        let problem =
            "with this `send`, or small-file-max = 0, no file is a small one; leave it out";
        to.wrong("pin-max", span(&from.pin_max), problem.into());
    }
    let there = (environment.memory.bytes, environment.process_memory_bytes);
    memory::agrees(config.workers, config.memory_bytes(), there, from, to);
    if config.backlog > environment.somaxconn {
        let problem = format!(
            "the kernel cuts {} to {} (sysctl net.core.somaxconn)",
            config.backlog, environment.somaxconn
        );
        to.warn("backlog", span(&from.backlog), problem);
    }
    if let Some(status) = config.status {
        status_agrees(status, config, span(&from.status), to);
    }
}

fn status_agrees(
    status: SocketAddr,
    config: &Config,
    place: Option<Range<usize>>,
    to: &mut Findings<'_>,
) {
    if config.listen.iter().any(|listen| overlap(*listen, status)) {
        let problem = format!("{status} is also a listen address; give it a port of its own");
        to.wrong("status", place.clone(), problem);
    }
    if !status.ip().is_loopback() {
        let problem = format!("{status} is not a loopback address: other machines can read it");
        to.warn("status", place, problem);
    }
}

fn overlap(left: SocketAddr, right: SocketAddr) -> bool {
    let everywhere = left.ip().is_unspecified() || right.ip().is_unspecified();
    left.port() != 0
        && left.port() == right.port()
        && left.is_ipv4() == right.is_ipv4()
        && (everywhere || left.ip() == right.ip())
}

fn listen(from: &Settings, to: &mut Findings<'_>) -> Vec<SocketAddr> {
    let Some(item) = &from.listen else {
        return vec![SocketAddr::from(([127, 0, 0, 1], 8080))];
    };
    let addresses: Vec<SocketAddr> = item.get_ref().0.iter().map(|address| address.0).collect();
    let place = || Some(item.span());
    if addresses.is_empty() {
        to.wrong("listen", place(), "at least one address is needed".into());
    }
    if addresses.len() > LISTENERS_MAX {
        let problem = format!(
            "{} addresses, at most {LISTENERS_MAX} are possible",
            addresses.len()
        );
        to.wrong("listen", place(), problem);
    }
    for (index, address) in addresses.iter().enumerate() {
        if let Some(other) = addresses[..index]
            .iter()
            .find(|other| overlap(**other, *address))
        {
            let problem = match other == address {
                true => format!("{address} is given twice"),
                false => format!("{address} and {other} overlap"),
            };
            to.wrong("listen", place(), problem);
        }
    }
    addresses
}

fn events(from: &Settings, micro: bool, to: &mut Findings<'_>) -> String {
    let Some(item) = &from.events else {
        // The micro-server's mechanism on purpose: its paper is about what can be done with select.
        let usual = match micro {
            true => headway_event::Mechanism::Select,
            false => headway_event::Mechanism::Epoll,
        };
        return usual.name().into();
    };
    match item.get_ref().parse::<headway_event::Mechanism>() {
        Err(error) => to.wrong("events", Some(item.span()), error.to_string()),
        // The only one that a machine may forbid; a worker would find out too late.
        Ok(mechanism @ headway_event::Mechanism::IoUring) => {
            // In a thread that ends with it: a ring that goes interrupts the thread which made it,
            // some time later, in whatever call that waits in then.
            let tried =
                std::thread::spawn(move || headway_event::Events::new(mechanism).map(drop)).join();
            if let Ok(Err(error)) = tried {
                let problem = format!("{error}; use epoll");
                to.lacking("events", Some(item.span()), problem);
            }
        }
        Ok(_) => {}
    }
    item.get_ref().clone()
}

/// Connections and cached files share the descriptors of a worker; helpers and programs come first.
fn descriptors(
    from: &Settings,
    others: usize,
    micro: bool,
    environment: &Environment,
    to: &mut Findings<'_>,
) -> (u32, usize) {
    let helpers = others as u64;
    let usable = environment
        .nofile
        .saturating_sub(RESERVED_DESCRIPTORS + helpers);
    let connections = match value(&from.max_connections) {
        Some(connections) => u64::from(connections),
        // The micro-server keeps hardly any file open beside its connections.
        None if micro => DEFAULT_CONNECTIONS.min(usable * 7 / 8).max(1),
        None => DEFAULT_CONNECTIONS.min(usable * 3 / 4).max(1),
    };
    let files = match value(&from.file_cache_descriptors) {
        Some(files) => files as u64,
        None => usable.saturating_sub(connections).clamp(16, 60_000),
    };
    let place = span(&from.max_connections).or(span(&from.file_cache_descriptors));
    if connections == 0 {
        to.wrong(
            "max-connections",
            place.clone(),
            "must be at least 1".into(),
        );
    }
    if files < 16 {
        to.wrong(
            "file-cache-descriptors",
            span(&from.file_cache_descriptors),
            format!("{files} is less than 16"),
        );
    }
    if connections + files > usable {
        let problem = format!(
            "{connections} connections, {files} cached files and {} of its own make {} descriptors \
             a worker, the limit is {} (RLIMIT_NOFILE, ulimit -Hn); lower max-connections or \
             file-cache-descriptors, or raise the limit (LimitNOFILE= in a systemd unit)",
            RESERVED_DESCRIPTORS + helpers,
            connections + files + RESERVED_DESCRIPTORS + helpers,
            environment.nofile
        );
        to.lacking("max-connections", place, problem);
    }
    (connections.min(u64::from(u32::MAX)) as u32, files as usize)
}

/// Made absolute, because a child process may stand in another directory. The usual one is not
/// looked at: a site that has no use for it need not have it.
fn temp_directory(item: &Item<PathBuf>, to: &mut Findings<'_>) -> PathBuf {
    let Some(item) = item else {
        return std::env::temp_dir();
    };
    let (place, shown) = (Some(item.span()), item.get_ref().display());
    let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    match std::fs::canonicalize(item.get_ref()) {
        Err(error) => to.lacking("temp-directory", place, format!("{shown}: {error}")),
        Ok(real) if !real.is_dir() => {
            to.lacking(
                "temp-directory",
                place,
                format!("{shown} is not a directory"),
            );
        }
        Ok(real) => match rustix::fs::access(&real, rights) {
            Ok(()) => return real,
            Err(error) => {
                let problem = format!("{shown} can not be written to: {error}");
                to.lacking("temp-directory", place, problem);
            }
        },
    }
    item.get_ref().clone()
}

fn log(from: &Settings, to: &mut Findings<'_>) -> Option<LogConfig> {
    let Some(item) = &from.log else {
        if from.log_format.is_some() {
            let problem = "a format but no file: set log, too";
            to.wrong("log-format", span(&from.log_format), problem.into());
        }
        return None;
    };
    let (path, place) = (item.get_ref(), Some(item.span()));
    let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let directory = path.parent().map(PathBuf::from).unwrap_or_default();
    if path.is_dir() {
        to.lacking(
            "log",
            place,
            format!("{} is a directory, not a file", path.display()),
        );
    } else if !directory.is_dir() {
        let problem = format!(
            "the directory {} does not exist; create it",
            directory.display()
        );
        to.lacking("log", place, problem);
    }
    Some(LogConfig {
        path,
        format: value(&from.log_format).unwrap_or_default(),
    })
}

pub(super) fn number<T>(
    key: &str,
    item: &Item<T>,
    default: T,
    bounds: RangeInclusive<T>,
    to: &mut Findings<'_>,
) -> T
where
    T: Copy + PartialOrd + std::fmt::Display,
{
    let Some(item) = item else {
        return default;
    };
    let value = *item.get_ref();
    if !bounds.contains(&value) {
        let problem = format!(
            "{value} is not within {} to {}",
            bounds.start(),
            bounds.end()
        );
        to.wrong(key, Some(item.span()), problem);
    }
    value
}

pub(super) fn size(
    key: &str,
    item: &Item<Bytes>,
    default: u64,
    bounds: RangeInclusive<u64>,
    to: &mut Findings<'_>,
) -> u64 {
    let item = item
        .as_ref()
        .map(|item| Spanned::new(item.span(), *item.get_ref()));
    number(
        key,
        &item,
        Bytes(default),
        Bytes(*bounds.start())..=Bytes(*bounds.end()),
        to,
    )
    .0
}

pub(super) fn time(
    key: &str,
    item: &Item<Millis>,
    default: u64,
    least: u64,
    to: &mut Findings<'_>,
) -> u64 {
    number(
        key,
        item,
        Millis(default),
        Millis(least)..=Millis(24 * HOUR_MS),
        to,
    )
    .0
}

pub(super) fn value<T: Copy>(item: &Item<T>) -> Option<T> {
    item.as_ref().map(|item| *item.get_ref())
}

pub(super) fn span<T>(item: &Item<T>) -> Option<Range<usize>> {
    item.as_ref().map(Spanned::span)
}
