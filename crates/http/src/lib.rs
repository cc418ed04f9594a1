//! The words of HTTP/1: what a request says, and how an answer is written.
//!
//! Everything here is a pure function of bytes. The crate does no input or output, starts nothing,
//! and reads no clock: where an instant matters, the caller passes it in. It refuses to guess what
//! a malformed request meant; such a request becomes a [`head::Reject`], which is data, not an
//! error.
//!
//! In the request path it is met three times: [`head`] and [`path`] right after the bytes arrived,
//! [`conditional`], [`range`], [`encoding`] and [`media`] once the file is known, and [`response`]
//! and [`multipart`] when the answer leaves. On the path of an ordinary GET nothing allocates.
//!
//! Sources: RFC 9110 (semantics), RFC 9112 (HTTP/1.1), RFC 3986 (targets), RFC 7303 (XML types).
#![forbid(unsafe_code)]

pub mod head;
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

pub use fields::{decimal, elements};
pub use head::{Framing, Head, HeadLimits, Method, Parsed, Reject, Version, parse};
pub use status::Status;
pub use target::Target;
