//! What happens at once, in the program: each reaction ordered through the binary, and its effect.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{Ran, compile, run, skip, trace};

/// Two slow calls among fast ones, and an exit code of its own.
const PROGRAM: &str = "#include <poll.h>\n#include <unistd.h>\n\
    __attribute__((noinline)) void slow(void) { poll(0, 0, 30); }\n\
    int main(void) { for (int i = 0; i < 50; i++) getppid(); slow(); slow(); write(1, \"end\\n\", 4); return 6; }";

const WHEN: &str = "call=poll,slower-than=20ms";

fn program(folder: &Path) -> PathBuf {
    compile(folder, PROGRAM, &["-rdynamic"])
}

fn react(folder: &Path, action: &str, more: &[&str]) -> Ran {
    let program = program(folder);
    let mut arguments = vec!["--react", action, "--when", WHEN, "-o", "/dev/null"];
    arguments.extend(more);
    arguments.extend(["--", program.to_str().expect("a path in UTF-8")]);
    run(&arguments)
}

#[test]
fn reaction_prints_the_stack_of_each_slow_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = react(folder.path(), "stack", &[]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(6), "end\n"),
        "{}",
        ran.error
    );
    assert_eq!(
        ran.error.matches("debox: poll took").count(),
        2,
        "{}",
        ran.error
    );
    assert!(ran.error.contains("slow"), "{}", ran.error);
}

#[test]
fn reactions_are_limited_by_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = react(folder.path(), "stack", &["--times", "1"]);
    assert_eq!(ran.code, Some(6), "{}", ran.error);
    assert_eq!(
        ran.error.matches("debox: poll took").count(),
        1,
        "{}",
        ran.error
    );
}

#[test]
fn reaction_runs_the_hook_with_the_call_in_its_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    let output_file = folder.path().join("told");
    let hook = format!(
        "hook=echo $HEADWAY_CALL $HEADWAY_WALL_NS >> {}",
        output_file.display()
    );
    let ran = react(folder.path(), &hook, &[]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(6), "end\n"),
        "{}",
        ran.error
    );
    let text = std::fs::read_to_string(&output_file).expect("the hook wrote it");
    let lengths: Vec<u64> = text
        .lines()
        .map(|line| {
            line.strip_prefix("poll ")
                .expect("the call")
                .parse()
                .expect("a length")
        })
        .collect();
    assert!(
        lengths.len() == 2 && lengths.iter().all(|ns| *ns >= 20_000_000),
        "{text}"
    );
}

#[test]
fn reaction_aborts_the_program_at_the_slow_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = react(folder.path(), "abort", &[]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(128 + 6), ""),
        "{}",
        ran.error
    );
}

/// Needs: core dumps as files (kernel.core_pattern)
#[test]
fn reaction_dumps_core_and_the_program_continues() {
    let test = "reaction_dumps_core_and_the_program_continues";
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if !pattern.starts_with("core") {
        return skip(test, "core dumps as files (kernel.core_pattern)");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(folder.path());
    let location = tempfile::tempdir().expect("a folder");
    let headway = trace(&[
        "--react",
        "core",
        "--when",
        WHEN,
        "--times",
        "1",
        "-o",
        "/dev/null",
        "--",
    ]);
    let output = Command::new("sh")
        .args(["-c", "ulimit -c unlimited && exec \"$@\"", "sh"])
        .arg(headway.get_program())
        .args(headway.get_args())
        .arg(&program)
        .env_remove("LD_PRELOAD")
        .current_dir(location.path())
        .output();
    let ran = Ran::of(&output.expect("a shell"));
    if ran.error.contains("ulimit") {
        return skip(test, "core dumps as files (kernel.core_pattern)");
    }
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(6), "end\n"),
        "{}",
        ran.error
    );
    let cores = std::fs::read_dir(location.path())
        .expect("a folder")
        .count();
    assert_eq!(cores, 1, "{}", ran.error);
}
