//! All suites of this crate.

mod chunked;
mod conditionals;
mod head_properties;
mod heads;
mod paths;
mod ranges;
