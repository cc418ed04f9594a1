//! The study of chapter 4 on this machine: servers in configurations, with throughput and counts.
//!
//! [`plan`] says what is measured, [`mod@run`] measures it, [`outcome`] is what comes of it and is
//! kept as a file, [`compare`] makes the dissertation's figures of it. [`callgrind`] counts
//! instructions of user code where no CPU counts them, [`score`] finds how many slow clients a
//! server satisfies.

pub mod callgrind;
pub mod compare;
pub mod outcome;
pub mod plan;
pub mod processors;
pub mod run;
pub mod score;
mod client;
mod more;
mod workspace;
mod window;

pub use outcome::{Instructions, Measured, Outcome, Setup};
pub use plan::{PlanError, SERVERS, StudyPlan, Workload};
pub use run::{Listener, RunError, run};
pub use score::Score;
