//! HTTP/1 messages as pure functions of bytes: parsing requests and writing response headers.
//!
//! The crate does no input or output, starts no threads and reads no clock: the caller passes times
//! in. It does not guess what a malformed request meant; such a request becomes a [`head::Reject`],
//! which is a value, not an error.
//!
//! A server uses it in three steps: [`head`] and [`path`] when the bytes have arrived;
//! [`conditional`], [`range`], [`encoding`] and [`media`] when the file is known; [`response`] and
//! [`multipart`] to write the response. An ordinary GET causes no allocation.
//!
//! ```
//! use headway_http::response::HeadWriter;
//! use headway_http::{HeadLimits, Parsed, Status, Target, Version, parse, path};
//! let request = b"GET /docs/a%20b.html?page=2 HTTP/1.1\r\nHost: example.org\r\n\r\n";
//! let Parsed::Complete(head) = parse(request, &HeadLimits::default()) else { panic!() };
//! let Target::Path(target) = head.target else { panic!() };
//! let path = path::normalise(target).unwrap();
//! assert_eq!(&*path.bytes, b"docs/a b.html");
//! let mut response = Vec::new();
//! HeadWriter::new(&mut response, Version::Http11, Status::NOT_FOUND)
//! .field_u64("Content-Length", 0)
//! .end();
//! assert!(response.starts_with(b"HTTP/1.1 404 Not Found\r\n"));
//! ```
//!
//! Sources: RFC 9110 (semantics), RFC 9112 (HTTP/1.1), RFC 3986 (targets), RFC 7303 (XML types).
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

pub mod head;
pub mod owned;
pub mod target;
pub mod path;
pub mod chunked;
pub mod date;
pub mod etag;
pub mod conditional;
pub mod range;
pub mod encoding;
pub mod media;
pub mod status;
pub mod response;
pub mod multipart;
mod fields;

pub use fields::{CONNECTION_OPTIONS_MAX, decimal, elements};
pub use head::{
    Framing, Head, HeadLimits, Method, Parsed, Reject, RejectKind, Version, may_be_decided, parse,
};
pub use owned::OwnedHead;
pub use status::Status;
pub use target::Target;
