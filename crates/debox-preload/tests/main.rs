//! All suites of this crate: C programs with and without the library.

mod support;

mod execs;
mod records;
mod transparency;
