//! Moves a connection through its phases: receiving, sending, timeouts, lingering close.

use std::os::fd::AsFd;

use headway_event::{Interest, Ready};
use headway_http::Status;
use headway_http::chunked::DrainProgress;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::{Disposition, Worker};
use crate::calls::Call;
use crate::connection::{BodyUse, Connection, Phase};
use crate::request::Request;

/// How long a lingering close waits for the client to read the last response.
const LINGER_TIMEOUT_MS: u64 = 2_000;
/// The most reads in a row from one connection with `full_read`; then other connections run.
const READS_PER_EVENT_MAX: usize = 64;
/// The most input that a lingering close discards.
const LINGER_BYTES_MAX: usize = 256 * 1024;

impl Worker {
    /// Handles an event on a connection's socket.
    pub(super) fn on_event(&mut self, connection: &mut Connection, event: &Ready) -> Disposition {
        let readable = event.readable || event.hangup;
        match &connection.phase {
            Phase::Head if readable => self.receive(connection),
            Phase::Body(..) if readable => self.receive_body(connection),
            Phase::Linger if readable => self.discard_lingering(connection),
            Phase::Exchange(_) => {
                let next = self.gateway.on_client(&mut self.context, connection, event);
                self.advance(connection, next)
            }
            // The connection is in the run queue and continues from there.
            Phase::Send(_) if connection.is_queued => Disposition::Keep,
            Phase::Send(_) if event.writable || event.hangup => self.take_turn(connection),
            Phase::Send(_) => self.disable_reads(connection, Interest::WRITE),
            waiting if waiting.waits_for_a_helper() => {
                if event.hangup || (readable && self.is_reset(connection)) {
                    self.context.counters.connections_reset += 1;
                    return Disposition::Close;
                }
                self.disable_reads(connection, Interest::NONE)
            }
            _ => Disposition::Keep,
        }
    }

    /// Stops polling for input, because the client sends more than can be processed now. Done only
    /// when it happens: most clients wait for their response.
    fn disable_reads(&mut self, connection: &mut Connection, interest: Interest) -> Disposition {
        self.context.watch(connection, interest);
        Disposition::Keep
    }

    /// Whether the connection was reset. Needed because select reports a hang-up as readable.
    fn is_reset(&self, connection: &Connection) -> bool {
        let peeked = self.context.tracer.call(Call::Receive, || {
            rustix::net::recv(
                &connection.socket,
                &mut [0; 1],
                RecvFlags::PEEK | RecvFlags::DONTWAIT,
            )
        });
        !matches!(peeked, Ok(_) | Err(Errno::AGAIN | Errno::INTR))
    }

    /// Receives input and handles complete requests: once, or with `full_read` until there is
    /// nothing left to read or a request must wait.
    pub(super) fn receive(&mut self, connection: &mut Connection) -> Disposition {
        let reads = if self.context.config.research.full_read {
            READS_PER_EVENT_MAX
        } else {
            1
        };
        for _ in 0..reads {
            let before = self.context.counters.receives_would_block;
            let disposition = self.receive_once(connection);
            let nothing = self.context.counters.receives_would_block > before;
            if nothing
                || disposition == Disposition::Close
                || !matches!(connection.phase, Phase::Head)
            {
                return disposition;
            }
        }
        Disposition::Keep
    }

    fn receive_once(&mut self, connection: &mut Connection) -> Disposition {
        let mut scratch = std::mem::take(&mut self.context.scratch);
        let buffered = connection.rx_buffer.len();
        scratch[..buffered].copy_from_slice(&connection.rx_buffer);
        let disposition = match self
            .context
            .receive_into(connection, &mut scratch[buffered..])
        {
            Ok(Some(_))
                if self
                    .acceptor
                    .client_disconnected(&mut self.context, connection) =>
            {
                Disposition::Close
            }
            Ok(Some(count)) => {
                connection.rx_buffer.clear();
                self.handle_requests(connection, &scratch[..buffered + count])
            }
            Ok(None) => {
                self.context.watch(connection, Interest::READ);
                Disposition::Keep
            }
            Err(()) => Disposition::Close,
        };
        self.context.scratch = scratch;
        disposition
    }

    fn receive_body(&mut self, connection: &mut Connection) -> Disposition {
        let mut scratch = std::mem::take(&mut self.context.scratch);
        let disposition = self.receive_body_into(connection, &mut scratch);
        self.context.scratch = scratch;
        disposition
    }

    fn receive_body_into(
        &mut self,
        connection: &mut Connection,
        scratch: &mut [u8],
    ) -> Disposition {
        let count = match self.context.receive_into(connection, scratch) {
            Ok(Some(count)) => count,
            Ok(None) => return Disposition::Keep,
            Err(()) => return Disposition::Close,
        };
        let Phase::Body(mut request, mut body, body_use) = connection.take_phase() else {
            return Disposition::Keep;
        };
        let received = &scratch[..count];
        let progress = match body_use {
            BodyUse::Discard => body.feed(received),
            BodyUse::Application(_) => body.feed_into(received, &mut request.body),
        };
        let status = match progress {
            // The deadline covers the whole body, so it is not extended.
            DrainProgress::More => {
                connection.phase = Phase::Body(request, body, body_use);
                return Disposition::Keep;
            }
            DrainProgress::Done(used) => {
                connection.stash_input(&received[used..]);
                return self.resume_after_body(connection, request, body_use);
            }
            DrainProgress::TooLarge => Status::CONTENT_TOO_LARGE,
            DrainProgress::Bad => Status::BAD_REQUEST,
        };
        let next = self.context.close_with_error(connection, request, status);
        self.advance(connection, next)
    }

    /// Continues a connection whose turn in the run queue has come, or whose socket has room.
    pub(super) fn take_turn(&mut self, connection: &mut Connection) -> Disposition {
        connection.is_queued = false;
        match connection.take_phase() {
            Phase::Send(request) => {
                let next = self.context.continue_sending(connection, request);
                self.advance(connection, next)
            }
            Phase::Yield => {
                let buffered = std::mem::take(&mut connection.rx_buffer);
                self.handle_requests(connection, &buffered)
            }
            other => {
                connection.phase = other;
                Disposition::Keep
            }
        }
    }

    /// Waits for the next header or the rest of one.
    pub(super) fn await_head(&mut self, connection: &mut Connection, rest: &[u8]) -> Disposition {
        connection.phase = Phase::Head;
        connection.stash_input(rest);
        if rest.is_empty() {
            connection.header_partial = false;
            self.context.deadlines.set(
                connection.slot(),
                self.context.now_ms + self.context.config.idle_timeout_ms,
            );
        } else if !connection.header_partial {
            // The deadline runs from the first byte and is not extended, so sending a byte at a
            // time gains nothing.
            connection.header_partial = true;
            self.context.deadlines.set(
                connection.slot(),
                self.context.now_ms + self.context.config.header_timeout_ms,
            );
        }
        self.context.watch(connection, Interest::READ);
        Disposition::Keep
    }

    /// Whether the client of a handler has sent more input that was not read meanwhile.
    pub(super) fn has_unread_input(&mut self, connection: &Connection) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peek = || {
            self.context.tracer.call(Call::Receive, || {
                rustix::net::recv(&connection.socket, &mut [0; 1], flags)
            })
        };
        connection.program_asked && matches!(peek(), Ok((1.., _)))
    }

    /// Closes a connection after its last response. If unread input is left, closing at once would
    /// reset the connection and could destroy the response, so the server closes its sending side
    /// and reads on for a while.
    pub(super) fn linger_close(
        &mut self,
        connection: &mut Connection,
        unread: bool,
    ) -> Disposition {
        if !unread {
            return Disposition::Close;
        }
        let _ = self.context.tracer.call(Call::Shutdown, || {
            rustix::net::shutdown(&connection.socket, Shutdown::Write)
        });
        connection.phase = Phase::Linger;
        connection.rx_buffer = Vec::new();
        self.context
            .deadlines
            .set(connection.slot(), self.context.now_ms + LINGER_TIMEOUT_MS);
        self.context.watch(connection, Interest::READ);
        Disposition::Keep
    }

    /// Discards input during a lingering close.
    fn discard_lingering(&mut self, connection: &mut Connection) -> Disposition {
        let mut scratch = std::mem::take(&mut self.context.scratch);
        let received = self.context.receive_into(connection, &mut scratch);
        self.context.scratch = scratch;
        match received {
            Ok(Some(count)) => {
                connection.lingered_bytes += count;
                if connection.lingered_bytes > LINGER_BYTES_MAX {
                    Disposition::Close
                } else {
                    Disposition::Keep
                }
            }
            Ok(None) => Disposition::Keep,
            Err(()) => Disposition::Close,
        }
    }

    /// Handles connections whose deadline has passed.
    pub(super) fn expire_deadlines(&mut self) {
        let mut expired = Vec::new();
        self.context
            .deadlines
            .expire(self.context.now_ms, &mut expired);
        for slot in expired {
            self.with_connection(slot, Worker::on_timeout);
        }
    }

    fn on_timeout(&mut self, connection: &mut Connection) -> Disposition {
        match &connection.phase {
            Phase::Head if connection.header_partial => {
                self.context.counters.timeouts_header += 1;
                let received = std::mem::take(&mut connection.rx_buffer);
                let request = Box::new(Request::unparsed(&received));
                let next =
                    self.context
                        .close_with_error(connection, request, Status::REQUEST_TIMEOUT);
                self.advance(connection, next)
            }
            Phase::Head if connection.requests == 0 => {
                self.context.counters.timeouts_header += 1;
                Disposition::Close
            }
            Phase::Head => {
                self.context.counters.timeouts_idle += 1;
                Disposition::Close
            }
            Phase::Body(..) => {
                self.context.counters.timeouts_body += 1;
                self.time_out_request(connection, Status::REQUEST_TIMEOUT)
            }
            Phase::Lookup(..)
            | Phase::Listing(_)
            | Phase::SmallFile(..)
            | Phase::ApplicationJob(..) => {
                self.context.counters.timeouts_send += 1;
                self.context.pool.leave(connection.token.0);
                self.time_out_request(connection, Status::SERVICE_UNAVAILABLE)
            }
            Phase::Chunk(_) | Phase::Send(_) | Phase::Yield => {
                self.context.counters.timeouts_send += 1;
                self.context.counters.responses_aborted += 1;
                Disposition::Close
            }
            Phase::Exchange(_) => {
                let next = self
                    .gateway
                    .time_out_exchange(&mut self.context, connection);
                self.advance(connection, next)
            }
            Phase::Linger => Disposition::Close,
        }
    }

    /// Answers the waiting request with an error and closes the connection.
    fn time_out_request(&mut self, connection: &mut Connection, status: Status) -> Disposition {
        let Some(request) = connection.take_phase().into_request() else {
            return Disposition::Close;
        };
        let next = self.context.close_with_error(connection, request, status);
        self.advance(connection, next)
    }

    /// Closes a connection and releases what it holds.
    pub(super) fn close(&mut self, slot: usize) {
        let Some(mut connection) = self.context.connections.remove(slot) else {
            return;
        };
        // Log an aborted response with the bytes that were sent.
        if connection.outgoing.status != 0
            && let Some(request) = connection.phase.request()
        {
            self.context.write_log(&connection, request);
        }
        if matches!(connection.phase, Phase::Exchange(_)) {
            self.gateway.abandon(&mut self.context, &mut connection);
        }
        if connection.handed_off {
            // Another process may hold a copy of this socket, so closing ours would not end the
            // connection.
            let _ = self.context.tracer.call(Call::Shutdown, || {
                rustix::net::shutdown(&connection.socket, Shutdown::Both)
            });
            // A program may have set SO_LINGER, which would make close block (socket(7)).
            let _ = self.context.tracer.call(Call::SocketOption, || {
                rustix::net::sockopt::set_socket_linger(&connection.socket, None)
            });
        }
        if connection.phase.waits_for_a_helper() {
            self.context.pool.leave(connection.token.0);
        }
        self.acceptor.addresses.leave(connection.client.ip());
        self.context.deadlines.clear(slot);
        if connection.interest.is_some() {
            self.context.events.forget(connection.socket.as_fd());
        }
        self.context.tracer.call(Call::Close, || drop(connection));
        self.context.counters.connections_closed += 1;
        self.acceptor
            .listeners
            .set_full(false, &mut self.context.events);
        self.acceptor.accepts_owed += u32::from(self.context.config.research.accept_on_close);
    }
}
