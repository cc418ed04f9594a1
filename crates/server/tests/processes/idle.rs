//! Processes of a server that serves no request.

use std::time::Duration;

use headway_test_support::server::{Server, get};
use headway_test_support::wait_until;

use crate::clients::program;

/// Times that the main thread of a process has waited (proc_pid_status(5)).
fn waits(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn idle_server_has_no_process_that_wakes_up_to_find_nothing_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    // The master checks the workers in a quarter of this time.
    let arguments = ["--worker-timeout", "1s", "--log", log.to_str().unwrap()];
    let server = Server::start_hello(program(), &arguments);
    assert_eq!(get(&server.address, "/").0, 200);
    wait_until("the request is in the log", || {
        std::fs::read(&log).is_ok_and(|lines| lines.ends_with(b"\n"))
    });
    let processes = server.children("serve-");
    std::thread::sleep(Duration::from_millis(1_500));
    let before: Vec<u64> = processes.iter().map(|pid| waits(*pid)).collect();
    std::thread::sleep(Duration::from_secs(3));
    let waits = processes
        .iter()
        .zip(before)
        .map(|(pid, before)| waits(*pid) - before);
    // A worker searches for deleted files once in this time.
    let most = server.children("serve-worker").len() as u64;
    assert!(waits.sum::<u64>() <= most);
}
