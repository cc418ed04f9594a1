//! Upstreams: addresses, selection and health, idle connections, and retries.
//!
//! [`UpstreamSelector::choose`] picks the upstream for a request, [`IdleConnections`] keeps
//! connections for reuse, and [`may_retry`] decides whether a failed request may be sent again.

mod address;
mod health;
mod idle_connections;
mod retry;
mod selector;

pub use address::{Address, AddressError};
pub use idle_connections::{IdleConnections, IdleLimits};
pub use retry::{AttemptStage, is_idempotent, may_retry};
pub use selector::{
    Lease, LoadBalancing, TriedUpstreams, UPSTREAMS_MAX, Unavailable, UpstreamOutcome,
    UpstreamPolicy, UpstreamSelector, UpstreamView,
};
