//! All suites of this crate but those which change their process.

mod common;

mod closing;
mod contents;
mod fairness;
mod file_cache;
mod floods;
mod helper;
mod store;
mod pool;
mod protocol;
mod residency;
mod resolve;
mod roots;
mod ring;
mod service;
mod symlinks;
mod uses;
