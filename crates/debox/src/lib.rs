//! In-band system-call records: a thread learns from its own calls whether they slept, how long,
//! and on what.
//!
//! This is DeBox: performance information is a result of the call, handed to the caller as the call
//! returns, rather than a log some other process reads later. The kernel writes the thread's
//! context switches into a ring mapped into the thread ([`headway_os::perf`]); around each call two
//! counters are compared and, only if they differ, what happened is read.
//!
//! There are two forms of it. [`Debox`] leaves the whole record of the last call: times, faults,
//! each sleep with its label. [`Tracer`] is what surrounds every system call of a worker in the
//! request path: it adds up sleeps by call and kernel site, and refuses to time calls that do not
//! sleep and to resolve symbols on the event loop ([`Symbols`] is for the process that shows the
//! report). Both count preemptions apart and the records they had to miss, and neither looks at
//! other threads.
//!
//! Source: Ruan's dissertation (2005), sections 2.1 to 2.3.

#![forbid(unsafe_code)]

mod absence;
mod aside;
mod call;
pub mod calls;
pub mod collect;
mod functions;
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
pub use functions::{Function, FunctionTimes, Functions, FunctionsError, remove_instance};
pub use labels::Label;
#[cfg(feature = "lines")]
pub use lines::{KernelLines, Line};
pub use record::{Limits, Record, Site as KernelSite, Sleep, Stack, TraceEntry};
pub use report::{Report, Rung, SITES_MAX, Site, Wait};
pub use symbols::Symbols;
pub use thread::{Debox, Mark, adopt_kernel_symbols, confine, is_confined, kernel_symbols};
pub use tracer::Tracer;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
