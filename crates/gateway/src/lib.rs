//! How the server speaks to the programs and servers behind it: CGI.
//!
//! Everything here turns bytes into values and back. The crate opens nothing, waits for nothing,
//! starts nothing and reads no clock. It refuses to pass on what it does not understand: a reply head
//! that could be read in two ways becomes a [`Refusal`] that says what was wrong with it, and the
//! server answers 502.
//!
//! In the request path it is met after [`http::parse`] found the request sound and a location said
//! that a program answers it. [`cgi::Variables`] describes the request to a program, and
//! [`cgi::ReplyReader`] makes [`Event`]s of what the program writes.
//!
//! Sources: RFC 3875 (CGI/1.1), RFC 9110 (semantics), RFC 9112 (HTTP/1.1).
#![forbid(unsafe_code)]

pub mod request;
pub mod fields;
pub mod reply;
pub mod cgi;
mod lines;
mod pairs;
mod refusal;

pub use fields::FieldList;
pub use refusal::Refusal;
pub use reply::{Answer, Event, Handoff, HeadLimits, Reply};
pub use request::Request;
