//! All suites of the command but that of `headway-lab counters`.

mod common;
#[path = "../../../crates/cli/tests/common/executable.rs"]
mod executable;
#[path = "../../../crates/cli/tests/serving/mod.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod serving;

mod application;
mod group;
mod install;
mod lab;
mod reference;
mod schedule;
mod servers;
mod specweb99;
mod study;
