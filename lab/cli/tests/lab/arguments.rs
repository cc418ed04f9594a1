//! Invalid arguments and missing labs: exit code 2 or 1, with the reason and a remedy.

use std::os::unix::process::CommandExt;
use std::path::Path;

use headway_test_support::executable;

use super::support::{Lab, can, headway_lab, name, skip, text};

fn error_of(arguments: &[&str], code: i32) -> String {
    let output = headway_lab(arguments).output().expect("started");
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stderr)
}

#[test]
fn disk_backing_does_not_overwrite_an_existing_file() {
    let folder = tempfile::tempdir().expect("a place for files");
    let file = folder.path().join("precious");
    std::fs::write(&file, "words").expect("room");
    let named = file.to_str().expect("a name of letters");
    let message = error_of(&["up", &name(), "--disk-backing", named], 2);
    assert!(message.contains("not overwritten"), "{message}");
    assert_eq!(std::fs::read(&file).expect("it is there"), b"words");
}

/// Needs: root: makes a lab
#[test]
fn error_names_the_remedy_when_a_lab_is_missing_or_exists_already() {
    let absent = name();
    for arguments in [
        &["exec", absent.as_str(), "--", "true"][..],
        &["status", absent.as_str()],
        &["down", absent.as_str()],
        &["cool", absent.as_str()],
        &["disk", "--name", absent.as_str(), "fast"],
    ] {
        assert!(
            error_of(arguments, 1).contains("headway-lab status"),
            "{arguments:?}"
        );
    }
    if !can(
        "error_names_the_remedy_when_a_lab_is_missing_or_exists_already",
        &["memory limit"],
    ) {
        return;
    }
    let lab = Lab::up(&["--memory", "64MiB"]);
    assert!(error_of(&["up", &lab.name], 1).contains("headway-lab down"));
    let arguments = ["disk", "--name", &lab.name, "stall", "1s"];
    assert!(error_of(&arguments, 1).contains("has no disk"));
}

#[test]
fn exit_code_is_2_for_an_invalid_value() {
    for arguments in [
        &["up", "../x"][..],
        &["up", "x", "--memory", "4k"],
        &["up", "x", "--memory", "1kB"],
        &["up", "x", "--cpu-share", "0"],
        &["up", "x", "--cpu-share", "nan"],
        &["up", "x", "--link", "fast"],
        &["up", "x", "--link", "1kbit"],
        &["up", "x", "--disk", "tape"],
        &["up", "x", "--disk", "none", "--fileset", "1MB"],
        &["exec", "x"],
        &["disk", "slow", "0", "10s"],
        &["down", "x", "--all"],
    ] {
        assert!(!error_of(arguments, 2).is_empty(), "{arguments:?}");
    }
}

/// Needs: root, to become another user
#[test]
fn missing_parts_and_what_works_are_named_when_the_user_is_not_root() {
    let test = "missing_parts_and_what_works_are_named_when_the_user_is_not_root";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "root, to become another user");
    }
    // Where that user can read and write: the program may lie where only root can.
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("headway-lab");
    executable::copy(Path::new(env!("CARGO_BIN_EXE_headway-lab")), &program);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(directory.path(), open).expect("opened");
    let as_user = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(arguments).uid(65534).gid(65534);
        command.env("HEADWAY_LAB_STATE", directory.path().join("state"));
        command.current_dir("/").output().expect("started")
    };
    let lab = name();
    let refused = as_user(&["up", &lab, "--cpu-share", "0.5"]);
    assert_eq!(refused.status.code(), Some(1));
    let message = text(&refused.stderr);
    for part in [
        "no disk: needs root",
        "no memory limit: needs root",
        "no CPU quota: needs root",
        "no link: needs root",
        "CPUs would work",
        "--what-works",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let made = as_user(&["up", &lab, "--what-works", "--server-cpus", "0"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(text(&made.stderr).contains("without link: needs root"));
    let inside = as_user(&[
        "exec",
        &lab,
        "--",
        "grep",
        "Cpus_allowed_list",
        "/proc/self/status",
    ]);
    assert_eq!(text(&inside.stdout), "Cpus_allowed_list:\t0\n");
    assert!(as_user(&["down", &lab]).status.success());
    assert!(!directory.path().join("state").join(&lab).exists());
}

#[test]
fn every_example_of_help_is_accepted_when_the_parser_reads_it() {
    for word in [
        "up", "fill", "exec", "disk", "status", "down", "check", "cool",
    ] {
        let output = headway_lab(&[word, "--help"]).output().expect("started");
        assert!(output.status.success(), "{word}");
    }
    let hidden = text(&headway_lab(&["--help"]).output().expect("started").stdout);
    assert!(!hidden.contains("disk-process"), "{hidden}");
}
