//! From what is wanted to a command line: the committed configuration with its places filled in.
//!
//! The files are `bench/peers/*.conf`, the same that the scripts of `bench/` use; each setting's
//! reason stands beside it there. They are part of the program, so that the lab needs no checkout.
//! All servers are given the same files, keep-alive, accept queue, deferred accept, log (none
//! unless all do) and bound of connections.
//!
//! Refused: characters in a path that a configuration language would read as its own.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::available;
use super::certificate::CertificateFiles;
use super::error::ServerError;
use super::kind::Family;
use super::spec::{ServerSpec, Sizes};

const APACHE: &str = include_str!("../../../../bench/peers/apache.conf");
const NGINX: &str = include_str!("../../../../bench/peers/nginx.conf");
const LIGHTTPD: &str = include_str!("../../../../bench/peers/lighttpd.conf");
const H2O: &str = include_str!("../../../../bench/peers/h2o.conf");
const APACHE_TLS: &str = include_str!("../../../../bench/peers/apache-tls.conf");
const NGINX_TLS: &str = include_str!("../../../../bench/peers/nginx-tls.conf");
const LIGHTTPD_TLS: &str = include_str!("../../../../bench/peers/lighttpd-tls.conf");
const H2O_TLS: &str = include_str!("../../../../bench/peers/h2o-tls.conf");
/// For all servers of that Apache.
const APACHE_HTTP2: &str =
    "LoadModule http2_module /usr/lib/apache2/modules/mod_http2.so\nProtocols h2 http/1.1\n";
const CIVETWEB: &str = include_str!("../../../../bench/peers/civetweb.conf");

/// Threads of one Apache process at most, Apache's own default for `ThreadLimit`.
const THREADS_MAX: usize = 64;

/// Descriptors of a server that are no connection and no cached file: logs, event queues,
/// libraries.
const OTHER_DESCRIPTORS: usize = 64;

/// What our server writes when it serves; the address of its status page stands there.
pub(super) const READY_FILE: &str = "ready.json";

/// Where the open-file service listens, in the server's folder.
const SERVICE_SOCKET: &str = "open.sock";

/// A command line, and what it brings into being.
#[derive(Debug)]
pub(super) struct Launch {
    /// What follows the program's name.
    pub arguments: Vec<OsString>,
    /// Processes and threads that are there when all of it has started.
    pub population: Population,
}

/// Processes, and tasks of all of them, that a started server has at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Population {
    pub processes: usize,
    pub tasks: usize,
}

/// Writes the configuration into the folder (peers), and puts the command line together.
pub(super) fn prepare(
    spec: &ServerSpec,
    folder: &Path,
    descriptors: u64,
) -> Result<Launch, ServerError> {
    let family = spec.kind.family();
    if spec.tls_port.is_some() {
        CertificateFiles::of(folder)
            .make(spec.address.ip())
            .map_err(|error| ServerError::prepare("make a certificate in", folder, error))?;
    }
    if family == Family::Headway {
        return Ok(headway(spec, folder));
    }
    for path in [&spec.root, folder] {
        check_path(path)?;
    }
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(|error| ServerError::prepare("write", &file, error))?;
        Ok(file)
    };
    let mut text = fill(spec, folder, descriptors);
    if let Some(port) = spec.tls_port {
        let more = fill_tls(spec, port, folder)?;
        match family {
            // Inside of its server, which includes such files.
            Family::Nginx { .. } => drop(write("nginx-server-tls.conf", &more)?),
            _ => text += &more,
        }
    }
    let file = write("server.conf", &text)?;
    Ok(Launch {
        arguments: arguments(family, spec, &file, folder),
        population: population(family, &spec.sizes),
    })
}

fn arguments(family: Family, spec: &ServerSpec, file: &Path, folder: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = match family {
        Family::Apache { service, .. } => {
            let mut arguments = match service {
                true => service_arguments(spec, folder),
                false => Vec::new(),
            };
            arguments.extend(["-D".into(), "FOREGROUND".into(), "-f".into(), file.into()]);
            arguments
        }
        Family::Nginx { .. } => {
            let log = folder.join("nginx.error");
            vec![
                "-e".into(),
                log.into(),
                "-p".into(),
                folder.into(),
                "-c".into(),
                file.into(),
            ]
        }
        Family::Lighttpd => vec!["-D".into(), "-f".into(), file.into()],
        Family::H2o => vec!["-m".into(), "worker".into(), "-c".into(), file.into()],
        Family::Civetweb => vec![file.into()],
        Family::Headway | Family::Absent(_) => Vec::new(),
    };
    if matches!(family, Family::Apache { .. }) && spec.access_log {
        arguments.extend(["-D".into(), "ACCESS_LOG".into()]);
    }
    arguments
}

/// The open-file service, which starts Apache and ends with it.
fn service_arguments(spec: &ServerSpec, folder: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["backend".into(), "--quiet".into()];
    let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    add("--root", spec.root.clone().into());
    add("--socket", folder.join(SERVICE_SOCKET).into());
    add("--allow-user", identity().0.into());
    // Apache starts as root, as it does without the service.
    if rustix::process::geteuid().is_root() {
        add("--user", "root".into());
    }
    if let Some(helpers) = spec.sizes.helpers {
        add("--helpers", helpers.to_string().into());
    }
    // That it is there has been looked at; without it the start fails with its name.
    let apache = available::apache().unwrap_or_else(|| "apache2".into());
    arguments.extend(["--".into(), apache.into()]);
    arguments
}

/// What Flashpache's Apache has more than the plain one.
fn module_settings(folder: &Path) -> String {
    let module = available::module().unwrap_or_else(|| "mod_headway.so".into());
    format!(
        "\nLoadModule headway_module {}\nHeadwayBackend {}\nHeadwayEnable On\n",
        module.display(),
        folder.join(SERVICE_SOCKET).display()
    )
}

/// Our own presets: everything on the command line. The default preset needs no name.
fn headway(spec: &ServerSpec, folder: &Path) -> Launch {
    let sizes = &spec.sizes;
    let mut arguments: Vec<OsString> = vec!["serve".into(), spec.root.clone().into()];
    let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    add("--listen", spec.address.to_string().into());
    // So that its processes are those of the server without a lab, and read all files.
    if rustix::process::geteuid().is_root() {
        add("--user", "root".into());
    }
    // On the same network as the server, so that the client can ask for it; any free port.
    add(
        "--status",
        SocketAddr::new(spec.address.ip(), 0).to_string().into(),
    );
    add("--ready-file", folder.join(READY_FILE).into());
    add("--workers", sizes.workers.to_string().into());
    add("--backlog", sizes.backlog.to_string().into());
    add("--max-connections", sizes.connections.to_string().into());
    add("--idle-timeout", "3600s".into());
    if spec.kind != super::Kind::Headway {
        add("--preset", spec.kind.name().into());
    }
    if let Some(helpers) = sizes.helpers {
        add("--helpers-min", helpers.to_string().into());
        add("--helpers-max", helpers.to_string().into());
    }
    if spec.access_log {
        add("--log", folder.join("access.log").into());
    }
    if let Some(address) = spec.tls_address() {
        let files = CertificateFiles::of(folder);
        add("--tls-listen", address.to_string().into());
        add("--tls-certificate", files.certificate.into());
        add("--tls-key", files.key.into());
    }
    // h2o and CivetWeb do not look for a compressed sibling either.
    arguments.extend(["--precompressed=off".into(), "--quiet".into()]);
    arguments.extend(spec.arguments.iter().map(Into::into));
    Launch {
        arguments,
        population: Population {
            processes: 1 + sizes.workers,
            tasks: 1 + sizes.workers,
        },
    }
}

fn fill(spec: &ServerSpec, folder: &Path, descriptors: u64) -> String {
    let sizes = &spec.sizes;
    let (user, group) = identity();
    let (children, threads) = children_and_threads(sizes.clients);
    let mut values = vec![
        ("ROOT", spec.root.display().to_string()),
        ("HOST", spec.address.ip().to_string()),
        ("PORT", spec.address.port().to_string()),
        ("SCRATCH", folder.display().to_string()),
        ("USER", user),
        ("GROUP", group),
        ("WORKERS", sizes.workers.to_string()),
        ("CONNECTIONS", sizes.connections.to_string()),
        ("FILES", descriptors.to_string()),
        ("BACKLOG", sizes.backlog.to_string()),
        ("CLIENTS", sizes.clients.to_string()),
        ("CHILDREN", children.to_string()),
        ("THREADS", threads.to_string()),
    ];
    let log = folder.join("access.log");
    let (template, more) = match spec.kind.family() {
        Family::Apache { mpm, .. } => {
            if mpm != "prefork" {
                // Apache would round down to whole processes.
                set(&mut values, "CLIENTS", (children * threads).to_string());
            }
            (APACHE, vec![("MPM", mpm.to_owned())])
        }
        Family::Nginx {
            threads,
            cache,
            multi_accept,
        } => {
            let more = nginx(spec, (threads, cache, multi_accept), &log, descriptors);
            (NGINX, more)
        }
        Family::Lighttpd => {
            if sizes.workers == 1 {
                set(&mut values, "WORKERS", "0".into());
            }
            let lines = format!(
                "server.modules += ( \"mod_accesslog\" )\naccesslog.filename = \"{}\"",
                log.display()
            );
            (LIGHTTPD, vec![("ACCESS_LOG", logged(spec, lines))])
        }
        Family::H2o => {
            let line = format!("access-log: {}", log.display());
            (H2O, vec![("ACCESS_LOG", logged(spec, line))])
        }
        Family::Civetweb => {
            let line = format!("access_log_file {}", log.display());
            (CIVETWEB, vec![("ACCESS_LOG", logged(spec, line))])
        }
        Family::Headway | Family::Absent(_) => ("", Vec::new()),
    };
    values.extend(more);
    let mut template = template.to_owned();
    if spec.kind.has_service() {
        template += &module_settings(folder);
    }
    let filled = values.iter().fold(template, |text, (name, value)| {
        text.replace(&format!("@{name}@"), value)
    });
    match identity_is_root() {
        true => filled,
        // It takes any name for an order to change to that user, which only root can.
        false => filled.replace("run_as_user ", "# run_as_user "),
    }
}

/// What a server has in addition when it speaks TLS.
fn fill_tls(spec: &ServerSpec, port: u16, folder: &Path) -> Result<String, ServerError> {
    let template = match spec.kind.family() {
        // mod_http2 needs threads.
        Family::Apache { mpm: "prefork", .. } if spec.http2 => {
            return Err(ServerError::NoHttp2 { kind: spec.kind });
        }
        Family::Apache { .. } if spec.http2 => format!("{APACHE_HTTP2}{APACHE_TLS}"),
        Family::Apache { .. } => APACHE_TLS.to_owned(),
        // Not every nginx knows this line, and all know the older form.
        Family::Nginx { .. } => {
            let text = without_lines(NGINX_TLS, "http2 ");
            match spec.http2 {
                true => text.replace(" ssl ", " ssl http2 "),
                false => text,
            }
        }
        Family::Lighttpd => LIGHTTPD_TLS.to_owned(),
        Family::H2o => H2O_TLS.to_owned(),
        Family::Headway | Family::Civetweb | Family::Absent(_) => {
            return Err(ServerError::NoTls { kind: spec.kind });
        }
    };
    let files = CertificateFiles::of(folder);
    let values = [
        ("@HOST@", spec.address.ip().to_string()),
        ("@TLS_PORT@", port.to_string()),
        ("@BACKLOG@", spec.sizes.backlog.to_string()),
        ("@CERTIFICATE@", files.certificate.display().to_string()),
        ("@KEY@", files.key.display().to_string()),
    ];
    let filled = values.iter();
    Ok(filled.fold(template, |text, (name, value)| text.replace(name, value)))
}

fn without_lines(text: &str, start: &str) -> String {
    let kept = text.lines().filter(|line| !line.starts_with(start));
    kept.flat_map(|line| [line, "\n"]).collect()
}

fn nginx(
    spec: &ServerSpec,
    (threads, cache, multi_accept): (bool, bool, bool),
    log: &Path,
    descriptors: u64,
) -> Vec<(&'static str, String)> {
    let on = |yes: bool, word: &str| if yes { word } else { "off" }.to_owned();
    // What connections leave. A cache that needs more descriptors than there are makes nginx
    // answer 500.
    let room = (descriptors as usize).saturating_sub(spec.sizes.connections + OTHER_DESCRIPTORS);
    let files = format!("max={} inactive=60s", room.max(1));
    let log = format!("{} combined", log.display());
    vec![
        ("AIO", on(threads, "threads")),
        ("OPEN_FILE_CACHE", on(cache, &files)),
        (
            "MULTI_ACCEPT",
            on(multi_accept && spec.sizes.workers == 1, "on"),
        ),
        ("ACCESS_LOG", on(spec.access_log, &log)),
    ]
}

fn set(values: &mut [(&str, String)], name: &str, value: String) {
    for (_, old) in values.iter_mut().filter(|(key, _)| *key == name) {
        old.clone_from(&value);
    }
}

fn logged(spec: &ServerSpec, lines: String) -> String {
    if spec.access_log {
        lines
    } else {
        String::new()
    }
}

/// Equal processes of at most [`THREADS_MAX`] threads for this number of clients.
fn children_and_threads(clients: usize) -> (usize, usize) {
    let children = clients.div_ceil(THREADS_MAX).max(1);
    (children, clients.div_ceil(children).max(1))
}

fn population(family: Family, sizes: &Sizes) -> Population {
    let (children, threads) = children_and_threads(sizes.clients);
    let (processes, tasks) = match family {
        Family::Apache { mpm: "prefork", .. } => (1 + sizes.clients, 1 + sizes.clients),
        // In each process the first thread watches and one more listens.
        Family::Apache { .. } => (1 + children, 1 + children * (threads + 2)),
        Family::Nginx { .. } => (1 + sizes.workers, 1 + sizes.workers),
        Family::Lighttpd if sizes.workers > 1 => (1 + sizes.workers, 1 + sizes.workers),
        Family::H2o => (1, sizes.workers),
        Family::Civetweb => (1, 1 + sizes.clients),
        _ => (1, 1),
    };
    // The service comes first; its helpers and threads are as many as they are.
    let service = usize::from(matches!(family, Family::Apache { service: true, .. }));
    Population {
        processes: processes + service,
        tasks: tasks + service,
    }
}

fn identity_is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user that the peers run as. Apache refuses to serve as root, and the others are compared
/// with it.
fn identity() -> (String, String) {
    if identity_is_root() {
        let files = Path::new("/etc/group");
        let groups = std::fs::read_to_string(files).unwrap_or_default();
        // Debian calls the group nogroup, others call it like the user `nobody`.
        let nogroup = groups.lines().any(|line| line.starts_with("nogroup:"));
        let group = if nogroup { "nogroup" } else { "nobody" };
        return ("nobody".into(), group.into());
    }
    let name = |file: &str, number: u32| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut lines = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let number = number.to_string();
        let line = lines.find(|fields| fields.get(2) == Some(&number.as_str()));
        line.map_or_else(|| format!("#{number}"), |fields| fields[0].into())
    };
    (
        name("/etc/passwd", rustix::process::geteuid().as_raw()),
        name("/etc/group", rustix::process::getegid().as_raw()),
    )
}

/// Five languages, none of which is worth escaping for: letters, digits and a few marks mean
/// themselves in all.
fn check_path(path: &Path) -> Result<(), ServerError> {
    let plain = |c: char| c.is_alphanumeric() || "/._-+,".contains(c);
    match path.to_str() {
        Some(text) if text.starts_with('/') && text.chars().all(plain) => Ok(()),
        _ => Err(ServerError::Path {
            path: PathBuf::from(path),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::Kind;

    fn spec(kind: Kind) -> ServerSpec {
        ServerSpec::new(
            kind,
            "/srv/files",
            "127.0.0.1:8080".parse().expect("an address"),
        )
    }

    fn filled(spec: &ServerSpec) -> String {
        fill(spec, Path::new("/run/scratch"), 20_000)
    }

    /// Settings without comments; a comment may name a place.
    fn settings(text: &str) -> Vec<String> {
        let lines = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default().trim());
        lines
            .filter(|line| !line.is_empty())
            .map(Into::into)
            .collect()
    }

    #[test]
    fn configuration_template_has_no_placeholder_left() {
        for kind in Kind::all().filter(|kind| !kind.is_ours()) {
            for access_log in [false, true] {
                let text = filled(&ServerSpec {
                    access_log,
                    ..spec(kind)
                });
                for line in settings(&text) {
                    assert!(!line.contains('@'), "{kind}: {line}");
                }
            }
        }
    }

    #[test]
    fn nginx_kinds_configure_threads_and_cache() {
        let has = |kind, setting: &str| settings(&filled(&spec(kind))).contains(&setting.into());
        assert!(has(Kind::Nginx, "aio off;"));
        assert!(has(Kind::Nginx, "open_file_cache off;"));
        assert!(has(Kind::Nginx, "multi_accept on;"));
        assert!(has(Kind::NginxOneAccept, "multi_accept off;"));
        assert!(has(Kind::NginxOpenFiles, "aio off;"));
        assert!(!has(Kind::NginxOpenFiles, "open_file_cache off;"));
        assert!(has(Kind::NginxThreads, "aio threads;"));
        assert!(has(Kind::NginxThreads, "open_file_cache off;"));
        assert!(has(Kind::NginxCache, "aio threads;"));
        // 20000 descriptors, less 12288 connections and 64 others.
        assert!(has(
            Kind::NginxCache,
            "open_file_cache max=7648 inactive=60s;"
        ));
    }

    #[test]
    fn apache_serves_the_configured_clients_when_divided_among_processes() {
        for (clients, children, threads) in [
            (1, 1, 1),
            (64, 1, 64),
            (150, 3, 50),
            (256, 4, 64),
            (300, 5, 60),
            (1024, 16, 64),
        ] {
            assert_eq!(children_and_threads(clients), (children, threads));
        }
        let mut spec = spec(Kind::ApacheWorker);
        spec.sizes.clients = 257;
        let lines = settings(&filled(&spec));
        // Five processes of 52 threads.
        assert!(lines.contains(&"MaxRequestWorkers 260".into()));
        assert!(lines.contains(&"ServerLimit 5".into()));
    }

    #[test]
    fn access_log_is_configured_for_every_server_or_none() {
        for kind in Kind::all().filter(|kind| !kind.is_ours()) {
            if matches!(kind.family(), Family::Absent(_) | Family::Apache { .. }) {
                continue;
            }
            let logs = |access_log| {
                let text = filled(&ServerSpec {
                    access_log,
                    ..spec(kind)
                });
                settings(&text)
                    .iter()
                    .any(|line| line.contains("/run/scratch/access.log"))
            };
            assert!(logs(true) && !logs(false), "{kind}");
        }
        // Apache's stands in an <IfDefine> that the command line decides.
        let mut spec = spec(Kind::ApacheEvent);
        let defined = |spec: &ServerSpec| {
            let (file, folder) = (Path::new("/f"), Path::new("/"));
            arguments(spec.kind.family(), spec, file, folder).contains(&"ACCESS_LOG".into())
        };
        assert!(!defined(&spec));
        spec.access_log = true;
        assert!(defined(&spec));
    }

    #[test]
    fn service_starts_apache_when_the_kind_has_one() {
        let mut spec = spec(Kind::Flashpache);
        spec.sizes.helpers = Some(3);
        let (file, folder) = (Path::new("/f"), Path::new("/run/scratch"));
        let launch_arguments = arguments(spec.kind.family(), &spec, file, folder);
        let launch_arguments: Vec<_> = launch_arguments
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        let line = launch_arguments.join(" ");
        assert!(
            line.starts_with("backend --quiet --root /srv/files --socket /run/scratch/open.sock")
        );
        assert!(line.contains(" --helpers 3 -- "), "{line}");
        assert!(line.ends_with("apache2 -D FOREGROUND -f /f"), "{line}");
        assert!(settings(&filled(&spec)).contains(&"HeadwayEnable On".into()));
        spec.kind = Kind::ApachePrefork;
        assert!(!filled(&spec).contains("Headway"));
        let population = |kind: Kind| population(kind.family(), &spec.sizes).processes;
        assert_eq!(
            population(Kind::Flashpache),
            population(Kind::ApachePrefork) + 1
        );
    }

    #[test]
    fn preset_and_helpers_are_named_when_they_are_not_the_default() {
        let command_line = |spec: &ServerSpec| {
            let launch = headway(spec, Path::new("/run/scratch"));
            let shown: Vec<String> = launch
                .arguments
                .iter()
                .map(|word| word.to_string_lossy().into())
                .collect();
            shown.join(" ")
        };
        let mut spec = spec(Kind::Headway);
        assert!(!command_line(&spec).contains("--preset"));
        assert!(!command_line(&spec).contains("--helpers"));
        spec.kind = Kind::FdPass;
        spec.sizes.helpers = Some(15);
        let line = command_line(&spec);
        assert!(line.contains("--preset fd-pass"), "{line}");
        assert!(line.contains("--helpers-min 15 --helpers-max 15"), "{line}");
    }

    #[test]
    fn path_is_an_error_when_a_configuration_could_misread_it() {
        for good in ["/srv/files", "/mnt/größe_1.5-x"] {
            assert!(check_path(Path::new(good)).is_ok(), "{good}");
        }
        for bad in ["relative", "/a b", "/a;b", "/a\"b", "/a@b", "/a#b", "/a\nb"] {
            assert!(check_path(Path::new(bad)).is_err(), "{bad:?}");
        }
    }
}
