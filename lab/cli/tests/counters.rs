//! `headway-lab counters` as its users see it: what it prints and writes, what it leaves behind, and
//! its exit codes.

mod common;

use common::headway_lab;
use headway_test_support::{skip, wait_until};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// A user without any privilege.
const NOBODY: u32 = 65_534;

fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = headway_lab()
        .arg("counters")
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn counters_list_has_an_event_or_a_reason_for_every_meaning() {
    let (code, out, _) = run(&["list"]);
    assert_eq!(code, 0);
    for word in [
        "instructions",
        "l2-misses",
        "context-switches",
        "counted by",
    ] {
        assert!(out.contains(word), "{word} is missing in\n{out}");
    }
    let (code, out, _) = run(&["list", "--json"]);
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    for event in value["events"].as_array().unwrap() {
        assert!(
            event["event"].is_string() != event["absent"].is_string(),
            "{event}"
        );
    }
}

#[test]
fn counters_list_appendix_has_a_row_for_every_event() {
    let (code, out, _) = run(&["list", "--appendix"]);
    assert_eq!(code, 0);
    for word in [
        "GLOBAL_POWER_EVENTS",
        "MACHINE_CLEAR",
        "0x200",
        "none",
        "pipeline-clears",
    ] {
        assert!(out.contains(word), "{word} is missing in\n{out}");
    }
    let (_, out, _) = run(&["list", "--appendix", "--json"]);
    let rows: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 23);
}

#[test]
fn counters_list_shows_the_codes_of_the_core_given() {
    let (code, out, _) = run(&["list", "--core", "golden-cove"]);
    assert_eq!(code, 0);
    assert!(
        out.contains("MACHINE_CLEARS.COUNT")
            && out.contains("event=0xc3,umask=0x01,cmask=1,edge=1"),
        "{out}"
    );
    assert!(
        out.contains("uncore_imc") && out.contains("sapphirerapids"),
        "{out}"
    );
    let (code, _, error) = run(&["list", "--core", "8086"]);
    assert_eq!(code, 2);
    assert!(error.contains("zen5"), "{error}");
}

#[test]
fn arguments_without_a_server_are_a_usage_error() {
    for (arguments, why) in [
        (&["count"][..], "what is to be counted"),
        (&["count", "-C", "9999"], "no CPU 9999"),
        (&["count", "-C", "x"], "CPUs are wanted"),
        (&["count", "-e", "luck", "--", "true"], "no such meaning"),
        (&["count", "-p", "1", "--", "true"], "cannot be used with"),
        (
            &["count", "--requests", "inf", "--", "true"],
            "a number from 0 on",
        ),
        (&["count", "-d", "10ss", "-a"], "a time is wanted"),
        (&["probe", "--cpu", "9999"], "may run on"),
        (
            &["run", "--server", "iis", "-o", "x"],
            "no server the lab knows",
        ),
        (&["run", "--server", "tux", "-o", "x"], "inside the kernel"),
        (&["run", "--config", "3T", "-o", "x"], "no configuration"),
        (
            &["run", "--server", "headway,headway", "-o", "x"],
            "named twice",
        ),
        (
            &["run", "--server", "headway", "-d", "0s", "-o", "x"],
            "less than a second",
        ),
        (&["run", "--server-cpus", "9999", "-o", "x"], "no CPU 9999"),
        (
            &["run", "--score-share", "0.1", "-o", "x"],
            "required arguments",
        ),
        (
            &[
                "run",
                "--server",
                "headway",
                "--scores",
                "--score-share",
                "0",
                "-o",
                "x",
            ],
            "give 0.001 to 1024",
        ),
        (&["run"], "--output"),
    ] {
        let (code, _, error) = run(arguments);
        assert_eq!(code, 2, "{arguments:?}: {error}");
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
    assert!(!Path::new("x").exists());
}

#[test]
fn counters_count_exits_with_1_when_the_process_is_missing_or_the_program_fails() {
    let (code, _, error) = run(&["count", "-p", "2147483647", "-d", "1s"]);
    assert_eq!(code, 1);
    assert!(error.contains("no process 2147483647"), "{error}");
    let (code, _, error) = run(&["count", "-e", "task-clock", "--", "false"]);
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("false ended with") || error.contains("not permitted"),
        "{error}"
    );
    // Of CPUs it would be the time on the wall.
    let (code, out, error) = run(&["count", "-e", "task-clock", "-a", "-d", "10ms"]);
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("nothing of this could be counted") && out.contains("count processes"),
        "{out}{error}"
    );
    let (code, _, error) = run(&["report", "/nowhere"]);
    assert_eq!(code, 1);
    assert!(error.contains("no outcome"), "{error}");
}

/// Runs a command as a user who may do nothing; `None` if that user may not even start the program.
fn run_unprivileged(arguments: &[&str]) -> Option<(i32, String)> {
    let mut command = headway_lab();
    command.arg("counters").args(arguments).current_dir("/");
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    match command.output() {
        Ok(output) => {
            let error = String::from_utf8(output.stderr).unwrap();
            Some((output.status.code().unwrap(), error))
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
        Err(error) => panic!("{error}"),
    }
}

/// Needs: a target directory that other users may enter
#[test]
fn counters_count_names_the_missing_privilege() {
    const NAME: &str = "counters_count_names_the_missing_privilege";
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = directory.path().join("study").display().to_string();
    let arguments = [
        "run", "--server", "headway", "--config", "1T-SMP", "-o", &output,
    ];
    let Some((code, error)) = run_unprivileged(&arguments) else {
        return skip(NAME, "another user may not start the program");
    };
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("takes root"), "{error}");
    assert!(!Path::new(&output).exists());

    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.ok().and_then(|text| text.trim().parse().ok());
    if paranoid.unwrap_or(0) < 1 {
        return;
    }
    let counted = run_unprivileged(&["count", "-a", "-d", "100ms"]);
    let (code, error) = counted.unwrap();
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("not permitted") && error.contains("CAP_PERFMON"),
        "{error}"
    );
}

/// Needs: counting in the kernel (perf_event_paranoid, CAP_PERFMON)
#[test]
fn counters_count_covers_the_whole_run_of_a_program() {
    const NAME: &str = "counters_count_covers_the_whole_run_of_a_program";
    let (code, out, error) = run(&[
        "count",
        "-e",
        "minor-faults,task-clock",
        "--json",
        "--",
        "sh",
        "-c",
        "true; true",
    ]);
    if error.contains("not permitted") {
        return skip(NAME, "counting the kernel's events needs a privilege");
    }
    assert_eq!(code, 0, "{error}");
    let value: Value = serde_json::from_str(&out).unwrap();
    let counts = &value["counts"]["spaces"]["both"];
    assert!(
        counts["minor-faults"]["value"].as_f64().unwrap() > 10.0,
        "{out}"
    );
    assert!(
        counts["task-clock"]["value"].as_f64().unwrap() > 0.0,
        "{out}"
    );
}

#[test]
fn counters_configurations_lists_all_five() {
    let (code, out, _) = run(&["configurations"]);
    assert_eq!(code, 0);
    for name in ["1T-UP", "1T-SMP", "2T", "2P", "4T"] {
        assert!(out.contains(name), "{name} is missing in\n{out}");
    }
    let (_, out, _) = run(&["configurations", "--json"]);
    let value: Value = serde_json::from_str(&out).unwrap();
    let configurations = value["configurations"].as_array().unwrap();
    assert_eq!(configurations.len(), 5);
    for one in configurations {
        let is_possible = one["server"][0].is_u64() && one["client"].is_array();
        assert!(is_possible != one["impossible"].is_string(), "{one}");
    }
    // Whatever machine this is, it has one core, and a kernel for one CPU or for several.
    let possible = |name: &str| {
        let is_it = |one: &&Value| one["configuration"] == name;
        configurations.iter().find(is_it).unwrap()["server"].is_array()
    };
    assert!(possible("1T-SMP") != possible("1T-UP"), "{out}");
}

/// The servers' control group, wherever its hierarchy is mounted.
fn group() -> Option<PathBuf> {
    found("cpuset/headway-counters").or_else(|| found("headway-counters"))
}

/// The control group of servers with a share of a CPU.
fn group_with_share() -> Option<PathBuf> {
    let controllers = ["cpu/", "cpu,cpuacct/", "cpuset/", ""];
    controllers
        .iter()
        .find_map(|controller| found(&format!("{controller}headway-counters-share")))
}

fn found(group: &str) -> Option<PathBuf> {
    let path = Path::new("/sys/fs/cgroup").join(group);
    path.exists().then_some(path)
}

/// What is temporary lies beside `output`.
fn study(output: &Path, seconds: &str, more: &[&str]) -> Child {
    let scratch = scratch(output);
    fs::create_dir_all(&scratch).unwrap();
    let output = output.display().to_string();
    let arguments = [
        "counters", "run", "--server", "headway", "--config", "1T-SMP", "--set", "5", "-c", "8",
        "--warmup", "0s", "-d", seconds, "--json", "-o", &output,
    ];
    headway_lab()
        .args(arguments)
        .args(more)
        .env("TMPDIR", scratch)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn scratch(output: &Path) -> PathBuf {
    output.with_extension("scratch")
}

/// Servers in the group, once the client has begun: its run directory is there.
fn serving_processes(output: &Path) -> Vec<Pid> {
    wait_until("the measurement's begin", || {
        output.join("runs/headway-1T-SMP-1/run.json").exists()
    });
    let list = fs::read_to_string(group().unwrap().join("cgroup.procs")).unwrap();
    list.lines()
        .filter_map(|line| Pid::from_raw(line.parse().ok()?))
        .collect()
}

/// One test, since only one study at a time may change a machine's CPUs.
///
/// Needs: root: counts CPUs and makes a cpuset
#[test]
fn counters_run_restores_the_machine_when_it_ends_fails_or_is_killed() {
    const NAME: &str = "counters_run_restores_the_machine_when_it_ends_fails_or_is_killed";
    if !geteuid().is_root() {
        return skip(NAME, "root: counts CPUs and makes a cpuset");
    }
    let directory = tempfile::tempdir().unwrap();

    let outputs = ["whole", "dies", "killed", "scores"].map(|name| directory.path().join(name));
    let [whole, dies, killed, scores] = &outputs;
    if !study_succeeds(whole) {
        return skip(NAME, "counting CPUs needs a privilege");
    }
    study_fails_when_the_server_dies(dies);
    let servers = study_is_killed(killed);
    score_fails_when_the_server_dies(scores);
    for output in &outputs {
        assert_eq!(
            fs::read_dir(scratch(output)).unwrap().count(),
            0,
            "a folder is left of {}",
            output.display()
        );
    }
    for process in servers {
        wait_until("the server's end", || {
            rustix::process::test_kill_process(process).is_err()
        });
    }
}

/// Runs a study to its end; `false` if this user may not count events.
fn study_succeeds(output: &Path) -> bool {
    let ended = study(output, "1s", &[]).wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&ended.stderr);
    if error.contains("not permitted") {
        return false;
    }
    assert!(ended.status.success(), "{error}");
    let value: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let cell = &value["cells"][0];
    assert!(cell["bits_per_s"].as_f64().unwrap() > 0.0, "{cell}");
    assert!(
        cell["counts"]["spaces"]["both"]["task-clock"]["value"]
            .as_f64()
            .unwrap()
            > 0.0
    );
    assert!(value["outcome"]["setups"][0]["server"][0].is_u64());
    let page = fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.contains("Servers with and without SMT") && page.contains("Headway, 1T-SMP"));
    assert_eq!(group(), None, "the cpuset is gone");
    true
}

fn study_fails_when_the_server_dies(output: &Path) {
    let running = study(output, "20s", &[]);
    for process in serving_processes(output) {
        let _ = kill_process(process, Signal::KILL);
    }
    let ended = running.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{error}");
    assert!(
        error.contains("the server ended during the measurement"),
        "{error}"
    );
}

/// Kills a study and returns the processes of its server.
fn study_is_killed(output: &Path) -> Vec<Pid> {
    let mut running = study(output, "20s", &[]);
    let servers = serving_processes(output);
    assert!(!servers.is_empty());
    running.kill().unwrap();
    running.wait().unwrap();
    wait_until("the guard's work", || group().is_none());
    wait_until("the end of the record", || {
        !Path::new("/run/headway-counters/changed.json").exists()
    });
    servers
}

fn score_fails_when_the_server_dies(output: &Path) {
    let running = study(output, "1s", &["--scores", "--score-share", "0.5"]);
    let joined = || {
        let group = group_with_share()?;
        let list = fs::read_to_string(group.join("cgroup.procs")).ok()?;
        list.lines().next().map(|_| group)
    };
    wait_until("the search for a score", || joined().is_some());
    let limited = joined().expect("a server with a share");
    // Long enough for the client's first requests.
    wait_until("the client's begin", || {
        fs::read_dir(output).is_ok_and(|entries| {
            let mut runs = entries
                .flatten()
                .map(|entry| entry.path().join("run/run.json"));
            runs.any(|file| file.exists())
        })
    });
    let limit = ["cpu.cfs_quota_us", "cpu.max"]
        .iter()
        .find_map(|file| fs::read_to_string(limited.join(file)).ok());
    assert!(limit.is_some_and(|text| text.starts_with("2000")));
    let list = fs::read_to_string(limited.join("cgroup.procs")).unwrap();
    for process in list
        .lines()
        .filter_map(|line| Pid::from_raw(line.parse().ok()?))
    {
        let _ = kill_process(process, Signal::KILL);
    }
    let ended = running.wait_with_output().unwrap();
    let value: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let score = &value["outcome"]["scores"][0];
    assert_eq!(
        score["failed"], "the server ended during the measurement",
        "{score}"
    );
    assert_eq!((group(), group_with_share()), (None, None));
}
