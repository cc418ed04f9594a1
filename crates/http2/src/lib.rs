//! HTTP/2 without I/O: a [`Session`] takes a client's bytes and gives requests and bytes for the client.
//!
//! Each request comes as an HTTP/1.1 header, and its response is given as HTTP/1.1. So the code that answers
//! requests need not know HTTP/2. A [`Stream`] takes the place of the client's socket. As a socket does, it
//! takes only as many bytes as the windows of the client and the room for output allow. The caller decides
//! which stream is served next.
//!
//! Frames, HPACK, flow control and most limits against floods are those of the crate h2. It is written for
//! asynchronous programs; here it is polled whenever bytes have come or were queued.
//!
//! Sources: RFC 9113 (HTTP/2), RFC 9218 (priorities).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod pipe;
mod priority;
mod request;
mod response;
mod session;
mod stream;

pub use priority::Priority;
pub use session::{Session, Settings};
pub use stream::{Gone, Received, Stream};

/// What a client sends first (RFC 9113, 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
