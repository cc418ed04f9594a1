//! All suites of this crate.

mod accept_settings;
mod config;
