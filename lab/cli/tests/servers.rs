//! The lab's servers that need this command: the presets, and every server inside a lab.

use crate::common;
use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{headway, headway_lab};
use headway_lab::servers::{Kind, Server, ServerError, ServerSpec, available};
use headway_latency::{Outcome, Row};
use headway_load::engine::{self, Address, Observer, Plan, Protocol, Target, Work};
use headway_load::tls::{TlsOptions, Verification};
use headway_test_support::{is_running, skip};

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("headway-servers-test-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .expect("a folder")
}

fn content() -> Vec<u8> {
    (0..700_001).map(|index| (index * 31 % 251) as u8).collect()
}

fn root(folder: &Path) -> PathBuf {
    let root = folder.join("root");
    fs::create_dir(&root).expect("the root");
    fs::write(root.join("file.bin"), content()).expect("a file");
    root
}

fn spec(kind: Kind, root: &Path) -> ServerSpec {
    // No client of another test asks from there before the server listens.
    let own = Ipv4Addr::new(127, 63, std::process::id() as u8, kind as u8 + 1);
    let listener = TcpListener::bind((own, 0)).expect("a port");
    let mut spec = ServerSpec::new(kind, root, listener.local_addr().expect("its address"));
    spec.program = Some(match kind.has_service() {
        true => headway().into(),
        false => headway_lab().get_program().into(),
    });
    spec.sizes.clients = 8;
    spec.sizes.connections = 256;
    spec.probe = Some("/file.bin".into());
    spec
}

fn plainly(program: &OsStr) -> Command {
    Command::new(program)
}

fn none_lives(pids: &[i32]) -> bool {
    !pids.iter().any(|pid| is_running(pid.cast_unsigned()))
}

#[test]
fn preset_serves_with_a_status_page_when_the_lab_starts_it() {
    let folder = folder();
    let root = root(folder.path());
    for kind in Kind::all().filter(|kind| kind.is_ours()) {
        let mut spec = spec(kind, &root);
        spec.sizes.workers = 2;
        spec.sizes.helpers = Some(3);
        let server = Server::start(&spec, plainly, folder.path()).expect("a server");
        assert!(
            server.get("/file.bin").expect("an answer").body == content(),
            "{kind}"
        );
        let status = server.status().expect("an answer").expect("a status");
        assert!(status.is_object(), "{status}");
        assert_eq!(server.workers().len(), 2, "{kind}");
        let pids = server.pids();
        let ended = server.stop().expect("its end");
        assert!(ended.politely, "{kind}: {ended:?}");
        assert!(none_lives(&pids), "{kind}");
    }
    let left: Vec<_> = fs::read_dir(folder.path())
        .expect("the folder")
        .flatten()
        .collect();
    assert_eq!(left.len(), 1, "only the root is left: {left:?}");
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn accept_limit_is_an_error_for_a_server_that_it_cannot_see() {
    let folder = folder();
    let root = root(folder.path());
    // Our server makes its system calls itself, as a statically linked one does.
    for (events, why) in [
        ("epoll", "without a call of accept"),
        ("io_uring", "by io_uring"),
    ] {
        let mut spec = spec(Kind::Headway, &root);
        spec.accept_limit = Some(25);
        spec.arguments = vec!["--events".into(), events.into()];
        let error = Server::start(&spec, plainly, folder.path()).expect_err("no effect");
        let error = error.to_string();
        if events == "io_uring" && error.contains("io_uring") && !error.contains("no effect") {
            return skip(
                "accept_limit_is_an_error_for_a_server_that_it_cannot_see",
                "io_uring is not permitted",
            );
        }
        assert!(
            error.contains("no effect") && error.contains(why),
            "{error}"
        );
    }
}

/// Requests the file five times through TLS, with the server's certificate for an authority.
fn load_through_tls(server: &Server, protocol: Protocol) -> Vec<Row> {
    let address = server.tls_address().expect("a second port");
    let options = TlsOptions {
        verification: Verification::File(server.certificate().expect("a certificate")),
        http2: protocol != Protocol::Http1,
        ..TlsOptions::default()
    };
    let mut target = Target::new(Address::Inet(address), address.to_string());
    target.tls = Some(options.client(&address.ip().to_string()).expect("options"));
    let mut work = Work::paths(["/file.bin"]);
    work.documents[0].checksum = Some(headway_load::checksum::of(&content()));
    let mut plan = Plan::closed(target, work, 1);
    plan.protocol = protocol;
    plan.verify = true;
    plan.requests_per_connection = Some(2);
    plan.stop.requests = Some(5);
    plan.timeout = Some(Duration::from_secs(20));
    let mut rows = Rows::default();
    let measured = engine::run(&plan, &mut rows).expect("a run");
    assert_eq!(measured.failure, None, "{}", server.kind());
    assert_eq!(measured.handshakes.done, 3, "{}", server.kind());
    rows.0
}

#[derive(Default)]
struct Rows(Vec<Row>);

impl Observer for Rows {
    fn rows(&mut self, batch: &mut Vec<Row>) {
        self.0.append(batch);
    }
}

/// Needs: the programs nginx, apache2, lighttpd and h2o: scripts/setup
#[test]
fn every_server_answers_through_tls_when_it_has_a_port_for_it() {
    let test = "every_server_answers_through_tls_when_it_has_a_port_for_it";
    let folder = folder();
    let root = root(folder.path());
    for kind in [
        Kind::Headway,
        Kind::Flash,
        Kind::ApachePrefork,
        Kind::ApacheWorker,
        Kind::ApacheEvent,
        Kind::Nginx,
        Kind::NginxThreads,
        Kind::Lighttpd,
        Kind::H2o,
    ] {
        if let Err(reason) = available(kind) {
            skip(test, &reason.to_string());
            continue;
        }
        let mut spec = spec(kind, &root);
        let other = TcpListener::bind((spec.address.ip(), 0)).expect("a port");
        spec.tls_port = Some(other.local_addr().expect("its address").port());
        drop(other);
        let http2 = Protocol::Http2 { streams: 1 };
        let protocols = match kind {
            Kind::ApachePrefork => vec![Protocol::Http1],
            _ => vec![Protocol::Http1, http2],
        };
        spec.http2 = protocols.contains(&http2);
        let server = Server::start(&spec, plainly, folder.path()).expect("a server");
        assert!(server.get("/file.bin").expect("an answer").body == content());
        for protocol in protocols {
            let rows = load_through_tls(&server, protocol);
            assert!(
                rows.iter().all(|row| row.error == Outcome::Ok),
                "{kind}, {protocol:?}: {rows:?}"
            );
        }
        server.stop().expect("its end");
    }
    if available(Kind::ApachePrefork).is_ok() {
        let mut spec = spec(Kind::ApachePrefork, &root);
        (spec.tls_port, spec.http2) = (Some(1), true);
        let refused = Server::start(&spec, plainly, folder.path());
        assert!(
            matches!(refused, Err(ServerError::NoHttp2 { .. })),
            "{refused:?}"
        );
    }
    let mut spec = spec(Kind::Civetweb, &root);
    spec.tls_port = Some(1);
    if available(Kind::Civetweb).is_ok() {
        let refused = Server::start(&spec, plainly, folder.path());
        assert!(
            matches!(refused, Err(ServerError::NoTls { .. })),
            "{refused:?}"
        );
    }
}

/// Puts our module for Apache beside this program, where the lab looks for it.
fn build_module() -> Result<(), String> {
    let apxs = Command::new("apxs").arg("-q").arg("CC").output();
    if !apxs.is_ok_and(|output| output.status.success()) {
        return Err("no apxs: scripts/setup installs it".into());
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let directory = own.parent().unwrap_or(Path::new("."));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apache");
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(folder)
        .arg(format!("OUT={}", directory.display()));
    run(&mut make).map(drop)
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn flashpache_serves_and_all_of_it_ends_when_the_lab_has_started_it() {
    let test = "flashpache_serves_and_all_of_it_ends_when_the_lab_has_started_it";
    if let Err(reason) = build_module() {
        return skip(test, &reason);
    }
    let folder = folder();
    let root = root(folder.path());
    for (kind, workers) in [(Kind::Flashpache, 8), (Kind::FlashpacheEvent, 1)] {
        if let Err(reason) = available(kind) {
            return skip(test, &reason.to_string());
        }
        let spec = spec(kind, &root);
        let server = Server::start(&spec, plainly, folder.path()).expect("a server");
        assert!(server.get("/file.bin").expect("an answer").body == content());
        assert!(server.folder().join("open.sock").exists(), "the service");
        // Neither Apache's first process nor the service and its helpers.
        assert_eq!(server.workers().len(), workers, "{kind}");
        let pids = server.pids();
        assert!(pids.len() > workers + 2, "{kind}: {pids:?}");
        let ended = server.stop().expect("its end");
        assert!(ended.politely, "{kind}: {ended:?}");
        assert!(none_lives(&pids), "{kind}");
    }
}

/// Needs: the program nginx: scripts/setup
#[test]
fn second_start_fails_and_the_first_keeps_serving_when_the_port_is_in_use() {
    let folder = folder();
    let root = root(folder.path());
    let first = spec(Kind::Headway, &root);
    let server = Server::start(&first, plainly, folder.path()).expect("a server");
    let other = folder.path().join("other");
    for kind in [Kind::Headway, Kind::Nginx] {
        let second = ServerSpec {
            kind,
            ..first.clone()
        };
        if let Err(reason) = available(kind) {
            skip(
                "second_start_fails_and_the_first_keeps_serving_when_the_port_is_in_use",
                &reason.to_string(),
            );
            continue;
        }
        let error = Server::start(&second, plainly, &other).expect_err("a taken port");
        assert!(matches!(error, ServerError::Taken { .. }), "{error}");
        let message = error.to_string();
        assert!(
            message.contains("(headway") || message.contains("(serve-"),
            "{message}"
        );
    }
    assert_eq!(server.get("/file.bin").expect("an answer").status, 200);
    server.stop().expect("its end");
}

#[test]
fn usage_error_of_our_server_is_reported() {
    let folder = folder();
    let root = root(folder.path());
    let mut spec = spec(Kind::Headway, &root);
    spec.arguments = vec!["--no-such-option".into()];
    let error = Server::start(&spec, plainly, folder.path()).expect_err("wrong use");
    let message = error.to_string();
    assert!(
        message.contains("exit status: 2") && message.contains("--no-such-option"),
        "{message}"
    );
}

/// A lab of memory and link, made by the command as a user makes it; removed when dropped.
struct SmallLab {
    name: String,
    server: IpAddr,
}

impl SmallLab {
    /// The reason, where this machine or this user cannot make one.
    fn up() -> Result<SmallLab, String> {
        let name = format!("test-servers-{}", std::process::id());
        let parts = ["--disk", "none", "--memory", "200MiB", "--link", "1Gbit"];
        run(headway_lab().args(["up", &name]).args(parts))?;
        // Made before anything else can fail, so that the lab is removed.
        let mut made = SmallLab {
            name,
            server: IpAddr::from([0, 0, 0, 0]),
        };
        let text = run(headway_lab().args(["status", &made.name, "--json"]))?;
        let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let ip = status["link"]["server_ip"]
            .as_str()
            .expect("the server's end of the link");
        made.server = ip.parse().expect("an address");
        Ok(made)
    }

    fn command(&self, program: &OsStr) -> Command {
        let mut command = headway_lab();
        command.args(["exec", &self.name, "--"]).arg(program);
        command
    }
}

impl Drop for SmallLab {
    fn drop(&mut self) {
        let down = run(headway_lab().args(["down", &self.name]));
        if let (Err(error), false) = (down, std::thread::panicking()) {
            panic!("{error}");
        }
    }
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
    }
}

/// Needs: root: makes a lab of memory and link
#[test]
fn every_server_serves_across_the_link_when_it_runs_inside_a_lab() {
    let test = "every_server_serves_across_the_link_when_it_runs_inside_a_lab";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "not root: makes a lab");
    }
    let check = run(headway_lab().args(["check"])).unwrap_or_default();
    let can = |part: &str| {
        check
            .lines()
            .any(|line| line.starts_with(part) && line.ends_with("yes"))
    };
    if !can("memory limit") || !can("link") {
        return skip(test, &check);
    }
    let lab = SmallLab::up().expect("a lab");
    let folder = folder();
    let root = root(folder.path());
    for kind in Kind::all() {
        if let Err(reason) = available(kind) {
            println!("{kind} is left out: {reason}");
            continue;
        }
        let mut spec = spec(kind, &root);
        // The port is free in that network namespace, even if it is used in this one.
        spec.address = SocketAddr::new(lab.server, 8080);
        let prefix = |program: &OsStr| lab.command(program);
        let server = Server::start(&spec, prefix, folder.path()).expect("a server");
        assert!(
            server.get("/file.bin").expect("an answer").body == content(),
            "{kind}"
        );
        // From outside, across the link.
        let stream = std::net::TcpStream::connect(spec.address).expect("a connection");
        drop(stream);
        let group =
            fs::read_to_string(format!("/proc/{}/cgroup", server.pid())).expect("its groups");
        assert!(group.contains(&lab.name), "{kind}: {group}");
        if kind.is_ours() {
            assert!(server.status().expect("an answer").is_some());
        }
        let pids = server.pids();
        server.stop().expect("its end");
        assert!(none_lives(&pids), "{kind}");
    }
}
