//! Locations: paths that a program answers instead of a file.
//!
//! A location has one rule (which paths) and one kind (who answers). Those at the top level hold
//! for every host; a host's own come in addition, and win where the rule is the same.

use headway_specweb::state::{ADS_NAME, STATE_NAME};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

use super::Host;
use super::check::{number, size, span, time, value};
use super::error::Findings;
use super::handlers::{kind, refuse_foreign};
use super::settings::{Item, LocationSettings, Settings};
use super::upstreams::Upstreams;

/// Descriptors a worker needs for each program under way: its input, its output, and one on its
/// way.
const DESCRIPTORS_A_PROGRAM: usize = 3;
/// Programs at once, a worker and location, unless it is configured.
const CONCURRENCY: u32 = 16;
const QUEUE: u32 = 128;
/// Of one reply, waiting for its client, unless it is configured.
const SPILL_BYTES: u64 = 64 << 20;
const DAY_MS: u64 = 24 * 3_600_000;

/// Paths that are answered in a way of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// Which paths.
    pub path: PathMatch,
    /// Who answers.
    pub handler: Handler,
    /// Only programs may send requests here; others are answered 404.
    pub internal: bool,
    /// How long a program may keep us waiting: to take some of the body, to say something, to end.
    pub timeout_ms: u64,
    /// How long a request may take in all, its client's slowness included; 0 is no bound.
    pub request_timeout_ms: u64,
    /// Address space of each process of a program; 0 is no bound.
    pub memory_max_bytes: u64,
    /// Processes of the user that the server runs as; 0 is no bound, `None` some more than there
    /// are.
    pub processes_max: Option<u64>,
    /// A longer reply body is cut off, and its connection with it; 0 is no bound.
    pub output_max_bytes: u64,
    /// So much of a reply may wait for its client, before its program is held back; 0: none of it.
    pub temp_file_max_bytes: u64,
    /// A longer request body is answered 413.
    pub max_body_bytes: u64,
    /// Programs at once, a worker.
    pub concurrency: u32,
    /// Requests that wait for their turn at most, a worker; beyond, they are answered 503.
    pub queue: u32,
    /// A client that ends its sending side is answered all the same; otherwise it is taken to have
    /// gone.
    pub half_close: bool,
    /// `X-Accel-Redirect` and `X-Sendfile` have the server send a file.
    pub accel_redirect: bool,
    /// Variables a program finds besides those of its request.
    pub variables: BTreeMap<String, String>,
}

/// Which paths a location is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathMatch {
    /// Those below this one. The longest prefix wins, and wins over any suffix.
    Prefix(String),
    /// Those with a component that ends so.
    Suffix(String),
}

impl fmt::Display for PathMatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathMatch::Prefix(text) | PathMatch::Suffix(text) => out.write_str(text),
        }
    }
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handler {
    /// Files, as everywhere else: an exception from another location.
    Files,
    /// A program started for each request (RFC 3875).
    Cgi(Cgi),
    /// A program that stays and is given clients' sockets: itself, and its arguments.
    Direct(Vec<String>),
    /// A program that stays and sends its replies back: itself, and its arguments.
    Pipe(Vec<String>),
    /// A server that stays, over a socket.
    Upstreams(Upstreams),
    /// The application of a SPECweb99-like measurement, in the worker itself.
    SpecWeb99(SpecWeb99),
}

/// The application of a SPECweb99-like measurement; its documents are the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecWeb99 {
    /// The directory of its own files; `None`: the usual one in the document root.
    pub state: Option<PathBuf>,
}

impl SpecWeb99 {
    /// The directory of its own files.
    pub fn directory(&self, document_root: &Path) -> PathBuf {
        match &self.state {
            Some(state) => state.clone(),
            None => document_root.join(STATE_NAME),
        }
    }
}

/// How programs are started for each request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgi {
    /// Where the programs are, in place of the prefix; `None`: below the document root.
    pub root: Option<PathBuf>,
    /// What connects a program's input and output with the server.
    pub streams: Streams,
    /// The worker makes the process itself, by `fork`, as servers did before they had a helper for
    /// it.
    pub fork_in_server: bool,
    /// The `Authorization` field is passed on.
    pub authorization: bool,
}

/// What connects a program with the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Streams {
    /// Unix sockets: no lock of theirs is held while a program's memory is copied, so the loop
    /// never waits for one.
    #[default]
    Socket,
    /// Pipes, for programs that open `/dev/stdin` or `/dev/stdout` by name.
    Pipe,
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
    /// Whether the `Authorization` field is passed on.
    pub fn passes_authorization(&self) -> bool {
        match &self.handler {
            Handler::Files | Handler::SpecWeb99(_) => false,
            Handler::Cgi(cgi) => cgi.authorization,
            // One of our own making, which nobody else's environment shows.
            Handler::Direct(_) | Handler::Pipe(_) => true,
            Handler::Upstreams(peers) => peers.authorization,
        }
    }

    /// How long a back end may take to accept a connection. Others accept none.
    pub fn connect_timeout_ms(&self) -> u64 {
        match &self.handler {
            Handler::Upstreams(peers) => peers.connect_timeout_ms,
            _ => self.timeout_ms,
        }
    }

    /// How long nothing may go over a connection that has changed to another protocol.
    pub fn upgrade_timeout_ms(&self) -> u64 {
        match &self.handler {
            Handler::Upstreams(peers) => peers.upgrade_timeout_ms,
            _ => self.timeout_ms,
        }
    }

    /// Whether a body's length has to be known before somebody is asked.
    pub fn needs_length(&self) -> bool {
        !matches!(&self.handler, Handler::Upstreams(peers) if !peers.needs_length())
    }

    /// Whether the fork helper is needed for it.
    pub fn needs_fork_helper(&self) -> bool {
        match &self.handler {
            Handler::Files | Handler::Upstreams(_) | Handler::SpecWeb99(_) => false,
            Handler::Cgi(cgi) => !cgi.fork_in_server,
            Handler::Direct(_) | Handler::Pipe(_) => true,
        }
    }

    /// Whether what is answered comes to the server first, which could send something else.
    pub fn reads_replies(&self) -> bool {
        match self.handler {
            Handler::Files | Handler::Direct(_) | Handler::SpecWeb99(_) => false,
            Handler::Cgi(_) | Handler::Pipe(_) | Handler::Upstreams(_) => true,
        }
    }

    /// Whether it has a program that is started once and stays.
    pub fn stays(&self) -> bool {
        matches!(self.handler, Handler::Direct(_) | Handler::Pipe(_))
    }
}

/// The locations of a host: its own, then those of the top level whose rule it does not have
/// itself.
pub(super) fn locations(
    own: Option<&[Spanned<LocationSettings>]>,
    top: &[Location],
    from: &Settings,
    to: &mut Findings<'_>,
) -> Vec<Location> {
    let mut all = written("host.location", own, from, to);
    let inherited: Vec<Location> = top
        .iter()
        .filter(|location| all.iter().all(|other| other.path != location.path))
        .cloned()
        .collect();
    all.extend(inherited);
    all
}

/// The locations of one list, checked.
pub(super) fn written(
    key: &str,
    list: Option<&[Spanned<LocationSettings>]>,
    from: &Settings,
    to: &mut Findings<'_>,
) -> Vec<Location> {
    let mut all: Vec<Location> = Vec::new();
    for item in list.unwrap_or_default() {
        let Some(location) = location(key, item, from, to) else {
            continue;
        };
        if all.iter().any(|other| other.path == location.path) {
            let problem = format!("`{}` is a location twice", location.path);
            to.wrong(key, Some(item.span()), problem);
        }
        all.push(location);
    }
    all
}

/// What the applications of a host need has to be there: a worker that found out later could tell
/// nobody.
pub(super) fn check_applications(root: &Path, all: &[Location], to: &mut Findings<'_>) {
    for location in all {
        let Handler::SpecWeb99(application) = &location.handler else {
            continue;
        };
        let table = application.directory(root).join(ADS_NAME);
        if !table.is_file() {
            let problem = format!(
                "{}: no file {} (`headway fileset create` makes it with the profile specweb99-dynamic)",
                location.path,
                table.display()
            );
            to.lacking("location.specweb99", None, problem);
        }
    }
}

/// Descriptors that the programs of all locations take in a worker, at most.
pub(super) fn descriptors(hosts: &[Host]) -> usize {
    let all = hosts.iter().flat_map(|host| &host.locations);
    all.map(|location| {
        let many = location.concurrency as usize;
        let own = match &location.handler {
            Handler::Files | Handler::SpecWeb99(_) => return 0,
            Handler::Cgi(_) | Handler::Direct(_) | Handler::Pipe(_) => {
                many.saturating_mul(DESCRIPTORS_A_PROGRAM)
            }
            Handler::Upstreams(peers) => peers.descriptors(location.concurrency),
        };
        // As many replies again may be in files.
        own.saturating_add(if location.temp_file_max_bytes > 0 {
            many
        } else {
            0
        })
    })
    .fold(0, usize::saturating_add)
}

fn location(
    key: &str,
    item: &Spanned<LocationSettings>,
    from: &Settings,
    to: &mut Findings<'_>,
) -> Option<Location> {
    let (own, place) = (item.get_ref(), item.span());
    let rule = rule(key, own, &place, to);
    let kind = kind(key, own, &place, to);
    if let Some(kind) = &kind {
        refuse_foreign(key, own, kind, to);
    }
    let name = |name: &str| format!("{key}.{name}");
    let body = from
        .max_body_size
        .as_ref()
        .map_or(1 << 20, |item| item.get_ref().0);
    let timeout_ms = time(&name("timeout"), &own.timeout, 60_000, 1, to);
    let request_timeout_ms = time(
        &name("request-timeout"),
        &own.request_timeout,
        600_000,
        0,
        to,
    );
    if request_timeout_ms > 0 && timeout_ms > request_timeout_ms && own.timeout.is_some() {
        let problem = "it is longer than request-timeout, so it is never reached";
        to.wrong(&name("timeout"), span(&own.timeout), problem.into());
    }
    let location = Location {
        path: rule?,
        handler: kind?,
        internal: value(&own.internal).unwrap_or(false),
        timeout_ms,
        request_timeout_ms: request_timeout_ms.min(DAY_MS),
        memory_max_bytes: size(&name("memory-max"), &own.memory_max, 0, 0..=1 << 46, to),
        processes_max: own.processes_max.is_some().then(|| {
            let key = name("processes-max");
            number(&key, &own.processes_max, 0, 0..=1 << 22, to)
        }),
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
            SPILL_BYTES,
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
        concurrency: number(
            &name("concurrency"),
            &own.concurrency,
            CONCURRENCY,
            1..=4096,
            to,
        ),
        queue: number(&name("queue"), &own.queue, QUEUE, 0..=1 << 20, to),
        half_close: value(&own.half_close).unwrap_or(false),
        accel_redirect: value(&own.accel_redirect).unwrap_or(false),
        variables: variables(&name("variables"), &own.variables, to),
    };
    if own.accel_redirect.is_some() && !location.reads_replies() {
        let problem = "only a location whose replies the server reads has it";
        to.wrong(
            &name("accel-redirect"),
            span(&own.accel_redirect),
            problem.into(),
        );
    }
    Some(location)
}

fn rule(
    key: &str,
    own: &LocationSettings,
    place: &Range<usize>,
    to: &mut Findings<'_>,
) -> Option<PathMatch> {
    let (text, rule, good): (&String, fn(String) -> PathMatch, bool) = match (
        &own.prefix,
        &own.suffix,
    ) {
        (Some(prefix), None) => {
            let text = prefix.get_ref();
            (text, PathMatch::Prefix, is_prefix(text))
        }
        (None, Some(suffix)) => {
            let text = suffix.get_ref();
            (text, PathMatch::Suffix, is_suffix(text))
        }
        _ => {
            let problem =
                "say which paths it is about: either prefix = \"/cgi-bin/\" or suffix = \".cgi\"";
            to.wrong(key, Some(place.clone()), problem.into());
            return None;
        }
    };
    if !good {
        let problem = format!(
            "`{text}` is no part of a path; a prefix begins with a slash and has no `.` or empty component \
             and no escape, a suffix has no slash"
        );
        to.wrong(key, span(&own.prefix).or(span(&own.suffix)), problem);
        return None;
    }
    Some(rule(text.clone()))
}

/// In the form that paths have when they are compared with it: decoded and without dots.
fn is_prefix(text: &str) -> bool {
    let Some(relative) = text.strip_prefix('/') else {
        return false;
    };
    let inner = relative.strip_suffix('/').unwrap_or(relative);
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    (relative.is_empty() || inner.split('/').all(plain))
        && !text.contains(['%', '?', '#'])
        && !text.chars().any(char::is_control)
}

fn is_suffix(text: &str) -> bool {
    !text.is_empty() && !text.contains(['/', '%', '?', '#']) && !text.chars().any(char::is_control)
}

fn variables(
    key: &str,
    item: &Item<BTreeMap<String, String>>,
    to: &mut Findings<'_>,
) -> BTreeMap<String, String> {
    let Some(item) = item else {
        return BTreeMap::new();
    };
    for (name, text) in item.get_ref() {
        if name.is_empty() || name.contains(['=', '\0']) || text.contains('\0') {
            let problem =
                format!("`{name}` is no variable: a name has no `=`, and neither has a NUL");
            to.wrong(key, Some(item.span()), problem);
        }
    }
    item.get_ref().clone()
}

#[cfg(test)]
mod tests {
    use super::{Handler, is_prefix, is_suffix};
    use crate::config::{Config, Environment, Settings};

    #[test]
    fn prefixes_and_suffixes_are_refused_when_no_path_could_ever_match() {
        for prefix in ["/", "/cgi-bin/", "/app", "/a/b/", "/a.b/"] {
            assert!(is_prefix(prefix), "{prefix}");
        }
        for prefix in [
            "", "cgi-bin/", "//", "/a//b", "/./", "/a/../b", "/a%20b/", "/a?b", "/\n",
        ] {
            assert!(!is_prefix(prefix), "{prefix:?}");
        }
        assert!(is_suffix(".php") && is_suffix("cgi"));
        for suffix in ["", "/x", ".p?p", "\0"] {
            assert!(!is_suffix(suffix), "{suffix:?}");
        }
    }

    #[test]
    fn application_is_found_beside_the_documents_or_where_it_is_said() {
        let place = tempfile::tempdir().unwrap();
        let checked = |more: &str| {
            let root = place.path().display();
            let text = format!("root = \"{root}\"\n[[location]]\n{more}\n");
            let settings = Settings::from_toml(&text, &place.path().join("t.toml")).unwrap();
            let checked = Config::check(&settings, None, &Environment::detect());
            let handlers = checked.map(|good| {
                let host = &good.config.hosts[0];
                let printed = Settings::from_toml(&good.config.to_toml(), &place.path().join("p"));
                assert!(printed.is_ok(), "{printed:?}");
                match &host.locations[..] {
                    [one] => match &one.handler {
                        Handler::SpecWeb99(application) => application.directory(&host.root),
                        other => panic!("{other:?}"),
                    },
                    other => panic!("{other:?}"),
                }
            });
            handlers.map_err(|errors| errors.iter().map(ToString::to_string).collect::<String>())
        };
        let usual = "prefix = \"/own\"\nspecweb99 = {}";
        let error = checked(usual).unwrap_err();
        assert!(
            error.contains("no file") && error.contains("fileset create"),
            "{error}"
        );
        for name in [".specweb99", "other"] {
            let directory = place.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("Custom.Ads"), "").unwrap();
        }
        let real = place.path().canonicalize().unwrap();
        assert_eq!(checked(usual), Ok(real.join(".specweb99")));
        let elsewhere = "prefix = \"/own\"\nspecweb99 = { state = \"other\" }";
        assert_eq!(checked(elsewhere), Ok(real.join("other")));
        for (wrong, why) in [
            ("suffix = \".x\"\nspecweb99 = {}", "needs a prefix"),
            (
                "prefix = \"/own\"\ncgi = true\nspecweb99 = {}",
                "exactly one of",
            ),
            (
                "prefix = \"/own\"\nspecweb99 = { state = \"nowhere\" }",
                "nowhere",
            ),
        ] {
            let error = checked(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
