//! The mathematics of latency, and the run directory in which a measurement is kept.
//!
//! Pure, but for [`run`], the only folder that touches files: no clock, no network. Rows come in,
//! one a request; histograms, deciles by size, service inversion and their intervals come out.
//! Everything that is kept can be merged, so that the runs of several machines add up.
//!
//! Sources: dissertation sections 3.3.4 (profiles), 3.4.1 (deciles by size series), 3.4.2 (service
//! inversion); G. Tene's HdrHistogram (log-linear buckets, the intended start of a request).
#![forbid(unsafe_code)]

pub mod row;
mod counts;
pub mod histogram;
pub mod cells;
mod coarse;
mod bootstrap;
mod blocks;
pub mod baseline;
pub mod series;
pub mod inversion;
pub mod breakdown;
pub mod analysis;
pub mod compare;
pub mod rounds;
pub mod ready;
pub mod export;
pub mod specweb99;
pub mod study;
pub mod run;

pub use analysis::{Analysis, Analyzer};
pub use cells::Cells;
pub use headway_base::format;
pub use histogram::{Bucket, Histogram};
pub use row::{Outcome, Row};
pub use run::{OpenError, Run, RunDescription, RunWriter, WriteError};
pub use study::StudyResult;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
