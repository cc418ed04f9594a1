//! The user of the server may have no more processes (`RLIMIT_NPROC`).

use std::fs;
use std::os::unix::fs::PermissionsExt;

use headway_test_support::server::{Server, kill};
use headway_test_support::{is_root, is_running};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::clients::*;

/// Sets how many processes the user of the master may have, and returns the limit before.
fn limit_processes(server: &Server, limit: Option<u64>) -> Option<u64> {
    let master = Pid::from_raw(server.master());
    let maximum = rustix::process::getrlimit(Resource::Nproc).maximum;
    let limit = Rlimit {
        current: limit,
        maximum,
    };
    prlimit(master, Resource::Nproc, limit).unwrap().current
}

/// As root the master may fork, but what it forks may not become another user and execute a program.
#[test]
fn processes_are_replaced_when_their_user_may_have_more_again() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(root.path().join("a"), "hello").unwrap();
    let mut arguments = vec!["--workers", "1"];
    if is_root() {
        arguments.extend(["--user", "nobody"]);
    }
    let server = Server::start(program(), root.path(), &arguments);
    assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    let before = limit_processes(&server, Some(0));
    let end = |kind: &str| {
        let all = server.children(kind);
        all.iter().for_each(|pid| kill(*pid));
        server.wait_for("their end", |_| !all.iter().any(|pid| is_running(*pid)));
    };
    end("serve-helper");
    for _ in 0..20 {
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    }
    end("serve-worker");
    // The kernel keeps it in the queue of the listener.
    let mut waiting = server.connect();
    send_get(&mut waiting, "/a");
    server.wait_for("the death to be known", |server| {
        server.status()["master"]["worker_deaths"] == 1
    });
    assert!(server.children("serve-worker").is_empty());
    limit_processes(&server, before);
    assert_eq!(read_response(&mut waiting), (200, b"hello".into()));
    assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    let said = server.stop();
    assert!(said.contains("Resource temporarily unavailable"), "{said}");
    let lines = said.lines().count();
    assert!(lines < 200, "each failure is one line: {said}");
}
