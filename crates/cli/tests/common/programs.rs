//! Where the programs of the workspace are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The command `headway`. Tests of another package take the one beside their own program, and build
/// it if it is not there: cargo builds the programs of the tested packages only.
pub fn headway() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let found = || {
        let own = option_env!("CARGO_BIN_EXE_headway");
        let of_lab = option_env!("CARGO_BIN_EXE_headway-lab");
        match (own, of_lab) {
            (Some(path), _) => path.into(),
            (None, Some(lab)) => beside(lab),
            (None, None) => panic!("this package has no program"),
        }
    };
    PATH.get_or_init(found)
}

fn beside(own: &str) -> PathBuf {
    let path = Path::new(own).with_file_name("headway");
    if !path.exists() {
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
    path
}
