//! All suites of this crate.

mod support;

mod analysis;
mod readers;
mod run_directory;
