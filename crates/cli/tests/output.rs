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
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    headway_latency::RunWriter::create(&run, &headway_latency::RunDescription::default())
        .and_then(|writer| writer.finish(&headway_latency::RunDescription::default()))
        .unwrap();
    let words = [
        "fileset",
        "create",
        "set",
        "--quiet",
        "--profile",
        "uniform",
    ];
    let set = headway()
        .args(words)
        .args(["--file-size", "100", "--count", "3"])
        .current_dir(place.path())
        .output()
        .unwrap();
    assert!(set.status.success(), "{set:?}");
    place
}

fn printing_to(out: impl Into<Stdio>, words: &[&str], place: &Path) -> Output {
    headway()
        .args(words)
        .current_dir(place)
        .stdout(out)
        .output()
        .unwrap()
}

#[test]
fn closed_standard_output_is_no_error() {
    let place = place();
    for words in COMMANDS {
        // The reading end is closed before the program starts.
        let (_, out) = std::io::pipe().unwrap();
        let output = printing_to(out, words, place.path());
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), err.as_str()),
            (Some(0), ""),
            "{words:?}"
        );
    }
}

#[test]
fn full_standard_output_is_an_error_with_a_reason() {
    let place = place();
    for words in COMMANDS {
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = printing_to(full, words, place.path());
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {err}");
        assert!(
            err.contains("writing to standard output: No space left on device"),
            "{words:?}: {err}"
        );
    }
    let everything = File::create(place.path().join("page")).unwrap();
    let output = printing_to(everything, COMMANDS[0], place.path());
    assert!(output.status.success());
    assert!(fs::metadata(place.path().join("page")).unwrap().len() > 1000);
}
