//! Servers started for real: each serves a file byte for byte and leaves nothing.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use headway_lab::servers::{Kind, Server, ServerError, ServerSpec, available};
use headway_test_support::{executable, is_running, skip};
use rustix::process::{Pid, Signal, kill_process};

/// How long a client waits before it says that nothing came.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// More than one window of any server, and of no round size.
const LARGE_BYTES: usize = 1_500_001;

/// A document root and a scratch folder that the user `nobody` may pass through.
struct Root {
    folder: tempfile::TempDir,
    large: Vec<u8>,
}

impl Root {
    fn new() -> Root {
        let folder = tempfile::Builder::new()
            .prefix("headway-lab-test-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .expect("a folder");
        let large: Vec<u8> = (0..LARGE_BYTES)
            .map(|index| (index * 31 % 251) as u8)
            .collect();
        let root = folder.path().join("root");
        fs::create_dir(&root).expect("the root");
        fs::write(root.join("small.txt"), "small\n").expect("a file");
        fs::write(root.join("large.bin"), &large).expect("a file");
        fs::create_dir(folder.path().join("scratch")).expect("the scratch folder");
        Root { folder, large }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn scratch(&self) -> PathBuf {
        self.folder.path().join("scratch")
    }

    fn spec(&self, kind: Kind) -> ServerSpec {
        let mut spec = ServerSpec::new(kind, self.root(), free_address());
        spec.sizes.clients = 8;
        spec.probe = Some("/small.txt".into());
        spec
    }

    /// Nothing of a server is in the scratch folder.
    fn is_clean(&self) -> bool {
        fs::read_dir(self.scratch())
            .expect("the scratch folder")
            .next()
            .is_none()
    }
}

/// An address that stays free until a server takes it: no client of another test asks from it
/// meanwhile.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let (test, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let own = Ipv4Addr::new(127, 64 + (test % 128) as u8, (test / 128) as u8, number);
    let listener = TcpListener::bind((own, 0)).expect("a port");
    listener.local_addr().expect("its address")
}

fn plainly(program: &OsStr) -> Command {
    Command::new(program)
}

/// Which of the processes live, zombies aside.
fn alive(pids: &[i32]) -> Vec<i32> {
    let lives = |pid: &&i32| is_running(pid.cast_unsigned());
    pids.iter().filter(lives).copied().collect()
}

/// A program that stands for `headway`: what a test wants it to do.
fn script(root: &Root, text: &str) -> PathBuf {
    let file = root.folder.path().join("program");
    executable::write(&file, &format!("#!/bin/sh\n{text}\n"), 0o755);
    file
}

fn serves_and_leaves_nothing(test: &str, kind: Kind) {
    if let Err(reason) = available(kind) {
        return skip(test, &reason.to_string());
    }
    let root = Root::new();
    for (workers, access_log) in [(1, false), (2, true)] {
        let mut spec = root.spec(kind);
        (spec.sizes.workers, spec.access_log) = (workers, access_log);
        let server = Server::start(&spec, plainly, &root.scratch()).expect("a server");
        let small = server.get("/small.txt").expect("an answer");
        assert_eq!(
            (small.status, small.body.as_slice()),
            (200, b"small\n".as_slice())
        );
        assert!(server.get("/large.bin").expect("an answer").body == root.large);
        assert_eq!(server.get("/absent").expect("an answer").status, 404);
        let pids = server.pids();
        assert!(pids.contains(&server.pid()) && !server.workers().is_empty());
        let log = fs::read_to_string(server.folder().join("access.log"));
        let usage = server.usage();
        assert_eq!(usage.processes, pids.len());
        assert!(
            usage.tasks >= workers && usage.resident_bytes > 0,
            "{usage:?}"
        );
        let ended = server.stop().expect("its end");
        assert!(ended.politely, "{ended:?}");
        assert!(alive(&pids).is_empty());
        assert!(root.is_clean());
        match access_log {
            // h2o and CivetWeb write their lines when they end, or later.
            true => assert!(log.is_ok(), "no access log"),
            false => assert!(log.is_err(), "an access log which was not configured"),
        }
    }
}

macro_rules! peers {
    ($($test:ident: $kind:ident,)*) => {$(
        #[test]
        fn $test() {
            serves_and_leaves_nothing(stringify!($test), Kind::$kind);
        }
    )*};
}

peers! {
    // Each needs: the program apache2: scripts/setup
    files_are_whole_and_nothing_is_left_when_apache_prefork_has_run: ApachePrefork,
    files_are_whole_and_nothing_is_left_when_apache_worker_has_run: ApacheWorker,
    files_are_whole_and_nothing_is_left_when_apache_event_has_run: ApacheEvent,
    // Each needs: the program nginx: scripts/setup
    files_are_whole_and_nothing_is_left_when_nginx_has_run: Nginx,
    files_are_whole_and_nothing_is_left_when_nginx_threads_has_run: NginxThreads,
    files_are_whole_and_nothing_is_left_when_nginx_cache_has_run: NginxCache,
    files_are_whole_and_nothing_is_left_when_nginx_one_accept_has_run: NginxOneAccept,
    files_are_whole_and_nothing_is_left_when_nginx_with_open_files_has_run: NginxOpenFiles,
    // Each needs: the program lighttpd: scripts/setup
    files_are_whole_and_nothing_is_left_when_lighttpd_has_run: Lighttpd,
    // Each needs: the program h2o: scripts/setup
    files_are_whole_and_nothing_is_left_when_h2o_has_run: H2o,
    // Each needs: the program civetweb: scripts/setup
    files_are_whole_and_nothing_is_left_when_civetweb_has_run: Civetweb,
}

/// Needs: the program apache2: scripts/setup
#[test]
fn apache_start_waits_for_all_processes() {
    let test = "apache_start_waits_for_all_processes";
    if let Err(reason) = available(Kind::ApachePrefork) {
        return skip(test, &reason.to_string());
    }
    let root = Root::new();
    let mut spec = root.spec(Kind::ApachePrefork);
    spec.sizes.clients = 40;
    let server = Server::start(&spec, plainly, &root.scratch()).expect("a server");
    assert_eq!(server.workers().len(), 40);
    assert!(!server.workers().contains(&server.pid()));
    server.stop().expect("its end");
}

#[test]
fn error_names_the_process_when_the_port_is_in_use() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let root = Root::new();
    let mut spec = root.spec(Kind::Headway);
    spec.address = listener.local_addr().expect("its address");
    spec.program = Some(script(&root, "exec sleep 60"));
    let error = Server::start(&spec, plainly, &root.scratch()).expect_err("a taken port");
    let message = error.to_string();
    assert!(matches!(error, ServerError::Taken { .. }), "{message}");
    assert!(
        message.contains(&format!("process {}", std::process::id())),
        "{message}"
    );
    assert!(root.is_clean());
}

#[test]
fn error_has_the_server_output_when_it_exits_at_start() {
    let root = Root::new();
    let mut spec = root.spec(Kind::Headway);
    // Its child would stay if only the first process were ended.
    spec.program = Some(script(
        &root,
        "sleep 60 & echo $! >&2; echo no such luck >&2; exit 3",
    ));
    let error = Server::start(&spec, plainly, &root.scratch()).expect_err("a dead server");
    let ServerError::Died { status, log, .. } = error else {
        panic!("{error}");
    };
    assert!(
        status.contains('3') && log.contains("no such luck"),
        "{status}: {log}"
    );
    let child = log
        .lines()
        .next()
        .expect("a number")
        .parse()
        .expect("a number");
    assert!(alive(&[child]).is_empty());
    assert!(root.is_clean());
}

#[test]
fn error_hints_at_memory_when_a_server_was_killed() {
    let root = Root::new();
    let mut spec = root.spec(Kind::Headway);
    spec.program = Some(script(&root, "kill -KILL $$"));
    let error = Server::start(&spec, plainly, &root.scratch()).expect_err("a dead server");
    assert!(error.to_string().contains("memory limit"), "{error}");
}

/// Needs: the program apache2: scripts/setup
#[test]
fn configuration_error_is_shown_when_a_peer_rejects_its_root() {
    let test = "configuration_error_is_shown_when_a_peer_rejects_its_root";
    if let Err(reason) = available(Kind::ApacheEvent) {
        return skip(test, &reason.to_string());
    }
    let root = Root::new();
    let mut spec = root.spec(Kind::ApacheEvent);
    spec.root = "/headway-no-such-root".into();
    let error = Server::start(&spec, plainly, &root.scratch()).expect_err("no root");
    assert!(matches!(error, ServerError::Died { .. }), "{error}");
    assert!(error.to_string().contains("DocumentRoot"), "{error}");
}

/// Needs: root, and the program nginx
#[test]
fn error_names_the_user_who_cannot_read_the_root() {
    let test = "error_names_the_user_who_cannot_read_the_root";
    if let Err(reason) = available(Kind::Nginx) {
        return skip(test, &reason.to_string());
    }
    if !rustix::process::geteuid().is_root() {
        return skip(test, "not root, so no server changes its user");
    }
    let root = Root::new();
    fs::set_permissions(root.root(), fs::Permissions::from_mode(0o700)).expect("closed");
    let error = Server::start(&root.spec(Kind::Nginx), plainly, &root.scratch())
        .expect_err("an unreadable root");
    assert!(
        matches!(error, ServerError::Refused { answer: 403, .. }),
        "{error}"
    );
    assert!(root.is_clean());
}

#[test]
fn server_is_killed_when_it_ignores_sigterm() {
    let root = Root::new();
    let mut spec = root.spec(Kind::Headway);
    // Dies of nothing polite, and neither does its child; ends at last because its start fails.
    let note = root.folder.path().join("child");
    let text = format!(
        "trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo $! >{0}.new; mv {0}.new {0}\n\
         while [ ! -e {0}.seen ]; do sleep 0.05; done; exit 0",
        note.display()
    );
    spec.program = Some(script(&root, &text));
    let seen = note.with_extension("seen");
    let starting = std::thread::spawn({
        let scratch = root.scratch();
        move || Server::start(&spec, plainly, &scratch).map(|_| ())
    });
    while !note.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let child: i32 = fs::read_to_string(&note)
        .expect("a note")
        .trim()
        .parse()
        .expect("a number");
    assert_eq!(alive(&[child]), [child]);
    fs::write(seen, "").expect("a sign");
    starting
        .join()
        .expect("no panic")
        .expect_err("a server that ends");
    assert!(alive(&[child]).is_empty());
}

/// Needs: root, and the programs nginx, unshare and ip
#[test]
fn server_in_another_network_namespace_is_reached() {
    let test = "server_in_another_network_namespace_is_reached";
    if let Err(reason) = available(Kind::Nginx) {
        return skip(test, &reason.to_string());
    }
    let inside = |program: &OsStr| {
        let mut command = Command::new("unshare");
        command.args([
            "--net",
            "sh",
            "-c",
            "ip link set lo up && exec \"$0\" \"$@\"",
        ]);
        command.arg(program);
        command
    };
    if !inside(OsStr::new("true"))
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skip(
            test,
            "not root, or no unshare and ip: makes a network namespace",
        );
    }
    let root = Root::new();
    // Taken in our network; in its own it is free.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut spec = root.spec(Kind::Nginx);
    spec.address = listener.local_addr().expect("its address");
    let server = Server::start(&spec, inside, &root.scratch()).expect("a server");
    assert_eq!(
        server.get("/small.txt").expect("an answer").body,
        b"small\n"
    );
    server.stop().expect("its end");
}

#[test]
fn address_is_an_error_when_not_every_server_supports_it() {
    let root = Root::new();
    for address in ["[::1]:8080", "127.0.0.1:0"] {
        let mut spec = root.spec(Kind::Headway);
        spec.address = address.parse().expect("an address");
        let error = Server::start(&spec, plainly, Path::new("/")).expect_err("no such address");
        assert!(matches!(error, ServerError::Address { .. }), "{error}");
    }
}

/// The most connections that a server accepts after one wait, when many have come while it stood
/// still.
fn largest_batch(kind: Kind, limit: usize) -> u64 {
    const CLIENTS: usize = 12;
    let root = Root::new();
    let mut spec = root.spec(kind);
    spec.accept_limit = Some(limit);
    let server = Server::start(&spec, plainly, &root.scratch()).expect("a server");
    let pids: Vec<Pid> = server
        .pids()
        .into_iter()
        .filter_map(Pid::from_raw)
        .collect();
    let all = |signal| {
        pids.iter()
            .for_each(|pid| kill_process(*pid, signal).expect("a signal"))
    };
    all(Signal::STOP);
    let ask = |_| {
        let mut client = TcpStream::connect(server.address()).expect("a connection");
        client.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        let request = b"GET /small.txt HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        client.write_all(request).expect("a request");
        client
    };
    let clients: Vec<TcpStream> = (0..CLIENTS).map(ask).collect();
    all(Signal::CONT);
    // Those beyond the limit are accepted after the next wait.
    for mut client in clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("small\n"), "{kind}: {answer}");
    }
    let report = server.accept_report().expect("counters").expect("a limit");
    assert!(report.accepted >= CLIENTS as u64, "{kind}: {report:?}");
    assert_eq!(
        report.limited > 0,
        report.largest_batch == limit as u64,
        "{kind}: {report:?}"
    );
    server.stop().expect("its end");
    assert!(root.is_clean());
    report.largest_batch
}

/// Needs: the programs nginx, lighttpd and apache2: scripts/setup
#[test]
fn accept_limit_bounds_the_batches_of_servers_that_accept_several_per_wakeup() {
    const NAME: &str = "accept_limit_bounds_the_batches_of_servers_that_accept_several_per_wakeup";
    for kind in [Kind::Nginx, Kind::Lighttpd] {
        if let Err(reason) = available(kind) {
            skip(NAME, &reason.to_string());
            continue;
        }
        assert!(largest_batch(kind, 0) > 3, "{kind}: without a limit");
        assert_eq!(largest_batch(kind, 3), 3, "{kind}");
    }
    match available(Kind::ApacheEvent) {
        Ok(_) => assert_eq!(
            largest_batch(Kind::ApacheEvent, 3),
            1,
            "one per wakeup anyway"
        ),
        Err(reason) => skip(NAME, &reason.to_string()),
    }
}
