//! `--kernel-lines`, with a made debug file in place of the kernel's own.

use std::path::Path;

use headway_test_support::made_kernel::{SLEEP_LINE, vmlinux};
use serde_json::Value;

use super::support::{Ran, missing, sees_stacks, trace, traced};

/// The summary of a command that sleeps, with this debug file.
fn summary(vmlinux: &Path, options: &[&str]) -> Ran {
    let mut arguments = vec!["--kernel-lines", "--width", "200", "-o", "-"];
    arguments.extend(options);
    arguments.extend(["--", "sleep", "0.01"]);
    let mut command = trace(&arguments);
    command.env("HEADWAY_VMLINUX", vmlinux);
    Ran::of(&command.output().expect("headway runs"))
}

/// Needs: tracing with stacks (perf_event_paranoid, CAP_PERFMON; kptr_restrict)
#[test]
fn sleep_has_its_line_when_the_kernels_debug_file_is_at_hand() {
    let test = "sleep_has_its_line_when_the_kernels_debug_file_is_at_hand";
    if !sees_stacks(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = vmlinux(folder.path(), 0);
    let text = format!("do_nanosleep ({SLEEP_LINE})");
    let ran = summary(&file, &[]);
    assert!(ran.out.contains(&text), "{}", ran.out);
    assert!(!ran.out.contains("no file and line"), "{}", ran.out);
    let ran = summary(&file, &["--json"]);
    let (file, line) = SLEEP_LINE.split_once(':').expect("file:line");
    let expected = format!("\"file\":\"{file}\",\"line\":{line}");
    assert!(ran.out.contains(&expected), "{}", ran.out);
}

/// Needs: tracing with stacks (perf_event_paranoid, CAP_PERFMON; kptr_restrict); root, or CAP_BPF and CAP_PERFMON; BTF; clang at build
#[test]
fn sleep_has_its_line_when_it_is_observed_from_outside() {
    let test = "sleep_has_its_line_when_it_is_observed_from_outside";
    if !sees_stacks(test) || !super::attach::observes(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ran = summary(&vmlinux(folder.path(), 0), &["--attach", "--json"]);
    let trace: Value = serde_json::from_str(&ran.out).expect("JSON");
    // The sums by site and the calls that were kept, which come by different ways.
    for calls in ["sites", "kept"] {
        let sleeps = trace[calls].as_array().expect("a list").iter();
        let sleeps = sleeps
            .filter_map(|call| call["sleeps"].as_array())
            .flatten();
        let lines: Vec<String> = sleeps
            .filter_map(|sleep| Some(format!("{}:{}", sleep["file"].as_str()?, sleep["line"])))
            .collect();
        assert!(
            lines.iter().any(|line| line == SLEEP_LINE),
            "{calls}: {lines:?}"
        );
    }
}

/// Needs: tracing with stacks (perf_event_paranoid, CAP_PERFMON; kptr_restrict)
#[test]
fn summary_says_why_there_are_no_lines_when_the_debug_file_is_wrong_or_missing() {
    let test = "summary_says_why_there_are_no_lines_when_the_debug_file_is_wrong_or_missing";
    if !sees_stacks(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let others = vmlinux(folder.path(), 4096);
    for (file, why) in [
        (others.as_path(), "it belongs to another kernel"),
        (Path::new("/there/is/none"), "no debug file of this kernel"),
    ] {
        let ran = summary(file, &["--json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.error);
        assert!(
            ran.out.contains("Kernel functions have no file and line"),
            "{}",
            ran.out
        );
        assert!(ran.out.contains(why), "{}", ran.out);
        assert!(!ran.out.contains("made.c"), "{}", ran.out);
    }
    // Without the option there are no lines.
    let (trace, _) = traced(&[], &["sleep", "0.01"]);
    assert!(!missing(&trace).contains("no file and line"));
}
