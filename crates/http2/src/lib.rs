//! HTTP/2 without I/O: a [`Session`] reads the bytes of a client, and returns requests and bytes for the client.
//!
//! Each request is an HTTP/1.1 header, and the caller writes the response as HTTP/1.1. So the code that answers
//! requests need not know HTTP/2. A [`Stream`] replaces the client's socket. Like a socket, it accepts only a limited
//! number of bytes: what the client's flow-control windows and the output buffer have room for. The caller decides
//! which stream is served next.
//!
//! Frames and HPACK are our own. The libraries h2 and nghttp2 need more CPU time per request than this whole crate
//! (`bench/http2-framing`). Here a stream writes its frames into the output buffer, and no header is built twice.
//!
//! Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK), RFC 8441 (WebSockets), RFC 9218 (priorities).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod buffers;
mod connection;
pub mod frame;
pub mod hpack;
mod priority;
mod request;
mod response;
mod session;
mod stream;
mod websocket;

pub use priority::Priority;
pub use session::{Session, Settings};
pub use stream::{Gone, Received, Stream};
pub use websocket::answer as websocket_answer;

/// The bytes that a client sends first (RFC 9113, 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
