//! What many crates need once: random numbers, and the order in which caches evict.
//!
//! Everything here is pure: values in, values out. It makes no system call, knows no other crate
//! and needs no outside one, so any crate may use it. What only one crate needs stays there.

#![forbid(unsafe_code)]

pub mod random;
mod greedy_dual_size;

pub use greedy_dual_size::{GreedyDualSize, Priority};
