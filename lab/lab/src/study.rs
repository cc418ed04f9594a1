//! Studies: the papers' experiments as TOML files, measured and put together.
//!
//! A *measurement* is one server in one environment under one workload at one point, once; its key
//! is a checksum of exactly that description, so what two studies both ask for is measured once,
//! and going on after an interruption is finding keys that are done. Studies are views over
//! measurements: `file` and `resolve` read the TOML, `plan` turns all of them into one list of work
//! in which servers and repeats alternate, `run` does it, `knee` says which rates a search tries, `measure` makes one measurement,
//! `collect` reads it again, and `outcome` fills tables and decides claims with
//! [`headway_latency::study`].
//!
//! Refused: measuring in a directory that something else wrote, and leaving a failure out: its row
//! says why.

mod file;
mod scaled;
mod resolve;
mod check;
mod spec;
pub mod library;
mod plan;
mod journal;
mod workspace;
mod client;
mod measure;
mod build;
mod store;
mod shares;
mod run;
mod collect;
mod outcome;
pub mod text;
mod summary;

pub use library::{LoadError, Loaded, load};
pub use outcome::results;
pub use plan::Plan;
pub use resolve::Study;
pub use run::{Listener, Options, RunError, run};
pub use scaled::Scale;
pub use store::{Store, StoreError};
pub use summary::{SummaryError, summarise};

/// Why a study cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {why}")]
pub struct StudyError {
    /// The file, as it was named.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there, and what to write.
    pub why: String,
}
