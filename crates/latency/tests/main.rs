//! All suites of this crate.

mod support;

#[path = "../examples/percentiles.rs"]
mod percentiles;

mod analysis;
mod export;
mod merge;
mod readers;
mod run_directory;
mod sql;

#[test]
fn example_percentiles_runs() {
    percentiles::main().expect("the example");
}
