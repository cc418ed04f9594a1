//! What the processes of a server can do besides their work, when an attacker has code in them: nothing.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use headway_sandbox::Support;
use headway_test_support::disks::Mount;
use headway_test_support::skip;
use rustix::process::Signal;

use crate::site::*;
use crate::spans::Collector;
use crate::tls::tools::Certified;

mod ends;
#[cfg(target_arch = "x86_64")]
mod escapes;
#[cfg(target_arch = "x86_64")]
mod inject;

/// All kinds but the master.
const KINDS: [&str; 8] = [
    "serve-worker",
    "serve-helper",
    "serve-log",
    "serve-store",
    "serve-spawner",
    "serve-handshakes",
    "serve-acme",
    "serve-spans",
];

/// A site whose server has a process of each of [`KINDS`].
struct Confined {
    site: Site,
    server: Server,
    /// The only port to which a worker may connect.
    upstream: TcpListener,
    /// An authority which answers nothing, so the ACME process waits for it.
    _authority: TcpListener,
    collector: Collector,
    certified: Certified,
}

impl Confined {
    fn start(sandbox: &str) -> Confined {
        Confined::start_by(program(), sandbox)
    }

    fn start_by(program: Command, sandbox: &str) -> Confined {
        let site = Site::new();
        site.open_to_all();
        let certified = Certified::new();
        certified.write(&site.path(""));
        for name in ["log", "temporary"] {
            fs::create_dir(site.path(name)).unwrap();
        }
        site.program("hello", "printf 'Content-Type: text/plain\\n\\nhello'");
        let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = TcpListener::bind("127.0.0.1:0").unwrap();
        let collector = Collector::start(200);
        let text = format!(
            "sandbox = {sandbox:?}\nuser = \"root\"\nlog = {:?}\ntemp-directory = {:?}\npin-max = \"1MiB\"\n\
             tls-listen = \"127.0.0.1:0\"\ntls-certificate = {:?}\ntls-key = {:?}\n\
             state-directory = {:?}\nacme-hosts = \"a.example\"\nacme-directory = \"https://{}/dir\"\n\
             otlp-endpoint = \"http://{}\"\notlp-service-name = \"shop\"\n\
             [[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\n\
             [[location]]\nprefix = \"/up/\"\nproxy = \"http://{}\"\n",
            site.path("log/access.log"),
            site.path("temporary"),
            site.path("tls.crt"),
            site.path("tls.key"),
            site.path("state"),
            authority.local_addr().unwrap(),
            collector.address,
            site.path("cgi"),
            upstream.local_addr().unwrap(),
        );
        let file = site.path("headway.toml");
        fs::write(&file, text).unwrap();
        let arguments = ["--workers", "1", "--config", file.to_str().unwrap()];
        let server = Server::start(program, &site.path("root"), &arguments);
        Confined {
            site,
            server,
            upstream,
            _authority: authority,
            collector,
            certified,
        }
    }

    /// Whether it does its work.
    fn is_well(&self) {
        assert_eq!(get(&self.server, "/cgi-bin/hello").text(), "hello");
        is_well(&self.server);
    }

    /// Waits until the span process has sent some, so it is confined by then.
    fn has_sent_spans(&self) {
        assert!(!self.collector.spans().1.is_empty());
    }
}

/// Whether this kernel has all layers; otherwise a skip.
pub fn is_possible(test: &str) -> bool {
    let lacks = Support::probe().lacks();
    if !lacks.is_empty() {
        skip(test, &lacks.join("; "));
    }
    lacks.is_empty()
}

/// A line of `/proc/PID/status`; empty when the process has ended.
pub fn status_of(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim().to_owned()
}

/// Needs: Landlock of version 6 (Linux 6.12), and seccomp
#[test]
fn every_process_is_confined_when_the_sandbox_is_on() {
    const NAME: &str = "every_process_is_confined_when_the_sandbox_is_on";
    if !is_possible(NAME) {
        return;
    }
    for (sandbox, filter) in [("on", "2"), ("required", "2"), ("off", "0")] {
        let confined = Confined::start(sandbox);
        confined.is_well();
        confined.has_sent_spans();
        for kind in KINDS {
            let processes = confined.server.children(kind);
            assert!(!processes.is_empty(), "{kind}");
            for pid in processes {
                assert_eq!(status_of(pid, "Seccomp:"), filter, "{kind}: {sandbox}");
                assert_eq!(status_of(pid, "NoNewPrivs:"), "1", "{kind}: {sandbox}");
            }
        }
        let master = confined.server.master();
        assert_eq!(status_of(master, "Seccomp:"), filter, "{sandbox}");
        let printed = confined.server.stop();
        assert!(!printed.contains("sandbox"), "{printed}");
    }
}

/// Needs: Landlock of version 6 (Linux 6.12), and seccomp
#[test]
fn programs_cannot_reach_the_processes_of_the_server_when_the_sandbox_is_on() {
    const NAME: &str = "programs_cannot_reach_the_processes_of_the_server_when_the_sandbox_is_on";
    if !is_possible(NAME) {
        return;
    }
    const TRY: &str = "printf 'Content-Type: text/plain\\n\\n'
for pid in $QUERY_STRING; do
    kill -0 $pid 2>/dev/null && echo signal
    cat /proc/$pid/environ >/dev/null 2>&1 && echo environment
done
unshare --user true 2>/dev/null && echo namespace
sleep 60 & kill $! && echo own child
grep ^Seccomp: /proc/self/status";
    for (sandbox, can) in [("on", false), ("off", true)] {
        let site = Site::new();
        site.program(
            "try",
            &TRY.replace("$QUERY_STRING", "$(echo $QUERY_STRING | tr + ' ')"),
        );
        let server = site.serve_with(&format!("sandbox = {sandbox:?}"), "");
        let worker = server.children("serve-worker")[0];
        let path = format!("/cgi-bin/try?{worker}+{}", server.master());
        let found = get(&server, &path).text();
        assert_eq!(found.contains("signal"), can, "{sandbox}: {found}");
        // It has fewer capabilities, so that is so without a sandbox as well.
        assert!(!found.contains("environment"), "{sandbox}: {found}");
        assert!(can || !found.contains("namespace"), "{found}");
        assert!(found.contains("own child"), "{found}");
        let filter = if can { "Seccomp:\t0" } else { "Seccomp:\t2" };
        assert!(found.contains(filter), "{sandbox}: {found}");
    }
}

#[test]
fn files_are_served_when_the_root_is_switched_by_a_link_or_by_renames() {
    let site = Site::new();
    switch_roots(&site, &site.path("current"));
}

/// Needs: root, to mount a file system
#[test]
fn files_are_served_when_the_root_is_switched_by_a_link_which_is_not_followed_without_a_wait() {
    const NAME: &str =
        "files_are_served_when_the_root_is_switched_by_a_link_which_is_not_followed_without_a_wait";
    let mount = match Mount::with_strict_access_times() {
        Ok(mount) => mount,
        Err(why) => return skip(NAME, &why),
    };
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o755)).unwrap();
    switch_roots(&Site::new(), &mount.path().join("current"));
}

/// The directories that confined processes may read are those of their start.
fn switch_roots(site: &Site, link: &Path) {
    let release = |number: u32| {
        for name in ["index.html", "a", "b", "c"] {
            site.file(&format!("{number}/{name}"), &number.to_string(), 0o644);
        }
    };
    (1..=4).for_each(release);
    let moved = site.path("moved");
    symlink(site.path("1"), link).unwrap();
    fs::rename(site.path("4"), &moved).unwrap();
    let text = format!(
        "revalidate = \"50ms\"\nroot = {link:?}\nlisten = \"127.0.0.1:0\"\nstatus = \"127.0.0.1:0\"\nworkers = 1\nsandbox = \"on\"\n\
         [[host]]\nnames = [\"moved\"]\nroot = {moved:?}\n"
    );
    let path = site.path("headway.toml");
    fs::write(&path, text).unwrap();
    let server = Server::start_from_file(program(), &path);
    let says = |host: &str, path: &str, number: &str| {
        server.wait_for("the release", |server| {
            let response = ask(server, host, path);
            // Never an error in between.
            assert_eq!(response.status, 200, "{host}{path}");
            response.text() == number
        });
    };
    let switch = |number: u32| {
        let next = link.with_file_name("next");
        symlink(site.path(&number.to_string()), &next).unwrap();
        fs::rename(next, link).unwrap();
    };
    ["/", "/a"].iter().for_each(|path| says("x", path, "1"));
    for number in [2, 3, 1] {
        switch(number);
        ["/a", "/", "/b"]
            .iter()
            .for_each(|path| says("x", path, &number.to_string()));
    }
    says("moved", "/a", "4");
    fs::rename(&moved, site.path("old")).unwrap();
    fs::rename(site.path("3"), &moved).unwrap();
    ["/a", "/b", "/"]
        .iter()
        .for_each(|path| says("moved", path, "3"));
    // While the path leads nowhere, the last directory stays.
    fs::rename(&moved, site.path("gone")).unwrap();
    says("moved", "/c", "3");
    assert_eq!(server.status()["master"]["worker_deaths"], 0);
}

fn ask(server: &Server, host: &str, path: &str) -> Response {
    let mut stream = server.connect();
    send(
        &mut stream,
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    );
    receive(&mut stream).unwrap()
}

/// Needs: Landlock of version 6 (Linux 6.12), and seccomp
#[test]
fn log_is_reopened_and_workers_are_confined_after_a_reload() {
    const NAME: &str = "log_is_reopened_and_workers_are_confined_after_a_reload";
    if !is_possible(NAME) {
        return;
    }
    let confined = Confined::start("on");
    let log = confined.site.path("log/access.log");
    confined.is_well();
    fs::rename(&log, confined.site.path("log/old")).unwrap();
    confined.server.signal(Signal::USR1);
    confined.server.wait_for("a new file", |_| log.exists());
    let before = confined.server.children("serve-worker");
    confined.server.signal(Signal::HUP);
    confined.server.wait_for("a new worker", |server| {
        let now = server.children("serve-worker");
        now.len() == 1 && now != before
    });
    confined.is_well();
    for kind in KINDS {
        confined.server.wait_for(kind, |server| {
            let now = server.children(kind);
            let filtered = |pid: &i32| status_of(*pid, "Seccomp:") == "2";
            !now.is_empty() && now.iter().all(filtered)
        });
    }
    drop(confined.upstream);
}
