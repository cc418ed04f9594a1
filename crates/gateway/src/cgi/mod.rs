//! CGI/1.1: a request as variables for a program, and a program's output as a reply.
//!
//! [`Variables`] are what a program finds in its environment; FastCGI and SCGI send the same ones
//! over a socket. [`ReplyReader`] reads what a program writes; FastCGI and SCGI bring the same.
//! [`NphReader`] is for programs that speak HTTP themselves. Finding and starting programs is the
//! server's part.
//!
//! Not done, on purpose: a query without `=` is not made into command-line words (RFC 3875 section
//! 4.4 leaves that to the server). Hardly a program wants it, and interpreters have taken such
//! words for options, with the consequences one expects.
//!
//! Source: RFC 3875.

mod head;
mod nph;
mod reply;
mod script;
mod variables;

pub use head::is_local;
pub use nph::{NphEvent, NphReader};
pub use reply::ReplyReader;
pub use script::{Split, split_at_suffix, splits_below};
pub use variables::{Context, User, Variables};
