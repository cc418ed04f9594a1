//! All suites of this crate but those which change their process.

mod support;

mod closed_loop;
mod conversation;
mod fileset;
mod open_loop;
mod outcomes;
mod profile;
mod simulated_events;
mod specweb99;
