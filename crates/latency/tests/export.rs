//! A run second by second, in the formats of other programs.

use crate::readers::script_output;
use crate::support;
use headway_latency::export::{Format, Seconds, export};
use headway_latency::run::Window;
use headway_latency::{Outcome, Row, Run, RunDescription, RunWriter};
use headway_test_support::skip;
use std::path::Path;
use std::process::Command;

const SECOND: u64 = 1_000_000_000;

/// Requests that ended 0.2 s, 0.4 s and 3.1 s after the warm-up of a second, one of the warm-up, one
/// without a latency and one that did not end.
fn rows() -> Vec<Row> {
    let row = |end_ms: u64, latency_us: u64, error| Row {
        intended_ns: end_ms * 1_000_000 - latency_us * 1_000,
        start_ns: end_ms * 1_000_000 - latency_us * 1_000,
        first_byte_ns: 0,
        end_ns: end_ms * 1_000_000,
        bytes: 100,
        error,
        warmup: end_ms < 1_000,
        ..support::rows(1)[0]
    };
    vec![
        row(900, 50, Outcome::Ok),
        row(1_200, 1_000, Outcome::Ok),
        row(1_400, 3_000, Outcome::Status),
        row(1_500, 1, Outcome::NoPort),
        row(4_100, 2_000_000, Outcome::Ok),
        row(4_100, 1_000, Outcome::Abandoned),
    ]
}

fn write(path: &Path) -> Run {
    write_rows(path, &rows())
}

fn write_rows(path: &Path, rows: &[Row]) -> Run {
    let mut description = RunDescription {
        epoch_unix_ns: 1_700_000_000 * SECOND,
        ..support::description()
    };
    description.load.measured = Some(Window {
        start_ns: SECOND,
        end_ns: 4 * SECOND,
    });
    let mut writer = RunWriter::create(path, &description).expect("a new directory");
    writer.append(rows).expect("room on the disk");
    writer.finish(&description).expect("room on the disk");
    Run::open(path).expect("a run")
}

fn exported(run: &Run, format: Format) -> String {
    let mut text = Vec::new();
    export(run, format, &mut text).expect("a whole run");
    String::from_utf8(text).expect("UTF-8")
}

#[test]
fn csv_has_a_line_per_second_and_nothing_where_nothing_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = exported(&write(directory.path()), Format::Csv);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("second,complete,errors,untimed,bytes,mean_us,p50_us"));
    assert_eq!(
        lines[1],
        "0,1,2,1,300,2000.0,1000.2,2999.3,2999.3,2999.3,1000.0,3000.0"
    );
    assert_eq!(lines[2..4], ["1,0,0,0,0,,,,,,,", "2,0,0,0,0,,,,,,,"]);
    assert!(
        lines[4].starts_with("3,1,0,0,100,2000000.0,"),
        "{}",
        lines[4]
    );
    assert_eq!(lines.len(), 5);
}

#[test]
fn empty_seconds_are_there_until_the_measured_part_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = exported(&write_rows(directory.path(), &rows()[..4]), Format::Csv);
    let starts: Vec<&str> = text.lines().map(|line| &line[..2]).collect();
    assert_eq!(starts, ["se", "0,", "1,", "2,"]);
}

#[test]
fn late_row_is_in_the_first_second_that_is_open() {
    let (rows, mut seconds) = (rows(), Seconds::new(SECOND));
    seconds.fill(4 * SECOND);
    assert_eq!(seconds.close(2 * SECOND).map(|second| second.at), Some(0));
    assert!(seconds.close(2 * SECOND).is_none(), "it has not ended");
    // It ended in second 0.
    seconds.take(&rows[1]);
    let next = seconds.close(3 * SECOND).expect("it has ended");
    assert_eq!((next.at, next.outcomes[0], next.bytes), (1, 1, 100));
    assert_eq!(seconds.close(u64::MAX).map(|second| second.at), Some(2));
    seconds.take(&rows[1]);
    let last = seconds.close(u64::MAX).expect("a new one");
    assert_eq!((last.at, last.outcomes[0]), (3, 1));
    // One of the warm-up, and one that did not end.
    seconds.take(&rows[0]);
    seconds.take(&rows[5]);
    assert!(seconds.close(u64::MAX).is_none());
}

#[test]
fn json_lines_are_objects_with_the_same_values() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = exported(&write(directory.path()), Format::JsonLines);
    let parse = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    let values: Vec<_> = text.lines().map(parse).collect();
    assert_eq!(values.len(), 4);
    assert_eq!(
        (&values[0]["untimed"], &values[0]["max_us"]),
        (&1.into(), &3000.0.into())
    );
    assert!(values[1]["p50_us"].is_null());
}

#[test]
fn seconds_of_a_long_run_add_up_to_all_rows() {
    let directory = tempfile::tempdir().expect("a directory");
    support::finished(directory.path(), &support::rows(20_000));
    let run = Run::open(directory.path()).expect("a run");
    let text = exported(&run, Format::Csv);
    let column = |at: usize| {
        let values = text.lines().skip(1).map(|line| line.split(',').nth(at));
        let values = values.map(|value| value.and_then(|value| value.parse::<u64>().ok()));
        values.sum::<Option<u64>>().expect("numbers")
    };
    let counts = run.analysis().expect("rows").counts;
    assert_eq!((column(1), column(2)), (counts.complete, counts.errors));
}

/// Needs: the program python3
#[test]
fn hdr_log_is_what_the_format_says_when_another_program_decodes_it() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(
            "hdr_log_is_what_the_format_says_when_another_program_decodes_it",
            "no python3",
        );
    }
    let directory = tempfile::tempdir().expect("a directory");
    let text = exported(&write(directory.path()), Format::HdrLog);
    let found = script_output(
        Path::new("python3"),
        "hdr_log_reads.py",
        "",
        directory.path(),
        &text,
    );
    let found: Vec<[Option<f64>; 6]> = serde_json::from_value(found).expect("numbers");
    assert_eq!(found.len(), 4);
    let [at, length, requests, median, highest, most_ms] = found[0].map(Option::unwrap_or_default);
    assert_eq!((at, length, requests, most_ms), (0.0, 1.0, 2.0, 3.0));
    let near = |found: f64, ns: f64| found <= ns && found > ns * 0.999;
    assert!(
        near(median, 1e6) && near(highest, 3e6),
        "{median} {highest}"
    );
    assert_eq!(
        found[1].map(Option::unwrap_or_default),
        [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    );
    assert_eq!(found[3][2], Some(1.0));
    assert!(found[3][4].is_some_and(|highest| near(highest, 2e9)));
}
