//! How the server speaks to the programs and servers behind it: CGI, FastCGI, SCGI and HTTP/1.1.
//!
//! Everything here turns bytes into values and back. The crate opens nothing, waits for nothing,
//! starts nothing and reads no clock. It refuses to pass on what it does not understand: a reply
//! head that could be read in two ways becomes a [`Refusal`] that says what was wrong with it, and
//! the server answers 502.
//!
//! In the request path it is met after [`headway_http::parse`] found the request sound and a location said
//! that somebody else answers it. [`cgi::Variables`] describes the request to a program, and
//! [`cgi::ReplyReader`] makes [`Event`]s of what the program writes. Over a socket an [`Exchange`]
//! does both, in one of three protocols. [`upstream`] says which back end is asked, and whether
//! another one may be asked after it.
//!
//! Sources: RFC 3875 (CGI/1.1), the FastCGI and SCGI specifications, RFC 9110 (semantics), RFC 9112
//! (HTTP/1.1), RFC 7239 (Forwarded).
#![forbid(unsafe_code)]

pub mod request;
pub mod fields;
pub mod reply;
pub mod exchange;
pub mod cgi;
pub mod fastcgi;
pub mod scgi;
pub mod proxy;
pub mod upstream;
mod lines;
mod pairs;
mod refusal;

pub use exchange::{Exchange, Fault};
pub use fields::FieldList;
pub use refusal::Refusal;
pub use reply::{Answer, End, Event, Handoff, HeadLimits, Reply};
pub use request::Request;
