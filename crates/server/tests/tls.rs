//! A whole server whose clients speak TLS: by rustls over sockets of the standard library.
//!
//! No test judges speed. Certificates are made by each test.

mod bodies;
mod channel;
mod clients;
mod development;
mod failures;
mod faults;
mod offload;
pub mod rules;
mod secrets;
mod serving;
mod sessions;
mod variables;
pub mod tools;
