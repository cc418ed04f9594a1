//! What the commands `headway` and `headway-lab` have in common, so that both speak to a user in
//! the same way: usage errors, failures, help, output, signals, manual pages.
//!
//! A command describes itself as a [`Program`]. Nothing here knows a subcommand, except [`serve`],
//! which both have.
#![forbid(unsafe_code)]

mod failure;
mod plain_errors;
mod program;
mod usage;

pub mod check;
pub mod command_line;
pub mod output;
pub mod replace;
pub mod run_output;
pub mod serve;
pub mod signals;
pub mod specweb99_text;
pub mod table;

pub use clap_complete::Shell;
pub use failure::Failure;
pub use program::{Group, Program};
