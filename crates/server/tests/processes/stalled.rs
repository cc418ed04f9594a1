//! Each kind of process is stopped, and a worker spins: what the others do.

use std::fs;
use std::io::Write;

use headway_test_support::groups::Group;
use headway_test_support::server::{Server, in_group};
use headway_test_support::{executable, is_running, wait_until};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::clients::*;

/// A document root and a server with one worker, all kinds of children and a program `/cgi/hello`,
/// in the groups of these lists of processes.
pub fn serve(groups: &[&Group], arguments: &[&str]) -> (TempDir, Server) {
    let root = root();
    let cgi = root.path().join("cgi");
    fs::create_dir(&cgi).unwrap();
    fs::write(root.path().join("a"), "hello").unwrap();
    let script = "#!/bin/sh\nprintf 'Content-Type: a/b\\nContent-Length: 5\\n\\nhello'\n";
    executable::write(&cgi.join("hello"), script, 0o755);
    let settings = format!(
        "[[location]]\nprefix = \"/cgi/\"\ncgi = true\nroot = {cgi:?}\ntimeout = \"1s\"\n\
         [[location]]\nprefix = \"/spins/\"\napplication = \"spins\"\n"
    );
    let config = root.path().join("headway.toml");
    fs::write(&config, settings).unwrap();
    let log = root.path().join("access.log");
    let (config, log) = (config.to_str().unwrap(), log.to_str().unwrap());
    let mut all = vec!["--config", config, "--log", log, "--workers", "1"];
    all.extend(["--pin-max", "1MiB"]);
    all.extend(arguments);
    let program = groups.iter().fold(program(), |program, group| {
        in_group(program, &group.procs())
    });
    let server = Server::start(program, root.path(), &all);
    for path in ["/a", "/cgi/hello"] {
        assert_eq!(get(&server.address, path), (200, b"hello".into()));
    }
    server.wait_for("all kinds of children", |server| {
        KINDS.iter().all(|kind| !server.children(kind).is_empty())
            && counter(&server.status(), "cgi_processes") == 0
    });
    (root, server)
}

/// All kinds of children.
pub const KINDS: [&str; 5] = [
    "serve-worker",
    "serve-helper",
    "serve-spawner",
    "serve-log",
    "serve-store",
];

#[test]
fn spinning_worker_is_replaced_also_when_it_ignores_sigabrt() {
    for (path, end) in [("/spins/", "signal 6"), ("/spins/?deaf", "killed")] {
        let (_root, server) = serve(&[], &["--worker-timeout", "1s"]);
        let spinning = server.children("serve-worker")[0];
        let mut client = server.connect();
        send_get(&mut client, path);
        assert_eq!(read_to_close(&mut client), b"", "{path}");
        server.wait_for("another worker", |server| {
            let workers = server.children("serve-worker");
            workers.len() == 1 && workers[0] != spinning
        });
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
        let said = server.stop();
        let line = format!("(process {spinning}, running) has made no progress for 1000 ms");
        let ended = format!("worker 0 ended: {end};");
        assert!(said.contains(&line) && said.contains(&ended), "{said}");
    }
}

#[test]
fn server_ends_at_the_drain_deadline_when_its_worker_spins() {
    let (_root, mut server) = serve(&[], &["--drain-timeout", "100ms"]);
    let children = server.children("serve-");
    let mut client = server.connect();
    send_get(&mut client, "/spins/?deaf");
    server.wait_for("the worker to spin", |server| {
        is_spinning(server.children("serve-worker")[0])
    });
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    wait_until("the end of all others", || {
        !children.iter().any(|pid| is_running(*pid))
    });
}

/// Whether the process has used CPU time twice in a row: an idle one has not.
fn is_spinning(pid: i32) -> bool {
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let user = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(11);
        user.unwrap().parse::<u64>().unwrap()
    };
    let mut last = ticks();
    (0..2).all(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = ticks();
        now > std::mem::replace(&mut last, now)
    })
}

#[test]
fn program_requests_get_504_while_the_spawner_is_stopped() {
    let (_root, server) = serve(&[], &[]);
    let stopped = Stopped::stop(server.children("serve-spawner"));
    for _ in 0..3 {
        assert_eq!(get(&server.address, "/cgi/hello").0, 504);
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    }
    drop(stopped);
    server.wait_for("the end of what nobody waits for", |server| {
        counter(&server.status(), "cgi_processes") == 0
    });
    assert_eq!(get(&server.address, "/cgi/hello"), (200, b"hello".into()));
}

#[test]
fn requests_are_served_while_the_master_is_stopped() {
    let (root, server) = serve(&[], &["--worker-timeout", "1s"]);
    let before = server.children("serve-");
    let stopped = Stopped::stop(vec![server.master()]);
    for number in 0..20 {
        let name = format!("{number}");
        fs::write(root.path().join(&name), "cold").unwrap();
        let path = format!("/{name}");
        assert_eq!(get(&server.address, &path), (200, b"cold".into()));
        assert_eq!(get(&server.address, "/cgi/hello"), (200, b"hello".into()));
    }
    drop(stopped);
    // Its pause is no fault of the workers.
    server.wait_for("the answer of all", |server| {
        !server.status()["total"]["counters"].is_null()
    });
    assert_eq!(server.status()["master"]["worker_deaths"], 0);
    assert!(before.iter().all(|pid| is_running(*pid)));
}

#[test]
fn requests_are_served_while_the_log_process_or_the_store_process_is_stopped() {
    for kind in ["serve-log", "serve-store"] {
        let (root, server) = serve(&[], &[]);
        let stopped = Stopped::stop(server.children(kind));
        for number in 0..200 {
            let path = format!("/{number}");
            fs::write(root.path().join(&path[1..]), "small").unwrap();
            for _ in 0..2 {
                assert_eq!(
                    get(&server.address, &path),
                    (200, b"small".into()),
                    "{kind}"
                );
            }
        }
        drop(stopped);
        assert_eq!(get(&server.address, "/a").0, 200);
        let status = server.status();
        let deaths = ["log_deaths", "store_deaths"].map(|name| status["master"][name].as_u64());
        assert_eq!(deaths, [Some(0); 2]);
    }
}

#[test]
fn server_ends_while_a_process_of_any_kind_is_stopped() {
    for kind in KINDS {
        let (_root, mut server) = serve(&[], &["--drain-timeout", "100ms"]);
        let children = server.children("serve-");
        let mut stopped = Stopped::stop(server.children(kind));
        server.signal(Signal::TERM);
        assert!(server.wait().success(), "{kind}");
        wait_until("the end of all children", || {
            !children.iter().any(|pid| is_running(*pid))
        });
        // A number that another process has by now is not signalled.
        stopped.0.clear();
    }
}

#[test]
fn body_that_has_come_while_the_worker_was_stopped_is_read_before_its_deadline_is_checked() {
    let (_root, server) = serve(&[], &["--body-timeout", "3s"]);
    let mut client = server.connect();
    let head = "POST /cgi/hello HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nfirst";
    client.write_all(head.as_bytes()).unwrap();
    server.wait_for("the first part of the body", |server| {
        counter(&server.status(), "handler_requests_cgi") == 2
    });
    let stopped = Stopped::stop(server.children("serve-worker"));
    client.write_all(b"other").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(4));
    drop(stopped);
    assert!(read_response(&mut client) == (200, b"hello".into()));
}
