//! A run beside a stored one, what CI gets to read, and figures per second.

use super::responding::{GOOD, LATE, Responding};
use super::{finished, headway, load, read_json, serving};
use headway_latency::{Row, Run, RunDescription, RunWriter};
use std::path::{Path, PathBuf};

/// Two seconds at 100 requests/s: enough for intervals.
const LENGTH: [&str; 6] = ["--rate", "100", "-d", "2s", "--warmup", "0"];

/// A run directory of that load.
fn measured(directory: &Path, url: &str) -> PathBuf {
    let run = directory.join("measured");
    let output = ["-o", run.to_str().unwrap()];
    let (code, _, err) = load(&[&[url], &LENGTH[..], &output].concat());
    assert_eq!(code, 0, "{err}");
    run
}

/// The same run, with each latency changed.
fn changed(run: &Path, name: &str, change: impl Fn(u64) -> u64) -> PathBuf {
    let (run, path) = (Run::open(run).unwrap(), run.with_file_name(name));
    let description = RunDescription {
        summary: None,
        ..run.description().clone()
    };
    let rows: Vec<Row> = run.rows().unwrap().flat_map(Result::unwrap).collect();
    let rows = rows.into_iter().map(|row| Row {
        end_ns: row.intended_ns + change(row.response_ns()),
        start_ns: row.intended_ns,
        first_byte_ns: 0,
        ..row
    });
    let mut writer = RunWriter::create(&path, &description).unwrap();
    writer.append(&rows.collect::<Vec<_>>()).unwrap();
    writer.finish(&description).unwrap();
    path
}

#[test]
fn run_fails_when_all_of_it_is_slower_than_the_baseline_and_ci_can_read_why() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let server = Responding::start(GOOD);
    let run = measured(directory.path(), &server.url);
    let fast = changed(&run, "fast", |ns| ns / 1_000 + 1);
    let mut command = serving::headway();
    command.args(["load", &server.url]).args(LENGTH);
    command.args(["--baseline", fast.to_str().unwrap()]);
    command.args([
        "--fail-if-slower",
        "5%",
        "--fail-if",
        "errors > 0",
        "--json",
    ]);
    command.args(["--junit", &file("junit.xml"), "--github-summary"]);
    command.env("GITHUB_STEP_SUMMARY", file("summary.md"));
    let (code, out, err) = finished(&mut command);
    assert_eq!(code, 3, "{out}{err}");
    assert!(err.contains("p50 is slower by"), "{err}");
    assert!(err.contains(": --fail-if-slower 5%"), "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let changes = &json["baseline"]["comparison"]["changes"];
    assert_eq!(
        (&changes[1]["figure"], &changes[1]["finding"]),
        (&"p50".into(), &"slower".into())
    );
    let junit = std::fs::read_to_string(file("junit.xml")).unwrap();
    assert!(junit.contains("<testcase classname=\"headway.load\" name=\"errors &gt; 0\""));
    assert!(junit.contains("name=\"p50 slower by 5%\""), "{junit}");
    assert!(
        junit.contains("<failure message=\"p50 is slower by"),
        "{junit}"
    );
    let summary = std::fs::read_to_string(file("summary.md")).unwrap();
    assert!(
        summary.contains("| <code>p50 slower by 5%</code> | **failed**"),
        "{summary}"
    );
}

#[test]
fn run_passes_when_it_is_faster_and_the_table_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let server = Responding::start(LATE);
    let run = measured(directory.path(), &server.url);
    let slow = changed(&run, "slow", |ns| ns * 100);
    let baseline = [
        "--baseline",
        slow.to_str().unwrap(),
        "--fail-if-slower",
        "0%",
    ];
    let (code, out, err) = load(&[&[server.url.as_str()], &LENGTH[..], &baseline].concat());
    assert_eq!(code, 0, "{out}{err}");
    let line = out
        .lines()
        .find(|line| line.trim_start().starts_with("p50 "));
    assert!(line.is_some_and(|line| line.ends_with("faster")), "{out}");
}

#[test]
fn baseline_of_another_load_is_a_usage_error_before_anything_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let server = Responding::start(GOOD);
    let run = measured(directory.path(), &server.url);
    let baseline = run.to_str().unwrap();
    let refused = |arguments: &[&str], part: &str| {
        let (code, _, err) = load(&[&[server.url.as_str()], arguments].concat());
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(part), "{err}");
    };
    refused(
        &["--baseline", baseline, "--rate", "200"],
        "differs in the offered rate",
    );
    refused(&["--baseline", baseline, "-c", "1"], "the kind of loop");
    refused(&["--fail-if-slower", "5%"], "--baseline");
    refused(
        &["--baseline", baseline, "--fail-if-slower", "5"],
        "not a percentage",
    );
    refused(&["--junit", "file"], "add --fail-if");
    let arguments = ["load", &server.url, "--baseline", "/nonexistent"];
    assert_eq!(headway(&arguments).0, 1);
    let mut command = serving::headway();
    command.args(["load", &server.url, "--github-summary"]);
    let (code, _, err) = finished(command.env_remove("GITHUB_STEP_SUMMARY"));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("GITHUB_STEP_SUMMARY"), "{err}");
    let incomplete = directory.path().join("incomplete");
    drop(RunWriter::create(&incomplete, &RunDescription::default()).unwrap());
    refused(
        &["--baseline", incomplete.to_str().unwrap()],
        "not complete",
    );
}

#[test]
fn figures_per_second_are_written_beside_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let server = Responding::start(GOOD);
    let arguments = [
        "-n",
        "50",
        "-c",
        "1",
        "-o",
        &file("run"),
        "--out",
        &format!("hdr={}", file("run.hlog")),
        "--out",
        &format!("csv={}", file("run.csv")),
    ];
    let (code, _, err) = load(&[&[server.url.as_str()], &arguments[..]].concat());
    assert_eq!(code, 0, "{err}");
    let log = std::fs::read_to_string(file("run.hlog")).unwrap();
    assert!(
        log.contains("\n0.000,1.000,") && log.contains(",HISTFAAA"),
        "{log}"
    );
    let csv = std::fs::read_to_string(file("run.csv")).unwrap();
    assert!(csv.starts_with("second,complete,"), "{csv}");
    // `analyze` makes the same of the run directory.
    for (kind, expected) in [("csv", csv), ("hdr", log)] {
        let out = format!("{kind}={}", file("again"));
        let (code, _, err) = headway(&["analyze", &file("run"), "--out", &out]);
        assert_eq!(code, 0, "{err}");
        assert_eq!(std::fs::read_to_string(file("again")).unwrap(), expected);
    }
    assert_eq!(
        read_json(Path::new(&file("run/run.json")))["summary"]["requests"],
        50
    );
    for (arguments, part) in [
        (&["--out", "run"][..], "--output"),
        (&["--out", "influxdb=x"], "csv=FILE"),
        (&["--out", "prometheus=localhost:9090"], "/api/v1/write"),
    ] {
        let (code, _, err) = load(&[&[server.url.as_str()], arguments].concat());
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(part), "{err}");
    }
}
