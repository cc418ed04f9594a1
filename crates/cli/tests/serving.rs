//! The command, and a server that it runs.

use std::process::Command;

pub use headway_test_support::server::Server;

pub fn headway() -> Command {
    Command::new(env!("CARGO_BIN_EXE_headway"))
}
