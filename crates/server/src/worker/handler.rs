//! What the handlers of requests have in common.
//!
//! The [router](super::router) decides which handler answers a request: files, listings, redirects
//! of directories, programs and upstreams, or an embedded application. Each gets the request, what
//! was received behind its header, the connection and the context. It sends through the context, and
//! what it returns says how the connection continues. A handler never waits: it returns a phase that
//! owns the request.

use std::ops::ControlFlow;

use headway_connection::{Connection, Next};
use headway_request::Request;

use super::context::LoopContext;

/// Answers requests.
pub(super) trait Handler {
    /// What the router has found out for this handler.
    type Target;

    /// Answers a request, or begins to. A handler takes the body of the request from `input`, as far
    /// as it has been received, and leaves what follows.
    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
        target: Self::Target,
    ) -> Next;
}

/// A step inside a handler. `Continue`: the handler takes its next step. `Break`: the handler
/// is done with the request for now, and this happens to the connection. So `?` leaves the handler
/// when a step has answered or has to wait.
pub(super) type Step<T = Box<Request>> = ControlFlow<Next, T>;
