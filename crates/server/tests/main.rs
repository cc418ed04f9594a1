//! All suites of this crate. Workers run in threads of the tests.

mod conversation;
mod support;

mod accept_settings;
mod config;
mod control;
mod conversations;
mod embedded;
mod faults;
mod log_process;
mod presets;
mod serving;
