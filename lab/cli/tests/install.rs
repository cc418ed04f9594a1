//! `make install WITH_LAB=1` below a staging directory.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use crate::common;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// What this test does not use: any file that can be stripped will do.
const LIBRARIES: [&str; 3] = ["libdebox.so", "libdebox_preload.so", "libheadway_debox_c.a"];

const FILES: &[&str] = &[
    "bin/headway",
    "bin/headway-lab",
    "bin/headway-specweb99",
    "share/bash-completion/completions/headway-lab",
    "share/fish/vendor_completions.d/headway-lab.fish",
    "share/man/man1/headway.1",
    "share/man/man1/headway-lab.1",
    "share/man/man1/headway-lab-study.1",
    "share/zsh/site-functions/_headway-lab",
];

/// Needs: make
#[test]
fn lab_is_installed_beside_headway_when_it_is_asked_for() {
    let test = "lab_is_installed_beside_headway_when_it_is_asked_for";
    if Command::new("make").arg("--version").output().is_err() {
        return headway_test_support::skip(test, "the program make");
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let (built, staging) = (scratch.path().join("built"), scratch.path().join("staging"));
    std::fs::create_dir(&built).expect("a directory");
    for program in [
        common::headway(),
        Path::new(env!("CARGO_BIN_EXE_headway-lab")),
        Path::new(env!("CARGO_BIN_EXE_headway-specweb99")),
    ] {
        let name = program.file_name().expect("a name");
        symlink(program, built.join(name)).expect("room");
    }
    for library in LIBRARIES {
        let any = Path::new(env!("CARGO_BIN_EXE_headway-specweb99"));
        symlink(any, built.join(library)).expect("room");
    }
    let output = Command::new("make")
        .args(["install", "WITH_LAB=1", "PREFIX=/opt/headway"])
        .env("BUILT", &built)
        .env("DESTDIR", &staging)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .expect("make runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    for file in FILES {
        let size = staging.join("opt/headway").join(file).metadata();
        assert!(size.is_ok_and(|found| found.len() > 0), "{file}");
    }
}
