//! Studies in a lab: one whose runner is killed, one with a fault and everyone who may watch.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde_json::Value;

use crate::common;

use super::support::{can, command_lines, headway_lab, skip, text, traces_of, wait_until};

const STUDY: &str = r#"
number = 90
name = "killed"
title = "A study whose runner is killed"
[scale.quick]
repeats = 1
seconds = 2
[environment.small]
set = "5MB"
disk = "nvme"
memory = "128MB"
link = "1Gbit"
[workload.few]
connections = 4
[[measure]]
name = "m"
environment = "small"
workload = "few"
servers = ["headway"]
points = ["50%"]
[[table]]
title = "Rates"
columns = ["answered"]
[[table.ours]]
row = "{server}"
each = ["all"]
cells = ["rate_rps(m, {server}, 50%)"]
"#;

/// Records of what is measured, with their moments.
fn done(output: &Path) -> Vec<(std::path::PathBuf, SystemTime)> {
    let entries = std::fs::read_dir(output.join("measurements"));
    let records = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("measurement.json"));
    let moment = |path: &Path| std::fs::metadata(path).ok()?.modified().ok();
    let mut done: Vec<_> = records
        .filter_map(|path| Some((path.clone(), moment(&path)?)))
        .collect();
    done.sort();
    done
}

/// The same with everything beside the server that an environment may have.
fn with_writers() -> String {
    let more = "overlay = \"disk\"\nwriters = { publish = 50, append = 50, dirty = \"1MB\" }\n";
    STUDY.replace("disk = \"nvme\"\n", &format!("disk = \"nvme\"\n{more}"))
}

fn run(directory: &Path) -> Command {
    let mut command = headway_lab(&["study", "run", "killed.toml", "-o", "out"]);
    command.current_dir(directory).stdin(Stdio::null());
    command
}

/// Needs: root: makes a lab
#[test]
fn lab_of_a_killed_study_is_removed_when_the_study_is_resumed() {
    let test = "lab_of_a_killed_study_is_removed_when_the_study_is_resumed";
    assert_lab_of_a_killed_study_is_removed(test, STUDY);
}

/// Needs: root: makes a lab
#[test]
fn writers_and_overlay_of_a_killed_study_are_removed_when_the_study_is_resumed() {
    let test = "writers_and_overlay_of_a_killed_study_are_removed_when_the_study_is_resumed";
    assert_lab_of_a_killed_study_is_removed(test, &with_writers());
}

/// Needs: root: makes a lab
#[test]
fn nothing_is_left_of_an_interrupted_study_with_writers_and_an_overlay() {
    let test = "nothing_is_left_of_an_interrupted_study_with_writers_and_an_overlay";
    if !can(test, &["disk", "memory limit", "link"]) {
        return;
    }
    let directory = study_directory(&with_writers());
    let output = directory.path().join("out");
    let mut command = run(directory.path());
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("started");
    wait_until("a measurement is done", || !done(&output).is_empty());
    let lab = lab_of(&output);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("our child");
    assert_eq!(child.wait().expect("an end").code(), Some(1));
    assert_eq!(traces_of(&lab), Vec::<String>::new());
    assert_eq!(writers_of(&lab), 0);
}

/// Needs: root: makes a lab; apache2 and apxs: scripts/setup
#[test]
fn flashpache_is_measured_in_a_study() {
    let test = "flashpache_is_measured_in_a_study";
    if !can(test, &["disk", "memory limit", "link"]) {
        return;
    }
    if let Err(reason) = build_module() {
        return skip(test, &reason);
    }
    let study = STUDY.replace("[\"headway\"]", "[\"flashpache\"]");
    let study = study.replace("\"50%\"", "\"100/s\"").replace("50%", "100/s");
    let directory = study_directory(&study);
    let output = run(directory.path()).output().expect("a run");
    let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{printed}");
    let records = done(&directory.path().join("out"));
    assert_eq!(records.len(), 1, "{printed}");
    let record = std::fs::read_to_string(&records[0].0).expect("a record");
    let record: Value = serde_json::from_str(&record).expect("JSON");
    assert!(record["failed"].is_null(), "{record:#}");
}

/// Puts our module for Apache beside `headway-lab`, where it looks for the module.
fn build_module() -> Result<(), String> {
    let apxs = Command::new("apxs").arg("-q").arg("CC").output();
    if !apxs.is_ok_and(|output| output.status.success()) {
        return Err("no apxs: scripts/setup installs it".into());
    }
    let directory = Path::new(env!("CARGO_BIN_EXE_headway-lab")).parent();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apache");
    let mut make = Command::new("make");
    make.arg("-C").arg(folder);
    make.arg(format!("OUT={}", directory.expect("a folder").display()));
    let built = make.output().map_err(|error| error.to_string())?;
    let why = || String::from_utf8_lossy(&built.stderr).into_owned();
    built.status.success().then_some(()).ok_or_else(why)
}

fn study_directory(study: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    // Beside its own words a study has those of `common.toml`; an empty one keeps Headway's out.
    std::fs::write(directory.path().join("common.toml"), "").expect("room");
    std::fs::write(directory.path().join("killed.toml"), study).expect("room");
    directory
}

/// The name of the lab of a run that is at work, or was killed.
fn lab_of(output: &Path) -> String {
    let text = std::fs::read_to_string(output.join("running.json")).unwrap_or_default();
    let journal: Value = serde_json::from_str(&text).unwrap_or_default();
    journal["lab"].as_str().expect("a lab").to_owned()
}

fn writers_of(lab: &str) -> usize {
    let command = format!(" write {lab} ");
    let lines = command_lines();
    lines.iter().filter(|line| line.contains(&command)).count()
}

fn assert_lab_of_a_killed_study_is_removed(test: &str, study: &str) {
    if !can(test, &["disk", "memory limit", "link"]) {
        return;
    }
    let directory = study_directory(study);
    let output = directory.path().join("out");
    let mut command = run(directory.path());
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("started");
    // The capacity is measured, and the share of it has begun: writers pause between the two.
    let begun = || std::fs::read_dir(output.join("measurements")).map_or(0, Iterator::count);
    wait_until("the second measurement", || {
        !done(&output).is_empty() && begun() == 2
    });
    let writers = usize::from(study.contains("writers"));
    wait_until("the writers run", || {
        writers_of(&lab_of(&output)) == writers
    });
    child.kill().expect("our child");
    child.wait().expect("an end");
    let first = done(&output);
    let lab = lab_of(&output);
    assert_eq!(writers_of(&lab), writers, "they outlive a kill");
    assert!(!traces_of(&lab).is_empty(), "it outlives a kill");

    let ran = run(directory.path()).output().expect("started");
    let said = text(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let cleared = format!("cleared what a killed run left: lab {lab}");
    assert!(said.contains(&cleared), "{said}");
    assert_eq!(traces_of(&lab), Vec::<String>::new());
    assert_eq!(writers_of(&lab), 0);
    let second = done(&output);
    assert_eq!(second.len(), 2, "capacity and a rate");
    assert!(first.iter().all(|kept| second.contains(kept)), "{said}");
    assert!(!output.join("running.json").exists());
}

const WATCHED: &str = r#"
number = 91
name = "watched"
title = "A stalled disk, a second client and two observers"
[scale.quick]
repeats = 1
seconds = 1.5
warmup = 0.2
[environment.calm]
files = { count = 300, file-size = "16kB" }
disk = "ssd-sata"
memory = "128MB"
link = "1Gbit"
# Another one, so that nobody has asked there before.
[environment.cold]
extends = "calm"
memory = "120MB"
[workload.few]
connections = 4
timeout = "3s"
[[measure]]
name = "stalled"
environment = "cold"
workload = "few"
servers = ["headway"]
points = ["200/s"]
probe = { count = 5, file-size = "8kB", rate = 100 }
fault = { kind = "stall", at = "100ms", for = "800ms" }
[[measure]]
name = "sampled"
environment = "calm"
workload = "few"
servers = ["headway"]
points = ["200/s"]
observe = "runnable"
[[measure]]
name = "traced"
environment = "calm"
workload = "few"
servers = ["headway"]
points = ["200/s"]
observe = "trace"
[[table]]
title = "What was seen"
columns = ["stalled", "the file set, 99 %", "memory, lost", "sampled", "traced"]
[[table.ours]]
row = "Headway"
cells = [
  "requests(stalled, headway, 200/s)",
  "background_p99_ms(stalled, headway, 200/s)",
  "errors(stalled, headway, 200/s)",
  "runnable_mean(sampled, headway, 200/s)",
  "time_share:accept4(traced, headway, 200/s)",
]
"#;

#[test]
fn study_stalls_the_disk_and_observes_the_server_as_specified() {
    let test = "study_stalls_the_disk_and_observes_the_server_as_specified";
    if !can(test, &["disk", "memory limit", "link"]) {
        return;
    }
    let mut observer = Command::new(common::headway());
    observer.args(["trace", "--attach", "-o", "/dev/null", "--", "true"]);
    let observes = observer.output().expect("started").status.success();
    let directory = tempfile::tempdir().expect("a directory");
    let study = match observes {
        true => WATCHED.to_owned(),
        false => {
            skip(test, "BPF for the measure that is traced");
            WATCHED.replace("observe = \"trace\"", "")
        }
    };
    std::fs::write(directory.path().join("common.toml"), "").expect("room");
    std::fs::write(directory.path().join("watched.toml"), study).expect("room");
    let mut command = headway_lab(&["study", "run", "watched.toml", "-o", "out", "--json"]);
    let ran = command.current_dir(directory.path()).stdin(Stdio::null());
    let ran = ran.output().expect("started");
    let said = text(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let cells = results[0]["tables"][0]["ours"][0]["cells"].clone();
    let cell = |at: usize| cells[at]["value"].as_f64();

    // 100 a second for 1.5 s, of files in memory; none is lost, whatever the disk does.
    assert!(cell(0).is_some_and(|count| count > 75.0), "{cells}\n{said}");
    assert_eq!(cell(2), Some(0.0), "{cells}");
    // Of the file set's, which are cold, most of those asked for in the stall wait for its end.
    assert!(cell(1).is_some_and(|ms| ms > 300.0), "{cells}\n{said}");
    assert!(cell(3).is_some(), "{cells}\n{said}");
    if observes {
        assert!(cell(4).is_some_and(|share| share > 0.0), "{cells}\n{said}");
    }
}
