//! `headway trace --attach`: tracing from outside, by BPF, and the live view.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::support::{Ran, compile, run, skip, sleeps, trace, traced};

/// Whether BPF is there; if not, says that a test is skipped.
pub fn observes(test: &str) -> bool {
    let ran = run(&["--attach", "-o", "/dev/null", "--", "true"]);
    if ran.code == Some(1) {
        skip(test, "BPF (root, clang at build time, Linux 5.18)");
    }
    ran.code == Some(0)
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn static_program_is_seen_when_it_is_observed_from_outside() {
    let test = "static_program_is_seen_when_it_is_observed_from_outside";
    if !observes(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = "#include <unistd.h>\nint main(void) { usleep(50000); write(1, \"done\\n\", 5); return 6; }";
    let program = compile(folder.path(), source, &["-static"]);
    let (trace, ran) = traced(&["--attach"], &[program.to_str().expect("a path in UTF-8")]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(6), "done\n"),
        "{}",
        ran.error
    );
    assert_eq!(trace["method"], "attach");
    assert!(
        sleeps(&trace).iter().any(|(_, label, _)| label == "timer"),
        "{:?}",
        sleeps(&trace)
    );
}

/// Needs: the program go; root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn go_program_is_seen_when_it_is_observed_from_outside() {
    let test = "go_program_is_seen_when_it_is_observed_from_outside";
    if !observes(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = "package main\nimport (\"os\"; \"time\")\nfunc waitForAByte(r *os.File) { b := make([]byte, 1); r.Read(b) }\n\
                  func main() { r, _ := os.Open(os.Args[1]); waitForAByte(r); time.Sleep(50 * time.Millisecond); os.Exit(5) }";
    let (file, program) = (folder.path().join("main.go"), folder.path().join("program"));
    std::fs::write(&file, source).expect("written");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(&file)
        .env("GOCACHE", folder.path().join("cache"))
        .env("GOFLAGS", "-mod=mod")
        .current_dir(folder.path())
        .output();
    if !built.is_ok_and(|built| built.status.success()) {
        return skip(test, "the program go");
    }
    let (trace, ran) = traced(
        &["--attach", "--every-call"],
        &[program.to_str().expect("a path in UTF-8"), "/dev/zero"],
    );
    assert_eq!(ran.code, Some(5), "{}", ran.error);
    let sites = trace["sites"].as_array().expect("sites");
    let read = sites
        .iter()
        .any(|site| site["call"] == "read" && site["count"].as_u64() > Some(0));
    assert!(read, "{sites:#?}");
    // Each call of Go's is made by one instruction of its runtime: its name shows that the
    // program's symbols were read.
    let named = sites.iter().any(|site| {
        let location = &trace["locations"][site["location"].as_u64().expect("an index") as usize];
        location["function"]
            .as_str()
            .is_some_and(|name| name.to_lowercase().contains("syscall"))
    });
    assert!(named, "{:#?}", trace["locations"]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn exit_code_is_that_of_a_shell_when_an_observed_command_cannot_start() {
    if !observes("exit_code_is_that_of_a_shell_when_an_observed_command_cannot_start") {
        return;
    }
    let ran = run(&["--attach", "--", "no-such-command-here"]);
    assert_eq!(ran.code, Some(127), "{}", ran.error);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn running_process_is_traced_by_its_id() {
    if !observes("running_process_is_traced_by_its_id") {
        return;
    }
    let mut child = Command::new("sh")
        .args(["-c", "while :; do sleep 0.02; done"])
        .stdout(Stdio::null())
        .spawn()
        .expect("a shell");
    let pid = child.id().to_string();
    let ran = run(&["-p", &pid, "--duration", "0.5", "-o", "-"]);
    child.kill().expect("killed");
    child.wait().expect("it ends");
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    assert!(ran.out.contains("out of band, by BPF"), "{}", ran.out);
    assert!(ran.out.contains("child"), "{}", ran.out);
}

#[test]
fn all_processes_of_a_list_or_name_are_traced() {
    if !observes("all_processes_of_a_list_or_name_are_traced") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("headway-sleeper");
    headway_test_support::executable::copy(std::path::Path::new("/bin/sleep"), &program);
    let start = || Command::new(&program).arg("60").spawn().expect("it runs");
    let mut children = [start(), start()];
    let pids = children.each_ref().map(|child| child.id().to_string());
    let name = "headway-sleeper".to_owned();
    let mut outputs = Vec::new();
    for target in [&pids.join(" "), &pids.join(","), &name] {
        outputs.push(run(&["-p", target, "--duration", "0.2", "--json"]));
    }
    for child in &mut children {
        child.kill().expect("killed");
        child.wait().expect("it ends");
    }
    for ran in &outputs {
        assert_eq!(ran.code, Some(0), "{}", ran.error);
        let trace: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
        let programs = trace["programs"].as_array().expect("programs");
        assert_eq!(programs.len(), 2, "{programs:?}");
    }
    let found = &outputs[2].error;
    assert!(
        found.contains("found 2 processes named headway-sleeper"),
        "{found}"
    );
    assert!(pids.iter().all(|pid| found.contains(pid)), "{found}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn every_process_of_a_shell_is_listed_and_their_calls_are_all_calls() {
    if !observes("every_process_of_a_shell_is_listed_and_their_calls_are_all_calls") {
        return;
    }
    let command = "i=0; while [ $i -lt 50 ]; do /bin/true $i; i=$((i+1)); done; exit 3";
    let (trace, ran) = traced(&["--attach"], &["sh", "-c", command]);
    assert_eq!(ran.code, Some(3), "{}", ran.error);
    let programs = trace["programs"].as_array().expect("programs");
    let calls = |of: &serde_json::Value, what: &str| of[what].as_u64().expect("a number");
    let pids: std::collections::BTreeSet<u64> = programs
        .iter()
        .map(|program| calls(program, "pid"))
        .collect();
    assert_eq!(pids.len(), 51, "{programs:?}");
    let listed: u64 = programs.iter().map(|program| calls(program, "calls")).sum();
    let sites = trace["sites"].as_array().expect("call sites");
    let all: u64 = sites.iter().map(|site| calls(site, "count")).sum();
    assert_eq!(listed, all);
    // By their names too, although most have ended before /proc could be read.
    let named = |name: &str| {
        let exe =
            |program: &&serde_json::Value| program["exe"].as_str().unwrap_or("").contains(name);
        programs.iter().filter(exe).count()
    };
    assert_eq!(named("true"), 50, "{programs:?}");
    assert!(
        programs.iter().all(|program| program["exe"] != ""),
        "{programs:?}"
    );
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn call_that_hangs_when_the_trace_ends_is_shown() {
    if !observes("call_that_hangs_when_the_trace_ends_is_shown") {
        return;
    }
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("cat");
    let mut input = child.stdin.take().expect("piped");
    let traced_for_a_second = |input: Option<&mut std::process::ChildStdin>| {
        let pid = child.id().to_string();
        let mut headway = trace(&["-p", &pid, "--json", "--duration", "1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("headway runs");
        let mut line = String::new();
        let mut errors = BufReader::new(headway.stderr.take().expect("piped"));
        errors.read_line(&mut line).expect("its first words");
        if let Some(input) = input {
            input.write_all(b"a line\n").expect("cat reads");
        }
        let ran = Ran::of(&headway.wait_with_output().expect("it ends"));
        serde_json::from_str::<serde_json::Value>(&ran.out).expect("JSON")
    };
    // It hangs already, and nothing comes.
    let trace = traced_for_a_second(None);
    let missing = trace["missing"].to_string();
    assert!(
        missing.contains("1 call from before the trace has not ended")
            && missing.contains("read in"),
        "{missing}"
    );
    // It makes calls, and hangs in the second read.
    let trace = traced_for_a_second(Some(&mut input));
    drop(input);
    child.wait().expect("it ends");
    let missing = trace["missing"].to_string();
    assert!(
        missing.contains("1 call has not ended: read in process"),
        "{missing}"
    );
    let sites = trace["sites"].as_array().expect("call sites");
    let read = sites
        .iter()
        .find(|site| site["call"] == "read")
        .expect("a read");
    assert_eq!(read["count"], 1, "{read}");
    assert!(
        sleeps(&trace)
            .iter()
            .any(|(call, label, _)| call == "read" && label == "pipe"),
        "{:?}",
        sleeps(&trace)
    );
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn observer_ends_when_the_process_does() {
    if !observes("observer_ends_when_the_process_does") {
        return;
    }
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("cat");
    let mut headway = trace(&["-p", &child.id().to_string(), "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("headway runs");
    let mut line = String::new();
    let mut errors = BufReader::new(headway.stderr.take().expect("piped"));
    errors.read_line(&mut line).expect("its first words");
    assert!(line.contains("observing"), "{line}");
    drop(child.stdin.take());
    child.wait().expect("our child");
    let ran = Ran::of(&headway.wait_with_output().expect("it ends"));
    assert_eq!(ran.code, Some(0));
    let trace: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let sites = trace["sites"].as_array().expect("call sites");
    assert!(
        sites.iter().any(|site| site["call"] == "exit_group"),
        "{sites:?}"
    );
}

#[test]
fn invalid_option_is_a_usage_error_when_observing() {
    for (arguments, says) in [
        (&["-p", "many"][..], "no process is named many"),
        (&["-p", "1", "--duration=-1"], "a time such as 10s"),
        (&["-p", "1", "--duration", "soon"], "a time such as 10s"),
        (&["-p", "4294967295"], "no such process: 4294967295"),
        (&["-p", "1,4294967295"], "no such process: 4294967295"),
        (&["-p", ""], "-p needs a process id"),
        (
            &["-p", "1", "--react", "stack"],
            "acts inside the traced program",
        ),
        (&["-p", "1", "--", "true"], "cannot be used with"),
        (&["--no-children", "--", "true"], "--attach"),
    ] {
        let ran = run(arguments);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(2), ""),
            "{arguments:?}: {}",
            ran.error
        );
        assert!(ran.error.contains(says), "{arguments:?}: {}", ran.error);
    }
}

#[test]
fn live_view_does_not_change_output_and_exit_code() {
    let headway = env!("CARGO_BIN_EXE_headway");
    super::support::library();
    let command =
        format!("{headway} trace --live -o /dev/null -- sh -c 'echo said; sleep 1.2; exit 4'");
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .output();
    let ran = Ran::of(&output.expect("script(1) runs"));
    assert_eq!(ran.code, Some(4), "{}", ran.out);
    // The screen is left before the held output follows.
    let (view, after) = ran
        .out
        .rsplit_once("\u{1b}[?1049l")
        .expect("an alternate screen");
    assert!(
        view.contains("\u{1b}[?1049h") && view.contains("LABEL"),
        "{view}"
    );
    assert!(after.contains("said"), "{after}");
}

#[test]
fn live_view_is_an_error_without_a_terminal() {
    // A session of its own has no controlling terminal.
    let headway = trace(&["--live", "--", "sh", "-c", "echo ran"]);
    let output = Command::new("setsid")
        .arg(headway.get_program())
        .args(headway.get_args())
        .stdin(Stdio::null())
        .output()
        .expect("setsid runs");
    let ran = Ran::of(&output);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{}", ran.error);
    assert!(ran.error.contains("needs a terminal"), "{}", ran.error);
}
