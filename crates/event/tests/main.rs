//! All suites of this crate but the one which sends signals.

mod support;

mod agreement;
mod asking;
mod conformance;
mod shared;
mod simulated;
