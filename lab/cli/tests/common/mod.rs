//! The programs that the tests run.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const HEADWAY_LAB: &str = env!("CARGO_BIN_EXE_headway-lab");

/// The lab's command. Beside it is `headway`, which it starts.
pub fn headway_lab() -> Command {
    headway();
    Command::new(HEADWAY_LAB)
}

/// The command `headway` beside the lab's. It is built if it is not there: cargo builds the programs
/// of the tested packages only.
pub fn headway() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = Path::new(HEADWAY_LAB).with_file_name("headway");
        if !path.exists() {
            build_beside(&path);
        }
        path
    })
}

fn build_beside(path: &Path) {
    let profile = path.parent().expect("a directory");
    let target = profile.parent().expect("a directory");
    let profile = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "headway"]);
    build
        .args(["--profile", profile, "--target-dir"])
        .arg(target);
    assert!(build.status().expect("cargo runs").success());
}
