//! The programs that the tests run.

#![allow(dead_code, reason = "each test binary uses its part")]

#[path = "../../../../crates/cli/tests/common/programs.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "beside a server of the tests, which has it too"
)]
mod programs;

use std::process::Command;

pub use programs::headway;

/// The lab's command. Beside it is `headway`, which it starts.
pub fn headway_lab() -> Command {
    headway();
    Command::new(env!("CARGO_BIN_EXE_headway-lab"))
}
