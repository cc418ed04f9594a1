//! A reverse proxy's part of HTTP/1.1: requests to a back end, and its replies.
//!
//! The request is written anew from what was understood of it, never copied: the back end frames
//! the body by the fields written here, and by no others. The same holds for the reply. Interim
//! replies end here, trailers too. A WebSocket's upgrade passes; other protocols do not, HTTP/2 in
//! clear text least of all, since behind such an upgrade nothing could be looked at any more.
//!
//! Sources: RFC 9110 sections 7.6, 7.8; RFC 9112 sections 6, 7, 9; RFC 7239; RFC 6455 section 4.

mod exchange;
mod forwarded;
mod reply;
mod request;

pub use exchange::ProxyExchange;
pub use request::{Body, Forwarding, Unforwardable, is_websocket, write_request};
