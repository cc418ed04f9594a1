//! The web server: one folder a stage, in the order a request meets them.
//!
//! The master side binds, spawns, watches and reports; it never touches a request. The modules below
//! are declared in the order of the request path, the ones outside the path come last.
#![forbid(unsafe_code)]

pub mod tally;
pub mod control;
pub mod master;
pub mod config;
