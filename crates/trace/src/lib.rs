//! `headway trace`: runs a program under DeBox and shows what its system calls waited for.
//!
//! `launch` runs a command with the preload library and leaves its streams, signals and exit code
//! alone; `gather` turns what the traced programs left ([`headway_debox::collect`]) into a [`Trace`],
//! resolved by `places`, and `waiters` adds what an observer counted beside, `functions` what the
//! kernel's tracer timed; `show` writes it as text, `export` as files for other programs, `live` as
//! a view that is kept up to date. It refuses to write anything on a stream of the traced program.
//!
//! Source: Ruan's dissertation (2005), sections 2.2 to 2.5.
#![forbid(unsafe_code)]

mod attach;
pub mod export;
mod functions;
mod gather;
pub mod launch;
pub mod live;
mod model;
mod places;
pub mod show;
mod table;
mod units;
mod waiters;

pub use attach::Observation;
pub use gather::Gatherer;
pub use model::{
    Bucket, FILE_NAME, FunctionAt, Kept, Outcome, Place, Program, SCHEMA, Site, SleepAt, Trace, Way,
};
pub use places::Places;
pub use waiters::Waits;
