//! Usage errors, missing commands, programs that cannot be traced, missing privileges.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use headway_test_support::executable;

use super::support::{Ran, compile, is_root, library, missing, run, skip, trace, traced};

#[test]
fn exit_code_is_that_of_a_shell_when_the_command_cannot_start() {
    let ran = run(&["--", "no-such-command-here"]);
    assert_eq!(ran.code, Some(127), "{}", ran.error);
    assert!(
        ran.error
            .contains("no-such-command-here: command not found"),
        "{}",
        ran.error
    );
    let ran = run(&["--", "/etc/passwd"]);
    assert_eq!(ran.code, Some(126), "{}", ran.error);
    assert!(ran.error.contains("cannot be executed"), "{}", ran.error);
}

#[test]
fn invalid_option_is_a_usage_error_before_the_command_runs() {
    let cases: &[(&[&str], &str)] = &[
        (
            &["--call", "reed"],
            "`reed`: this machine has no such system call",
        ),
        (&["--label", "disk"], "page-io"),
        (&["--slower-than", "5h"], "a time such as"),
        (&["--site", "main,0x10"], "either names or addresses"),
        (&["--site", "main", "--one-in", "3"], "of all call sites"),
        (&["--site", "0x1x"], "use an address"),
        (&["--react", "scream"], "stack, core, abort or hook=COMMAND"),
        (&["--react", "stack", "--when", "slow=5"], "slow=5"),
        (&["--react", "hook=a; b"], "semicolon"),
        (&["--when", "slept"], "--react"),
        (&["--history", "figure.png"], ".csv, .parquet or .svg"),
        (&["--show", "everything"], "everything"),
        (&["--log-size", "1KiB"], "from 4KiB to 16GiB"),
        (&["--duration", "1"], "--pid"),
    ];
    for (options, says) in cases {
        let mut arguments = options.to_vec();
        arguments.extend(["--", "sh", "-c", "echo ran"]);
        let ran = run(&arguments);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(2), ""),
            "{options:?}: {}",
            ran.error
        );
        assert!(ran.error.contains(says), "{options:?}: {}", ran.error);
    }
    assert_eq!(run(&[]).code, Some(2));
    assert_eq!(run(&["cat", "file"]).code, Some(2));
}

#[test]
fn command_does_not_run_when_its_trace_could_not_be_written() {
    let ran = run(&["-o", "/nonexistent/summary", "--", "sh", "-c", "echo ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{}", ran.error);
    assert!(ran.error.contains("/nonexistent/summary"), "{}", ran.error);
}

#[test]
fn error_lists_the_searched_directories_when_the_library_is_missing() {
    let output = trace(&["--", "true"])
        .env("HEADWAY_PRELOAD", "/nonexistent.so")
        .output()
        .expect("runs");
    let ran = Ran::of(&output);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.error.contains("HEADWAY_PRELOAD=/nonexistent.so"),
        "{}",
        ran.error
    );
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("headway");
    executable::copy(Path::new(env!("CARGO_BIN_EXE_headway")), &copy);
    let output = Command::new(copy)
        .args(["trace", "--", "true"])
        .output()
        .expect("runs");
    let ran = Ran::of(&output);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.error.contains("libdebox_preload.so was not found"),
        "{}",
        ran.error
    );
    assert!(ran.error.contains("make install"), "{}", ran.error);
}

#[test]
fn static_program_runs_and_the_warning_names_attach() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "int main(void) { return 5; }", &["-static"]);
    let (trace, ran) = traced(&[], &[program.to_str().expect("a path in UTF-8")]);
    assert_eq!(ran.code, Some(5));
    for text in [&ran.error, &missing(&trace)] {
        assert!(
            text.contains("is statically linked") && text.contains("--attach"),
            "{text}"
        );
    }
    let (trace, ran) = traced(
        &[],
        &["sh", "-c", &format!("{}; exit 0", program.display())],
    );
    assert_eq!(ran.code, Some(0));
    assert!(missing(&trace).contains("is statically linked"), "{trace}");
}

#[test]
fn calls_that_have_no_name_keep_their_numbers_when_a_program_makes_some() {
    let source = "#include <unistd.h>\n#include <sys/syscall.h>\n\
                  int main(void) { syscall(9998); syscall(9999); syscall(9999); return 0; }\n";
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), source, &[]);
    let (trace, _) = traced(&[], &[program.to_str().expect("a path in UTF-8")]);
    let sites = trace["sites"].as_array().expect("sites").iter();
    let calls: u64 = sites
        .clone()
        .filter(|site| site["call"] == "call 9999")
        .filter_map(|site| site["count"].as_u64())
        .sum();
    assert_eq!(calls, 2);
    assert!(sites.clone().any(|site| site["call"] == "call 9998"));
}

#[test]
fn call_sites_are_offsets_when_the_program_is_stripped() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "#include <unistd.h>\nint main(void) { return read(-1, 0, 0) == -1 ? 0 : 1; }";
    let program = compile(folder.path(), source, &["-s"]);
    let path = program.to_str().expect("a path in UTF-8").to_owned();
    let ran = run(&["--", &path]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.error.contains("program+0x"), "{}", ran.error);
    assert!(
        ran.error.contains("has no symbols: program"),
        "{}",
        ran.error
    );
    let program = compile(folder.path(), source, &[]);
    let ran = run(&["--", program.to_str().expect("a path in UTF-8")]);
    assert!(
        ran.error.contains("main (") && ran.error.contains("program.c:2)"),
        "{}",
        ran.error
    );
}

/// A directory of programs that another user can execute: the build directory may be private.
fn public_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
        .expect("made public");
    for file in [Path::new(env!("CARGO_BIN_EXE_headway")), library()] {
        let name = file.file_name().expect("a name");
        executable::copy(file, &folder.path().join(name));
    }
    folder
}

fn traced_as_unprivileged_user(folder: &Path, arguments: &[&str]) -> Ran {
    let output = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
        ])
        .arg(folder.join("headway"))
        .arg("trace")
        .args(arguments)
        .current_dir("/")
        .env_remove("LD_PRELOAD")
        .output()
        .expect("setpriv runs");
    Ran::of(&output)
}

/// Needs: root, to become another user; kernel.perf_event_paranoid of 2 or more
#[test]
fn summary_names_the_sysctl_when_the_user_may_not_see_stacks() {
    let test = "summary_names_the_sysctl_when_the_user_may_not_see_stacks";
    let paranoid =
        std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if !is_root(test) {
        return;
    }
    if paranoid.trim().parse().is_ok_and(|level: i32| level < 2) {
        return skip(test, "kernel.perf_event_paranoid of 2 or more");
    }
    let folder = public_folder();
    let ran = traced_as_unprivileged_user(folder.path(), &["--", "sh", "-c", "sleep 0.01; exit 3"]);
    assert_eq!(ran.code, Some(3), "{}", ran.error);
    assert!(
        ran.error.contains("kernel.perf_event_paranoid"),
        "{}",
        ran.error
    );
    assert!(ran.error.contains("CAP_PERFMON"), "{}", ran.error);
    assert!(ran.error.contains("Call sites"), "{}", ran.error);
    let ran = traced_as_unprivileged_user(folder.path(), &["--attach", "--", "true"]);
    assert_eq!(ran.code, Some(1), "{}", ran.error);
    assert!(ran.error.contains("CAP_"), "{}", ran.error);
}

/// Needs: root, to become another user
#[test]
fn summary_says_that_waiters_are_not_counted_without_the_privilege() {
    if !is_root("summary_says_that_waiters_are_not_counted_without_the_privilege") {
        return;
    }
    let folder = public_folder();
    let ran =
        traced_as_unprivileged_user(folder.path(), &["--waiters", "--", "sh", "-c", "exit 3"]);
    assert_eq!(ran.code, Some(3), "{}", ran.error);
    assert!(
        ran.error.contains("Waiters are not counted"),
        "{}",
        ran.error
    );
    assert!(
        ran.error.contains("CAP_BPF") || ran.error.contains("clang"),
        "{}",
        ran.error
    );
}

/// Needs: root, to become another user
#[test]
fn setuid_program_is_noticed_when_it_is_the_command_or_a_child() {
    let test = "setuid_program_is_noticed_when_it_is_the_command_or_a_child";
    if !is_root(test) {
        return;
    }
    let folder = public_folder();
    let program = folder.path().join("privileged");
    executable::copy(Path::new("/bin/true"), &program);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755))
        .expect("set-user-ID");
    let path = program.to_str().expect("a path in UTF-8");
    let ran = traced_as_unprivileged_user(folder.path(), &["--", path]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    assert!(ran.error.contains("set-user-ID"), "{}", ran.error);
    let ran = traced_as_unprivileged_user(
        folder.path(),
        &["--", "sh", "-c", &format!("{path}; exit 0")],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    assert!(
        ran.error.contains("set-user-ID") && ran.error.contains("privileged"),
        "{}",
        ran.error
    );
}

#[test]
fn report_names_what_it_found_when_the_directory_has_no_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a path in UTF-8");
    let ran = run(&["report", path]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.error.contains("holds no trace"), "{}", ran.error);
    let file = folder.path().join("trace.json");
    for (text, says) in [
        ("{}", "no trace"),
        ("{\"schema\": 99}", "schema 99"),
        ("not json", "no trace"),
    ] {
        std::fs::write(&file, text).expect("written");
        let ran = run(&["report", path]);
        assert_eq!(ran.code, Some(1));
        assert!(ran.error.contains(says), "{text}: {}", ran.error);
    }
    assert_eq!(run(&["report", "/nonexistent"]).code, Some(1));
}
