//! Whether a failed request may be sent again.
//!
//! Repeating a request that was executed can order the same thing twice. So it matters whether the
//! upstream may have started to process it, and if so, whether the method is idempotent. Once the
//! client has received a byte of the response, there is nothing to retry.
//!
//! Source: RFC 9110 section 9.2.2, RFC 9112 section 9.3.1.

use headway_http::Method;

/// How far a request had progressed when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptStage {
    /// Nothing was written: no connection was established.
    Unsent,
    /// The upstream reported that it had not started ([`crate::CodecError::is_untouched`]).
    Untouched,
    /// Something was written, and no byte of a response came. A keep-alive connection that the
    /// upstream closed at the same moment looks the same.
    Sent,
    /// The response had started.
    Answered,
}

/// Whether the request may be sent to another upstream, or over a new connection. `body_is_kept`:
/// all body bytes taken from the client can be sent again.
pub fn may_retry(method: Method, stage: AttemptStage, body_is_kept: bool) -> bool {
    match stage {
        AttemptStage::Unsent | AttemptStage::Untouched => body_is_kept,
        AttemptStage::Sent => body_is_kept && is_idempotent(method),
        AttemptStage::Answered => false,
    }
}

/// Whether executing the request twice has the same effect as once.
pub fn is_idempotent(method: Method) -> bool {
    match method {
        Method::Get | Method::Head | Method::Options => true,
        Method::Other(name) => matches!(name, "PUT" | "DELETE" | "TRACE"),
    }
}
