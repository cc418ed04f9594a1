//! `headway trace`: runs a program under DeBox and shows what its system calls waited for.
//!
//! - `launch` runs a command with the preload library, without changing its streams, signals and
//!   exit code.
//! - `trace_builder` turns the files of traced programs ([`headway_debox::collect`]) into a
//!   [`Trace`]; `attach` does so with what an observer outside saw. `call_sites` names the
//!   addresses, `waiters` adds waiter counts, `functions` the kernel functions.
//! - `show` writes it as text, `export` as files for other programs, `live` as a view that is kept
//!   up to date.
//!
//! The crate refuses to write anything to a stream of the traced program.
//!
//! Source: Ruan's dissertation (2005), sections 2.2 to 2.5.
#![forbid(unsafe_code)]

mod attach;
pub mod export;
mod functions;
mod trace_builder;
pub mod launch;
pub mod live;
mod model;
mod call_sites;
pub mod show;
mod table;
mod units;
mod waiters;

pub use attach::Observation;
pub use call_sites::CallSites;
pub use model::{
    Bucket, CodeLocation, FILE_NAME, FunctionAt, KeptCall, LocationTotals, Outcome, Program,
    SCHEMA, SleepAt, Trace, TraceMethod,
};
pub use trace_builder::TraceBuilder;
pub use waiters::WaiterCounts;
