//! Handles requests: from the bytes of a header to the handler that answers.
//!
//! Requests of a connection are answered strictly in order. A header is parsed once, into a
//! [`Request`] which the steps pass on. A step ends in a [`Next`]: either the response is finished
//! and the next request follows, or the connection waits, and its phase owns the request and says
//! with what it continues.

use headway_http::{Head, Parsed};

use super::handlers::Found;
use super::static_file::LookedUp;
use super::{Disposition, Worker};
use crate::connection::{BodyUse, Connection, LookupFor, Next, Phase};
use crate::request::Request;
use crate::respond::ResponseContext;

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
            let head = match headway_http::parse(input, &self.limits) {
                Parsed::Complete(head) => head,
                Parsed::Partial => return self.await_head(connection, input),
                Parsed::Reject(reject) => {
                    self.counters.requests_received += 1;
                    let mut request = Box::new(Request::unparsed(input));
                    request.started = self.request_start();
                    let next = self.close_with_error(connection, request, reject.status);
                    return self.advance(connection, next);
                }
            };
            connection.header_partial = false;
            let request = self.make_request(&head, input);
            input = &input[head.length..];
            let next = self.start_request(connection, request, &mut input);
            if let Some(disposition) = self.settle(connection, next, input) {
                return disposition;
            }
        }
        connection.stash_input(input);
        connection.phase = Phase::Yield;
        self.queue_turn(connection);
        Disposition::Keep
    }

    /// The request with this header, which stands at the start of `received`.
    pub(super) fn make_request(&mut self, head: &Head<'_>, received: &[u8]) -> Box<Request> {
        self.counters.requests_received += 1;
        let host = self.hosts.find(head.host).root;
        let mut request = self.requests.make(head, received, host);
        request.started = self.request_start();
        request
    }

    /// Starts a request. `input` stands behind its header; the request takes its body from there.
    pub(super) fn start_request(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
    ) -> Next {
        match self.routes.is_empty() {
            true => self.serve_file(connection, request, input, None),
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
        match self.find_program(connection, &request, looked_up) {
            Found::Files(known) => self.serve_file(connection, request, input, known),
            Found::Application(route) => self.serve_application(connection, request, input, route),
            Found::Waiting(part) => self.wait_for_helper(connection, request, |request| {
                Phase::Lookup(request, LookupFor::Program(part))
            }),
            found => self.serve_program(connection, request, input, found),
        }
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
            LookupFor::File => worker.answer_with(connection, request, input, found),
            LookupFor::Program(part) => {
                worker.route_request(connection, request, input, Some((part, found)))
            }
            LookupFor::Application(progress) => {
                worker.resume_application_file(connection, request, *progress, found)
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
            BodyUse::Discard => worker.serve_file(connection, request, input, None),
            BodyUse::Application(route) => {
                worker.serve_application(connection, request, input, route)
            }
        })
    }

    /// Takes a step of a request that has waited, and goes on with the requests behind it if it is
    /// finished.
    pub(super) fn resume(
        &mut self,
        connection: &mut Connection,
        step: impl FnOnce(&mut Worker, &mut Connection, &mut &[u8]) -> Next,
    ) -> Disposition {
        let buffered = std::mem::take(&mut connection.rx_buffer);
        let mut input = &buffered[..];
        let next = step(self, connection, &mut input);
        match self.settle(connection, next, input) {
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
        next: Next,
        input: &[u8],
    ) -> Option<Disposition> {
        match next {
            Next::Finished(request) => match self.finish_response(connection, request) {
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

    /// Makes a request wait for a helper.
    pub(super) fn wait_for_helper(
        &mut self,
        connection: &mut Connection,
        mut request: Box<Request>,
        phase: impl FnOnce(Box<Request>) -> Phase,
    ) -> Next {
        request.admitted = true;
        self.watch_for_disconnect(connection);
        let deadline = self.now_ms + self.config.send_timeout_ms;
        self.deadlines.set(connection.slot(), deadline);
        Next::Wait(phase(request))
    }

    /// Whether the connection may stay open after the response.
    pub(super) fn keeps_alive(&self, connection: &Connection, head: &Head<'_>) -> bool {
        let most = self.config.max_requests_per_connection;
        head.keep_alive
            && self.draining_until_ms.is_none()
            && (most == 0 || connection.requests + 1 < most)
    }

    pub(super) fn context<'w>(
        &'w self,
        head: &Head<'w>,
        connection: &Connection,
    ) -> ResponseContext<'w> {
        ResponseContext::new(
            &self.response_settings,
            &self.date,
            head,
            connection.keep_alive,
        )
    }
}
