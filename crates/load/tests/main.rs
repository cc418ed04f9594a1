//! All suites of this crate but those which change their process.

mod stalls;
mod support;

#[path = "../examples/open_loop.rs"]
mod open_loop_example;

mod closed_loop;
mod conversation;
mod fileset;
mod http2;
mod http2_server;
mod open_loop;
mod outcomes;
mod profile;
mod requests;
mod simulated_events;
mod tls;
mod tls_server;

#[test]
fn example_open_loop_runs() {
    open_loop_example::main().expect("the example");
}
