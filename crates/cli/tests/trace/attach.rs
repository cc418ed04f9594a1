//! `headway trace --attach`: tracing from outside, by BPF, and the live view.

use std::io::{BufRead, BufReader};
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
