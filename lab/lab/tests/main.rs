//! All suites of this crate.

#[path = "../../../crates/cli/tests/common/executable.rs"]
mod executable;

mod disk;
mod guide;
mod quota;
mod servers;
