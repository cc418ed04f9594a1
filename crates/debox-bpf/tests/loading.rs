//! What is left behind, and the errors when attaching is not possible. These tests run one after
//! the other, since they list all programs of the kernel.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use headway_debox::policy::Filter;
use headway_debox_bpf::{Attach, AttachError, Limits, Pids, RequestLimits, RequestObserver};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

#[allow(dead_code, reason = "each test binary uses its part")]
mod common;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn start() -> Result<Attach, AttachError> {
    let pids = Pids::one(std::process::id());
    Attach::start(&pids, &Limits::default(), Filter::default())
}

/// Programs with a name of ours that this process holds or held: their identifiers grow, so older
/// ones are others'.
fn programs_since(newest: u32) -> usize {
    (aya::programs::loaded_programs().filter_map(Result::ok))
        .filter(|program| program.id() > newest && program.name_as_str() == Some("switched"))
        .count()
}

fn newest_program() -> u32 {
    let programs = aya::programs::loaded_programs().filter_map(Result::ok);
    programs.map(|program| program.id()).max().unwrap_or(0)
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn no_program_stays_behind_when_the_observer_is_dropped() {
    let test = "no_program_stays_behind_when_the_observer_is_dropped";
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let before = newest_program();
    let Some(attach) = common::attach(test, start()) else {
        return;
    };
    assert_eq!(programs_since(before), 1);
    drop(attach);
    // The kernel frees a program after a grace period.
    let timeout = Instant::now() + Duration::from_secs(30);
    while programs_since(before) > 0 && Instant::now() < timeout {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(programs_since(before), 0);
}

/// Set for a process that holds an observer until it is killed.
const HOLDS: &str = "HEADWAY_TEST_HOLDS_AN_OBSERVER";

fn observe_requests() -> Result<RequestObserver, AttachError> {
    RequestObserver::start(&[std::process::id()], &[], &RequestLimits::default())
}

/// In a process of its own, for the test below.
#[test]
fn observer_of_requests_is_held_in_a_process_of_its_own() {
    if std::env::var_os(HOLDS).is_none() {
        return;
    }
    match observe_requests() {
        Ok(_observer) => {
            println!("\nholds");
            std::thread::sleep(Duration::from_secs(600));
        }
        Err(error) => println!("\ncannot: {error}"),
    }
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn no_program_stays_behind_when_the_observer_of_requests_is_killed() {
    let test = "no_program_stays_behind_when_the_observer_of_requests_is_killed";
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let before = newest_program();
    let mut holder = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args([
            "observer_of_requests_is_held_in_a_process_of_its_own",
            "--exact",
            "--nocapture",
        ])
        .env(HOLDS, "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("this program");
    let output = std::io::BufReader::new(holder.stdout.take().expect("piped"));
    let mut lines = std::io::BufRead::lines(output).map_while(Result::ok);
    let word = lines.find(|line| line == "holds" || line.starts_with("cannot"));
    if word.as_deref() != Some("holds") {
        holder.wait().expect("our child");
        return headway_test_support::skip(test, &word.unwrap_or_default());
    }
    assert_eq!(programs_since(before), 1);
    holder.kill().expect("our child");
    holder.wait().expect("our child");
    // The kernel frees a program after a grace period.
    let timeout = Instant::now() + Duration::from_secs(30);
    while programs_since(before) > 0 && Instant::now() < timeout {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(programs_since(before), 0);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn capabilities_are_named_when_they_are_missing() {
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    // Capabilities belong to a thread; this one ends with the test.
    let refused = std::thread::spawn(|| {
        let own = capabilities(None).expect("capget");
        let lost = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
        let fewer = CapabilitySets {
            effective: own.effective - lost,
            ..own
        };
        set_capabilities(None, fewer).expect("giving up is always allowed");
        start().err()
    });
    let error = refused.join().expect("the thread").expect("not permitted");
    let text = error.to_string();
    if let AttachError::NotBuilt { .. } = error {
        return headway_test_support::skip("capabilities_are_named_when_they_are_missing", &text);
    }
    assert!(matches!(error, AttachError::NotPermitted { .. }), "{text}");
    assert!(
        text.contains("CAP_BPF and CAP_PERFMON") && text.contains("setcap"),
        "{text}"
    );
}

#[test]
fn unknown_process_is_refused_before_anything_is_loaded() {
    let error = Attach::start(&Pids::one(u32::MAX), &Limits::default(), Filter::default())
        .expect_err("no process has this number");
    assert!(matches!(error, AttachError::UnknownPid { .. }), "{error}");
}
