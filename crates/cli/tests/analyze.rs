//! `headway analyze` as a user meets it: tables, JSON, bad input.

use headway_latency::run::{Kind, LoadInfo, Mode, Point, ProfileInfo, write_description};
use headway_latency::{Outcome, Row, RunDescription, RunWriter};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn analyze(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headway"));
    command
        .arg("analyze")
        .args(arguments)
        .output()
        .expect("headway runs")
}

fn output_text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).expect("UTF-8")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A request each millisecond that takes `us` and a little more for larger files.
fn rows(count: u64, us: u64) -> Vec<Row> {
    (0..count)
        .map(|i| {
            let intended_ns = i * 1_000_000;
            let size_bytes = [102, 512, 4096, 6144, 92_160][(i * 7 % 5) as usize];
            Row {
                intended_ns,
                start_ns: intended_ns + 5_000,
                first_byte_ns: intended_ns + 50_000,
                end_ns: intended_ns + us * 1_000 + i * 7919 % 50_000 + size_bytes / 10,
                size_bytes,
                bytes: size_bytes,
                status: 200,
                error: Outcome::Ok,
                connection: 0,
                ordinal: i as u32,
                class: Row::NO_CLASS,
                target: 0,
                warmup: false,
                handshake_ns: 0,
            }
        })
        .collect()
}

fn description(label: &str) -> RunDescription {
    RunDescription {
        label: Some(label.into()),
        started: "2026-01-02T03:04:05Z".into(),
        load: LoadInfo {
            mode: Mode::Open,
            rate_rps: Some(1000.0),
            duration_s: Some(20.0),
            ..LoadInfo::default()
        },
        ..RunDescription::default()
    }
}

fn write(path: &Path, label: &str, rows: &[Row]) {
    let mut writer = RunWriter::create(path, &description(label)).expect("a new directory");
    writer.append(rows).expect("room on the disk");
    writer
        .finish(&description(label))
        .expect("room on the disk");
}

#[test]
fn cause_appears_once_when_a_file_cannot_be_read() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("run.json")).expect("a directory");
    let refused = analyze(&[text(directory.path())]);
    assert_eq!(refused.status.code(), Some(1));
    let message = output_text(&refused);
    assert_eq!(message.matches("no regular file").count(), 1, "{message}");
}

#[test]
fn control_characters_of_a_label_are_escaped() {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), "\u{1b}[2Jgone\u{9b}", &rows(1_000, 300));
    let shown = output_text(&analyze(&[text(directory.path())]));
    assert!(shown.starts_with("\\x1b[2Jgone"), "{shown}");
    assert!(!shown.contains(['\u{1b}', '\u{9b}']), "{shown}");
}

#[test]
fn tables_and_json_agree_when_a_run_is_analysed() {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), "example", &rows(20_000, 300));
    let tables = analyze(&[text(directory.path()), "--deadline", "0.33ms"]);
    assert!(tables.status.success(), "{}", output_text(&tables));
    let tables = output_text(&tables);
    let json = analyze(&[text(directory.path()), "--deadline", "0.33ms", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    for heading in [
        "Requests",
        "Latency (",
        "Goodput",
        "Latency by size series",
        "Latency deciles",
        "Service inversion",
        "Latency by size",
    ] {
        assert!(
            tables.lines().any(|line| line.starts_with(heading)),
            "{heading}:\n{tables}"
        );
    }
    assert!(!tables.contains('\u{1b}'), "colours in a pipe");
    assert!(
        tables.lines().all(|line| line.chars().count() <= 110),
        "{tables}"
    );
    let value = json["inversion"]["value"].as_f64().expect("a number");
    assert!(
        tables.contains(&format!("value      {value:.3}")),
        "{value}:\n{tables}"
    );
    let p50 = json["response"]["p50_us"].as_f64().expect("a number");
    assert!(tables.contains(&format!("{p50:.0} µs")), "{p50}:\n{tables}");
    let met = json["goodput"][0]["requests"].as_u64().expect("a number");
    assert!(
        met > 1000 && tables.contains(&format!("{},{:03}", met / 1000, met % 1000)),
        "{met}:\n{tables}"
    );
}

#[test]
fn comparison_names_the_higher_run_or_no_evidence() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    write(&path("a"), "one", &rows(20_000, 300));
    write(&path("b"), "two", &rows(20_000, 400));
    let slower = output_text(&analyze(&[text(&path("a")), "--compare", text(&path("b"))]));
    assert_eq!(slower.matches("B is higher").count(), 4, "{slower}");
    let same = output_text(&analyze(&[text(&path("a")), "--compare", text(&path("a"))]));
    assert_eq!(
        same.matches("no evidence of a difference").count(),
        4,
        "{same}"
    );
    let json = analyze(&[text(&path("a")), "--compare", text(&path("b")), "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["differences"][0]["evidence"], "higher");
}

#[test]
fn profile_has_a_line_per_point_and_details_with_point() {
    let directory = tempfile::tempdir().expect("a directory");
    let point = |relative: f64, repeat: u32, done: bool| Point {
        relative,
        repeat,
        done,
        rate_rps: relative * 1000.0,
        directory: format!("points/{relative:.2}-{repeat}"),
        of_client: false,
        of_knee: false,
    };
    let points = vec![
        point(0.2, 1, true),
        point(0.8, 1, true),
        point(0.8, 2, true),
        point(0.95, 1, false),
    ];
    for point in points.iter().filter(|point| point.done) {
        write(
            &directory.path().join(&point.directory),
            "server",
            &rows(2_000, 300),
        );
    }
    let profile = ProfileInfo {
        capacity_rps: Some(1000.0),
        client_bound: None,
        points,
    };
    let described = RunDescription {
        kind: Kind::Profile,
        profile: Some(profile),
        ..description("server")
    };
    write_description(directory.path(), &described, false).expect("room on the disk");
    let listing = output_text(&analyze(&[text(directory.path())]));
    for expected in [
        "capacity 1,000 requests/s (given, not measured); 3 of 4 points measured; incomplete",
        "0.20-1",
        "0.80-2",
        "Between repetitions",
    ] {
        assert!(listing.contains(expected), "{expected}:\n{listing}");
    }
    assert!(
        output_text(&analyze(&[text(directory.path()), "--point", "0.2"]))
            .contains("Service inversion")
    );
    let json = analyze(&[text(directory.path()), "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["points"].as_array().map(Vec::len), Some(3));
    for (wrong, expected) in [
        ("0.8", "0.80-1, 0.80-2"),
        ("0.95", "no finished point 0.95"),
        ("x", "no finished point x"),
    ] {
        let output = analyze(&[text(directory.path()), "--point", wrong]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
        assert!(
            output_text(&output).contains(expected),
            "{}",
            output_text(&output)
        );
    }
    let output = analyze(&[text(directory.path()), "--compare", text(directory.path())]);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
}

#[test]
fn error_names_the_file_when_a_run_cannot_be_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    for name in ["cut", "newer", "lost", "empty"] {
        write(&path(name), name, &rows(500, 300));
    }
    std::fs::create_dir(path("nothing")).expect("a directory");
    let requests = path("cut").join("requests.parquet");
    let whole = std::fs::read(&requests).expect("a file");
    std::fs::write(&requests, &whole[..whole.len() / 2]).expect("a file");
    let newer = r#"{"format": {"name": "headway-run", "version": 7}}"#;
    std::fs::write(path("newer").join("run.json"), newer).expect("a file");
    std::fs::remove_file(path("lost").join("requests.parquet")).expect("a file");
    std::fs::write(path("empty").join("run.json"), "").expect("a file");
    let expected = [
        ("cut", "truncated"),
        ("newer", "version 7"),
        ("lost", "requests.parquet: missing"),
        ("empty", "not the description of a run"),
        ("nothing", "no run.json in it"),
        ("absent", "no such directory"),
    ];
    for (name, message) in expected {
        let output = analyze(&[text(&path(name))]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(
            output.stdout.is_empty() && output_text(&output).contains(message),
            "{name}: {}",
            output_text(&output)
        );
    }
    for wrong in ["0", "-1", "soon", "inf"] {
        let output = analyze(&[text(&path("cut")), &format!("--deadline={wrong}")]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn run_without_a_response_is_shown_as_such() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    write(&path("empty"), "empty", &[]);
    let empty = analyze(&[text(&path("empty"))]);
    assert!(
        empty.status.success() && output_text(&empty).contains("no request ended"),
        "{}",
        output_text(&empty)
    );
    let failed = |row: Row| Row {
        error: Outcome::Refused,
        status: 0,
        bytes: 0,
        first_byte_ns: 0,
        ..row
    };
    write(
        &path("refused"),
        "refused",
        &rows(500, 300).into_iter().map(failed).collect::<Vec<_>>(),
    );
    let refused = analyze(&[text(&path("refused"))]);
    assert!(
        refused.status.success() && output_text(&refused).contains("500 (100 %): refused 500"),
        "{}",
        output_text(&refused)
    );
    assert!(!output_text(&refused).contains("inversion"));
    let compared = analyze(&[text(&path("refused")), "--compare", text(&path("empty"))]);
    assert_eq!(compared.status.code(), Some(1));
    assert!(
        output_text(&compared).contains("no request ended in the second run"),
        "{}",
        output_text(&compared)
    );
}

#[test]
fn run_that_was_cut_off_is_analysed_and_marked() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut writer =
        RunWriter::create(directory.path(), &description("cut")).expect("a new directory");
    writer.append(&rows(5_000, 300)).expect("room on the disk");
    let going = analyze(&[text(directory.path())]);
    assert!(
        output_text(&going).contains("incomplete: the run is still going"),
        "{}",
        output_text(&going)
    );
    drop(writer);
    let output = analyze(&[text(directory.path())]);
    assert!(
        output_text(&output).contains("incomplete: the run was cut off"),
        "{}",
        output_text(&output)
    );
    assert!(
        output_text(&output).contains("5,000 in 5 s"),
        "{}",
        output_text(&output)
    );
}

/// A request per second, of which every tenth takes `slow_ms`.
fn nginx_log(slow_ms: u64) -> String {
    let line = |index: u64| {
        let (minute, second) = (index / 60 % 60, index % 60);
        let ms = if index.is_multiple_of(10) { slow_ms } else { 5 };
        let size = [102, 6_144, 92_160][(index % 3) as usize];
        format!(
            "192.0.2.1 - - [26/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET /a HTTP/1.1\" 200 {size} \
             \"-\" \"curl\" {}.{:03}\n",
            ms / 1000,
            ms % 1000
        )
    };
    (0..600).map(line).collect()
}

#[test]
fn log_of_a_server_has_the_tables_of_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    std::fs::write(&log, nginx_log(800) + "no request\n").expect("written");
    let shown = output_text(&analyze(&[text(&log)]));
    assert!(shown.contains("log of nginx · 600 requests"), "{shown}");
    assert!(
        shown.contains("left out: 1 lines in another format"),
        "{shown}"
    );
    assert!(shown.contains("p50 5.00 ms, p99 800 ms"), "{shown}");
    assert!(shown.contains("inversion"), "{shown}");
    let output = analyze(&[text(&log), "--json", "--deadline", "10ms"]);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["counts"]["requests"], 600);
    assert_eq!(json["response"]["p90_us"], 5000.0);
    assert_eq!(json["goodput"][0]["requests"], 540, "{}", json["goodput"]);
}

#[test]
fn two_logs_are_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let [before, after] = [("before.log", 800), ("after.log", 80)].map(|(name, slow_ms)| {
        let path = folder.path().join(name);
        std::fs::write(&path, nginx_log(slow_ms)).expect("written");
        path
    });
    let shown = output_text(&analyze(&[text(&before), "--compare", text(&after)]));
    assert!(shown.contains("B is lower"), "{shown}");
    let output = analyze(&[text(&before), "--compare", text(folder.path())]);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
}

#[test]
fn log_that_has_no_latency_is_an_error_which_says_what_to_add() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    std::fs::write(
        &log,
        "h - - [26/Nov/2026:10:00:01 +0000] \"GET / HTTP/1.1\" 200 1\n",
    )
    .expect("written");
    let output = analyze(&[text(&log)]);
    let shown = output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("$request_time"), "{shown}");
    for arguments in [
        &["--format", "combined"][..],
        &["--out", "csv=x.csv"][..],
        &["--point", "0.8"][..],
    ] {
        let output = analyze(&[&[text(&log)], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    }
    let output = analyze(&[text(folder.path()), "--format", "nginx"]);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
}
