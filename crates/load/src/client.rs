//! The machine that asks: what it may use, what it is, and whether it had the time.
//!
//! The client is part of the measurement. Everything here is read from the kernel, outside the
//! measured time or a few times in it, and goes into `run.json` and into the verdict.

pub(crate) mod cpus;
pub(crate) mod environment;
pub(crate) mod limits;
pub(crate) mod resolve;
pub(crate) mod watch;

pub use environment::{dated, rfc3339};
pub use limits::{ClientLimits, Shortage};
pub use resolve::{ResolveError, resolve};
