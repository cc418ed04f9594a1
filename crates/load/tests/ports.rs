//! Too few local ports. In a network namespace of its own, where ten ports are all there are.

mod support;

use std::process::Command;
use std::time::Duration;

use headway_latency::Outcome;
use headway_load::engine::{Mode, Sources};
use headway_test_support::skip;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use support::{Server, Step, closed, count, response, run};

/// Moves this thread, and those it starts, to a network with ten ports. False when that is not
/// allowed.
fn few_ports() -> bool {
    // SAFETY: only the network namespace is left; descriptors, memory and the file system stay
    // shared as other threads expect.
    if unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.is_err() {
        return false;
    }
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    up.is_ok_and(|status| status.success())
        && std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40009").is_ok()
}

/// Needs: CAP_SYS_ADMIN and iproute2: takes a network namespace of its own
#[test]
fn ports_are_taken_from_other_sources_when_one_has_run_out() {
    if !few_ports() {
        return skip(
            "ports_are_taken_from_other_sources_when_one_has_run_out",
            "a network namespace needs CAP_SYS_ADMIN and the program ip",
        );
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:8080").unwrap();
    let pause = Duration::from_millis(300);
    let server = Server::listen(listener, move |_| {
        vec![Step::Wait(pause), Step::Send(response("hello"))]
    });
    let mut plan = closed(&server, 35);
    plan.mode = Mode::Closed { connections: 35 };
    plan.targets[0].sources = Sources::List(vec!["127.0.0.1".parse().unwrap()]);
    let (rows, measured) = run(&plan);
    assert_eq!(
        (count(&rows, Outcome::Ok), count(&rows, Outcome::NoPort)),
        (10, 25)
    );
    assert_eq!(measured.limits.ports, 25);
    let failure = measured.failure.unwrap();
    assert_eq!(failure.outcome, Outcome::NoPort);

    plan.targets[0].sources = Sources::Loopback;
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 35, "{:?}", measured.outcomes);
    assert!(measured.limits.ports >= 3);
    let requests = server.requests();
    let addresses: std::collections::HashSet<_> =
        requests.iter().filter_map(|request| request.from).collect();
    assert!(addresses.len() >= 4, "{addresses:?}");
}
