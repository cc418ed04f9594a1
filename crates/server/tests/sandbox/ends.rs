//! Each kind of process is stopped or killed: what the others do, and what the next one may.

use headway_test_support::server::kill;
use headway_test_support::{is_running, wait_until};
use rustix::process::Signal;

use super::*;

fn signal(pid: i32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Processes of a kind, of which there may be more than one.
fn processes(server: &Server, kind: &str) -> Vec<i32> {
    let found = server.children(kind);
    assert!(!found.is_empty(), "{kind}");
    found
}

#[test]
fn killed_process_of_any_kind_is_replaced_by_one_that_is_confined() {
    let confined = Confined::start("on");
    let has_filters = Support::probe().filters;
    confined.is_well();
    for kind in KINDS {
        let killed = processes(&confined.server, kind);
        killed.iter().for_each(|pid| kill(*pid));
        confined.server.wait_for("another process", |server| {
            // A helper comes when it is needed.
            let _ = get(server, "/");
            let now = server.children(kind);
            !now.is_empty() && now.iter().all(|pid| !killed.contains(pid))
        });
        confined.server.wait_for("its work", |server| {
            let response = get(server, "/cgi-bin/hello");
            response.status == 200 && get(server, "/file.txt").status == 200
        });
        confined.server.wait_for("its filter", |server| {
            let filtered = |pid| status_of(pid, "Seccomp:") == "2";
            let now = processes(server, kind);
            !has_filters || now.into_iter().all(filtered)
        });
    }
}

#[test]
fn files_are_served_and_the_server_ends_while_any_other_process_is_stopped() {
    for kind in KINDS.into_iter().filter(|kind| *kind != "serve-worker") {
        let mut confined = Confined::start("on");
        confined.is_well();
        assert_eq!(get(&confined.server, "/file.txt").status, 200);
        let stopped = processes(&confined.server, kind);
        stopped.iter().for_each(|pid| signal(*pid, Signal::STOP));
        for _ in 0..20 {
            assert_eq!(get(&confined.server, "/file.txt").status, 200, "{kind}");
        }
        let all = confined.server.children("serve-");
        confined.server.signal(Signal::TERM);
        assert!(confined.server.wait().success(), "{kind}");
        wait_until("the end of all", || !all.iter().any(|pid| is_running(*pid)));
    }
}

#[test]
fn all_processes_end_and_no_address_stays_when_the_master_is_killed() {
    let mut confined = Confined::start("on");
    confined.is_well();
    let all = confined.server.children("serve-");
    let mut begun = confined.server.connect();
    kill(confined.server.master());
    assert!(!confined.server.wait().success());
    wait_until("the end of all", || !all.iter().any(|pid| is_running(*pid)));
    // Its end, and not a wait for nothing.
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut begun, &mut rest);
    assert!(rest.is_empty());
    assert!(!confined.server.accepts());
    TcpListener::bind(&*confined.server.address).expect("the address is free");
}
