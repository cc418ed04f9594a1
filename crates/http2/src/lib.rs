//! HTTP/2 without I/O: a [`Session`] takes a client's bytes and gives requests and bytes for the client.
//!
//! Each request comes as the header of HTTP/1.1 that says the same, and its response is sent as one of
//! HTTP/1.1 is: so everything that answers requests need not know of HTTP/2. A [`Stream`] stands for a
//! client's socket then. It takes as many bytes as the windows of the client and the room for output
//! allow, as a socket does, and the caller decides which stream is served next.
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
