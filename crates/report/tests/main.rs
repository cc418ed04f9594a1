//! All suites of this crate.

mod support;

mod browser;
mod page;
mod palette;
mod specweb99;
mod study;
