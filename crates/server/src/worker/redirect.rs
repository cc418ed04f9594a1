//! The handlers of redirects: of directories that were requested without their final slash, and of
//! locations.

use std::ops::ControlFlow::{Break, Continue};

use headway_config::HandlerConfig;
use headway_connection::{Connection, Next};
use headway_http::Status;
use headway_request::Request;

use super::context::LoopContext;
use super::handler::Handler;

/// Redirects to the same path with a slash, so that relative links of an index file work.
pub(super) struct DirectoryRedirect;

impl Handler for DirectoryRedirect {
    type Target = ();

    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        _: &mut &[u8],
        (): (),
    ) -> Next {
        let Some(Ok(path)) = request.head.path() else {
            return context.send_error(connection, request, Status::NOT_FOUND);
        };
        // Whether it exists is not for clients if what is in it is not.
        let host = context.hosts();
        let inside = [&path.bytes[..], b"/"].concat();
        let route = context.routes.find(host.get(request.virtual_host), &inside);
        let is_hidden = route.is_some_and(|route| {
            let is_internal = route.location.internal && request.redirects == 0;
            is_internal || !route.location.access.admits(connection.client.ip())
        });
        if is_hidden {
            return context.send_error(connection, request, Status::NOT_FOUND);
        }
        connection.keep_alive = context.keeps_alive(connection, &request);
        let head = request.head.head();
        let response_context = context.response_context(&head, request.virtual_host, connection);
        let response =
            headway_respond::redirect_directory(&response_context, &path.bytes, path.query);
        context.start_response(connection, request, response)
    }
}

/// Redirects the requests of a location elsewhere.
pub(super) struct LocationRedirect;

impl Handler for LocationRedirect {
    /// The number of the location.
    type Target = usize;

    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
        number: usize,
    ) -> Next {
        let request = match context.skip_body(connection, request, input) {
            Continue(request) => request,
            Break(next) => return next,
        };
        connection.keep_alive = context.keeps_alive(connection, &request);
        let route = context.routes.get(number).clone();
        let (HandlerConfig::Redirect(redirect), Some(Ok(path))) =
            (&route.location.handler, request.head.path())
        else {
            return context.send_error(connection, request, Status::NOT_FOUND);
        };
        let head = request.head.head();
        let response_context = context.response_context(&head, request.virtual_host, connection);
        let rest = route.rest(&path.bytes);
        let response =
            headway_respond::redirect_location(&response_context, redirect, rest, path.query);
        context.start_response(connection, request, response)
    }
}
