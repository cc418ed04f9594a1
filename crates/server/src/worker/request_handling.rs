//! Handles requests: from the bytes of a header to the handler that answers.
//!
//! Requests of a connection are answered strictly in order. A header is parsed once, into a
//! [`Request`] which the steps pass on. A step ends in a [`Next`]: either the response is finished
//! and the next request follows, or the connection waits, and its phase owns the request and says
//! with what it continues.

use headway_http::{Framing, Parsed, Status};

use super::application::{EmbeddedApplications, Turn};
use super::files::find_program::Found;
use super::files::static_file::LookedUp;
use super::handler::Handler;
use super::{Disposition, Worker};
use crate::connection::{BodyUse, Connection, LookupFor, Next, Phase};
use crate::request::Request;

/// The most pipelined requests answered per connection and iteration.
const REQUESTS_PER_TICK_MAX: usize = 64;

impl Worker {
    /// Answers the requests in `input` in order, until one has to wait.
    pub(super) fn handle_requests(
        &mut self,
        connection: &mut Connection,
        mut input: &[u8],
    ) -> Disposition {
        for _ in 0..REQUESTS_PER_TICK_MAX {
            if input.is_empty() {
                return self.await_head(connection, input);
            }
            let head = match headway_http::parse(input, &self.context.limits) {
                Parsed::Complete(head) => head,
                Parsed::Partial => return self.await_head(connection, input),
                Parsed::Reject(reject) => {
                    self.context.counters.requests_received += 1;
                    let mut request = Box::new(Request::unparsed(input));
                    request.started = self.context.request_start();
                    let next = self
                        .context
                        .close_with_error(connection, request, reject.status);
                    return self.advance(connection, next);
                }
            };
            connection.header_partial = false;
            let request = self.context.make_request(&head, input);
            input = &input[head.length..];
            let next = self.start_request(connection, request, &mut input);
            if let Some(disposition) = self.settle(connection, next, &mut input) {
                return disposition;
            }
        }
        connection.stash_input(input);
        connection.phase = Phase::Yield;
        self.context.queue_turn(connection);
        Disposition::Keep
    }

    /// Starts a request. `input` stands behind its header; the request takes its body from there.
    pub(super) fn start_request(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
    ) -> Next {
        let context = &mut self.context;
        match context.routes.is_empty() {
            true => self.files.start(context, connection, request, input, None),
            false => self.route_request(connection, request, input, None),
        }
    }

    /// Passes a request to the handler of its location. `looked_up` is a helper's answer about one
    /// part of its path.
    fn route_request(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
        looked_up: Option<(u16, LookedUp)>,
    ) -> Next {
        let context = &mut self.context;
        let status = match self
            .files
            .find_program(context, connection, &request, looked_up)
        {
            Found::Files(known) => {
                return self.files.start(context, connection, request, input, known);
            }
            // A program got its name while the body was read, and nothing can give it the body.
            Found::Program(_) | Found::Application(_) if request.body_read => {
                let status = Status::SERVICE_UNAVAILABLE;
                return context.close_with_error(connection, request, status);
            }
            Found::Program(program) => {
                return self
                    .gateway
                    .start(context, connection, request, input, program);
            }
            Found::Application(route) => {
                let mut handler = self.applications.with(&mut self.files);
                return handler.start(context, connection, request, input, route);
            }
            Found::Waiting(part) => {
                return context.wait_for_helper(connection, request, |request| {
                    Phase::Lookup(request, LookupFor::Program(part))
                });
            }
            Found::Directory if request.head.framing() == Framing::None => {
                connection.keep_alive = context.keeps_alive(connection, &request);
                return context.redirect(connection, request);
            }
            Found::Directory => Status::NOT_FOUND,
            Found::Failed(status) => status,
        };
        context.send_early_error(connection, request, status)
    }

    /// The embedded applications, with what a step of one needs.
    pub(super) fn applications<'w>(
        &'w mut self,
        connection: &'w mut Connection,
    ) -> (&'w mut EmbeddedApplications, Turn<'w>) {
        let turn = Turn {
            files: &mut self.files,
            context: &mut self.context,
            connection,
        };
        (&mut self.applications, turn)
    }

    /// Continues a request whose path a helper has looked up.
    pub(super) fn resume_lookup(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        wanted: LookupFor,
        found: LookedUp,
    ) -> Disposition {
        self.resume(connection, |worker, connection, input| match wanted {
            LookupFor::File => {
                worker
                    .files
                    .answer_with(&mut worker.context, connection, request, input, found)
            }
            LookupFor::Program(part) => {
                worker.route_request(connection, request, input, Some((part, found)))
            }
            LookupFor::Application(progress) => {
                let (applications, mut turn) = worker.applications(connection);
                applications.resume_after_file(&mut turn, request, *progress, found)
            }
        })
    }

    /// Continues a request whose body has been received.
    pub(super) fn resume_after_body(
        &mut self,
        connection: &mut Connection,
        mut request: Box<Request>,
        body_use: BodyUse,
    ) -> Disposition {
        request.body_read = true;
        self.resume(connection, |worker, connection, input| match body_use {
            // What answers may have changed meanwhile.
            BodyUse::Discard => worker.start_request(connection, request, input),
            BodyUse::Application(route) => {
                let mut handler = worker.applications.with(&mut worker.files);
                handler.start(&mut worker.context, connection, request, input, route)
            }
        })
    }

    /// Takes a step of a request that has waited, and handles the requests behind it if it is
    /// finished.
    pub(super) fn resume(
        &mut self,
        connection: &mut Connection,
        step: impl FnOnce(&mut Worker, &mut Connection, &mut &[u8]) -> Next,
    ) -> Disposition {
        let buffered = std::mem::take(&mut connection.rx_buffer);
        let mut input = &buffered[..];
        let next = step(self, connection, &mut input);
        match self.settle(connection, next, &mut input) {
            Some(disposition) => disposition,
            None => self.handle_requests(connection, input),
        }
    }

    /// Applies the result of a step that took no input.
    pub(super) fn advance(&mut self, connection: &mut Connection, next: Next) -> Disposition {
        if let Next::Wait(phase) = next {
            connection.phase = phase;
            return Disposition::Keep;
        }
        self.resume(connection, |_, _, _| next)
    }

    /// Applies the result of a step. `input` is what the step has left. Returns `None` if the next
    /// request may be handled.
    fn settle(
        &mut self,
        connection: &mut Connection,
        mut next: Next,
        input: &mut &[u8],
    ) -> Option<Disposition> {
        while let Next::Start(request) = next {
            next = self.start_request(connection, request, input);
        }
        match next {
            Next::Start(_) => None,
            Next::Finished(request) => match self.context.finish_response(connection, request) {
                Disposition::Keep => None,
                Disposition::Close => {
                    let unread = !input.is_empty() || self.has_unread_input(connection);
                    Some(self.linger_close(connection, unread))
                }
            },
            Next::Wait(phase) => {
                connection.stash_input(input);
                connection.phase = phase;
                Some(Disposition::Keep)
            }
            Next::Linger => Some(self.linger_close(connection, true)),
            Next::Close(request) => {
                if let Some(request) = request {
                    connection.phase = Phase::Send(request);
                }
                Some(Disposition::Close)
            }
        }
    }
}
