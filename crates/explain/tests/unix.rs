//! Requests on Unix sockets.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use headway_debox::Label;
use headway_explain::Phase;
use headway_test_support::wait_until;

use crate::bed::{Bed, Client, assert_adds_up, assert_attributed, time_of};

/// Much longer than anything that a busy machine adds.
const DELAY: Duration = Duration::from_millis(1500);

fn start(test: &str, kind: &str) -> Option<(Bed, tempfile::TempDir)> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let bed = Bed::start(test, &format!("{kind} {}", path.display()))?;
    Some((bed, folder))
}

fn connect(folder: &tempfile::TempDir) -> Client<UnixStream> {
    let path = folder.path().join("socket");
    Client::of(UnixStream::connect(path).expect("it listens"))
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn request_on_a_unix_socket_waits_unread_while_another_is_served() {
    let test = "request_on_a_unix_socket_waits_unread_while_another_is_served";
    let Some((bed, folder)) = start(test, "loop") else {
        return;
    };
    let (mut slow, mut hot) = (connect(&folder), connect(&folder));
    hot.ask("hot 1");
    slow.ask("hot 1");
    let slow = std::thread::spawn(move || {
        slow.ask(&format!("sleep {}", DELAY.as_millis()));
        slow
    });
    let number = headway_debox::calls::number("clock_nanosleep").expect("a call");
    wait_until("the server sleeps", || {
        std::fs::read_to_string(format!("/proc/{}/syscall", bed.pid()))
            .is_ok_and(|call| call.starts_with(&format!("{number} ")))
    });
    hot.ask("hot 1");
    let slow = slow.join().expect("it was answered");
    let report = bed.report();
    assert_eq!(report.requests.answered, 4);
    let of = |phase| {
        time_of(&report, |cause| {
            cause.phase == phase && cause.label == Some(Label::Timer)
        })
    };
    assert_attributed(of(Phase::Service), DELAY, &report);
    let waited = hot.latency.mul_f64(0.95);
    assert_attributed(of(Phase::ReceiveQueue), waited, &report);
    assert_adds_up(&report, &[&slow, &hot]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn connection_on_a_unix_socket_waits_to_be_accepted_and_ends() {
    let test = "connection_on_a_unix_socket_waits_to_be_accepted_and_ends";
    let Some((bed, folder)) = start(test, "prefork") else {
        return;
    };
    let mut first = connect(&folder);
    first.ask("hot 1");
    let mut second = connect(&folder);
    let second = std::thread::spawn(move || {
        second.ask("hot 1");
        second
    });
    wait_until("the request has arrived", || bed.waiting() == 1);
    std::thread::sleep(DELAY);
    drop(first);
    let second = second.join().expect("it was answered");
    assert_eq!(bed.waiting(), 0);
    let waited = second.latency.mul_f64(0.95);
    drop(second);
    wait_until("both have ended", || bed.connections() == 0);
    let report = bed.report();
    assert_eq!(report.requests.answered, 2);
    let idle = time_of(&report, |cause| {
        cause.phase == Phase::AcceptQueue && cause.call.as_deref() == Some("poll")
    });
    assert_attributed(idle, waited, &report);
}
