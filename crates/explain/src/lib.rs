//! Why the requests of a running server wait: the answer of `headway explain`.
//!
//! - `server` finds the processes and ports of a server.
//! - `timeline` keeps what each of its threads did, `parts` divides a request into phases and asks
//!   the timeline about each, `collector` does so for all requests.
//! - `report` adds up causes around the percentiles, `advice` says what to change, `text` writes it.
//! - `condition` is a limit for `--fail-if`.
//!
//! What happened is observed by [`headway_debox_bpf::RequestObserver`]. The crate refuses to guess:
//! a time that nothing explains is shown as such, and the parts of a request add up to its total.
#![forbid(unsafe_code)]

mod advice;
mod collector;
mod condition;
mod names;
mod parts;
mod queues;
mod report;
mod server;
pub mod text;
mod timeline;

pub use advice::{Advice, Problem};
pub use collector::Collector;
pub use condition::{Condition, ConditionError};
pub use names::FileNames;
pub use parts::{Cause, Doing, Phase};
pub use queues::ListenQueues;
pub use report::{CauseShare, FileShare, Latency, PhaseShare, Report, Requests, SCHEMA, Shares};
pub use server::{Server, ServerError, Target, listening_ports};
