//! FastCGI as a web server speaks it: requests to a program that stays, and its replies; and as
//! such a program speaks it ([`Responder`]).
//!
//! One request at a time on a connection, in the role of a responder: back ends that multiplex are
//! unknown, php-fpm refuses it. The connection may be kept for the next request.
//!
//! Source: FastCGI Specification, version 1.0 (Open Market, 1996).

mod abort;
mod exchange;
mod inquiry;
mod record;
mod responder;

pub use abort::Aborted;
pub use exchange::FastCgiExchange;
pub use inquiry::{Abilities, Inquiry};
pub use record::{Fragment, Garbage, Kind, RecordReader, write_record, write_stream};
pub use responder::{Asked, Responder, VARIABLES_BYTES_MAX, write_end};
