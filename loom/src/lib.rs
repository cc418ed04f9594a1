//! Models of the memory which threads and processes share, checked by loom.
//!
//! loom runs a model once for each order in which its threads can go on, and for each value which a load may see by
//! the rules of the language. The modules are the files of the crates, compiled with loom's atomics. Models are small:
//! two threads with two or three operations each.

#[cfg(test)]
#[path = "../../crates/accept/src/address_line.rs"]
mod address_line;
#[cfg(test)]
#[path = "../../crates/os/src/published.rs"]
mod published;

#[cfg(test)]
mod models;
