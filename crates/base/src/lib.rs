//! What many crates need once: random numbers, the order in which caches evict, the buckets of
//! histograms, and text for people: figures with their units, times, lines of the error log, and HTML.
//!
//! Everything here is pure: values in, values out. It makes no system call, knows no other crate
//! and needs no outside one, so any crate may use it. What only one crate needs stays there.

#![forbid(unsafe_code)]

pub mod civil;
pub mod error_line;
pub mod format;
pub mod html;
pub mod random;
mod greedy_dual_size;
mod octaves;

pub use greedy_dual_size::{GreedyDualSize, Priority};
pub use octaves::Octaves;
