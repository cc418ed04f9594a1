//! HTTP/1.1 as a reverse proxy: requests to an upstream, and its responses.
//!
//! A request is never copied but written again from the parsed one: the upstream frames the body by
//! the fields written here and by no others. The same holds for the response. Interim responses
//! are not passed on; trailers are, to clients that accept them. WebSocket upgrades are; other protocols are not, in particular not
//! HTTP/2 in clear text, which would bypass all checks.
//!
//! Sources: RFC 9110 sections 7.6, 7.8; RFC 9112 sections 6, 7, 9; RFC 7239; RFC 6455 section 4.

mod codec;
mod forwarded;
mod response;
mod request;

pub use codec::ProxyCodec;
pub use request::{Body, Forwarding, Unforwardable, is_websocket, write_request};
