//! Turns written settings into effective ones: defaults, limits, contradictions.
//!
//! The check reads the filesystem (roots, error pages, the directory of the log) but changes
//! nothing and binds no address, so it can run beside a running server. It reports all errors.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use super::error::{Findings, Source};
use super::keys::Setting;
use super::memory::Memory;
use super::ranges::{number, size, span, time, value};
use super::settings::Settings;
use super::units::{Bytes, Helpers};
use super::{
    Account, Checked, Config, ConfigError, HelperBackend, Location, LogConfig, Opening, SendMethod,
    accept, headers, hosts, locations, memory,
};

/// Descriptors a worker needs in addition to connections and cached files: listeners, control
/// socket, log, event mechanism, perf ring, and some that are about to be closed.
pub(super) const RESERVED_DESCRIPTORS: u64 = 160;
/// Default limit on connections per worker.
const DEFAULT_CONNECTIONS: u64 = 15_000;
const LISTENERS_MAX: usize = 64;

/// The resources of this machine that the check needs.
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
}

impl Environment {
    /// Detects them. The descriptor limit is the hard one: see [`raise_descriptor_limit`].
    pub fn detect() -> Environment {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Environment {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            nofile: limit.maximum.unwrap_or(1 << 20),
            somaxconn: headway_os::listen::backlog_max(),
            memory: memory::available(),
            process_memory_bytes: memory::process_bytes(),
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
    source: Option<Source<'_>>,
    environment: &Environment,
) -> Result<Checked, Vec<ConfigError>> {
    let mut to = Findings::new(source);
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
    let (opening, send) = methods(from);
    let small_file = send.default_small_file_bytes();
    // Without a response cache no memory is reserved for it.
    let small_files = policy.caching && small_file > 0;
    let keep = match small_files {
        true => memory::default_pin_bytes(workers, environment.memory),
        false => 0,
    };
    let keep = size("pin-max", &from.pin_max, keep, 0..=1 << 40, to);
    let content = match small_files {
        true => memory::default_response_cache_bytes(workers, keep > 0, environment.memory),
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
            memory::CHUNK_CACHE_BYTES_LOWEST..=1 << 46,
            to,
        ),
        chunk_cache_max_bytes: size(
            "chunk-cache-max",
            &from.chunk_cache_max,
            memory::default_chunk_cache_bytes(workers, environment.memory),
            memory::CHUNK_CACHE_BYTES_LOWEST..=1 << 40,
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
        program_user: program_user(&from.program_user, to),
        server_header: headers::server(from, to),
        headers: headers::extra(from, to),
        mime_types: headers::mime_types(from, to),
        log: log(from, to),
        status: from.status.as_ref().map(|status| status.get_ref().0),
        trace: value(&from.trace).unwrap_or(true),
    }
}

/// Returns the configured methods, or those of the preset.
fn methods(from: &Settings) -> (Opening, SendMethod) {
    let (opening, send) = value(&from.preset).unwrap_or_default().methods();
    (
        value(&from.opening).unwrap_or(opening),
        value(&from.send).unwrap_or(send),
    )
}

/// Returns what helps, and the lowest and highest number of helpers.
fn helpers(from: &Settings, most: usize, to: &mut Findings<'_>) -> (HelperBackend, usize, usize) {
    let given = from
        .helpers
        .as_ref()
        .map(|item| (*item.get_ref(), item.span()));
    let Some((Helpers::Processes(count), place)) = given else {
        let means = match given {
            Some((_, place)) => {
                check_io_uring(place, to);
                HelperBackend::IoUring
            }
            None => HelperBackend::Processes,
        };
        let min = number("helpers-min", &from.helpers_min, 1, 1..=256, to);
        // If `helpers-min` exceeds the default maximum, raise the maximum to match.
        let most = most.max(min);
        let max = number("helpers-max", &from.helpers_max, most, 1..=256, to);
        return (means, min, max);
    };
    let place = Some(place);
    if count.min < 1 || count.max > 256 {
        to.wrong("helpers", place, format!("{count} is not within 1 to 256"));
    } else if from.helpers_min.is_some() || from.helpers_max.is_some() {
        let problem = "it sets both limits; remove helpers-min and helpers-max";
        to.wrong("helpers", place, problem.into());
    }
    (HelperBackend::Processes, count.min, count.max)
}

/// Reports early that the machine does not allow io_uring.
fn check_io_uring(place: Range<usize>, to: &mut Findings<'_>) {
    // The thread ends with the ring: see `events`.
    let tried =
        std::thread::spawn(|| headway_os::uring_files::FileRing::new(1, 1).map(drop)).join();
    if let Ok(Err(error)) = tried {
        let problem = format!(
            "{}; use processes, such as 1-16",
            headway_event::explain_io_uring_error(error)
        );
        to.lacking("helpers", Some(place), problem);
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
        let problem =
            "a location has fork-in-server, whose programs are the worker's user; remove one";
        to.wrong("program-user", span(&from.program_user), problem.into());
    }
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
            format!("{target} is more than max-header-size, {head}, which includes the target");
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
            format!("{small} is more than response-cache-max, {all}: such a file would never fit");
        to.wrong("small-file-max", place, problem);
    }
    if config.pin_max_bytes > 0 && config.small_file_max_bytes == 0 {
        let problem =
            "with this send method, or small-file-max = 0, there are no small files; remove it";
        to.wrong("pin-max", span(&from.pin_max), problem.into());
    }
    let there = (environment.memory.bytes, environment.process_memory_bytes);
    memory::check_memory(config.workers, config.memory_bytes(), there, from, to);
    if config.backlog > environment.somaxconn {
        let problem = format!(
            "the kernel reduces {} to {} (sysctl net.core.somaxconn)",
            config.backlog, environment.somaxconn
        );
        to.warn("backlog", span(&from.backlog), problem);
    }
    if let Some(status) = config.status {
        check_status(status, config, span(&from.status), to);
    }
}

fn check_status(
    status: SocketAddr,
    config: &Config,
    place: Option<Range<usize>>,
    to: &mut Findings<'_>,
) {
    if config.listen.iter().any(|listen| overlap(*listen, status)) {
        let problem = format!("{status} is also a listen address; choose another port");
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
            "{} addresses; at most {LISTENERS_MAX} are allowed",
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
                true => format!("{address} is listed twice"),
                false => format!("{address} and {other} overlap"),
            };
            to.wrong("listen", place(), problem);
        }
    }
    addresses
}

fn events(from: &Settings, micro: bool, to: &mut Findings<'_>) -> String {
    let Some(item) = &from.events else {
        // The paper of the micro-server measures select.
        let usual = match micro {
            true => headway_event::Mechanism::Select,
            false => headway_event::Mechanism::Epoll,
        };
        return usual.name().into();
    };
    match item.get_ref().parse::<headway_event::Mechanism>() {
        Err(error) => to.wrong("events", Some(item.span()), error.to_string()),
        // The machine may not allow io_uring; a worker would find out too late.
        Ok(mechanism @ headway_event::Mechanism::IoUring) => {
            // The thread ends with the ring: closing a ring interrupts the thread that made it,
            // some time later, in any blocking call.
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

/// Divides the descriptors of a worker between connections and cached files, after helpers and
/// programs.
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
        // The micro-server caches hardly any open files.
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

/// Returns an absolute path, because child processes may have another working directory. The
/// default is not checked: many sites never need it.
fn temp_directory(item: &Setting<PathBuf>, to: &mut Findings<'_>) -> PathBuf {
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
                let problem = format!("{shown} is not writable: {error}");
                to.lacking("temp-directory", place, problem);
            }
        },
    }
    item.get_ref().clone()
}

fn program_user(item: &Setting<String>, to: &mut Findings<'_>) -> Option<Account> {
    let item = item.as_ref()?;
    let place = Some(item.span());
    match Account::parse(item.get_ref()) {
        Err(error) => to.lacking("program-user", place, error),
        Ok(account) if !account.can_assume() => {
            let problem =
                format!("only root can start programs as {account}; start the server as root");
            to.lacking("program-user", place, problem);
        }
        Ok(account) => return Some(account),
    }
    None
}

fn log(from: &Settings, to: &mut Findings<'_>) -> Option<LogConfig> {
    let Some(item) = &from.log else {
        if from.log_format.is_some() {
            let problem = "there is a format but no file; set log as well";
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
