//! A study in a lab whose runner is killed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde_json::Value;

use super::support::{can, headway, text, traces_of, wait_until};

const STUDY: &str = r#"
number = 90
name = "killed"
title = "A study whose runner is killed"
[scale.quick]
repeats = 1
seconds = 0.4
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

fn run(directory: &Path) -> Command {
    let mut command = headway(&["study", "run", "killed.toml", "-o", "out"]);
    command.current_dir(directory).stdin(Stdio::null());
    command
}

#[test]
fn lab_of_a_killed_study_is_gone_when_the_same_command_has_gone_on() {
    let test = "lab_of_a_killed_study_is_gone_when_the_same_command_has_gone_on";
    if !can(test, &["disk", "memory limit", "link"]) {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    // Beside its own words a study has those of `common.toml`; an empty one keeps Headway's out.
    std::fs::write(directory.path().join("common.toml"), "").expect("room");
    std::fs::write(directory.path().join("killed.toml"), STUDY).expect("room");
    let output = directory.path().join("out");
    let journal = || -> Value {
        let text = std::fs::read_to_string(output.join("running.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    };
    let mut command = run(directory.path());
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("started");
    // The capacity is measured, and the share of it is about to be.
    wait_until("a measurement is done", || !done(&output).is_empty());
    child.kill().expect("our child");
    child.wait().expect("an end");
    let first = done(&output);
    let lab = journal()["lab"].as_str().expect("a lab").to_owned();
    assert!(!traces_of(&lab).is_empty(), "it outlives a kill");

    let ran = run(directory.path()).output().expect("started");
    let said = text(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let cleared = format!("cleared what a killed run left: lab {lab}");
    assert!(said.contains(&cleared), "{said}");
    assert_eq!(traces_of(&lab), Vec::<String>::new());
    let second = done(&output);
    assert_eq!(second.len(), 2, "capacity and a rate");
    assert!(first.iter().all(|kept| second.contains(kept)), "{said}");
    assert!(!output.join("running.json").exists());
}
