//! `headway-lab serve`: the servers of the papers, by options and by the table `[research]`.

use crate::common::headway_lab;

/// Wrong uses, and a word of the message each gets.
const USAGE_ERRORS: &[(&[&str], &str)] = &[
    (
        &["--preset", "apache"],
        "flash, flash-sendfile, fd-pass, no-mmap, new-flash, headway",
    ),
    (&["--send", "mmap"], "copy, sendfile"),
    (
        &["--send-method", "splice"],
        "sendfile-resident, sendfile-plain, sendfile-recent, sendfile-mapped, mmap",
    ),
    (
        &["--thundering-herd"],
        "--thundering-herd: it needs listeners",
    ),
    (
        &["--preset", "accept25", "--eager-write"],
        "eager writes need eager reads",
    ),
    (
        &["--preset", "accept25", "--accept-batch", "auto"],
        "cannot be combined with preset = \"accept25\"",
    ),
    (&["--preset", "cm", "--full-read=off"], "has full-read on"),
    (
        &["--stall-every", "0"],
        "--stall-every: 0 is not a number of requests",
    ),
];

/// Exit code, standard output and standard error of `headway-lab serve`.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = headway_lab().arg("serve").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn wrong_option_of_the_papers_is_a_usage_error() {
    for (arguments, word) in USAGE_ERRORS {
        let (code, _, error) = run(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {error}");
        assert!(error.contains(word), "{arguments:?}: {error}");
    }
}

#[test]
fn help_has_the_options_of_the_papers_in_one_group() {
    let (_, help, _) = run(&["--help"]);
    assert_eq!(help.matches("\nResearch:\n").count(), 1, "{help}");
    let (_, research) = help.split_once("\nResearch:\n").unwrap();
    for option in ["--preset", "--send-method", "--thundering-herd"] {
        assert!(research.contains(option), "{option}: {help}");
    }
}

#[test]
fn preset_option_takes_precedence_over_the_table_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headway.toml");
    std::fs::write(
        &file,
        "[research]\nsend-method = \"sendfile-recent\"\ncaching = false\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let (_, printed, error) = run(&["--config", file, "--check"]);
    assert!(
        printed.contains("\n[research]\n")
            && printed.contains("\nsend-method = \"sendfile-recent\"\n"),
        "{printed}{error}"
    );
    let (_, printed, error) = run(&["--config", file, "--preset", "flash", "--check"]);
    for line in [
        "opening = \"touch-and-reopen\"",
        "send-method = \"mmap\"",
        "caching = false",
    ] {
        assert!(
            printed.lines().any(|found| found == line),
            "{line}: {printed}{error}"
        );
    }
}
