//! SIGUSR2: another program takes over, and no request is lost meanwhile; whatever is wrong with that
//! program, the server goes on.
//!
//! The server is started by a symbolic link, which the tests replace.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use headway_test_support::{executable, is_root, is_running, skip, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

use crate::reload::{AtEnd, ask, descriptors, settings_file, write_settings};
use crate::sandbox::{is_possible, status_of};
use crate::site::*;
use crate::spans::{Collector, attribute};

const REQUEST: &str = "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n";

/// A server whose program can be replaced.
pub struct Upgraded {
    site: Site,
    server: Server,
}

impl Upgraded {
    fn start(settings: &str) -> Upgraded {
        Upgraded::start_with(Site::new(), settings)
    }

    fn start_with(site: Site, settings: &str) -> Upgraded {
        write_settings(&site, settings);
        symlink(PROGRAM, site.path("program")).unwrap();
        let mut program = Command::new(site.path("program"));
        program.env("HEADWAY_UPGRADE_TIMEOUT_MS", "2000");
        let server = Server::start_from_file(program, &settings_file(&site));
        Upgraded { site, server }
    }

    /// Puts a script in the place of the program. `$PROGRAM` is the right one.
    fn replace(&self, script: &str) {
        let text = format!("#!/bin/sh\nPROGRAM='{PROGRAM}'\n{script}\n");
        let new = self.site.path("program.new");
        executable::write(&new, &text, 0o755);
        fs::rename(new, self.site.path("program")).unwrap();
    }

    fn restore(&self) {
        fs::remove_file(self.site.path("program")).unwrap();
        symlink(PROGRAM, self.site.path("program")).unwrap();
    }

    /// Upgrades and waits until the new workers serve.
    fn upgrade(&self) {
        let before = master(&self.server, "upgrades").as_u64();
        self.server.signal(Signal::USR2);
        wait_until("the upgrade", || {
            let now = master(&self.server, "upgrades").as_u64();
            now > before
        });
    }

    /// Upgrades and returns why that fails.
    fn fail(&self) -> String {
        let before = master(&self.server, "upgrade_failures").as_u64();
        self.server.signal(Signal::USR2);
        wait_until("the failure", || {
            let now = master(&self.server, "upgrade_failures").as_u64();
            now > before
        });
        let why = master(&self.server, "upgrade_error");
        why.as_str().unwrap().to_owned()
    }

    /// Waits until only the workers of the last program are left.
    fn settle(&self, workers: usize) {
        self.server
            .wait_for("the end of the workers before", |server| {
                server.children("serve-worker").len() == workers
            });
    }
}

/// What the status page says of the master. A request that waits while the program is replaced gets no answer.
pub fn master(server: &Server, name: &str) -> Value {
    let mut value = Value::Null;
    wait_until("a status page", || {
        let page = headway_test_support::server::get(&server.status, "/status.json").2;
        let page: Value = serde_json::from_str(&page).unwrap_or_default();
        value = page["master"][name].clone();
        page["master"].is_object()
    });
    value
}

/// Needs: Landlock of version 6 (Linux 6.12), and seccomp
#[test]
fn master_is_confined_once_when_it_is_upgraded() {
    const NAME: &str = "master_is_confined_once_when_it_is_upgraded";
    if !is_possible(NAME) {
        return;
    }
    let upgraded = Upgraded::start("workers = 1\n");
    let filters = || status_of(upgraded.server.master(), "Seccomp_filters:");
    let before = filters();
    assert_ne!(before, "0");
    for _ in 0..2 {
        let worker = upgraded.server.children("serve-worker");
        upgraded.upgrade();
        assert_eq!(filters(), before);
        // It may still end what the program before has started.
        let drains = |server: &Server| server.children("serve-worker") != worker;
        upgraded.server.wait_for("the new worker", drains);
        upgraded.settle(1);
    }
    is_well(&upgraded.server);
}

#[test]
fn no_request_is_lost_in_upgrades_and_the_process_is_the_same() {
    let upgraded = Upgraded::start("workers = 2\n");
    let (over, server) = (AtomicBool::new(false), &upgraded.server);
    let (end, address) = (AtEnd(&over), &server.address);
    thread::scope(|scope| {
        // Also if something fails here.
        let end = end;
        let over = end.0;
        let clients = [false, true, false, true]
            .map(|is_kept| scope.spawn(move || ask(address, is_kept, over)));
        for _ in 0..3 {
            upgraded.upgrade();
        }
        drop(end);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
    upgraded.settle(2);
    let pid = master(server, "pid").as_i64();
    assert_eq!(pid, Some(i64::from(server.master())));
    is_well_except(server, waits_for_listener);
    let printed = upgraded.server.stop();
    assert_eq!(
        printed.matches("upgraded from version").count(),
        3,
        "{printed}"
    );
}

#[test]
fn connections_from_before_an_upgrade_finish() {
    let upgraded = Upgraded::start("workers = 1\n");
    let (site, server) = (&upgraded.site, &upgraded.server);
    let bytes = 8 << 20;
    fs::write(site.path("root/large"), vec![b'x'; bytes]).unwrap();
    let script = "printf 'Content-Type: text/plain\\n\\nbegun,'; until [ -e {notes}/go ]; do sleep 0.01; done; printf ended";
    site.program("slow", script);
    let mut kept = server.connect();
    assert_eq!(send_and_receive(&mut kept, REQUEST).status, 200);
    let mut download = server.connect();
    send(
        &mut download,
        "GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(download.peek(&mut [0]).unwrap(), 1);
    let mut program = server.connect();
    send(
        &mut program,
        "GET /cgi-bin/slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(receive_head(&mut program).unwrap().status, 200);
    upgraded.upgrade();
    // The worker before answers once more.
    let last = send_and_receive(&mut kept, REQUEST);
    assert_eq!(
        (last.status, last.field("connection")),
        (200, Some("close"))
    );
    fs::write(site.note("go"), "").unwrap();
    let mut rest = String::new();
    program.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("ended"), "{rest}");
    let mut all = Vec::new();
    download.read_to_end(&mut all).unwrap();
    let body = all.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
    assert!(all.starts_with(b"HTTP/1.1 200 "));
    assert_eq!(all.len() - body, bytes);
    upgraded.settle(1);
    is_well_except(server, waits_for_listener);
}

#[test]
fn program_that_cannot_take_over_changes_nothing() {
    let upgraded = Upgraded::start("workers = 1\n");
    let server = &upgraded.server;
    let workers = server.children("serve-");
    for (script, part) in [
        ("kill -SEGV $$", "signal 11"),
        ("echo some reason >&2; exit 3", "some reason"),
        ("exec sleep 1000", "its checks take too long"),
        ("exec \"$PROGRAM\" \"$@\" --workers many", "many"),
    ] {
        upgraded.replace(script);
        let why = upgraded.fail();
        assert!(why.contains(part), "{script}: {why}");
        assert_eq!(server.children("serve-"), workers, "{script}");
        assert_eq!(get(server, "/file.txt").status, 200);
    }
    fs::remove_file(upgraded.site.path("program")).unwrap();
    let why = upgraded.fail();
    assert!(why.contains("No such file"), "{why}");
    symlink(PROGRAM, upgraded.site.path("program")).unwrap();
    for (settings, part) in [
        ("no-such-key = 1\n", "no-such-key"),
        (
            "listeners = \"shared\"\n",
            "listeners: a change needs a restart",
        ),
    ] {
        write_settings(&upgraded.site, settings);
        let why = upgraded.fail();
        assert!(why.contains(part), "{settings}: {why}");
        assert_eq!(server.children("serve-"), workers);
    }
    // And a good one takes over afterwards, with other settings.
    write_settings(&upgraded.site, "workers = 2\n");
    upgraded.upgrade();
    upgraded.settle(2);
    assert!(master(server, "upgrade_error").is_null());
    is_well_except(server, waits_for_listener);
    let printed = upgraded.server.stop();
    assert_eq!(printed.matches("upgrade failed").count(), 7, "{printed}");
}

/// Passes its checks and then finds no configuration.
const FAILS_LATER: &str = r#"case "$*" in *--rehearse-upgrade*) ;; *) mv "$3" "$3.away" ;; esac
exec "$PROGRAM" "$@""#;

/// Waits until the new program has failed and the one before is back. Before, a shell runs, which a signal ends.
fn wait_for_failure(server: &Server) {
    let wanted = format!("HEADWAY_UPGRADE={},", server.master());
    wait_until("the failure", || {
        let variables = fs::read(format!("/proc/{}/environ", server.master())).unwrap_or_default();
        let variables = String::from_utf8_lossy(&variables);
        let state = variables
            .split('\0')
            .find_map(|one| one.strip_prefix(&wanted));
        // The number of the descriptor, the failed attempts and the reason.
        state.is_some_and(|state| state.split(',').nth(1) != Some("0"))
    });
}

#[test]
fn workers_go_on_when_the_new_program_fails_and_the_one_before_returns() {
    let site = Site::new();
    let socket = site.path("headway.sock");
    let settings = format!(
        "workers = 1\nlisten = [\"127.0.0.1:0\", \"unix:{}\"]\n",
        socket.display()
    );
    let upgraded = Upgraded::start_with(site, &settings);
    let (site, server) = (&upgraded.site, &upgraded.server);
    let before = fs::metadata(&socket).unwrap().ino();
    let is_served_there = || {
        assert_eq!(fs::metadata(&socket).unwrap().ino(), before);
        let mut stream = UnixStream::connect(&socket).unwrap();
        send(&mut stream, REQUEST);
        assert_eq!(receive(&mut stream).unwrap().status, 200);
    };
    let workers = server.children("serve-worker");
    upgraded.replace(FAILS_LATER);
    server.signal(Signal::USR2);
    let away = site.path("settings.toml.away");
    wait_for_failure(server);
    for _ in 0..10 {
        assert_eq!(get(server, "/file.txt").status, 200);
        assert_eq!(server.children("serve-worker"), workers);
    }
    is_served_there();
    upgraded.restore();
    fs::rename(away, settings_file(site)).unwrap();
    server.signal(Signal::HUP);
    wait_until("the end of the failure", || {
        master(server, "upgrade_failures").as_u64() == Some(1)
    });
    let why = master(server, "upgrade_error");
    assert!(why.as_str().unwrap().contains("settings.toml"), "{why}");
    upgraded.settle(1);
    is_served_there();
    upgraded.upgrade();
    upgraded.settle(1);
    is_served_there();
    is_well_except(server, waits_for_listener);
    upgraded.server.stop();
    assert!(!socket.exists(), "the file is removed at the end");
}

/// Needs: Landlock of version 6 (Linux 6.12), and seccomp
#[test]
fn new_helper_of_a_worker_before_an_upgrade_looks_up_no_root() {
    if !is_possible("new_helper_of_a_worker_before_an_upgrade_looks_up_no_root") {
        return;
    }
    let upgraded = Upgraded::start("workers = 1\nlisting = true\nsandbox = \"on\"\n");
    let (site, server) = (&upgraded.site, &upgraded.server);
    let root = site.path("root");
    fs::create_dir_all(root.join("some/directory")).unwrap();
    let mut kept = server.connect();
    assert_eq!(send_and_receive(&mut kept, REQUEST).status, 200);
    upgraded.upgrade();
    // A path that leads nowhere now. Workers keep their directory.
    fs::rename(&root, site.path("away")).unwrap();
    for helper in server.children("serve-helper") {
        kill_process(Pid::from_raw(helper).unwrap(), Signal::KILL).unwrap();
    }
    // Only a helper reads a directory.
    let listing = "GET /some/ HTTP/1.1\r\nHost: x\r\n\r\n";
    let page = send_and_receive(&mut kept, listing);
    assert_eq!(page.status, 200, "{}", page.text());
    assert!(page.text().contains("directory"), "{}", page.text());
    upgraded.settle(1);
    fs::rename(site.path("away"), &root).unwrap();
    is_well_except(server, waits_for_listener);
}

#[test]
fn spans_of_workers_before_an_upgrade_are_sent_until_these_end() {
    let collector = Collector::start(200);
    let endpoint = &collector.address;
    let upgraded = Upgraded::start(&format!(
        "workers = 1\notlp-endpoint = \"http://{endpoint}\"\notlp-service-name = \"shop\"\n"
    ));
    let server = &upgraded.server;
    let connect = || {
        let mut kept = server.connect();
        assert_eq!(send_and_receive(&mut kept, REQUEST).status, 200);
        kept
    };
    let (mut late, mut last) = (connect(), connect());
    let exported = || master(server, "spans_exported").as_u64();
    wait_until("the first spans", || exported() == Some(2));
    upgraded.upgrade();
    // A span process without a main process ends after 2 s.
    thread::sleep(Duration::from_millis(2500));
    let request = REQUEST.replace("file.txt", "late");
    assert_eq!(send_and_receive(&mut late, &request).status, 404);
    let is_late = |span: &Value| attribute(&span["attributes"], "url.path") == "/late";
    while !collector.spans().1.iter().any(is_late) {}
    wait_until("the count", || exported() == Some(3));
    assert_eq!(server.children("serve-spans").len(), 2);
    assert_eq!(send_and_receive(&mut last, REQUEST).status, 200);
    upgraded.settle(1);
    wait_until("the end of the span process before", || {
        server.children("serve-spans").len() == 1
    });
    is_well_except(server, waits_for_listener);
}

#[test]
fn server_whose_upgrade_fails_can_be_stopped() {
    let mut upgraded = Upgraded::start("workers = 1\n");
    upgraded.replace(FAILS_LATER);
    let mut kept = upgraded.server.connect();
    assert_eq!(send_and_receive(&mut kept, REQUEST).status, 200);
    upgraded.server.signal(Signal::USR2);
    wait_for_failure(&upgraded.server);
    upgraded.server.signal(Signal::TERM);
    let pid = upgraded.server.master();
    wait_until("the end", || !is_running(pid));
    assert!(!upgraded.server.wait().success());
    assert!(TcpStream::connect(&upgraded.server.address).is_err());
    assert_eq!(kept.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn nothing_is_left_of_the_programs_before() {
    let site = Site::new();
    let log = site.path("log");
    let upgraded = Upgraded::start_with(site, &format!("workers = 1\nlog = {log:?}\n"));
    let server = &upgraded.server;
    // Helpers come and go.
    let kinds = || {
        let kinds = ["serve-worker", "serve-log", "serve-spawner", "serve-store"];
        kinds.map(|kind| server.children(kind).len())
    };
    let all = || {
        let pid = server.master();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().count()
    };
    let before = descriptors(server.master());
    for count in 0..5 {
        get(server, &format!("/file.txt?{count}"));
        upgraded.upgrade();
    }
    // Not by the command lines of all processes at first: reading one may hold up its process.
    server.wait_for("the end of all that was before", |_| {
        descriptors(server.master()) <= before && all() <= 8
    });
    server.wait_for("the right processes", |_| {
        kinds() == [1; 4] && all() == server.children("serve-").len()
    });
    let requests = || {
        let page = server.status();
        page["total"]["counters"]["requests_received"].as_u64()
    };
    assert_eq!(requests(), Some(5), "the counters go on");
    upgraded.server.stop();
    let text = fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("/file.txt?"))
        .collect();
    assert_eq!(lines.len(), 5, "{text}");
}

#[test]
fn children_end_when_the_process_is_killed_after_an_upgrade() {
    let mut upgraded = Upgraded::start("workers = 2\n");
    upgraded.upgrade();
    upgraded.settle(2);
    let children = upgraded.server.children("serve-");
    assert!(children.len() >= 2);
    headway_test_support::server::kill(upgraded.server.master());
    upgraded.server.wait();
    let server = &upgraded.server;
    wait_until("the end of the children", || {
        let is_there = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(6).any(|word| word == b"serve-")
        };
        !children.iter().any(is_there)
    });
    assert!(TcpStream::connect(&server.address).is_err());
}

#[test]
fn stop_during_an_upgrade_is_a_stop() {
    let upgraded = Upgraded::start("workers = 1\n");
    upgraded.replace("exec sleep 1000");
    upgraded.server.signal(Signal::USR2);
    upgraded.server.stop();
    let upgraded = Upgraded::start("workers = 1\n");
    for _ in 0..20 {
        upgraded.server.signal(Signal::USR2);
    }
    upgraded.server.stop();
}

/// What comes during another change follows it.
#[test]
fn no_request_is_lost_in_a_storm_of_signals() {
    let site = Site::new();
    let log = site.path("log");
    let settings = |version: u32| {
        let header = format!("[[header]]\nname = \"X-Version\"\nvalue = \"{version}\"\n");
        format!("workers = 2\nlog = {log:?}\n{header}")
    };
    let upgraded = Upgraded::start_with(site, &settings(1));
    let (over, server) = (AtomicBool::new(false), &upgraded.server);
    let before = descriptors(server.master());
    let (end, address) = (AtEnd(&over), &server.address);
    thread::scope(|scope| {
        // Also if something fails here.
        let end = end;
        let over = end.0;
        let clients = [false, true, false, true]
            .map(|is_kept| scope.spawn(move || ask(address, is_kept, over)));
        let signals = [Signal::HUP, Signal::USR1, Signal::USR2];
        for number in 0..90 {
            server.signal(signals[number % 3]);
            thread::sleep(Duration::from_millis(number as u64 % 7 * 10));
        }
        // The second comes at one stage or another of the first.
        for number in 0..10 {
            upgraded.settle(2);
            for version in [number * 2 + 2, number * 2 + 3] {
                write_settings(&upgraded.site, &settings(version));
                server.signal(Signal::HUP);
                thread::sleep(Duration::from_millis(u64::from(number) * 5));
            }
            let last = (number * 2 + 3).to_string();
            wait_until("the last reload", || {
                get(server, "/file.txt").field("x-version") == Some(&last)
            });
        }
        upgraded.settle(2);
        drop(end);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
    let counts = ["reloads", "upgrades", "reload_failures"];
    let counts = counts.map(|name| master(server, name).as_u64().unwrap());
    assert!(
        counts[0] > 0 && counts[1] > 0 && counts[2] == 0,
        "{counts:?}"
    );
    server.wait_for("the end of all that was before", |_| {
        descriptors(server.master()) <= before
    });
    is_well_except(server, waits_for_listener);
}

/// As root the master may fork, but what it forks may not become another user (`RLIMIT_NPROC`).
///
/// Needs: root, to be another user
#[test]
fn reload_and_upgrade_change_nothing_while_no_process_can_be_made() {
    const NAME: &str = "reload_and_upgrade_change_nothing_while_no_process_can_be_made";
    if !is_root() {
        return skip(NAME, "root, to be another user");
    }
    let site = Site::new();
    site.open_to_all();
    let upgraded = Upgraded::start_with(site, "workers = 1\nuser = \"4711:4712\"\n");
    let server = &upgraded.server;
    assert_eq!(get(server, "/file.txt").status, 200);
    let workers = server.children("serve-worker");
    let limit = |current| {
        let maximum = rustix::process::getrlimit(Resource::Nproc).maximum;
        let limit = Rlimit { current, maximum };
        prlimit(Pid::from_raw(server.master()), Resource::Nproc, limit).unwrap()
    };
    let is_as_before = || {
        for _ in 0..10 {
            assert_eq!(get(server, "/file.txt").status, 200);
            assert_eq!(server.children("serve-worker"), workers);
        }
    };
    let failed = |name: &str| master(server, name).as_u64() == Some(1);
    let why = |name: &str| {
        let why = master(server, name);
        assert!(why.to_string().contains("Resource temporarily"), "{why}");
    };
    let before = limit(Some(0)).current;
    server.signal(Signal::HUP);
    wait_until("the failed reload", || failed("reload_failures"));
    why("reload_error");
    is_as_before();
    // Neither the new program nor the one before can start a process.
    server.signal(Signal::USR2);
    wait_for_failure(server);
    is_as_before();
    limit(before);
    server.signal(Signal::HUP);
    wait_until("the failed upgrade", || failed("upgrade_failures"));
    why("upgrade_error");
    upgraded.settle(1);
    upgraded.upgrade();
    upgraded.settle(1);
    is_well_except(server, waits_for_listener);
}
