//! The protocols between the server and what is behind it: CGI, FastCGI, SCGI and HTTP/1.1.
//!
//! Everything here converts between bytes and values. The crate opens nothing, blocks on nothing,
//! starts nothing and reads no clock. Ambiguous input is rejected: a response head that could be
//! read in two ways becomes an [`InvalidResponse`] that says what is wrong with it, and the server
//! answers
//! 502.
//!
//! In the request path it comes after [`headway_http::parse`] has validated the request and a
//! handler location has been found. [`cgi::Variables`] describes the request to a program, and
//! [`cgi::ResponseReader`] turns the program's output into [`ResponseEvent`]s. Over a socket, a
//! [`Codec`] does both for one of three protocols. [`upstream`] chooses the upstream and decides
//! about retries.
//!
//! Sources: RFC 3875 (CGI/1.1), the FastCGI and SCGI specifications, RFC 9110 (semantics), RFC 9112
//! (HTTP/1.1), RFC 7239 (Forwarded).
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

pub mod request;
pub mod client_address;
pub mod fields;
pub mod response;
pub mod trailers;
pub mod codec;
pub mod cgi;
pub mod fastcgi;
pub mod scgi;
pub mod proxy;
pub mod upstream;
mod header_lines;
mod pairs;
mod invalid_response;
mod tls_client;
mod trace_context;

pub use codec::{Codec, CodecError};
pub use fields::FieldList;
pub use invalid_response::InvalidResponse;
pub use request::Request;
pub use response::{
    AccelRedirect, HeadLimits, ResponseAction, ResponseEnd, ResponseEvent, ResponseHead,
};
pub use tls_client::{ClientCertificate, TlsClient};
pub use trace_context::{ALL_56, TraceContext};
