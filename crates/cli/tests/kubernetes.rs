//! The manifest and the chart for a load from many pods: the commands in them work together, and the chart gives the
//! manifest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use headway_test_support::{find_go_program, find_program, skip};

use crate::load::agents::meeting_address;
use crate::load::responding::{GOOD, Responding};
use crate::serving;

const MANIFEST: &str = "packaging/kubernetes/load.yaml";
const CHART: &str = "packaging/helm/headway-load";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

fn manifest() -> String {
    fs::read_to_string(path(MANIFEST)).expect("a manifest")
}

/// The arguments of the container with this name.
fn arguments(manifest: &str, container: &str) -> Vec<String> {
    let from = manifest
        .split_once(&format!("- name: {container}\n"))
        .expect("a container");
    let (_, list) = from.1.split_once("args:\n").expect("arguments");
    let items = list
        .lines()
        .map_while(|line| line.trim().strip_prefix("- "));
    items
        .map(|item| item.trim_matches('"').to_owned())
        .collect()
}

#[test]
fn commands_of_the_manifest_measure_and_merge() {
    let manifest = manifest();
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().to_str().unwrap();
    let server = Responding::start(GOOD);
    let meeting = meeting_address(2);
    let here = |argument: &String| {
        let argument = argument
            .replace("http://app.default.svc/", &server.url)
            .replace("headway-load-0.headway-load:7070", &meeting)
            .replace("/results", results);
        match &*argument {
            "--rate=4000" => "--rate=400".to_owned(),
            "--duration=60s" => "--duration=1s".to_owned(),
            _ => argument,
        }
    };
    let load = arguments(&manifest, "load");
    assert!(load.iter().any(|one| one == "--rate=4000"), "{load:?}");
    let count = manifest.split_once("completions: ").unwrap().1;
    let count: u32 = count.split_whitespace().next().unwrap().parse().unwrap();
    let agents = (0..count).map(|index| {
        let own = load.iter().map(here);
        let own = own.map(|one| one.replace("$(JOB_COMPLETION_INDEX)", &index.to_string()));
        let mut command = serving::headway();
        command
            .args(own)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    for agent in agents.collect::<Vec<_>>() {
        let output = agent.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{err}");
    }
    let merge = arguments(&manifest, "merge");
    let merged = serving::headway()
        .args(merge.iter().map(here))
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&merged.stderr);
    assert!(merged.status.success(), "{err}");
    let text = fs::read_to_string(directory.path().join("all/run.json")).unwrap();
    let merged: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(merged["agents"].as_array().unwrap().len(), count as usize);
    assert_eq!(merged["load"]["rate_rps"], 400.0);
}

/// Without comments and empty lines; documents in the order of their kind.
fn documents(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let text: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    let text = text.join("\n");
    let all = text.split("---").map(|document| document.trim().to_owned());
    let mut all: Vec<String> = all.filter(|document| !document.is_empty()).collect();
    all.sort();
    all
}

/// Needs: helm: go install helm.sh/helm/v3/cmd/helm@v3.22.0
#[test]
fn chart_gives_the_manifest() {
    let Some(helm) = find_program("helm").or_else(|| find_go_program("helm")) else {
        return skip("chart_gives_the_manifest", "no helm");
    };
    let render = |options: &[&str]| {
        let mut command = Command::new(&helm);
        command.args(["template", "headway-load"]).arg(path(CHART));
        let output = command.args(options).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{err}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(documents(&render(&[])), documents(&manifest()));
    let options = "options={--bearer,a b}";
    let other = render(&["--set", "agents=2", "--set", options, "--set", "rate=7"]);
    let load = arguments(&other, "load");
    for argument in [
        "--rate=7",
        "--agent=$(JOB_COMPLETION_INDEX)/2",
        "--bearer",
        "a b",
    ] {
        assert!(load.iter().any(|one| one == argument), "{load:?}");
    }
    let merge = arguments(&other, "merge");
    assert_eq!(
        merge,
        [
            "merge",
            "/results/agent=0",
            "/results/agent=1",
            "--output=/results/all"
        ]
    );
    let place = "s3://bucket/monday";
    let s3 = format!("results.s3={place}");
    let stored = render(&["--set", &s3, "--set", "results.secret=keys"]);
    assert!(!stored.contains("PersistentVolumeClaim"), "{stored}");
    assert_eq!(stored.matches("emptyDir: {}").count(), 2, "{stored}");
    assert_eq!(stored.matches("name: keys").count(), 2, "{stored}");
    let upload = format!("--upload={place}");
    assert!(arguments(&stored, "load").contains(&upload), "{stored}");
    let merge = arguments(&stored, "merge");
    assert_eq!(merge, ["merge", place, &upload, "--output=/results/all"]);
}
