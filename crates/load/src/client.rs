//! The machine that asks: what it may use, what it is, and whether it had the time.
//!
//! The client is part of the measurement. Everything here is read from the kernel, outside the
//! measured time or a few times in it, and goes into `run.json` and into the verdict.

pub mod environment;
pub mod limits;
pub mod resolve;
pub mod watch;
