//! The programs that the tests run.

#![allow(dead_code, reason = "each test binary uses its part")]

#[path = "../../../../crates/cli/tests/common/programs.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "beside a server of the tests, which has it too"
)]
mod programs;

use std::io::Write;
use std::process::Command;

pub use programs::headway;

/// The lab's command. Beside it is `headway`, which it starts.
pub fn headway_lab() -> Command {
    headway();
    Command::new(env!("CARGO_BIN_EXE_headway-lab"))
}

/// Says that a test did not run, and why; also in the file `HEADWAY_SKIP_LOG` names, if it is set.
pub fn skip(test: &str, reason: &str) {
    println!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("HEADWAY_SKIP_LOG") {
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(path);
        writeln!(log.expect("the log"), "{test}: {reason}").expect("a line");
    }
}
