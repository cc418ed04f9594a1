//! Internal redirects: a handler asks for another resource of this server, by a local `Location`
//! (RFC 3875, 6.2.2) or by `X-Accel-Redirect` and `X-Sendfile`. The request becomes another one,
//! which the router starts.

use std::ops::ControlFlow::Break;
use std::rc::Rc;

use headway_connection::{Connection, Exchange, Next};
use headway_gateway::cgi::is_local;
use headway_gateway::upstream::UpstreamOutcome;
use headway_gateway::{AccelRedirect, FieldList};
use headway_http::{Parsed, Status, Target};
use headway_metrics::RequestStage;
use headway_respond::handlers::accel_redirect::{file_below, passed_fields};
use headway_respond::handlers::{RedirectKind, redirected_request};

use super::{ExchangeEnd, ExchangeStep, Gateway};
use crate::worker::context::LoopContext;

/// Most internal redirects in a row for one request.
const REDIRECTS_MAX: u8 = 8;

/// The target of an internal redirect.
pub(super) struct InternalRedirect {
    /// Path and query.
    location: Box<[u8]>,
    /// Header fields that go with the file (`X-Accel-Redirect` and `X-Sendfile` only).
    accel_fields: Option<FieldList>,
}

impl InternalRedirect {
    /// The end of an exchange whose program sent a local `Location`.
    pub(super) fn local(location: Box<[u8]>) -> ExchangeEnd {
        ExchangeEnd::InternalRedirect(Box::new(InternalRedirect {
            location,
            accel_fields: None,
        }))
    }
}

impl Gateway {
    /// Sends a file of the server in place of the response's body (`X-Accel-Redirect`,
    /// `X-Sendfile`).
    pub(super) fn accel_redirect(
        &mut self,
        context: &mut LoopContext,
        exchange: &mut Exchange,
        accel_redirect: &AccelRedirect,
        fields: &FieldList,
    ) -> ExchangeStep {
        let hosts = context.hosts();
        let site = hosts.get(exchange.request.virtual_host);
        let (location, why) = match accel_redirect {
            AccelRedirect::Location(location) => (
                is_local(location).then(|| location.to_vec()),
                "X-Accel-Redirect is not a path of this server",
            ),
            AccelRedirect::File(file) => (
                file_below(context.routes.document_root(site), file),
                "X-Sendfile is not a file below the document root",
            ),
        };
        match location {
            Some(location) => {
                self.release_upstream(context, exchange, UpstreamOutcome::Answered, false);
                Break(ExchangeEnd::InternalRedirect(Box::new(InternalRedirect {
                    location: location.into(),
                    accel_fields: Some(passed_fields(fields)),
                })))
            }
            None => self.reject_response(context, exchange, why),
        }
    }

    /// Whether this location allows `X-Accel-Redirect` and `X-Sendfile`.
    pub(super) fn allows_accel_redirect(context: &LoopContext, exchange: &Exchange) -> bool {
        let route = context.routes.get(exchange.program.route);
        route.location.accel_redirect
    }

    /// The handler asks for another resource of this server (RFC 3875, 6.2.2).
    pub(super) fn redirect(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut exchange: Exchange,
        redirect: InternalRedirect,
    ) -> Next {
        let redirects = exchange.request.redirects + 1;
        if redirects > REDIRECTS_MAX {
            self.log_program(
                context,
                exchange.id,
                &format!(
                    "{}: more than {REDIRECTS_MAX} internal redirects in a row",
                    String::from_utf8_lossy(&exchange.program.file)
                ),
            );
            return self.answer_error(context, connection, exchange, Status::BAD_GATEWAY);
        }
        Gateway::cancel_helper_jobs(context, &exchange);
        self.release_program(context, &mut exchange);
        let whole = exchange.upload.body.is_none();
        let head = exchange.request.head.head();
        let request = headway_gateway::Request::new(&head, exchange.request.head.bytes());
        let how = match redirect.accel_fields {
            Some(_) => RedirectKind::AccelRedirect,
            None => RedirectKind::LocalRedirect,
        };
        let bytes = redirected_request(&request, &redirect.location, how, !whole);
        // The target is new, so this is another request.
        let why = match headway_http::parse(&bytes, &context.limits_of(connection)) {
            Parsed::Complete(head) if is_path(&head.target) => {
                let started_us = exchange.request.started_us;
                let mut request =
                    context.make_request(&head, &bytes, (connection.listener, started_us));
                request.trace = exchange.request.trace;
                request.redirects = redirects;
                request.had_helper = exchange.request.had_helper;
                request.accel_fields = redirect.accel_fields.map(Rc::new);
                context.requests.recycle(exchange.request);
                let now_us = context.clock.now_us();
                connection.stages.enter(RequestStage::Lookup, now_us);
                return Next::Start(request);
            }
            Parsed::Reject(reject) => reject.reason,
            Parsed::Complete(_) | Parsed::Partial => "not a path of this server",
        };
        // The client's request was valid, so the error is the handler's.
        context.counters.handler_invalid_responses += 1;
        let name = String::from_utf8_lossy(&exchange.program.file).into_owned();
        let line = format!("{name}: invalid target of an internal redirect: {why}");
        self.log_program(context, exchange.id, &line);
        self.answer_error(context, connection, exchange, Status::BAD_GATEWAY)
    }
}

/// Whether the target is a path that leads nowhere outside.
fn is_path(target: &Target<'_>) -> bool {
    matches!(target, Target::Path(path) if headway_http::path::normalise(path).is_ok())
}
