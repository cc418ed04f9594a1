//! Standard output that is closed early or full: `| head` is no failure of ours, a full disk is one
//! with a reason.

use crate::serving;
use serving::headway;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Output, Stdio};

/// Sub-commands that print without a server. Their output is longer than nothing.
const COMMANDS: [&[&str]; 6] = [
    &["report", "run", "-o", "-"],
    &["analyze", "run"],
    &["analyze", "run", "--json"],
    &["fileset", "show", "set"],
    &["fileset", "verify", "set"],
    &["completions", "bash"],
];

/// A directory with an empty run and a small set of files.
fn with_run() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    headway_latency::RunWriter::create(&run, &headway_latency::RunDescription::default())
        .and_then(|writer| writer.finish(&headway_latency::RunDescription::default()))
        .unwrap();
    let arguments = [
        "fileset",
        "create",
        "set",
        "--quiet",
        "--profile",
        "uniform",
    ];
    let set = headway()
        .args(arguments)
        .args(["--file-size", "100", "--count", "3"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(set.status.success(), "{set:?}");
    directory
}

fn printing_to(out: impl Into<Stdio>, arguments: &[&str], directory: &Path) -> Output {
    headway()
        .args(arguments)
        .current_dir(directory)
        .stdout(out)
        .output()
        .unwrap()
}

#[test]
fn closed_standard_output_is_no_error() {
    let directory = with_run();
    for arguments in COMMANDS {
        // The reading end is closed before the program starts.
        let (_, out) = std::io::pipe().unwrap();
        let output = printing_to(out, arguments, directory.path());
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), err.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}

#[test]
fn full_standard_output_is_an_error_with_a_reason() {
    let directory = with_run();
    for arguments in COMMANDS {
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = printing_to(full, arguments, directory.path());
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {err}");
        assert!(
            err.contains("writing to standard output: No space left on device"),
            "{arguments:?}: {err}"
        );
    }
    let everything = File::create(directory.path().join("page")).unwrap();
    let output = printing_to(everything, COMMANDS[0], directory.path());
    assert!(output.status.success());
    assert!(fs::metadata(directory.path().join("page")).unwrap().len() > 1000);
}

/// A file, a server or a program may have any name, and the terminal would obey some.
#[test]
fn names_in_output_and_messages_have_no_control_characters() {
    const NAME: &str = "a\u{1b}]0;title\u{7}\u{1b}[2J\rb\u{9b}31m";
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join(NAME);
    let description = headway_latency::RunDescription {
        label: Some(NAME.into()),
        targets: vec![NAME.into()],
        ..Default::default()
    };
    headway_latency::RunWriter::create(&run, &description)
        .and_then(|writer| writer.finish(&description))
        .unwrap();
    let script = directory.path().join(format!("{NAME}.sh"));
    fs::write(&script, "exit 0\n").unwrap();
    let script = script.to_str().unwrap();
    let commands: [&[&str]; 12] = [
        &["analyze", NAME],
        &["analyze", &format!("{NAME}-missing")],
        &["report", &format!("{NAME}-missing"), "-o", "-"],
        &[
            "fileset",
            "create",
            &format!("{NAME}-set"),
            "--profile",
            "uniform",
            "--count",
            "1",
            "--file-size",
            "9",
        ],
        &["fileset", "verify", &format!("{NAME}-set")],
        &["fileset", "show", NAME],
        &["load", &format!("unix:{NAME}")],
        &["profile", &format!("http://127.0.0.1:1/{NAME}")],
        &["serve", "--check", &format!("{NAME}-missing")],
        &["serve", "--config", NAME],
        &["trace", "--", "sh", script],
        &[NAME],
    ];
    for arguments in commands {
        let output = headway()
            .args(arguments)
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        for stream in [output.stdout, output.stderr] {
            let text = String::from_utf8_lossy(&stream);
            let raw = text.chars().find(|&c| c.is_control() && c != '\n');
            assert_eq!(raw, None, "{arguments:?}: {text:?}");
        }
    }
}
