//! The command's output, exit code, signals and environment are its own.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::support::{Ran, library, run, trace};

#[test]
fn output_and_exit_code_are_the_commands_own_when_it_is_traced() {
    let ran = run(&["--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(7), "out\n"));
    assert!(
        ran.error.starts_with("err\n\nsh -c echo out"),
        "{}",
        ran.error
    );
    assert!(ran.error.contains("exit code 7"), "{}", ran.error);
}

#[test]
fn nothing_is_added_to_standard_error_when_the_summary_goes_to_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("summary");
    let name = file.to_str().expect("a path in UTF-8");
    let ran = run(&["-o", name, "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!((ran.out.as_str(), ran.error.as_str()), ("out\n", "err\n"));
    let summary = std::fs::read_to_string(&file).expect("written");
    assert!(summary.contains("Call sites"), "{summary}");
}

#[test]
fn exit_code_is_128_and_the_signal_when_the_command_is_killed() {
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        let ran = run(&["--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(ran.code, Some(code), "{}", ran.error);
        // What had been counted is there, also after SIGKILL.
        assert!(
            ran.error
                .contains(&format!("killed by signal {}", code - 128)),
            "{}",
            ran.error
        );
        assert!(ran.error.contains("Call sites"), "{}", ran.error);
    }
}

#[test]
fn signal_reaches_the_command_when_it_is_sent_to_headway() {
    // Not HUP: under nohup(1) it is ignored, and what is ignored a shell cannot trap.
    for signal in [Signal::USR1, Signal::TERM, Signal::USR2] {
        let script = "trap 'exit 9' USR1 TERM USR2; echo ready; while :; do sleep 0.02; done";
        let mut headway = trace(&["--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("headway runs");
        let mut line = String::new();
        let output = headway.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        let pid = Pid::from_raw(headway.id() as i32).expect("a process");
        kill_process(pid, signal).expect("sent");
        let ran = Ran::of(&headway.wait_with_output().expect("it ends"));
        assert_eq!(ran.code, Some(9), "{signal:?}: {}", ran.error);
        assert!(ran.error.contains("exit code 9"), "{}", ran.error);
    }
}

#[test]
fn input_reaches_the_command_when_it_reads_standard_input() {
    let mut headway = trace(&["--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("runs");
    let mut input = headway.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, b"through\n").expect("written");
    drop(input);
    let ran = Ran::of(&headway.wait_with_output().expect("it ends"));
    assert_eq!(ran.out, "through\n");
}

#[test]
fn other_preloaded_libraries_stay_when_there_are_some() {
    let output = trace(&["-o", "/dev/null", "--", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", "libc.so.6")
        .output()
        .expect("headway runs");
    let own = library().canonicalize().expect("a path");
    assert_eq!(
        Ran::of(&output).out,
        format!("{}:libc.so.6\n", own.display())
    );
}
