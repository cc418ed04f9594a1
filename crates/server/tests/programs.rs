//! CGI, direct and pipe programs behind a whole server: small shell scripts, started by the real
//! spawner of a real server. Normal use first, then everything they can do wrong.
//!
//! Timeouts of the server are short here; the tests wait much longer for the consequences.

mod bodies;
mod limits;
mod direct;
mod orphans;
mod faults;
mod accel_redirect;
mod pipe;
mod privileges;
mod routing;
mod responses;
