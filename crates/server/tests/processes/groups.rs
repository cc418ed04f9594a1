//! Processes run out, memory runs out, and processes that no signal ends: in control groups.

use std::fs;
use std::io::Write;
use std::process::Command;

use headway_test_support::groups::{Group, fill_until_killed, little_memory};
use headway_test_support::server::{Server, in_group, kill};
use headway_test_support::{executable, is_running, wait_until};
use rustix::process::Signal;

use crate::clients::*;
use crate::stalled::{KINDS, serve};

fn limit_processes(group: &Group, limit: &str) {
    group.limit("pids.max", "pids.max", limit).unwrap();
}

/// Needs: root, and control groups which limit processes
#[test]
fn program_requests_get_503_while_no_process_can_be_made() {
    const NAME: &str = "program_requests_get_503_while_no_process_can_be_made";
    let group = match Group::new("pids") {
        Ok(group) => group,
        Err(why) => return skip(NAME, &why),
    };
    let (_root, server) = serve(&[&group], &[]);
    limit_processes(&group, "1");
    for _ in 0..20 {
        assert_eq!(get(&server.address, "/cgi/hello").0, 503);
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    }
    assert_eq!(
        counter(&server.status(), "handler_process_spawn_failures"),
        20
    );
    limit_processes(&group, "max");
    for _ in 0..3 {
        assert_eq!(get(&server.address, "/cgi/hello"), (200, b"hello".into()));
    }
    let said = server.stop();
    assert!(
        said.contains("cgi/hello: clone: Resource temporarily unavailable"),
        "{said}"
    );
}

/// Needs: root, and control groups which limit processes
#[test]
fn all_processes_are_replaced_when_there_is_room_for_them_again() {
    const NAME: &str = "all_processes_are_replaced_when_there_is_room_for_them_again";
    let group = match Group::new("pids") {
        Ok(group) => group,
        Err(why) => return skip(NAME, &why),
    };
    let (root, server) = serve(&[&group], &[]);
    limit_processes(&group, "1");
    for kind in KINDS.iter().rev() {
        let children = server.children(kind);
        children.iter().for_each(|pid| kill(*pid));
        server.wait_for("their end", |_| {
            !children.iter().any(|pid| is_running(*pid))
        });
        if *kind != "serve-worker" {
            assert_eq!(get(&server.address, "/a"), (200, b"hello".into()), "{kind}");
        }
    }
    // The kernel keeps this one in the queue of the listener.
    let mut waiting = server.connect();
    send_get(&mut waiting, "/a");
    limit_processes(&group, "max");
    assert_eq!(read_response(&mut waiting), (200, b"hello".into()));
    server.wait_for("all kinds of children", |server| {
        KINDS.iter().all(|kind| !server.children(kind).is_empty())
    });
    assert_eq!(get(&server.address, "/cgi/hello"), (200, b"hello".into()));
    let log = root.path().join("access.log");
    server.wait_for("lines in the log", |server| {
        get(&server.address, "/a?after");
        fs::read_to_string(&log).is_ok_and(|text| text.contains("/a?after"))
    });
    let said = server.stop();
    assert!(said.contains("Resource temporarily unavailable"), "{said}");
    assert!(
        said.lines().count() < 200,
        "each failure is one line: {said}"
    );
}

/// Needs: root, and control groups which limit memory
#[test]
fn content_store_shrinks_when_memory_becomes_scarce_in_a_group() {
    const NAME: &str = "content_store_shrinks_when_memory_becomes_scarce_in_a_group";
    const BYTES: usize = 300_000;
    const FILES: usize = 100;
    let group = match little_memory() {
        Ok(group) => group,
        Err(why) => return skip(NAME, &why),
    };
    let root = root();
    for number in 0..FILES {
        let path = root.path().join(number.to_string());
        fs::write(path, contents(number, BYTES)).unwrap();
    }
    let options = ["--content-store-max", "200MiB", "--pin-max", "0"];
    let command = in_group(program(), &group.procs());
    let server = Server::start(command, root.path(), &options);
    let stored = |server: &Server, name: &str| {
        let status = server.status();
        status["master"]["stored"][name].as_u64().unwrap_or(0)
    };
    let request = |server: &Server| {
        for number in 0..FILES {
            let path = format!("/{number}");
            assert!(get(&server.address, &path) == (200, contents(number, BYTES)));
        }
    };
    server.wait_for("files in the store", |server| {
        request(server);
        stored(server, "files") >= 80
    });
    assert!(stored(&server, "limit_bytes") < 200 << 20);
    assert_eq!(stored(&server, "evicted"), 0);
    let filler = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    // Half of what is available is checked twice per second, so the rest suffices until the next check.
    wait_until("the store to shrink", || {
        let mut command = Command::new("sh");
        let script = "head -c 2M /dev/zero >>\"$0\"";
        command.args(["-c", script]).arg(filler.path());
        let filled = in_group(command, &group.procs()).status().unwrap();
        assert!(filled.success());
        std::thread::sleep(std::time::Duration::from_millis(100));
        stored(&server, "evicted") > 0
    });
    server.wait_for("it to be within its limit", |server| {
        stored(server, "bytes") <= stored(server, "limit_bytes")
    });
    request(&server);
    let status = server.status();
    assert_eq!(status["master"]["worker_deaths"], 0);
    assert_eq!(counter(&status, "responses_aborted"), 0);
    server.stop();
}

/// Needs: root, and control groups which limit memory
#[test]
fn killed_processes_are_replaced_when_memory_runs_out() {
    const NAME: &str = "killed_processes_are_replaced_when_memory_runs_out";
    let group = match little_memory() {
        Ok(group) => group,
        Err(why) => return skip(NAME, &why),
    };
    let (_root, server) = serve(&[&group], &[]);
    for kind in KINDS {
        let victim = server.children(kind)[0];
        fill_until_killed(&group, victim);
        server.wait_for("another process of the kind", |server| {
            server.children(kind).iter().any(|pid| *pid != victim)
                || kind == "serve-helper" && counter(&server.status(), "helper_deaths") > 0
        });
        server.wait_for("service", |server| {
            server.get("/a") == (200, "hello".into())
                && server.get("/cgi/hello") == (200, "hello".into())
        });
    }
    let master = &server.status()["master"];
    // The next worker may meet the same lack.
    for deaths in [
        "worker_deaths",
        "spawner_deaths",
        "log_deaths",
        "store_deaths",
    ] {
        assert!(master[deaths].as_u64() > Some(0), "{deaths}: {master}");
    }
}

/// Needs: root, and control groups which limit memory
#[test]
fn no_process_is_left_when_memory_runs_out_and_the_master_is_killed() {
    const NAME: &str = "no_process_is_left_when_memory_runs_out_and_the_master_is_killed";
    let group = match little_memory() {
        Ok(group) => group,
        Err(why) => return skip(NAME, &why),
    };
    let (root, mut server) = serve(&[&group], &[]);
    let note = root.path().join("pid");
    let script = format!("#!/bin/sh\necho $$ >{}\nexec sleep 1000\n", note.display());
    executable::write(&root.path().join("cgi/hangs"), &script, 0o755);
    let mut client = server.connect();
    client
        .write_all(b"GET /cgi/hangs HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let number = || fs::read_to_string(&note).ok()?.trim().parse().ok();
    server.wait_for("the program", |_| number().is_some());
    let program: i32 = number().unwrap();
    let mut left = server.children("serve-");
    left.push(program);
    let master = server.master();
    fill_until_killed(&group, master);
    assert!(!server.wait().success());
    wait_until("the end of all others", || {
        !left.iter().any(|pid| is_running(*pid))
    });
    assert!(!server.accepts());
}

/// Needs: root, and the freezer of control groups version 1
#[test]
fn server_ends_when_no_signal_ends_its_processes() {
    const NAME: &str = "server_ends_when_no_signal_ends_its_processes";
    for kind in KINDS {
        let (_root, mut server) = serve(&[], &["--drain-timeout", "100ms"]);
        // Dropped before the server, which waits for its processes.
        let group = match Group::new("freezer") {
            Ok(group) => group,
            Err(why) => return skip(NAME, &why),
        };
        let victims = server.children(kind);
        group.add(&victims);
        if let Err(why) = group.freeze() {
            return skip(NAME, &why);
        }
        let others: Vec<i32> = server.children("serve-");
        server.signal(Signal::TERM);
        let master = server.master();
        wait_until("the end of the master", || !is_running(master));
        assert!(server.wait().success(), "{kind}");
        wait_until("the end of the others", || {
            others
                .iter()
                .all(|pid| victims.contains(pid) || !is_running(*pid))
        });
        drop(group);
        wait_until("the end of the last", || {
            !victims.iter().any(|pid| is_running(*pid))
        });
    }
}

/// Needs: root, and the freezer of control groups version 1
#[test]
fn worker_that_no_signal_ends_is_replaced() {
    const NAME: &str = "worker_that_no_signal_ends_is_replaced";
    let (_root, server) = serve(&[], &["--worker-timeout", "1s"]);
    let group = match Group::new("freezer") {
        Ok(group) => group,
        Err(why) => return skip(NAME, &why),
    };
    let frozen = server.children("serve-worker")[0];
    group.add(&[frozen]);
    if let Err(why) = group.freeze() {
        return skip(NAME, &why);
    }
    server.wait_for("another worker", |server| {
        server.children("serve-worker").len() == 2
    });
    assert!(is_running(frozen));
    for path in ["/a", "/cgi/hello"] {
        assert_eq!(get(&server.address, path), (200, b"hello".into()));
    }
    assert_eq!(server.status()["master"]["workers_stuck"], 1);
}
