//! The suite of counters.

mod perf;
