//! All suites of this crate.

mod disk;
mod guide;
mod quota;
mod servers;
