//! Each kind of process is stopped or killed: what the others do, and what the next one may.

use std::net::TcpStream;
use std::sync::Arc;

use headway_test_support::groups::{fill_until_killed, little_memory};
use headway_test_support::server::{in_group, kill};
use headway_test_support::{is_running, wait_until};
use rustix::process::Signal;
use rustls::version::TLS13;

use super::*;
use crate::tls::tools::{ask, speak};

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

/// Other tests run out of memory with the other kinds (`processes/groups.rs`).
///
/// Needs: root, and control groups which limit memory
#[test]
fn processes_beside_the_workers_are_replaced_when_memory_runs_out() {
    const NAME: &str = "processes_beside_the_workers_are_replaced_when_memory_runs_out";
    let group = match little_memory() {
        Ok(group) => group,
        Err(why) => return skip(NAME, &why),
    };
    let confined = Confined::start_by(in_group(program(), &group.procs()), "on");
    let server = &confined.server;
    confined.is_well();
    for kind in ["serve-handshakes", "serve-spans", "serve-acme"] {
        let victim = processes(server, kind)[0];
        confined.collector.forget();
        fill_until_killed(&group, victim);
        server.wait_for("another process", |server| {
            let now = server.children(kind);
            !now.is_empty() && !now.contains(&victim)
        });
        // The next process may meet the same lack.
        server.wait_for("service", |server| {
            server.get("/file.txt") == (200, "a file\n".into())
        });
        match kind {
            "serve-handshakes" => {
                let stream = TcpStream::connect(server.listeners.last().unwrap()).unwrap();
                let clients = Arc::new(confined.certified.clients(&TLS13));
                let response = ask(&mut speak(stream, clients), "/file.txt");
                assert_eq!(response.text(), "a file\n");
            }
            // Of requests that came later.
            "serve-spans" => confined.has_sent_spans(),
            // It asks the authority later.
            _ => server.wait_for("its filter", |server| {
                let filtered = |pid: &i32| status_of(*pid, "Seccomp:") == "2";
                !Support::probe().filters || server.children(kind).iter().any(filtered)
            }),
        }
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
