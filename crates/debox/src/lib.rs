//! In-band system-call records: a thread learns from its own calls whether they slept, how long, and
//! on what.
//!
//! This is the small first form of DeBox: performance information is a result of the call, handed to
//! the caller as the call returns, rather than a log some other process reads later. The kernel writes
//! the thread's context switches into a ring mapped into the thread ([`os::perf`]); around each call
//! [`Tracer::call`] compares two counters and, only if they differ, reads what happened.
//!
//! It counts calls, sleeps by call and kernel site, preemptions, and records it had to miss. It refuses
//! to time calls that do not sleep, to look at other threads, and to resolve symbols on the event loop
//! ([`Symbols`] is for the process that shows the report). In the request path it surrounds every system
//! call of a worker.
//!
//! Source: Ruan's dissertation (2005), sections 2.1 to 2.3.

#![forbid(unsafe_code)]

mod absence;
mod aside;
mod call;
pub mod calls;
pub mod collect;
mod labels;
mod ledger;
#[cfg(feature = "lines")]
mod lines;
pub mod policy;
mod privilege;
mod record;
mod report;
mod symbols;
mod thread;
mod tracer;

pub use call::Call;
pub use labels::Label;
#[cfg(feature = "lines")]
pub use lines::{KernelLines, Line};
pub use record::{Limits, Record, Site as KernelSite, Sleep, Stack, TraceEntry};
pub use report::{Report, Rung, SITES_MAX, Site, Wait};
pub use symbols::Symbols;
pub use thread::{Debox, Mark, kernel_symbols};
pub use tracer::Tracer;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
