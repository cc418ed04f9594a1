//! Runs that go well, or are ended from outside.

use super::responding::{GOOD, LATE, Responding};
use super::{finished, headway, load, measured, read_json, serving};
use headway_latency::Run;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Stdio};

#[test]
fn every_request_is_in_the_run_directory_when_a_run_ends() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = serving::Server::start_hello(serving::headway(), &[]);
    let url = format!("http://{}/", server.address);
    let status = format!("http://{}/status", server.status);
    let arguments = [
        "load", &url, "-n", "500", "-c", "4", "--label", "ours", "--seed", "7",
    ];
    let output = ["-o", run.to_str().unwrap(), "--server-status", &status];
    let (code, out, err) = headway(&[arguments.as_slice(), &output].concat());
    assert_eq!(code, 0, "{err}");
    assert!(err.is_empty(), "a progress line in a pipe: {err}");
    assert!(
        out.contains("(ours)") && out.contains("headway analyze"),
        "{out}"
    );
    let description = read_json(&run.join("run.json"));
    assert_eq!(description["complete"], true);
    assert_eq!(description["label"], "ours");
    assert_eq!(description["load"]["mode"], "closed");
    assert_eq!(description["load"]["seed"], 7);
    assert_eq!(description["summary"]["requests"], 500);
    assert_eq!(description["command"][1], "load");
    let counters = read_json(&run.join("server.json"));
    assert!(counters.get("total").is_some(), "{counters}");
    let kept = Run::open(&run).unwrap();
    let rows: usize = kept.rows().unwrap().map(|batch| batch.unwrap().len()).sum();
    assert_eq!(rows, 500);
}

#[test]
fn no_directory_is_written_when_output_is_not_given() {
    let directory = tempfile::tempdir().unwrap();
    let server = Responding::start(GOOD);
    let mut command = serving::headway();
    command.args(["load", &server.url, "-n", "10", "-c", "1"]);
    let (code, out, err) = finished(command.current_dir(directory.path()));
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("good responses/s") && !out.contains("analyze"),
        "{out}"
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn json_has_distributions_when_it_is_full_and_none_when_it_is_a_summary() {
    let server = Responding::start(GOOD);
    let printed = |option: &str| {
        let (code, out, err) = load(&[&server.url, "-n", "10", "-c", "1", option]);
        assert_eq!(code, 0, "{err}");
        (
            out.len(),
            serde_json::from_str::<serde_json::Value>(&out).unwrap(),
        )
    };
    let (length, summary) = printed("--json");
    assert!(length < 6_000, "{length}");
    assert_eq!(summary["analysis"]["counts"]["complete"], 10);
    assert!(summary["analysis"]["response"]["p99_us"].is_number());
    assert!(
        summary["analysis"]["response"]["cdf"].is_null(),
        "{summary}"
    );
    let (_, full) = printed("--json=full");
    assert!(full["analysis"]["response"]["cdf"].is_array(), "{full}");
    assert!(full["analysis"]["timeline"].is_object(), "{full}");
}

#[test]
fn headers_and_method_are_sent_when_they_are_given() {
    let server = serving::Server::start_hello(serving::headway(), &[]);
    let url = format!("http://{}/", server.address);
    let head = measured(&[&url, "-X", "HEAD", "-n", "20", "-c", "1", "--duration", "5"]);
    assert_eq!(head["analysis"]["counts"]["complete"], 20);
    assert_eq!(head["analysis"]["throughput_bytes_per_s"], 0.0);
    assert_eq!(head["load"]["method"], "HEAD");
    let arguments = ["-H", "Range: bytes=0-0", "-n", "20", "-c", "1"];
    let ranged = measured(&[&[url.as_str()], &arguments[..]].concat());
    assert_eq!(ranged["analysis"]["statuses"][0]["status"], 206);
    assert_eq!(ranged["load"]["headers"][0], "Range: bytes=0-0");
}

#[test]
fn finished_run_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = Responding::start(GOOD);
    let arguments = [
        "load",
        &server.url,
        "-n",
        "10",
        "-c",
        "1",
        "-o",
        run.to_str().unwrap(),
    ];
    assert_eq!(headway(&arguments).0, 0);
    let before = std::fs::read(run.join("requests.parquet")).unwrap();
    let (code, _, err) = headway(&arguments);
    assert_eq!(code, 1);
    assert!(err.contains("finished run"), "{err}");
    assert_eq!(std::fs::read(run.join("requests.parquet")).unwrap(), before);
}

#[test]
fn paths_of_a_list_are_requested_in_turn() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("paths");
    std::fs::write(&list, "/index.html\n/missing\n").unwrap();
    let server = serving::Server::start_hello(serving::headway(), &[]);
    let url = format!("http://{}/", server.address);
    let list = list.to_str().unwrap();
    let json = measured(&[&url, "--paths", list, "-n", "100", "-c", "1"]);
    let statuses = &json["analysis"]["statuses"];
    assert_eq!(statuses[0]["status"], 200);
    assert_eq!(statuses[0]["requests"], 50);
    assert_eq!(statuses[1]["status"], 404);
}

#[test]
fn unix_socket_is_requested_when_named() {
    let directory = tempfile::tempdir().unwrap();
    let server = Responding::start_at(&directory.path().join("socket"), GOOD);
    let json = measured(&[&server.url, "--rate", "500", "-n", "50"]);
    assert_eq!(json["analysis"]["counts"]["complete"], 50);
    assert!(json["client"]["ports_available"].is_null());
}

#[test]
fn several_servers_share_the_load_when_they_are_named() {
    let (one, other) = (Responding::start(GOOD), Responding::start(GOOD));
    let json = measured(&[&one.url, &other.url, "-n", "100", "-c", "2"]);
    assert_eq!(json["analysis"]["counts"]["complete"], 100);
    assert_eq!(json["targets"].as_array().unwrap().len(), 2);
    one.wait_for(1);
    other.wait_for(1);
}

#[test]
fn schedule_is_described_when_the_loop_is_open() {
    let server = Responding::start(GOOD);
    let arguments = ["--schedule", "200:100ms,200-400:100ms", "--warmup", "0"];
    let json = measured(&[&[server.url.as_str()], arguments.as_slice()].concat());
    assert_eq!(json["load"]["mode"], "open");
    assert_eq!(json["load"]["schedule"][1]["to_rps"], 400.0);
    assert_eq!(json["load"]["duration_s"], 0.2);
    assert_eq!(json["load"]["timeout_ms"], 3000.0);
}

/// A run without an end, which has been answered some times.
fn endless(server: &Responding, run: &Path) -> Child {
    let child = serving::headway()
        .args(["load", &server.url, "--rate", "200", "--warmup", "0"])
        .args(["-d", "1h", "-o", run.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for(10);
    // Rows reach the disk a moment later than the responses reach the client.
    while rows(run) < 5 {
        std::thread::yield_now();
    }
    child
}

fn rows(run: &Path) -> usize {
    let Ok(run) = Run::open(run) else { return 0 };
    let Ok(batches) = run.rows() else { return 0 };
    batches.map_while(Result::ok).map(|batch| batch.len()).sum()
}

#[test]
fn run_is_complete_and_marked_when_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = Responding::start(GOOD);
    let child = endless(&server, &run);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("interrupted (after "), "{text}");
    let description = read_json(&run.join("run.json"));
    assert_eq!(description["complete"], true);
    assert!(description["environment"]["extra"]["interrupted"].is_string());
    assert!(run.join("requests.parquet").exists() && !run.join("requests.spool").exists());
}

#[test]
fn run_is_readable_and_incomplete_when_it_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = Responding::start(GOOD);
    let mut child = endless(&server, &run);
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = Run::open(&run).unwrap();
    assert!(!kept.description().complete);
    assert!(rows(&run) >= 5);
    assert!(kept.analysis().unwrap().counts.complete >= 5);
}

/// Standard output and error of `headway load` on a terminal of its own.
fn on_a_terminal(arguments: &str) -> String {
    let command = format!("{} load {arguments}", env!("CARGO_BIN_EXE_headway"));
    let output = std::process::Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .expect("script(1) runs");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn progress_line_is_replaced_and_removed_on_a_terminal() {
    let server = Responding::start(LATE);
    let arguments = format!("{} --rate 200 --warmup 0 -d 1200ms", server.url);
    let text = on_a_terminal(&arguments);
    let (progress, result) = text
        .rsplit_once("\r\x1b[K")
        .expect("a line that is replaced");
    let lines: Vec<&str> = progress.split("\r\x1b[K").collect();
    let whole = |line: &&str| {
        ["load ", " of 1.2 s", "/s", "p50 ", "p99 ", "errors 0"]
            .iter()
            .all(|part| line.contains(part))
    };
    assert!(lines.iter().any(whole), "{lines:?}");
    assert!(result.contains("good responses/s"), "{result}");
    for none in ["--quiet", "--live off"] {
        let quiet = on_a_terminal(&format!("{arguments} {none}"));
        assert!(!quiet.contains("\x1b[K"), "{quiet}");
    }
}

#[test]
fn view_of_a_run_fills_the_terminal_and_leaves_it() {
    let server = Responding::start(LATE);
    let arguments = format!("{} --rate 200 --warmup 0 -d 2s --live full", server.url);
    let text = on_a_terminal(&arguments);
    let (before, view) = text.split_once("\x1b[?1049h").expect("another screen");
    let (view, result) = view
        .split_once("\x1b[?1049l")
        .expect("the first screen again");
    assert!(!before.contains("requests"), "{before}");
    for part in ["offered", "flight", "p99", "measured"] {
        assert!(view.contains(part), "{part}: {view}");
    }
    assert!(result.contains("\x1b[?25h"), "the cursor is back: {result}");
    assert!(result.contains("good responses/s"), "{result}");
    let (code, _, err) = load(&[&server.url, "--live", "full", "-n", "1"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("no terminal"), "{err}");
}

#[test]
fn window_is_the_duration_when_it_ends_before_the_number_of_requests() {
    let server = Responding::start(LATE);
    let arguments = ["-d", "300ms", "--warmup", "0", "-c", "1", "-n"];
    let ended_by = |number| measured(&[&[server.url.as_str()], &arguments[..], &[number]].concat());
    // Also where nothing is kept, as here.
    let by_time = ended_by("1000000");
    assert_eq!(by_time["load"]["measured"]["end_ns"], 300_000_000);
    assert_eq!(by_time["analysis"]["duration_s"], 0.3);
    let by_number = ended_by("3");
    assert!(by_number["load"]["measured"].is_null(), "{by_number}");
    assert_eq!(by_number["analysis"]["counts"]["requests"], 3);
}

#[test]
fn client_is_pinned_and_run_json_says_so_with_cpu() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu));
    let cpu = cpu.expect("this runs somewhere").to_string();
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = Responding::start(GOOD);
    let child = serving::headway()
        .args([
            "load",
            &server.url,
            "--rate",
            "200",
            "--warmup",
            "0",
            "-d",
            "1h",
        ])
        .args(["--cpu", &cpu, "-o", run.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for(5);
    // The loop is the first thread of the process.
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    let bound = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    assert_eq!(bound.map(str::trim), Some(cpu.as_str()));
    let description = read_json(&run.join("run.json"));
    assert_eq!(description["environment"]["client_affinity"], cpu);
}

#[test]
fn json_replaces_the_table() {
    let server = Responding::start(GOOD);
    let (code, out, err) = load(&[&server.url, "-n", "10", "-c", "1", "--json"]);
    assert_eq!(code, 0, "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["format"]["name"], "headway-load");
    assert_eq!(json["summary"]["requests"], 10);
    assert_eq!(json["run"], serde_json::Value::Null);
}

#[test]
fn run_is_kept_with_a_warning_when_there_is_no_status_page() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = Responding::start(GOOD);
    let arguments = [
        "load",
        &server.url,
        "-n",
        "10",
        "-c",
        "1",
        "--server-status",
        &server.url,
    ];
    let (code, _, err) = headway(&[arguments.as_slice(), &["-o", run.to_str().unwrap()]].concat());
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("warning: there is no server.json"), "{err}");
    assert_eq!(read_json(&run.join("run.json"))["complete"], true);
}
