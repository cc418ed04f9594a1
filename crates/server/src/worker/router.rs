//! The router: from a request to the handler that answers it.
//!
//! The handlers are peers behind the trait [`Handler`]: files, listings, redirects of directories,
//! programs and upstreams, embedded applications. The router owns them. Without locations it passes
//! each request to the files. Otherwise it asks which location the path belongs to, for which a
//! helper may have to look up files first.
//!
//! # Where filters act
//!
//! What applies to requests and responses of every handler stands around them, in this order:
//!
//! 1. Limits of the header (`max-header-size` and others) when it is parsed, of connections and of
//!    overload in the [`Acceptor`](super::acceptor::Acceptor).
//! 2. Rules about the request as a whole: `skip_body` ([`LoopContext`]) for handlers without a use
//!    for a body, `admission` of the gateway for the limits of a location.
//! 3. The response cache, inside the handler of files: it keeps whole responses, so it comes before
//!    the response is built, and its entries end with those of the file cache.
//! 4. Headers of each response, `[[header]]` and `server-header`: [`LoopContext::response`] gives the
//!    [`ResponseContext`](headway_respond::ResponseContext), without which no header can be written.
//! 5. [`LoopContext::start_response`] gets every whole response and begins to send it; cached responses
//!    and errors that close the connection do not need it. Content is
//!    not changed here: compressed files are variants of a file, and what programs send goes through
//!    `forward_response` of the gateway.

use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;

use headway_connection::{
    ApplicationRequest, Connection, Delegate, LookupFor, Next, Phase, SessionWait,
};
use headway_files::protocol::CustomResult;
use headway_files::{Failure, OpenFile};
use headway_http::{Framing, Parsed, Status};
use headway_request::{LookedUp, Request};
use headway_tls::Reason;

use super::application::{EmbeddedApplications, Turn};
use super::context::LoopContext;
use super::cors::Preflight;
use super::files::StaticFiles;
use super::files::find_target::{NoTarget, Target};
use super::gateway::Gateway;
use super::handler::Handler;
use super::listings::Listings;
use super::redirect::{CleanRedirect, DirectoryRedirect, LocationRedirect, TlsRedirect};

/// The handlers, and the choice between them.
pub(super) struct Router {
    pub files: StaticFiles,
    pub listings: Listings,
    /// The programs and upstreams that answer requests.
    pub gateway: Box<Gateway>,
    pub applications: EmbeddedApplications,
}

impl Router {
    /// Starts a request. `input` stands behind its header; the request takes its body from there.
    pub(super) fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
    ) -> Next {
        if TlsRedirect::applies(context, connection, &request) {
            return TlsRedirect.start(context, connection, request, input, ());
        }
        if Preflight::applies(context, connection, &request) {
            return Preflight.start(context, connection, request, input, ());
        }
        match context.routes.is_empty() {
            true => self.files.start(context, connection, request, input, None),
            false => self.route(context, connection, request, input, None),
        }
    }

    /// Passes a request to the handler of its location. `looked_up` is a helper's answer about one
    /// part of its path.
    pub(super) fn route(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &mut &[u8],
        looked_up: Option<(u16, LookedUp)>,
    ) -> Next {
        // It may exist by now.
        request.serve_requested();
        let target = self
            .files
            .find_target(context, connection, &request, looked_up);
        match target {
            // A program got its name while the body was read, and nothing can give it the body.
            Continue(Target::Program(_) | Target::Delegate(Delegate::Application(_)))
                if request.body_read =>
            {
                context.close_with_error(connection, request, Status::SERVICE_UNAVAILABLE)
            }
            Continue(Target::Delegate(Delegate::DirectoryRedirect))
                if request.head.framing() != Framing::None =>
            {
                context.send_early_error(connection, request, Status::NOT_FOUND)
            }
            Continue(Target::Files(looked_up)) => self
                .files
                .start(context, connection, request, input, looked_up),
            Continue(Target::OtherFile(path)) => {
                request.serve_instead(path);
                self.files.start(context, connection, request, input, None)
            }
            Continue(Target::Program(program)) => self
                .gateway
                .start(context, connection, request, input, program),
            Continue(Target::Delegate(to)) => {
                self.delegate(context, connection, request, input, to)
            }
            Break(NoTarget::AwaitLookup(part)) => {
                context.wait_for_helper(connection, request, |request| {
                    Phase::AwaitLookup(request, LookupFor::Program(part))
                })
            }
            Break(NoTarget::Error(status)) => context.send_early_error(connection, request, status),
        }
    }

    /// Passes a request to a handler that needs to know nothing else.
    pub(super) fn delegate(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
        to: Delegate,
    ) -> Next {
        match to {
            Delegate::Listing => self.listings.start(context, connection, request, input, ()),
            Delegate::DirectoryRedirect => {
                DirectoryRedirect.start(context, connection, request, input, ())
            }
            Delegate::CleanRedirect => CleanRedirect.start(context, connection, request, input, ()),
            Delegate::LocationRedirect(number) => {
                LocationRedirect.start(context, connection, request, input, number)
            }
            Delegate::Application(number) => {
                let mut handler = self.applications.with(&mut self.files);
                handler.start(context, connection, request, input, number)
            }
        }
    }

    /// Continues a request to an embedded application whose job a helper has run.
    pub(super) fn resume_job(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        progress: ApplicationRequest,
        result: &Result<CustomResult<Rc<OpenFile>>, Failure>,
    ) -> Next {
        let mut turn = Turn {
            files: &mut self.files,
            context,
            connection,
        };
        self.applications
            .resume_after_job(&mut turn, request, progress, result)
    }

    /// Ends what a connection has waited for too long.
    pub(super) fn time_out(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
    ) -> Next {
        let status = match &connection.phase {
            Phase::Exchange(_) => return self.gateway.time_out_exchange(context, connection),
            Phase::AwaitHead if connection.header_partial => {
                context.counters.timeouts_header += 1;
                let received = std::mem::take(&mut connection.rx_buffer);
                // What has come since the last line's end has not been parsed yet.
                if let Parsed::Reject(reject) =
                    headway_http::parse(&received, &context.limits_of(connection))
                {
                    return context.reject_input(connection, &received, &reject);
                }
                let started_us = connection.header_since_us;
                let mut request = Box::new(Request::unparsed(&received, started_us));
                request.virtual_host = context.hosts.default_at(connection.listener);
                request.reject_reason = Some("header timeout");
                return context.close_with_error(connection, request, Status::REQUEST_TIMEOUT);
            }
            Phase::AwaitHead if connection.requests == 0 => {
                context.counters.timeouts_header += 1;
                return Next::Close(None);
            }
            Phase::AwaitHead => {
                context.counters.timeouts_idle += 1;
                return Next::Close(None);
            }
            Phase::Linger => return Next::Close(None),
            Phase::Http2 => {
                let waits_for = connection.http2.as_ref().and_then(|one| one.waits_for);
                *match waits_for {
                    Some(SessionWait::FirstRequest) => &mut context.counters.timeouts_header,
                    Some(SessionWait::Room) => &mut context.counters.timeouts_send,
                    _ => &mut context.counters.timeouts_idle,
                } += 1;
                return Next::Close(None);
            }
            Phase::Handshake => {
                context.counters.timeouts_handshake += 1;
                context.fail_handshake(connection, &Reason::Timeout.into());
                return Next::Close(None);
            }
            Phase::AwaitChunk(_) if connection.outgoing.sent_bytes == 0 => {
                context.counters.timeouts_send += 1;
                context.pool.leave(connection.token.0);
                Status::SERVICE_UNAVAILABLE
            }
            Phase::AwaitChunk(_) | Phase::AwaitSend(_) | Phase::AwaitTurn => {
                context.counters.timeouts_send += 1;
                context.counters.responses_aborted += 1;
                return Next::Close(None);
            }
            Phase::AwaitBody(..) => {
                context.counters.timeouts_body += 1;
                Status::REQUEST_TIMEOUT
            }
            Phase::AwaitLookup(..)
            | Phase::AwaitListing(_)
            | Phase::AwaitContent(..)
            | Phase::AwaitJob(..) => {
                context.counters.timeouts_send += 1;
                context.pool.leave(connection.token.0);
                Status::SERVICE_UNAVAILABLE
            }
        };
        match connection.take_phase().into_request() {
            Some(request) => context.close_with_error(connection, request, status),
            None => Next::Close(None),
        }
    }
}
