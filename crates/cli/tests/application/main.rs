//! The application of a SPECweb99-like measurement, by every way in which a server can run it: one
//! conversation, the same bytes.
//!
//! The server is a real one with a location for each way; behind one of them is the FastCGI
//! program, started as a user starts it.

#[path = "../common/executable.rs"]
mod executable;
#[path = "../serving/mod.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod serving;
#[path = "../programs/site.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod site;
#[path = "../../../gateway/tests/peers/start.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod start;

mod conversation;
mod held;
mod own;
mod peers;
mod place;
