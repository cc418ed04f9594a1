//! The handlers of redirects: of directories that were requested without their final slash, of
//! locations, and of requests in the clear to TLS.

use std::ops::ControlFlow::{Break, Continue};

use headway_config::{Endpoint, HandlerConfig};
use headway_connection::{Connection, Next};
use headway_http::Status;
use headway_metrics::HandlerLabel;
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
        mut request: Box<Request>,
        _: &mut &[u8],
        (): (),
    ) -> Next {
        request.handler = HandlerLabel::Redirect;
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

/// Redirects paths that end in `.html` (`clean-urls`).
pub(super) struct CleanRedirect;

impl Handler for CleanRedirect {
    type Target = ();

    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &mut &[u8],
        (): (),
    ) -> Next {
        request.handler = HandlerLabel::Redirect;
        let request = match context.skip_body(connection, request, input) {
            Continue(request) => request,
            Break(next) => return next,
        };
        connection.keep_alive = context.keeps_alive(connection, &request);
        let hosts = context.hosts();
        let host = hosts.get(request.virtual_host);
        let Some(Ok(path)) = request.head.path() else {
            return context.send_error(connection, request, Status::NOT_FOUND);
        };
        let Some(clean) = context.routes.clean_url(host, &path.bytes) else {
            return context.send_error(connection, request, Status::NOT_FOUND);
        };
        let head = request.head.head();
        let response_context = context.response_context(&head, request.virtual_host, connection);
        let response = headway_respond::redirect_clean(&response_context, clean, path.query);
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
        mut request: Box<Request>,
        input: &mut &[u8],
        number: usize,
    ) -> Next {
        request.handler = HandlerLabel::Redirect;
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

/// Redirects requests in the clear to TLS (`tls-redirect`).
pub(super) struct TlsRedirect;

/// Answers here prove to a certificate authority that the host belongs to this server (RFC 8555, 8.3). The
/// authority requests them without TLS.
const ACME_CHALLENGES: &[u8] = b".well-known/acme-challenge/";
const HTTPS_PORT: u16 = 443;

impl TlsRedirect {
    /// Whether a request is redirected. One that a trusted proxy has received by TLS is not.
    pub(super) fn applies(
        context: &LoopContext,
        connection: &Connection,
        request: &Request,
    ) -> bool {
        let redirects = context.config.tls.as_ref().is_some_and(|tls| tls.redirects);
        if !redirects || connection.is_secure || request.redirects > 0 {
            return false;
        }
        let head = request.head.head();
        if secure_endpoint(context, request).is_none() {
            return false;
        }
        let is_challenge = matches!(
            request.head.path(),
            Some(Ok(path)) if path.bytes.starts_with(ACME_CHALLENGES)
        );
        let parsed = headway_gateway::Request::new(&head, request.head.bytes());
        let protocol = parsed.values(b"x-forwarded-proto").next();
        let is_https = protocol.is_some_and(|value| value.eq_ignore_ascii_case(b"https"));
        !(is_challenge || (connection.has_trusted_sender() && is_https))
    }
}

impl Handler for TlsRedirect {
    type Target = ();

    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &mut &[u8],
        (): (),
    ) -> Next {
        request.handler = HandlerLabel::Redirect;
        let request = match context.skip_body(connection, request, input) {
            Continue(request) => request,
            Break(next) => return next,
        };
        connection.keep_alive = context.keeps_alive(connection, &request);
        let port = secure_endpoint(context, &request).and_then(Endpoint::tcp);
        let port = port.map_or(HTTPS_PORT, |address| address.port());
        let head = request.head.head();
        let (Some(host), Some(Ok(path))) = (head.host.map(name_of), request.head.path()) else {
            return context.send_error(connection, request, Status::BAD_REQUEST);
        };
        let mut authority = host.to_vec();
        if port != HTTPS_PORT {
            authority.extend(format!(":{port}").bytes());
        }
        let response_context = context.response_context(&head, request.virtual_host, connection);
        let response = headway_respond::redirect_to_tls(
            &response_context,
            &authority,
            &path.bytes,
            path.query,
        );
        context.start_response(connection, request, response)
    }
}

/// The first address of TLS at which the host of a request is served.
fn secure_endpoint<'c>(context: &'c LoopContext, request: &Request) -> Option<&'c Endpoint> {
    let config = &context.config;
    let host = request.head.head().host;
    let mut secure = config.plain_listeners()..config.listen.len();
    let hosts = &context.hosts;
    let reached = |at: &usize| hosts.is_reached_at(*at as u32, host, request.virtual_host);
    config.listen.get(secure.find(reached)?)
}

/// The host without its port. An IPv6 address has colons inside its brackets.
fn name_of(host: &[u8]) -> &[u8] {
    let end = host.iter().rposition(|byte| matches!(byte, b':' | b']'));
    match end {
        Some(at) if host[at] == b':' => &host[..at],
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn port_is_no_part_of_a_name() {
        for (host, name) in [
            ("a.example", "a.example"),
            ("a.example:8080", "a.example"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]"),
        ] {
            assert_eq!(super::name_of(host.as_bytes()), name.as_bytes());
        }
    }
}
