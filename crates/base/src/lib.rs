//! What many crates need once: random numbers.
//!
//! Everything here is pure: values in, values out. It makes no system call, knows no other crate
//! and needs no outside one, so any crate may use it. What only one crate needs stays there.

#![forbid(unsafe_code)]

pub mod random;
