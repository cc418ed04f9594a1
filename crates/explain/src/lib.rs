//! Why the requests of a running server wait: the answer of `headway explain`.
//!
//! - `server` finds the processes and ports of a server.
//! - `timeline` keeps what each of its threads did, `parts` divides a request into phases and asks
//!   the timeline about each, `collector` does so for all requests.
//! - `upstreams` looks for what the server itself waits.
//! - `figures` are those of the server itself: sleeps, turns of its loops, its run queue, failed calls.
//! - `report` adds up causes around the percentiles, `problem` names kinds of causes, `advice` says what to
//!   change (`remedies` has the words), `text` writes it.
//! - `kept` draws requests and threads on one timeline, `folded` is the wait time for flame graphs.
//! - `condition` is a limit for `--fail-if`.
//!
//! What happened is observed by [`headway_debox_bpf::RequestObserver`]. The crate refuses to guess:
//! a time that nothing explains is shown as such, and the parts of a request add up to its total.
#![forbid(unsafe_code)]

mod advice;
mod collector;
mod condition;
mod figures;
mod folded;
mod kept;
mod names;
mod parts;
mod problem;
mod queues;
mod remedies;
mod report;
mod server;
pub mod text;
mod timeline;
mod upstreams;

pub use advice::Advice;
pub use collector::{Collector, Keep};
pub use condition::{Condition, ConditionError};
pub use figures::{Failure, LoopTurns, RunQueueShare, SleepCount};
pub use names::FileNames;
pub use parts::{Cause, Doing, Phase};
pub use problem::Problem;
pub use queues::ListenQueues;
pub use report::{
    CauseShare, FileShare, HolderShare, Latency, PathShare, PhaseShare, Report, Requests, SCHEMA,
    Shares,
};
pub use server::{
    Server, ServerError, ServerSocket, Target, compat_note, io_uring_note, listening_ports,
};
pub use upstreams::{Upstream, Upstreams};
