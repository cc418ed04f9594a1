//! In-band system-call records: a thread sees of its own calls whether they slept, how long,
//! and on what.
//!
//! The idea is that of DeBox: performance information is a result of the call. The caller gets it
//! when the call returns, instead of reading it from a log later. The kernel writes the thread's
//! context switches into a ring that is mapped into the thread ([`headway_os::perf`]). Around each
//! call two counters are compared, and only if they differ is the ring read.
//!
//! - [`Debox`] (`recorder.rs`) leaves the whole record of the last call: times, faults, each sleep
//!   with its label.
//! - [`Tracer`] (`tracer.rs`) surrounds every system call of a worker in the request path. It adds
//!   up sleeps by call and kernel stack. It refuses to time calls that do not sleep, and to resolve
//!   symbols on the event loop ([`Symbols`] is for the process that shows the report).
//! - [`watch_loop`] (`loop_watch.rs`) is for the event loop of any program: what it slept in between
//!   its waits for events, without a wrapper around calls.
//!
//! All count preemptions and lost records separately, and none observes other threads.
//!
//! Source: Ruan's dissertation (2005), sections 2.1 to 2.3.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod off_cpu;
mod stash;
mod call;
pub mod calls;
pub mod collect;
mod functions;
mod labels;
mod aggregator;
#[cfg(feature = "lines")]
mod lines;
mod loop_watch;
pub mod policy;
mod privilege;
mod record;
mod report;
mod symbols;
mod recorder;
mod tracer;

pub use call::CallKind;
pub use functions::{Function, FunctionTimes, Functions, FunctionsError, remove_instance};
pub use labels::Label;
#[cfg(feature = "lines")]
pub use lines::{KernelLines, Line};
pub use loop_watch::{LoopWatch, watch_loop};
pub use record::{CodeOffset as KernelSite, Limits, Record, Sleep, Stack, TraceEntry};
pub use recorder::{Debox, Snapshot, adopt_kernel_symbols, confine, is_confined, kernel_symbols};
pub use report::{Report, SITES_MAX, Site, TraceLevel, Wait};
pub use symbols::Symbols;
pub use tracer::Tracer;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
