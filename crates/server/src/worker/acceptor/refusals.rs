//! Rejects connections that there is no room for, with 503 or a reset.
//!
//! Closing before the request of such a client has come would cause a reset, which may destroy the
//! 503 (RFC 9112, 9.6). So where more input may come, the server only closes its sending side, and
//! keeps the socket for a while. It watches none of them: their input waits in the kernel.
//!
//! Only a few are kept. A flood of clients finds no room here either, and those beyond are closed
//! at once, without a call more.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use headway_admission::retry_after_s;
use headway_config::EarlyReject;
use headway_connection::Connection;
use headway_event::Token;
use headway_http::Status;
use headway_metrics::calls::Call;
use headway_request::Request;
use headway_respond::ResponseContext;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, sockopt};

use crate::worker::context::LoopContext;
use crate::worker::receiving::LINGER_TIMEOUT_MS;

/// Rejected connections that are kept at a time.
const KEPT_MAX: usize = 64;

/// The rejected connections that are kept, and until when; the oldest first.
#[derive(Default)]
pub(super) struct Refusals(VecDeque<(u64, Rc<OwnedFd>)>);

impl Refusals {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the next one closes.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.0.front().map(|(until_ms, _)| *until_ms)
    }

    /// Rejects a connection that cannot be served in time, so that the client can try elsewhere or
    /// later.
    pub(super) fn reject_early(
        &mut self,
        context: &mut LoopContext,
        socket: OwnedFd,
        client: SocketAddr,
    ) {
        context.counters.connections_rejected_overload += 1;
        match context.config.early_reject {
            EarlyReject::Reset => {
                Refusals::reset(context, socket);
            }
            EarlyReject::Status | EarlyReject::Off => {
                let again_s = retry_after_s(context.counters.connections_rejected_overload);
                self.answer_unavailable(context, socket, client, again_s);
            }
        }
    }

    /// Rejects a connection without a response, for example if the client speaks TLS and could not read one.
    ///
    /// Closing with a linger time of zero sends a reset (socket(7)): no response, nothing left behind. If
    /// setting it fails, the client sees an orderly close instead.
    pub(super) fn reset(context: &mut LoopContext, socket: OwnedFd) {
        let _ = context.tracer.call(Call::SocketOption, || {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))
        });
        context.tracer.call(Call::Close, || drop(socket));
    }

    /// Rejects a connection of an address that is at its limit.
    pub(super) fn reject_address(
        &mut self,
        context: &mut LoopContext,
        socket: OwnedFd,
        client: SocketAddr,
    ) {
        context.counters.connections_rejected_per_address += 1;
        self.answer_unavailable(context, socket, client, headway_respond::RETRY_AFTER_S);
    }

    /// Answers 503 with `Retry-After` and closes.
    fn answer_unavailable(
        &mut self,
        context: &mut LoopContext,
        socket: OwnedFd,
        client: SocketAddr,
        retry_after_s: u64,
    ) {
        let mut connection = Connection::new(socket, client, Token(0));
        let room = context.scratch.len();
        let received = receive(context, &connection.socket);
        let head = received.map_or(&[][..], |count| &context.scratch[..count]);
        let more_may_come = match received {
            Ok(0) => false,
            Ok(count) => count == room || !is_whole_request(head),
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        };
        let response_context = ResponseContext {
            retry_after_s,
            ..ResponseContext::without_request(
                &context.response_settings,
                &context.date,
                head.starts_with(b"HEAD "),
            )
        };
        let response =
            headway_respond::error(&response_context, Status::SERVICE_UNAVAILABLE, None, None);
        let request = Request::unparsed(head, context.now_us);
        connection.outgoing = response;
        connection.outgoing.method = request.method;
        // If the socket does not accept these few bytes, the client gets no response.
        let _ = context.transmit(&mut connection);
        context.end_request(&connection, &request);
        let socket = connection.socket;
        if more_may_come && self.0.len() < KEPT_MAX {
            let _ = context.tracer.call(Call::Shutdown, || {
                rustix::net::shutdown(&socket, Shutdown::Write)
            });
            self.0
                .push_back((context.now_ms + LINGER_TIMEOUT_MS, socket));
        } else {
            context.tracer.call(Call::Close, || drop(socket));
        }
    }

    /// Closes those whose time is over.
    pub(super) fn expire(&mut self, context: &mut LoopContext) {
        while self.next_ms().is_some_and(|until| until <= context.now_ms) {
            self.close_oldest(context);
        }
    }

    /// Closes all: descriptors have run out.
    pub(super) fn clear(&mut self, context: &mut LoopContext) {
        while !self.is_empty() {
            self.close_oldest(context);
        }
    }

    fn close_oldest(&mut self, context: &mut LoopContext) {
        if let Some((_, socket)) = self.0.pop_front() {
            // With input left unread even this close would send a reset.
            let _ = receive(context, &socket);
            context.tracer.call(Call::Close, || drop(socket));
        }
    }
}

/// Receives what there is, as much as the scratch buffer takes.
fn receive(context: &mut LoopContext, socket: &OwnedFd) -> Result<usize, Errno> {
    let received = context.tracer.call(Call::Receive, || {
        rustix::net::recv(socket, &mut context.scratch[..], RecvFlags::DONTWAIT)
    });
    received.map(|(count, _)| count)
}

/// Whether the input is a request that has no body and ends here, so that its client waits now.
fn is_whole_request(input: &[u8]) -> bool {
    let has_no_body = input.starts_with(b"GET ") || input.starts_with(b"HEAD ");
    has_no_body && input.ends_with(b"\r\n\r\n")
}
