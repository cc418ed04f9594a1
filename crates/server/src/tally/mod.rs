//! What the server knows about itself: counters, the status page, metrics, the access log.
//!
//! A worker only adds to plain integers and appends to a bounded buffer; everything that formats,
//! merges or writes happens in the master or in the log process, off the loop.

pub mod backends;
pub mod counters;
pub mod histogram;
pub mod netstat;
pub mod overview;
pub mod status;
pub mod page;
pub mod prometheus;
pub mod access_log;
pub mod log_process;

pub use backends::BackEnd;
pub use counters::{Counters, Kind, Responses, Scalar, Snapshot};
pub use histogram::Histogram;
pub use netstat::NetworkDrops;
pub use overview::{Kept, MasterTally, Overview, Skew};
