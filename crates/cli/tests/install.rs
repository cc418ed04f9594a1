//! `make install` below a staging directory, and a C program that finds the library there as it
//! would any other package's: by pkg-config.
//!
//! What is installed is the profile the tests are of. A release would take minutes, and how a
//! release differs is held by the libraries' own tests.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use headway_test_support::skip;

/// Where the files are meant for, and what they name; not where they are put.
const PREFIX: &str = "/opt/headway";

/// Whether the programs are there; if not, says that a test is skipped.
fn has(test: &str, programs: &[&str]) -> bool {
    for program in programs {
        if Command::new(program).arg("--version").output().is_err() {
            skip(test, &format!("the program {program}"));
            return false;
        }
    }
    true
}

/// The directory cargo puts this profile's programs into, with the libraries in it.
pub(crate) fn built() -> &'static Path {
    let profile = Path::new(env!("CARGO_BIN_EXE_headway"))
        .parent()
        .expect("a directory");
    let release = profile.file_name().is_some_and(|name| name == "release");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "headway-debox-c"])
        .args(["-p", "headway-debox-so", "-p", "headway-debox-preload"])
        .args(release.then_some("--release"))
        .arg("--target-dir")
        .arg(profile.parent().expect("a target directory"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    succeeded(&output.expect("cargo runs, since it runs this test"));
    profile
}

/// `make install` of what a directory holds.
fn install(built: &Path, staging: &Path, prefix: &str) -> Output {
    Command::new("make")
        .arg("install")
        .arg(format!("BUILT={}", built.display()))
        .arg(format!("DESTDIR={}", staging.display()))
        .arg(format!("PREFIX={prefix}"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        // Those of the make that runs the tests.
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .output()
        .expect("make runs")
}

/// What a command printed, which must have succeeded.
fn succeeded(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}\n{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Compiles with the flags that pkg-config prints, with the staging directory as the root of
/// another system.
fn compile(staging: &Path, source: &Path, options: &[&str], libraries: &[&str]) -> PathBuf {
    let description = staging.join(&PREFIX[1..]).join("lib/pkgconfig");
    let output = Command::new("pkg-config")
        .args(libraries)
        .args(["--cflags", "--libs", "debox"])
        .env("PKG_CONFIG_LIBDIR", description)
        .env("PKG_CONFIG_SYSROOT_DIR", staging)
        .env_remove("PKG_CONFIG_PATH")
        .output();
    let flags = succeeded(&output.expect("pkg-config runs"));
    let program = source.with_extension("");
    let output = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror"])
        .args(options)
        .arg(source)
        .arg("-o")
        .arg(&program)
        .args(flags.split_whitespace())
        .output();
    succeeded(&output.expect("cc runs"));
    program
}

const FILES: &[&str] = &[
    "bin/headway",
    "include/debox.h",
    "lib/libdebox.a",
    "lib/libdebox.so",
    "lib/libdebox_preload.so",
    "lib/pkgconfig/debox.pc",
    "share/bash-completion/completions/headway",
    "share/fish/vendor_completions.d/headway.fish",
    "share/man/man1/headway-trace.1",
    "share/man/man1/headway.1",
    "share/zsh/site-functions/_headway",
];

const STATIC: &str = r#"
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <debox.h>
static DeBoxInfo info;
int main(void) {
    if (DeBoxControl(&info, 5, 0) < 0) return 1;
    DEBOX_CALL(SYS_getppid, getppid());
    printf("%d\n", info.syscallNum == SYS_getppid);
    return 0;
}
"#;

/// Needs: make, cc and pkg-config
#[test]
fn c_programs_find_the_library_by_pkg_config_when_it_is_installed() {
    let test = "c_programs_find_the_library_by_pkg_config_when_it_is_installed";
    if !has(test, &["make", "cc", "pkg-config"]) {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let staging = scratch.path().join("staging");
    succeeded(&install(built(), &staging, PREFIX));
    let prefix = staging.join(&PREFIX[1..]);
    for file in FILES {
        let size = prefix.join(file).metadata().map(|found| found.len());
        assert!(size.is_ok_and(|size| size > 0), "{file}");
    }
    assert!(
        !prefix.join("bin/headway-lab").exists(),
        "without WITH_LAB=1"
    );
    // The files name where they will be, not where they were put.
    let description = std::fs::read_to_string(prefix.join("lib/pkgconfig/debox.pc"));
    let description = description.expect("it was installed");
    assert!(
        description.starts_with("prefix=/opt/headway\n"),
        "{description}"
    );
    assert!(!description.contains('@'), "{description}");
    let version = format!("\nVersion: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(description.contains(&version), "{description}");

    let source = scratch.path().join("copy.c");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../debox-c/examples/copy.c");
    std::fs::copy(example, &source).expect("room");
    let program = compile(&staging, &source, &[], &[]);
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    std::fs::write(&from, [7; 100_000]).expect("room");
    let copied = Command::new(program)
        .args([&from, &to])
        .env("LD_LIBRARY_PATH", prefix.join("lib"))
        .output();
    let record = succeeded(&copied.expect("it runs"));
    // The system call's number, which only the library that stands before libc can have put there.
    assert!(record.contains("    1, /* system call # */"), "{record}");
    assert_eq!(std::fs::read(&to).expect("the copy").len(), 100_000);

    let source = scratch.path().join("static.c");
    std::fs::write(&source, STATIC).expect("room");
    let program = compile(&staging, &source, &["-static"], &["--static"]);
    let ran = Command::new(program).output().expect("it runs");
    assert_eq!(succeeded(&ran), "1\n");

    let traced = Command::new(prefix.join("bin/headway"))
        .args(["trace", "-o"])
        .arg(scratch.path().join("summary"))
        .args(["--", "sh", "-c", "exit 3"])
        .env_remove("HEADWAY_PRELOAD")
        .output()
        .expect("it runs");
    assert_eq!(traced.status.code(), Some(3), "{traced:?}");
}

/// Needs: make
#[test]
fn nothing_is_installed_when_something_was_not_built_or_the_prefix_is_relative() {
    let test = "nothing_is_installed_when_something_was_not_built_or_the_prefix_is_relative";
    if !has(test, &["make"]) {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let folder = |name: &str| {
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder).expect("a directory");
        folder
    };
    let (empty, half) = (folder("empty"), folder("half"));
    let staging = scratch.path().join("staging");
    // What could be put in place before the one that is missing is looked at.
    for file in ["headway", "libdebox.so", "libheadway_debox_c.a"] {
        let built = Path::new(env!("CARGO_BIN_EXE_headway"));
        std::os::unix::fs::symlink(built, half.join(file)).expect("room");
    }
    for (built, prefix, reason) in [
        (&empty, PREFIX, "empty/headway is not there"),
        (&half, PREFIX, "half/libdebox_preload.so is not there"),
        (&empty, "opt", "absolute path"),
    ] {
        let output = install(built, &staging, prefix);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(reason),
            "{output:?}"
        );
        assert!(!staging.exists());
    }
}

/// `sudo` leaves root without the cargo of the user, whose files in `target` would become root's.
#[test]
fn release_is_built_by_the_user_who_called_sudo() {
    let scratch = tempfile::tempdir().expect("a directory");
    for (program, text) in [
        ("id", "echo 0"),
        ("cargo", "echo root has built; exit 9"),
        ("sudo", "echo \"$*\"; exit 9"),
    ] {
        let path = scratch.path().join(program);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("room");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    let path = format!("{}:/usr/bin:/bin", scratch.path().display());
    for (user, start) in [("reader", "-u reader -i -- "), ("root", "root has built")] {
        let output = Command::new(&script)
            .env("PATH", &path)
            .env("SUDO_USER", user)
            .env_remove("BUILT")
            .output()
            .expect("it runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.starts_with(start), "{output:?}");
        assert!(printed.starts_with("root") || printed.contains(" cargo build --release "));
    }
}
