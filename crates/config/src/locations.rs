//! Locations: paths that a handler answers.
//!
//! A location has one path match and one handler. Locations of the top level apply to every host.
//! Those of a host come in addition and take precedence where the match is the same.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::Spanned;

use super::error::Findings;
use super::handlers::{check_foreign_settings, kind};
use super::keys::Setting;
use super::path_match::{PathMatch, path_match};
use super::ranges::{number, size, span, time, value};
use super::redirect::Redirect;
use super::settings::{LocationSettings, Settings};
use super::upstreams::{Protocol, Upstreams};
use super::{Access, Host};
use crate::extensions::KnownApplications;

/// Descriptors a worker needs for each running program: its input, its output, and one for the
/// transfer.
const DESCRIPTORS_PER_PROGRAM: usize = 3;
/// Default of `concurrency` where each request occupies a process.
const CONCURRENCY: u32 = 16;
/// Default of `concurrency` for HTTP upstreams.
const CONCURRENCY_OF_PROXIES: u32 = 256;
/// Default of `queue`: a request that waits is little more than its connection, and hundreds of long
/// responses that start at once occupy the handler for seconds only.
const QUEUE: u32 = 1024;
/// Default of `open-files-max`, the usual one; more breaks programs that use `select`.
const OPEN_FILES_MAX: u64 = 1024;
/// Default of `temp-file-max`.
const TEMP_FILE_MAX_BYTES: u64 = 64 << 20;
/// Most bodies and responses in files, per worker.
const BUFFER_FILES_MAX: u64 = 4096;
const DAY_MS: u64 = 24 * 3_600_000;

/// Requests by path, and their handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The paths of its requests.
    pub path: PathMatch,
    /// The handler which answers.
    pub handler: HandlerConfig,
    /// Only internal redirects reach it; clients get 404.
    pub internal: bool,
    /// Whose requests are answered, of those that the host answers.
    #[serde(default)]
    pub access: Access,
    /// Timeout without progress of the handler: to take some of the body, to send something, to
    /// end.
    pub timeout_ms: u64,
    /// Timeout of the whole request, including a slow client; 0 means no limit.
    pub request_timeout_ms: u64,
    /// Address space of each process of a program; 0 means no limit.
    pub memory_max_bytes: u64,
    /// CPU time of each process of a program, in whole seconds; 0 means no limit.
    #[serde(default)]
    pub cpu_s_max: u64,
    /// Open files of each process of a program.
    #[serde(default)]
    pub open_files_max: u64,
    /// Processes of the user of the server; 0 means no limit, `None` some more than run already.
    pub processes_max: Option<u64>,
    /// A longer response header gets 502.
    pub max_response_header_bytes: u64,
    /// A longer response body is cut off and its connection closed; 0 means no limit.
    pub output_max_bytes: u64,
    /// Bytes of one response that may wait in a file for a slow client; 0 buffers none.
    pub temp_file_max_bytes: u64,
    /// A longer request body gets 413.
    pub max_body_bytes: u64,
    /// Whether the whole request body is received before the handler starts.
    pub request_buffering: bool,
    /// Requests that the handler answers at the same time, per worker.
    pub concurrency: u32,
    /// Requests of one address among them; 0 means no limit.
    pub concurrency_per_address: u32,
    /// Requests that may wait for the handler per worker; beyond this they get 503.
    pub queue: u32,
    /// Whether a client that has closed its sending side is answered. Otherwise it counts as
    /// disconnected.
    pub half_close: bool,
    /// Whether `X-Accel-Redirect` and `X-Sendfile` make the server send a file.
    pub accel_redirect: bool,
    /// Variables for the program in addition to those of the request.
    pub variables: BTreeMap<String, String>,
}

/// What answers the requests of a location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandlerConfig {
    /// Files, as an exception from another location.
    Files,
    /// A CGI program started for each request (RFC 3875).
    Cgi(Cgi),
    /// A program, with its arguments, that stays and is passed client sockets.
    Direct(Vec<String>),
    /// A program, with its arguments, that stays and returns responses over a pipe: a direct location in
    /// the list [`ResearchConfig::pipe`](crate::ResearchConfig::pipe).
    Pipe(Vec<String>),
    /// Upstream servers, over sockets.
    Upstreams(Upstreams),
    /// An application inside the worker.
    Application(NamedApplication),
    /// A redirect to elsewhere.
    Redirect(Redirect),
}

/// An application that the program contains; its documents are those of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedApplication {
    /// Its name.
    pub name: String,
    /// Directory of its own files. A relative path is below the document root.
    pub directory: PathBuf,
}

impl NamedApplication {
    /// Returns the directory of its own files.
    pub fn directory(&self, document_root: &Path) -> PathBuf {
        document_root.join(&self.directory)
    }
}

/// How CGI programs are started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgi {
    /// Directory of the programs, in place of the prefix; `None`: below the document root.
    pub root: Option<PathBuf>,
    /// What connects the input and output of a program with the server.
    pub streams: Streams,
    /// Whether the worker forks the process itself, as servers did before they had a spawner.
    pub fork_in_server: bool,
    /// Whether the `Authorization` header is passed on.
    pub authorization: bool,
}

/// What connects a program with the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Streams {
    /// Unix sockets: copying the memory of a program holds no lock of theirs, so the event loop
    /// never waits for one.
    #[default]
    Socket,
    /// Pipes, for programs that open `/dev/stdin` or `/dev/stdout` by name.
    Pipe,
}

impl FromStr for Streams {
    type Err = String;

    fn from_str(name: &str) -> Result<Streams, String> {
        match name {
            "socket" => Ok(Streams::Socket),
            "pipe" => Ok(Streams::Pipe),
            other => Err(format!(
                "`{other}` is not a kind of stream; write socket or pipe"
            )),
        }
    }
}

impl fmt::Display for Streams {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Streams::Socket => "socket",
            Streams::Pipe => "pipe",
        })
    }
}

impl Location {
    /// The limits of a response header.
    pub fn response_limits(&self) -> headway_gateway::HeadLimits {
        headway_gateway::HeadLimits {
            head_bytes_max: self.max_response_header_bytes as usize,
            ..headway_gateway::HeadLimits::default()
        }
    }

    /// Whether the `Authorization` header is passed on.
    pub fn passes_authorization(&self) -> bool {
        match &self.handler {
            HandlerConfig::Files | HandlerConfig::Application(_) | HandlerConfig::Redirect(_) => {
                false
            }
            HandlerConfig::Cgi(cgi) => cgi.authorization,
            // The program has its own environment, which no other process shows.
            HandlerConfig::Direct(_) | HandlerConfig::Pipe(_) => true,
            HandlerConfig::Upstreams(upstreams) => upstreams.authorization,
        }
    }

    /// Timeout for an upstream to accept a connection.
    pub fn connect_timeout_ms(&self) -> u64 {
        match &self.handler {
            HandlerConfig::Upstreams(upstreams) => upstreams.connect_timeout_ms,
            _ => self.timeout_ms,
        }
    }

    /// Timeout without data on an upgraded connection.
    pub fn upgrade_timeout_ms(&self) -> u64 {
        match &self.handler {
            HandlerConfig::Upstreams(upstreams) => upstreams.upgrade_timeout_ms,
            _ => self.timeout_ms,
        }
    }

    /// Whether the length of a request body must be known before the handler starts.
    pub fn needs_length(&self) -> bool {
        !matches!(&self.handler, HandlerConfig::Upstreams(upstreams) if !upstreams.needs_length())
    }

    /// Whether the location starts programs from the worker itself.
    pub fn forks_in_worker(&self) -> bool {
        matches!(&self.handler, HandlerConfig::Cgi(cgi) if cgi.fork_in_server)
    }

    /// Whether the location needs the spawner.
    pub fn needs_spawner(&self) -> bool {
        match &self.handler {
            HandlerConfig::Files
            | HandlerConfig::Upstreams(_)
            | HandlerConfig::Application(_)
            | HandlerConfig::Redirect(_) => false,
            HandlerConfig::Cgi(cgi) => !cgi.fork_in_server,
            HandlerConfig::Direct(_) | HandlerConfig::Pipe(_) => true,
        }
    }

    /// Whether the response passes through the server, so that the server can send something else.
    pub fn reads_responses(&self) -> bool {
        match self.handler {
            HandlerConfig::Files
            | HandlerConfig::Direct(_)
            | HandlerConfig::Application(_)
            | HandlerConfig::Redirect(_) => false,
            HandlerConfig::Cgi(_) | HandlerConfig::Pipe(_) | HandlerConfig::Upstreams(_) => true,
        }
    }

    /// Whether its program is started once and stays.
    pub fn stays(&self) -> bool {
        matches!(
            self.handler,
            HandlerConfig::Direct(_) | HandlerConfig::Pipe(_)
        )
    }
}

fn max_response_header_bytes(key: &str, own: &LocationSettings, to: &mut Findings<'_>) -> u64 {
    let name = format!("{key}.max-response-header-size");
    let default = headway_gateway::HeadLimits::default().head_bytes_max as u64;
    let item = &own.max_response_header_size;
    size(&name, item, default, 1 << 10..=1 << 20, to)
}

/// Returns the locations of a host: its own, then those of the top level whose path match it does
/// not have.
pub(super) fn host_locations(
    own: &[Spanned<LocationSettings>],
    top: &[Location],
    from: &Settings,
    applications: &dyn KnownApplications,
    to: &mut Findings<'_>,
) -> Vec<Location> {
    let mut all = location_list("host.location", own, from, applications, to);
    let inherited: Vec<Location> = top
        .iter()
        .filter(|location| all.iter().all(|other| other.path != location.path))
        .cloned()
        .collect();
    all.extend(inherited);
    all
}

/// Returns the checked locations of one list.
pub(super) fn location_list(
    key: &str,
    list: &[Spanned<LocationSettings>],
    from: &Settings,
    applications: &dyn KnownApplications,
    to: &mut Findings<'_>,
) -> Vec<Location> {
    let mut all: Vec<Location> = Vec::new();
    for item in list {
        let Some(location) = location(key, item, from, applications, to) else {
            continue;
        };
        if all.iter().any(|other| other.path == location.path) {
            let problem = format!("`{}` is a location already", location.path);
            to.usage_error(key, Some(item.span()), problem);
        }
        all.push(location);
    }
    all
}

/// Checks that the files of the applications of a host exist. A worker could not report it.
pub(super) fn check_applications(
    root: &Path,
    all: &[Location],
    applications: &dyn KnownApplications,
    to: &mut Findings<'_>,
) {
    for location in all {
        let HandlerConfig::Application(named) = &location.handler else {
            continue;
        };
        let directory = named.directory(root);
        let checked = match applications.directory(&named.name) {
            _ if !directory.is_dir() => Err(format!("no directory {}", directory.display())),
            // A name that is unknown has been reported.
            None => Ok(()),
            Some(_) => applications.check(&named.name, &directory),
        };
        if let Err(problem) = checked {
            let problem = format!("{}: {problem}", location.path);
            to.environment_error("location.application", None, problem);
        }
    }
}

/// Returns the most descriptors that the handlers of all locations take in one worker.
pub(super) fn descriptors(hosts: &[Host]) -> usize {
    let all = hosts.iter().flat_map(|host| &host.locations);
    all.map(|location| {
        let many = location.concurrency as usize;
        match &location.handler {
            HandlerConfig::Files | HandlerConfig::Application(_) | HandlerConfig::Redirect(_) => 0,
            HandlerConfig::Cgi(_) | HandlerConfig::Direct(_) | HandlerConfig::Pipe(_) => {
                many.saturating_mul(DESCRIPTORS_PER_PROGRAM)
            }
            HandlerConfig::Upstreams(upstreams) => upstreams.descriptors(location.concurrency),
        }
    })
    .fold(0, usize::saturating_add)
}

/// Returns the most bodies and responses that one worker may have in files. Without handlers there
/// are none.
pub(super) fn buffer_files(hosts: &[Host], nofile: u64) -> usize {
    let mut all = hosts.iter().flat_map(|host| &host.locations);
    let has_handlers = all.any(|location| {
        !matches!(
            location.handler,
            HandlerConfig::Files | HandlerConfig::Application(_) | HandlerConfig::Redirect(_)
        )
    });
    match has_handlers {
        true => (nofile / 8).clamp(16, BUFFER_FILES_MAX) as usize,
        false => 0,
    }
}

fn location(
    key: &str,
    item: &Spanned<LocationSettings>,
    from: &Settings,
    applications: &dyn KnownApplications,
    to: &mut Findings<'_>,
) -> Option<Location> {
    let (own, position) = (item.get_ref(), item.span());
    let rule = path_match(key, own, &position, to);
    let kind = kind(key, own, &position, from, applications, to);
    if let Some(kind) = &kind {
        check_foreign_settings(key, own, kind, to);
    }
    let name = |name: &str| format!("{key}.{name}");
    let body = from
        .max_body_size
        .as_ref()
        .map_or(1 << 20, |item| item.get_ref().0);
    let (timeout_ms, request_timeout_ms) = timeouts(key, own, to);
    let handler = kind?;
    let (concurrency, concurrency_per_address) = concurrency(key, own, &handler, to);
    let location = Location {
        path: rule?,
        handler,
        internal: value(&own.internal).unwrap_or(false),
        access: Access::new(&own.allow, &own.deny),
        timeout_ms,
        request_timeout_ms,
        memory_max_bytes: size(&name("memory-max"), &own.memory_max, 0, 0..=1 << 46, to),
        cpu_s_max: time(&name("cpu-time-max"), &own.cpu_time_max, 0, 0, to).div_ceil(1000),
        open_files_max: number(
            &name("open-files-max"),
            &own.open_files_max,
            OPEN_FILES_MAX,
            8..=1 << 20,
            to,
        ),
        processes_max: own.processes_max.is_some().then(|| {
            let key = name("processes-max");
            number(&key, &own.processes_max, 0, 0..=1 << 22, to)
        }),
        max_response_header_bytes: max_response_header_bytes(key, own, to),
        output_max_bytes: size(
            &name("output-max"),
            &own.output_max,
            1 << 30,
            0..=1 << 46,
            to,
        ),
        temp_file_max_bytes: size(
            &name("temp-file-max"),
            &own.temp_file_max,
            TEMP_FILE_MAX_BYTES,
            0..=1 << 40,
            to,
        ),
        max_body_bytes: size(
            &name("max-body-size"),
            &own.max_body_size,
            body,
            0..=1 << 40,
            to,
        ),
        request_buffering: value(&own.request_buffering).unwrap_or(true),
        concurrency,
        concurrency_per_address,
        queue: number(&name("queue"), &own.queue, QUEUE, 0..=1 << 20, to),
        half_close: value(&own.half_close).unwrap_or(false),
        accel_redirect: value(&own.accel_redirect).unwrap_or(false),
        variables: variables(&name("variables"), &own.variables, to),
    };
    if own.accel_redirect.is_some() && !location.reads_responses() {
        report_accel_redirect(key, own, to);
    }
    Some(location)
}

/// Requests that a handler answers at the same time: of all clients, and of one address.
fn concurrency(
    key: &str,
    own: &LocationSettings,
    handler: &HandlerConfig,
    to: &mut Findings<'_>,
) -> (u32, u32) {
    let default = match handler {
        HandlerConfig::Upstreams(upstreams) if upstreams.protocol == Protocol::Proxy => {
            CONCURRENCY_OF_PROXIES
        }
        _ => CONCURRENCY,
    };
    let all = format!("{key}.concurrency");
    let one = format!("{key}.concurrency-per-address");
    (
        number(&all, &own.concurrency, default, 1..=4096, to),
        number(&one, &own.concurrency_per_address, 0, 0..=4096, to),
    )
}

fn report_accel_redirect(key: &str, own: &LocationSettings, to: &mut Findings<'_>) {
    let problem =
        "only for handlers whose responses pass through the server: cgi, fastcgi, scgi and proxy";
    to.usage_error(
        &format!("{key}.accel-redirect"),
        span(&own.accel_redirect),
        problem.into(),
    );
}

/// Returns the timeout without progress and that of the whole request.
fn timeouts(key: &str, own: &LocationSettings, to: &mut Findings<'_>) -> (u64, u64) {
    let name = |name: &str| format!("{key}.{name}");
    let timeout_ms = time(&name("timeout"), &own.timeout, 60_000, 1, to);
    let request_timeout_ms = time(
        &name("request-timeout"),
        &own.request_timeout,
        600_000,
        0,
        to,
    );
    if request_timeout_ms > 0 && timeout_ms > request_timeout_ms && own.timeout.is_some() {
        let problem = "it is longer than request-timeout, so it would never expire";
        to.usage_error(&name("timeout"), span(&own.timeout), problem.into());
    }
    (timeout_ms, request_timeout_ms.min(DAY_MS))
}

fn variables(
    key: &str,
    item: &Setting<BTreeMap<String, String>>,
    to: &mut Findings<'_>,
) -> BTreeMap<String, String> {
    let Some(item) = item else {
        return BTreeMap::new();
    };
    for (name, text) in item.get_ref() {
        if name.is_empty() || name.contains(['=', '\0']) || text.contains('\0') {
            let problem =
                format!("`{name}` is not a variable: names have no `=` or NUL, values no NUL");
            to.usage_error(key, Some(item.span()), problem);
        }
    }
    item.get_ref().clone()
}
