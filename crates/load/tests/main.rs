//! All suites of this crate but those which change their process.

mod stalls;
mod support;

#[path = "../examples/open_loop.rs"]
mod open_loop_example;

mod closed_loop;
mod conversation;
mod fileset;
mod open_loop;
mod outcomes;
mod profile;
mod simulated_events;

#[test]
fn example_open_loop_runs() {
    open_loop_example::main().expect("the example");
}
