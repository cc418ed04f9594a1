//! Programs behind `headway serve`: real ones, small, in the shell's language, started by the real
//! fork helper of a real server. First what they are for, then everything they can do wrong.
//!
//! Deadlines here are short, and each test waits for what follows from one with much more patience.

#[path = "../common/executable.rs"]
mod executable;
#[path = "../serving/mod.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod serving;

mod bodies;
mod bounds;
mod direct;
mod escapes;
mod faults;
mod handing;
mod piped;
mod places;
mod replies;
mod site;
