//! `headway-lab` as a user meets it: what its parts do to a program in it, and that nothing stays
//! behind.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../../crates/cli/tests/common/executable.rs"]
mod executable;
mod support;

mod crash;
mod parts;
mod study;
mod arguments;
