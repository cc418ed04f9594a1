//! Whether a request may be sent once more after it failed.
//!
//! Repeating a request that was carried out can order the same thing twice. So what counts is
//! whether the back end can have begun to work on it, and if it can, whether doing it twice is the
//! same as doing it once. Once the client has seen a byte of the reply there is nothing to repeat.
//!
//! Source: RFC 9110 section 9.2.2, RFC 9112 section 9.3.1.

use headway_http::Method;

/// How far a request had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// None of it was written: no connection came about.
    Unsent,
    /// The back end said that it had not begun ([`crate::Fault::is_untouched`]).
    Untouched,
    /// Something was written, and no byte of a reply came. A kept connection that the back end
    /// closed in the same moment looks like this, too.
    Sent,
    /// The reply had begun.
    Answered,
}

/// Whether the request may go to another back end, or to the same one over a new connection.
/// `body_is_kept`: every byte of the body that has been taken from the client can be sent again.
pub fn may_retry(method: Method, stage: Stage, body_is_kept: bool) -> bool {
    match stage {
        Stage::Unsent | Stage::Untouched => body_is_kept,
        Stage::Sent => body_is_kept && is_idempotent(method),
        Stage::Answered => false,
    }
}

/// Whether doing it twice is the same as doing it once.
pub fn is_idempotent(method: Method) -> bool {
    match method {
        Method::Get | Method::Head | Method::Options => true,
        Method::Other(name) => matches!(name, "PUT" | "DELETE" | "TRACE"),
    }
}
