//! Requests that pages of other origins make (`[[cors]]`). A browser asks first, by a preflight, whether the
//! page may make a request which a form could not.

use std::ops::ControlFlow::{Break, Continue};

use headway_connection::{Connection, Next};
use headway_http::Method;
use headway_request::Request;

use super::context::LoopContext;
use super::handler::Handler;

/// Answers preflights, also for paths of programs and upstreams.
pub(super) struct Preflight;

impl Preflight {
    /// Whether a request is a preflight. Notes its origin, if the response has to name it.
    pub(super) fn applies(
        context: &LoopContext,
        connection: &mut Connection,
        request: &Request,
    ) -> bool {
        connection.origin = None;
        let rules = context.response_settings.cors();
        if rules.is_empty() {
            return false;
        }
        let (Some(Ok(path)), host) = (request.head.path(), request.virtual_host) else {
            return false;
        };
        let head = request.head.head();
        let parsed = headway_gateway::Request::new(&head, request.head.bytes());
        let mut origins = parsed.values(b"origin");
        let (Some(origin), None) = (origins.next(), origins.next()) else {
            return false;
        };
        if rules.names(host, &path.bytes, origin) {
            connection.origin = Some(origin.into());
        }
        let asks = || {
            parsed
                .values(b"access-control-request-method")
                .next()
                .is_some()
        };
        request.head.method() == Method::Options && rules.apply_to(host, &path.bytes) && asks()
    }
}

impl Handler for Preflight {
    type Target = ();

    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
        (): (),
    ) -> Next {
        let request = match context.skip_body(connection, request, input) {
            Continue(request) => request,
            Break(next) => return next,
        };
        connection.keep_alive = context.keeps_alive(connection, &request);
        let head = request.head.head();
        let response_context = context.response_context(&head, request.virtual_host, connection);
        let response = headway_respond::preflight(&response_context);
        context.start_response(connection, request, response)
    }
}
