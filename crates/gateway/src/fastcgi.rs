//! FastCGI, from the web server's side ([`FastCgiCodec`]) and from the application's
//! ([`Responder`]).
//!
//! One request at a time per connection, in the responder role: no known application multiplexes,
//! and php-fpm rejects it. A connection may be kept alive for the next request.
//!
//! Source: FastCGI Specification, version 1.0 (Open Market, 1996).

mod abort;
mod codec;
mod get_values;
mod record;
mod responder;

pub use abort::Aborted;
pub use codec::FastCgiCodec;
pub use get_values::{Capabilities, GetValues};
pub use record::{Fragment, InvalidRecord, RecordKind, RecordReader, write_record, write_stream};
pub use responder::{Responder, ResponderRequest, VARIABLES_BYTES_MAX, write_end};
