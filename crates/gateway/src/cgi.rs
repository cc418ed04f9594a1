//! CGI/1.1: a request as variables for a program, and a program's output as a response.
//!
//! [`Variables`] are the environment of a CGI program; FastCGI and SCGI send the same ones over a
//! socket. [`ResponseReader`] parses the output, which also has the same format for all three.
//! [`NphReader`] is for programs that write HTTP themselves. The server finds and starts the
//! programs.
//!
//! Not done, on purpose: a query without `=` is not turned into command-line arguments (RFC 3875
//! section 4.4 leaves that to the server). Hardly any program wants it, and interpreters have taken
//! such arguments for options, which led to security holes.
//!
//! Source: RFC 3875.

mod head;
mod nph;
mod response;
mod script;
mod variables;

pub use head::is_local;
pub use nph::{NphEvent, NphReader};
pub use response::ResponseReader;
pub use script::{ScriptSplit, split_at_suffix, splits_below};
pub use variables::{Context, User, Variables};
