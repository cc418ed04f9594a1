//! The server's metrics: the counters of a worker, their sum, and the Prometheus text format.
//!
//! A worker only adds to plain integers. Everything that formats or merges happens in the master,
//! off the loop.

pub mod counters;
pub mod families;
pub mod histogram;
pub mod http_requests;
pub mod netstat;
pub mod overview;
pub mod prometheus;
pub mod snapshot;
pub mod upstreams;

pub use counters::{Counters, HistogramSeries, Series, SeriesKind};
pub use histogram::Histogram;
pub use http_requests::{HttpRequests, MethodLabel};
pub use netstat::NetworkDrops;
pub use overview::{MasterStatus, Overview, Pinned, Skew};
pub use snapshot::Snapshot;
pub use upstreams::Upstream;
