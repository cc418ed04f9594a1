//! `headway report` as its users see it: what it writes, what it leaves alone, and its exit codes.

use crate::serving;
use serving::headway;
use std::fs;
use std::path::Path;

fn run(arguments: &[&str], directory: &Path) -> (i32, String, String) {
    let output = headway()
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The least that is a run directory: its description, without requests.
fn a_run(directory: &Path, version: u32) {
    fs::create_dir(directory).unwrap();
    let text = format!(
        "{{\"format\": {{\"name\": \"headway-run\", \"version\": {version}}}, \"label\": \"mine\"}}"
    );
    fs::write(directory.join("run.json"), text).unwrap();
}

#[test]
fn a_page_is_written_when_runs_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    a_run(&scratch.path().join("run"), 1);
    assert_eq!(
        run(&["report", "run"], scratch.path()),
        (0, String::new(), String::new())
    );
    let page = fs::read_to_string(scratch.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<h1>mine</h1>"));
    let (code, out, _) = run(&["report", "run", "-o", "-"], scratch.path());
    assert_eq!(
        (code, out == page),
        (0, true),
        "the same on standard output"
    );
    assert_eq!(
        fs::read_dir(scratch.path()).unwrap().count(),
        2,
        "nothing else is left"
    );
}

#[test]
fn report_replaces_a_report_and_no_other_file() {
    let scratch = tempfile::tempdir().unwrap();
    a_run(&scratch.path().join("run"), 1);
    let file = scratch.path().join("out");
    assert_eq!(run(&["report", "run", "-o", "out"], scratch.path()).0, 0);
    assert_eq!(run(&["report", "run", "-o", "out"], scratch.path()).0, 0);
    fs::write(&file, "my thesis").unwrap();
    let (code, _, error) = run(&["report", "run", "-o", "out"], scratch.path());
    assert_eq!(code, 1);
    assert!(error.contains("exists and is not a report"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "my thesis");
    let (code, _, error) = run(&["report", "run", "-o", "run"], scratch.path());
    assert_eq!(
        (code, error.contains("is a directory")),
        (1, true),
        "{error}"
    );
}

#[test]
fn exit_code_tells_a_usage_error_from_a_failure() {
    let scratch = tempfile::tempdir().unwrap();
    a_run(&scratch.path().join("newer"), 999);
    let (code, _, error) = run(&["report"], scratch.path());
    assert_eq!((code, error.contains("RUN")), (2, true), "{error}");
    let (code, _, error) = run(&["report", "missing"], scratch.path());
    assert_eq!(
        (code, error.contains("missing: no such directory")),
        (1, true),
        "{error}"
    );
    let (code, _, error) = run(&["report", "newer"], scratch.path());
    assert_eq!((code, error.contains("999")), (1, true), "{error}");
    assert!(!scratch.path().join("report.html").exists());
    let (code, _, error) = run(
        &["report", "newer", "-o", "no/such/place.html"],
        scratch.path(),
    );
    assert_eq!(code, 1, "{error}");
}
