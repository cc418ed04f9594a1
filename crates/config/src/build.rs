//! Builds the effective configuration: each setting, or its default, within its range.

use std::ops::Range;
use std::path::PathBuf;

use headway_event::Mechanism;

use super::accept;
use super::acme::{self, AcmeConfig};
use super::check::{Environment, RESERVED_DESCRIPTORS};
use super::error::Findings;
use super::keys::Setting;
use super::memory::Memory;
use super::ranges::{number, size, span, time, value};
use super::research::{Defaults, ResearchConfig};
use super::settings::Settings;
use super::units::{Helpers, Millis};
use super::{
    Config, ErrorLog, HelperBackend, cors, headers, host_listeners, hosts, listen, locations, logs,
    memory, networks, otlp, tls, users,
};

/// Default limit on connections per worker.
const DEFAULT_CONNECTIONS: u64 = 15_000;
/// A shorter `worker-timeout` is refused.
const WORKER_TIMEOUT_MIN_MS: u64 = 1_000;
/// Default of `buffer-disk-max`.
const DEFAULT_BUFFER_DISK_BYTES: u64 = 4 << 30;
/// Default of `small-file-max`.
const DEFAULT_SMALL_FILE_BYTES: u64 = 128 << 10;
/// Default of `http2-max-concurrent-streams`: the least that RFC 9113 recommends.
const HTTP2_STREAMS: u32 = 100;
const HTTP2_STREAMS_MAX: u32 = 1_000;
/// Default of `resolve-interval`.
const RESOLVE_INTERVAL_MS: u64 = 30_000;

/// Returns the effective configuration, and reports every setting that is out of range.
///
/// Errors are reported in the order of evaluation, so the order of the groups matters.
pub(super) fn build(from: &Settings, environment: &Environment, to: &mut Findings<'_>) -> Config {
    let memory = environment.memory;
    let cpus = environment.cpus.min(256);
    let workers = number("workers", &from.workers, cpus, 1..=256, to);
    let helpers_default = memory::default_helpers_max(workers, memory);
    let (helper_backend, helpers_min, helpers_max) = helpers(from, helpers_default, to);
    let (research, defaults) = research(from, workers, memory, to);
    let accept = accept::accept_settings(from, &defaults, to);
    let mut hosts = hosts::hosts(from, environment, to);
    let buffer_files_max = locations::buffer_files(&hosts, environment.nofile);
    let others = most_helpers(helpers_max) + locations::descriptors(&hosts) + buffer_files_max;
    let (max_connections, open_files) = descriptors(from, others, &defaults, environment, to);
    let machine = (workers, memory);
    let are_cached = research.caching && defaults.caches_small_files;
    let (pin_max_bytes, response_cache_max_bytes) =
        small_file_caches(from, are_cached, machine, to);
    let limits = RequestLimits::new(from, memory, to);
    let files = FileLimits::new(from, &defaults, machine, response_cache_max_bytes, to);
    let (listen, first_tls) = listen::listen(from, to);
    let unix_rights = listen::unix_rights(from, &listen, to);
    host_listeners::check(from, &hosts, (&listen, first_tls), to);
    let acme = acme::acme(from, first_tls, to);
    let tls = tls::tls(from, (&listen[..first_tls], &hosts, acme.as_ref()), to);
    hosts.extend(acme.as_ref().map(AcmeConfig::challenge_host));
    let log = logs::logs(from, &hosts, to);
    let otlp = otlp::otlp(from, to);
    Config {
        tls,
        acme,
        listen,
        unix_rights,
        workers,
        hosts,
        silent_roots: std::mem::take(&mut to.silent_roots),
        events: events(from, defaults.events, to),
        accept_batch: accept.batch,
        early_reject: accept.early_reject,
        listeners: accept.listeners,
        backlog: accept::backlog(from, defaults.backlog, environment.somaxconn, to),
        max_connections,
        max_connections_per_address: limits.connections_per_address,
        proxies: networks::trusted_proxies(from, to),
        defer_accept: value(&from.defer_accept).unwrap_or(defaults.defer_accept),
        max_requests_per_connection: limits.requests_per_connection,
        http2_streams_max: limits.http2_streams,
        header_timeout_ms: limits.header_timeout_ms,
        body_timeout_ms: limits.body_timeout_ms,
        send_timeout_ms: limits.send_timeout_ms,
        idle_timeout_ms: limits.idle_timeout_ms,
        drain_timeout_ms: limits.drain_timeout_ms,
        worker_timeout_ms: limits.worker_timeout_ms,
        max_header_bytes: limits.header_bytes as usize,
        max_target_bytes: limits.target_bytes as usize,
        max_body_bytes: limits.body_bytes,
        min_transfer_rate: limits.transfer_rate,
        buffer_memory_max_bytes: limits.buffer_memory_bytes,
        buffer_disk_max_bytes: limits.buffer_disk_bytes,
        buffer_files_max,
        helper_backend,
        helpers_min,
        helpers_max,
        helper_queue_max: files.helper_queue,
        file_cache_entries: files.cache_entries,
        file_cache_descriptors: open_files,
        worker_base_bytes: memory::worker_base_bytes(workers, memory),
        response_cache_max_bytes,
        content_store_max_bytes: content_store(from, are_cached, memory, to),
        pin_max_bytes,
        small_file_max_bytes: files.small_file_bytes,
        send: value(&from.send).unwrap_or_default(),
        etag: value(&from.etag).unwrap_or_default(),
        chunk_cache_max_bytes: files.chunk_cache_bytes,
        write_quantum_bytes: files.write_quantum_bytes,
        revalidate_ms: files.revalidate_ms,
        stale_while_revalidate_ms: files.stale_while_revalidate_ms,
        resolve_interval_ms: time(
            "resolve-interval",
            &from.resolve_interval,
            RESOLVE_INTERVAL_MS,
            0,
            to,
        ),
        temp_directory: temp_directory(&from.temp_directory, to),
        user: users::server_user(&from.user, to),
        program_user: users::program_user(&from.program_user, to),
        sandbox: value(&from.sandbox).unwrap_or_default(),
        server_header: headers::server(from, to),
        headers: headers::rules(&from.header, to),
        cors: cors::rules(&from.cors, to),
        mime_types: headers::mime_types(from, to),
        log,
        error_log: ErrorLog {
            level: value(&from.error_log_level).unwrap_or_default(),
            format: value(&from.error_log_format).unwrap_or_default(),
        },
        // Spans need it.
        trace_context: value(&from.trace_context).unwrap_or(otlp.is_some()),
        otlp,
        server_timing: value(&from.server_timing).unwrap_or(false),
        status: from.status.as_ref().map(|status| status.get_ref().0),
        trace: value(&from.trace).unwrap_or(true),
        research,
    }
}

/// Returns what a research server changes. Nothing, in a server for users.
fn research(
    from: &Settings,
    workers: usize,
    memory: Memory,
    to: &mut Findings<'_>,
) -> (ResearchConfig, Defaults) {
    match to.research {
        Some(research) => (research.check)(from, workers, memory, to),
        None => (ResearchConfig::default(), Defaults::default()),
    }
}

/// Returns the bytes to pin and the size of the response cache.
fn small_file_caches(
    from: &Settings,
    are_cached: bool,
    (workers, memory): (usize, Memory),
    to: &mut Findings<'_>,
) -> (u64, u64) {
    // Without a response cache no memory is reserved for it.
    let default = match are_cached {
        true => memory::default_pin_bytes(workers, memory),
        false => 0,
    };
    let pinned = size("pin-max", &from.pin_max, default, 0..=1 << 40, to);
    let default = match are_cached {
        true => memory::default_response_cache_bytes(workers, pinned > 0, memory),
        false => 0,
    };
    let key = "response-cache-max";
    let cached = size(key, &from.response_cache_max, default, 0..=1 << 40, to);
    (pinned, cached)
}

/// Returns the size of the content store.
fn content_store(from: &Settings, are_cached: bool, memory: Memory, to: &mut Findings<'_>) -> u64 {
    let default = match are_cached {
        true => memory::default_content_store_bytes(memory),
        false => 0,
    };
    let key = "content-store-max";
    size(key, &from.content_store_max, default, 0..=1 << 40, to)
}

/// The limits on connections and requests.
struct RequestLimits {
    connections_per_address: u32,
    http2_streams: u32,
    requests_per_connection: u32,
    header_timeout_ms: u64,
    body_timeout_ms: u64,
    send_timeout_ms: u64,
    idle_timeout_ms: u64,
    drain_timeout_ms: u64,
    worker_timeout_ms: u64,
    header_bytes: u64,
    target_bytes: u64,
    body_bytes: u64,
    transfer_rate: u64,
    buffer_memory_bytes: u64,
    buffer_disk_bytes: u64,
}

impl RequestLimits {
    fn new(from: &Settings, memory: Memory, to: &mut Findings<'_>) -> RequestLimits {
        let any = 0..=u32::MAX;
        let header_sizes = 512..=1 << 20;
        RequestLimits {
            connections_per_address: number(
                "max-connections-per-address",
                &from.max_connections_per_address,
                0,
                any.clone(),
                to,
            ),
            http2_streams: number(
                "http2-max-concurrent-streams",
                &from.http2_max_concurrent_streams,
                HTTP2_STREAMS,
                0..=HTTP2_STREAMS_MAX,
                to,
            ),
            requests_per_connection: number(
                "max-requests-per-connection",
                &from.max_requests_per_connection,
                0,
                any,
                to,
            ),
            header_timeout_ms: time("header-timeout", &from.header_timeout, 10_000, 1, to),
            body_timeout_ms: time("body-timeout", &from.body_timeout, 10_000, 1, to),
            send_timeout_ms: time("send-timeout", &from.send_timeout, 30_000, 1, to),
            idle_timeout_ms: time("idle-timeout", &from.idle_timeout, 60_000, 1, to),
            drain_timeout_ms: time("drain-timeout", &from.drain_timeout, 10_000, 0, to),
            worker_timeout_ms: worker_timeout_ms(&from.worker_timeout, to),
            header_bytes: size(
                "max-header-size",
                &from.max_header_size,
                16 << 10,
                header_sizes,
                to,
            ),
            target_bytes: size(
                "max-target-size",
                &from.max_target_size,
                8 << 10,
                64..=1 << 20,
                to,
            ),
            body_bytes: size(
                "max-body-size",
                &from.max_body_size,
                1 << 20,
                0..=1 << 40,
                to,
            ),
            transfer_rate: size(
                "min-transfer-rate",
                &from.min_transfer_rate,
                500,
                0..=1 << 30,
                to,
            ),
            buffer_memory_bytes: size(
                "buffer-memory-max",
                &from.buffer_memory_max,
                memory::default_buffer_bytes(memory),
                1 << 20..=1 << 40,
                to,
            ),
            buffer_disk_bytes: size(
                "buffer-disk-max",
                &from.buffer_disk_max,
                DEFAULT_BUFFER_DISK_BYTES,
                0..=1 << 46,
                to,
            ),
        }
    }
}

/// The limits on files, their caches, and the writes which send them.
struct FileLimits {
    helper_queue: usize,
    cache_entries: usize,
    small_file_bytes: u64,
    chunk_cache_bytes: u64,
    write_quantum_bytes: u64,
    revalidate_ms: u64,
    stale_while_revalidate_ms: u64,
}

impl FileLimits {
    fn new(
        from: &Settings,
        defaults: &Defaults,
        (workers, memory): (usize, Memory),
        response_cache_bytes: u64,
        to: &mut Findings<'_>,
    ) -> FileLimits {
        let small_file = match defaults.caches_small_files {
            true => DEFAULT_SMALL_FILE_BYTES,
            false => 0,
        };
        let small_file = match response_cache_bytes {
            0 => small_file,
            _ => small_file.min(response_cache_bytes),
        };
        let chunks = memory::default_chunk_cache_bytes(workers, memory);
        let chunks_min = memory::CHUNK_CACHE_BYTES_LOWEST;
        FileLimits {
            helper_queue: number(
                "helper-queue-max",
                &from.helper_queue_max,
                4096,
                1..=1 << 20,
                to,
            ),
            cache_entries: number(
                "file-cache-entries",
                &from.file_cache_entries,
                50_000,
                1..=100_000_000,
                to,
            ),
            small_file_bytes: size(
                "small-file-max",
                &from.small_file_max,
                small_file,
                0..=16 << 20,
                to,
            ),
            chunk_cache_bytes: size(
                "chunk-cache-max",
                &from.chunk_cache_max,
                chunks,
                chunks_min..=1 << 40,
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
                defaults.revalidate_ms,
                0,
                to,
            ),
            stale_while_revalidate_ms: time(
                "stale-while-revalidate",
                &from.stale_while_revalidate,
                60_000,
                0,
                to,
            ),
        }
    }
}

/// Returns what helps, and the lowest and highest number of helpers.
fn helpers(from: &Settings, most: usize, to: &mut Findings<'_>) -> (HelperBackend, usize, usize) {
    let given = from
        .helpers
        .as_ref()
        .map(|item| (*item.get_ref(), item.span()));
    let Some((Helpers::Processes(count), position)) = given else {
        let means = match given {
            Some((_, position)) => {
                check_io_uring(position, to);
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
    let position = Some(position);
    if count.min < 1 || count.max > 256 {
        to.usage_error(
            "helpers",
            position,
            format!("{count} is not within 1 to 256"),
        );
    } else if from.helpers_min.is_some() || from.helpers_max.is_some() {
        let problem = "it sets both limits; remove helpers-min and helpers-max";
        to.usage_error("helpers", position, problem.into());
    }
    (HelperBackend::Processes, count.min, count.max)
}

/// Reports early that the machine does not allow io_uring.
fn check_io_uring(position: Range<usize>, to: &mut Findings<'_>) {
    // The thread ends with the ring: see `events`.
    let tried =
        std::thread::spawn(|| headway_os::uring_files::FileRing::new(1, 1).map(drop)).join();
    if let Ok(Err(error)) = tried {
        let problem = format!(
            "{}; use processes, such as 1-16",
            headway_event::explain_io_uring_error(error)
        );
        to.environment_error("helpers", Some(position), problem);
    }
}

/// 0 replaces no worker. A busy machine may not run a worker for a moment.
fn worker_timeout_ms(item: &Setting<Millis>, to: &mut Findings<'_>) -> u64 {
    let found = time("worker-timeout", item, 30_000, 0, to);
    if (1..WORKER_TIMEOUT_MIN_MS).contains(&found) {
        let problem = "less than 1s would replace workers that are only slow; 0 turns it off";
        to.usage_error("worker-timeout", span(item), problem.into());
    }
    found
}

fn events(from: &Settings, default: Mechanism, to: &mut Findings<'_>) -> String {
    let Some(item) = &from.events else {
        return default.name().into();
    };
    match item.get_ref().parse::<Mechanism>() {
        Err(error) => to.usage_error("events", Some(item.span()), error.to_string()),
        // The machine may not allow io_uring; a worker would find out too late.
        Ok(mechanism @ Mechanism::IoUring) => {
            // The thread ends with the ring: closing a ring interrupts the thread that made it,
            // some time later, in any blocking call.
            let tried =
                std::thread::spawn(move || headway_event::Events::new(mechanism).map(drop)).join();
            if let Ok(Err(error)) = tried {
                let problem = format!("{error}; use epoll");
                to.environment_error("events", Some(item.span()), problem);
            }
        }
        Ok(_) => {}
    }
    item.get_ref().clone()
}

/// While one directory or file system takes all `helpers_max`, there are up to half as many again for
/// others.
pub(super) fn most_helpers(helpers_max: usize) -> usize {
    helpers_max + helpers_max / 2
}

/// Divides the descriptors of a worker between connections and cached files, after helpers and
/// programs.
fn descriptors(
    from: &Settings,
    others: usize,
    defaults: &Defaults,
    environment: &Environment,
    to: &mut Findings<'_>,
) -> (u32, usize) {
    let helpers = others as u64;
    let usable = environment
        .nofile
        .saturating_sub(RESERVED_DESCRIPTORS + helpers);
    let connections = match value(&from.max_connections) {
        Some(connections) => u64::from(connections),
        None => DEFAULT_CONNECTIONS
            .min(usable * defaults.connection_eighths / 8)
            .max(1),
    };
    let files = match value(&from.file_cache_descriptors) {
        Some(files) => files as u64,
        None => usable.saturating_sub(connections).clamp(16, 60_000),
    };
    let position = span(&from.max_connections).or(span(&from.file_cache_descriptors));
    if connections == 0 {
        to.usage_error(
            "max-connections",
            position.clone(),
            "must be at least 1".into(),
        );
    }
    if files < 16 {
        to.usage_error(
            "file-cache-descriptors",
            span(&from.file_cache_descriptors),
            format!("{files} is less than 16"),
        );
    }
    if connections + files > usable {
        let lower = match position {
            Some(_) => "max-connections or file-cache-descriptors",
            // Both are as small as can be.
            None => "helpers-max or the concurrency of locations",
        };
        let problem = format!(
            "{connections} connections, {files} cached files and {} of its own make {} descriptors \
             a worker, the limit is {} (RLIMIT_NOFILE, ulimit -Hn); raise the limit (LimitNOFILE= \
             in a systemd unit), or lower {lower}",
            RESERVED_DESCRIPTORS + helpers,
            connections + files + RESERVED_DESCRIPTORS + helpers,
            environment.nofile
        );
        to.environment_error("max-connections", position, problem);
    }
    (connections.min(u64::from(u32::MAX)) as u32, files as usize)
}

/// Returns an absolute path, because child processes may have another working directory. The
/// default is not checked: many sites never need it.
fn temp_directory(item: &Setting<PathBuf>, to: &mut Findings<'_>) -> PathBuf {
    let Some(item) = item else {
        return std::env::temp_dir();
    };
    let (position, shown) = (Some(item.span()), item.get_ref().display());
    let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    match std::fs::canonicalize(item.get_ref()) {
        Err(error) => to.environment_error("temp-directory", position, format!("{shown}: {error}")),
        Ok(real) if !real.is_dir() => {
            to.environment_error(
                "temp-directory",
                position,
                format!("{shown} is not a directory"),
            );
        }
        Ok(real) => match rustix::fs::access(&real, rights) {
            Ok(()) => return real,
            Err(error) => {
                let problem = format!("{shown} is not writable: {error}");
                to.environment_error("temp-directory", position, problem);
            }
        },
    }
    item.get_ref().clone()
}
