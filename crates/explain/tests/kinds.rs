//! Kinds of servers, and what they do while they are observed.

use std::process::{Command, Stdio};
use std::time::Duration;

use headway_debox::Label;
use headway_debox_bpf::RequestLimits;
use headway_explain::{Phase, Report, Target, compat_note, io_uring_note};
use headway_test_support::groups::Group;
use headway_test_support::{find_program, skip, wait_until};

use crate::bed::{Bed, assert_adds_up, assert_attributed, time_of};
use crate::servers::nginx;

/// Much longer than anything that a busy machine adds.
const DELAY: Duration = Duration::from_millis(1500);

fn in_timer(report: &Report) -> u64 {
    time_of(report, |cause| {
        cause.phase == Phase::Service && cause.label == Some(Label::Timer)
    })
}

fn sleep_line() -> String {
    format!("sleep {}", DELAY.as_millis())
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn static_server_is_explained_as_any_other() {
    let test = "static_server_is_explained_as_any_other";
    let (child, port, folder) = Bed::compiled("server.c", &["-static"], "loop");
    let Some(bed) = Bed::of(test, child, port, folder) else {
        return;
    };
    let mut client = bed.connect();
    client.ask(&sleep_line());
    let report = bed.report();
    assert_attributed(in_timer(&report), DELAY, &report);
    assert_adds_up(&report, &[&client]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build; programs of 32 bits
#[test]
fn program_of_32_bits_is_explained_without_names_of_calls() {
    let test = "program_of_32_bits_is_explained_without_names_of_calls";
    if !cfg!(target_arch = "x86_64") {
        return skip(test, "programs of 32 bits");
    }
    let options = [
        "-m32",
        "-nostdlib",
        "-static",
        "-ffreestanding",
        "-fno-stack-protector",
        "-no-pie",
    ];
    let (mut child, port, folder) = Bed::compiled("thirty_two.c", &options, "loop");
    if port == 0 {
        child.wait().expect("our child");
        return skip(test, "programs of 32 bits");
    }
    let Some(bed) = Bed::of(test, child, port, folder) else {
        return;
    };
    let note = compat_note(&[bed.pid()]).expect("it is one");
    assert!(note.contains("32-bit program"), "{note}");
    assert_eq!(compat_note(&[std::process::id()]), None);
    let mut client = bed.connect();
    client.ask("sleep");
    let report = bed.report();
    assert_eq!(report.requests.answered, 1, "{report:#?}");
    let asleep = time_of(&report, |cause| {
        cause.phase == Phase::Service && cause.doing == "asleep"
    });
    assert_attributed(asleep, DELAY, &report);
    assert_adds_up(&report, &[&client]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn server_that_executes_itself_again_is_observed_before_and_after() {
    let test = "server_that_executes_itself_again_is_observed_before_and_after";
    let Some(bed) = Bed::start(test, "loop") else {
        return;
    };
    let mut before = bed.connect();
    before.ask("again 1");
    let mut after = bed.connect();
    after.ask(&sleep_line());
    let report = bed.report();
    assert_eq!(report.requests.answered, 2, "{report:#?}");
    assert_attributed(in_timer(&report), DELAY, &report);
    assert_adds_up(&report, &[&before, &after]);
}

/// Needs: the program nginx: scripts/setup; root; BTF (Linux 6.3); clang at build
#[test]
fn workers_of_a_reload_are_observed_too() {
    let test = "workers_of_a_reload_are_observed_too";
    let site = tempfile::tempdir().expect("a folder");
    std::fs::write(site.path().join("f1"), "hello").expect("written");
    let Some(server) = nginx(test, site.path(), "off", "") else {
        return;
    };
    let children = || {
        let pid = server.pid();
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        list.unwrap_or_default().trim().to_owned()
    };
    let target = Target::Pid(server.pid());
    let own = (None, server.port, None);
    let Some(bed) = Bed::of_target(test, &target, RequestLimits::default(), own) else {
        return;
    };
    let get = || {
        let mut stream =
            std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("it listens");
        std::io::Write::write_all(&mut stream, b"GET /f1 HTTP/1.0\r\n\r\n").expect("sent");
        let mut response = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut response).expect("a response");
        assert!(response.ends_with(b"hello"));
    };
    get();
    let old = children();
    let pid = rustix::process::Pid::from_raw(server.pid() as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("our child");
    wait_until("another worker replaces the first", || {
        let new = children();
        !new.is_empty() && !new.contains(' ') && new != old
    });
    get();
    let pids = bed.processes();
    assert!(
        pids.iter().any(|pid| pid.to_string() == children()),
        "{pids:?}"
    );
    assert!(!pids.iter().any(|pid| pid.to_string() == old), "{pids:?}");
    let report = bed.report();
    assert_eq!(report.requests.answered, 2, "{report:#?}");
    assert_eq!(report.paths[0].path, "GET /f1");
    assert_eq!(report.paths[0].statuses[&200], 2, "{report:#?}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build; control groups; namespaces
#[test]
fn server_in_namespaces_of_its_own_is_found_by_its_control_group() {
    let test = "server_in_namespaces_of_its_own_is_found_by_its_control_group";
    if !headway_test_support::is_root() {
        return skip(test, "root");
    }
    let Some(nsenter) = find_program("nsenter") else {
        return skip(test, "the program nsenter");
    };
    let group = match Group::new("pids") {
        Ok(group) => group,
        Err(error) => return skip(test, &error),
    };
    let (child, port, folder) = Bed::server("isolated loop");
    let parent = child.id();
    let inner = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let inner: i32 = inner.expect("it runs").trim().parse().expect("one child");
    // Not its parent, which is outside like a container's runtime.
    group.add(&[inner]);
    let procs = group.procs();
    let name = procs
        .parent()
        .and_then(|path| path.file_name())
        .expect("a name");
    let target = Target::Group(name.to_string_lossy().into_owned());
    let server = (Some(child), port, Some(folder));
    let Some(bed) = Bed::of_target(test, &target, RequestLimits::default(), server) else {
        return;
    };
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; echo '{}' >&3; head -n 1 <&3",
        sleep_line()
    );
    let output = Command::new(nsenter)
        .args(["-t", &inner.to_string(), "-n", "bash", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .expect("nsenter runs");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "done\n",
        "{output:?}"
    );
    let report = bed.report();
    assert_eq!(report.requests.answered, 1);
    assert_attributed(in_timer(&report), DELAY, &report);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build; io_uring, which a kernel or a container may forbid
#[test]
fn requests_of_an_io_uring_server_are_seen_without_their_accept_queue() {
    let test = "requests_of_an_io_uring_server_are_seen_without_their_accept_queue";
    let (mut child, port, folder) = Bed::compiled("uring.c", &[], "loop");
    if port == 0 {
        child.wait().expect("our child");
        return skip(test, "io_uring");
    }
    let Some(bed) = Bed::of(test, child, port, folder) else {
        return;
    };
    let note = io_uring_note(&[bed.pid()]).expect("it has a ring");
    assert!(note.contains("no accept queue"), "{note}");
    assert_eq!(io_uring_note(&[std::process::id()]), None);
    let mut first = bed.connect();
    let waiting = std::thread::spawn({
        let mut second = bed.connect();
        move || {
            // It is not accepted before the first one ends.
            second.ask("sleep 0");
            second
        }
    });
    first.ask(&sleep_line());
    let latency = first.latency;
    drop(first);
    let second = waiting.join().expect("it was answered");
    let report = bed.report();
    assert_eq!(report.requests.answered, 2, "{report:#?}");
    assert_attributed(in_timer(&report), DELAY, &report);
    let queued = |phase| time_of(&report, |cause| cause.phase == phase);
    assert_eq!(queued(Phase::AcceptQueue), 0, "{report:#?}");
    assert_attributed(
        queued(Phase::ReceiveQueue),
        second.latency.mul_f64(0.9),
        &report,
    );
    assert_attributed(
        time_of(&report, |_| true),
        latency + second.latency,
        &report,
    );
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn figures_are_bounds_when_events_are_lost() {
    let test = "figures_are_bounds_when_events_are_lost";
    let (child, port, folder) = Bed::server("loop");
    let target = Target::Pid(child.id());
    // Room for some twenty events; nothing reads them before the end.
    let limits = RequestLimits {
        ring_bytes: 4096,
        ..RequestLimits::default()
    };
    let server = (Some(child), port, Some(folder));
    let Some(bed) = Bed::of_target(test, &target, limits, server) else {
        return;
    };
    let mut client = bed.connect();
    for _ in 0..100 {
        client.ask("sleep 1");
    }
    drop(client);
    let report = bed.partial_report();
    assert!(
        report.lost_events > 0 && (1..100).contains(&report.requests.answered),
        "{report:#?}"
    );
    let text = headway_explain::text::render(&report, str::to_owned);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let answered = report.requests.answered;
    assert!(
        words.contains(&format!("at least {answered} request")),
        "{text}"
    );
    assert!(
        words.contains("events were lost") && words.contains("lower bounds"),
        "{text}"
    );
}
