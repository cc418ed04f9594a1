//! All suites of this crate.

mod measure;
mod recorded;
