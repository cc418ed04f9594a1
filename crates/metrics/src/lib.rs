//! The server's metrics: the counters of a worker, their sum, and the Prometheus text format.
//!
//! A worker only adds to plain integers. Everything that formats or merges happens in the master,
//! off the loop. [`status`] serves it there, as pages and as text. [`calls`] has the system calls
//! that the tracer of a worker tells apart.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

pub mod calls;
pub mod counters;
pub mod families;
pub mod features;
pub mod histogram;
pub mod http_requests;
mod longest_turn;
pub mod netstat;
pub mod overview;
pub mod prometheus;
pub mod request_durations;
mod request_stages;
pub mod snapshot;
pub mod status;
pub mod upstreams;

pub use counters::{Counters, HistogramSeries, Series, SeriesKind};
pub use histogram::Histogram;
pub use http_requests::{HttpRequests, MethodLabel};
pub use longest_turn::{LongestTurn, TURN_STAGES};
pub use netstat::NetworkDrops;
pub use overview::{MasterStatus, Overview, Pinned, Skew, Stored};
pub use request_durations::{DurationRow, Durations, HandlerLabel, RequestDurations};
pub use request_stages::{RequestStage, RequestStages, StageClock};
pub use snapshot::Snapshot;
pub use upstreams::Upstream;
