//! Receives from a client's socket: headers, bodies that are needed before the request is answered,
//! and what is discarded while a connection closes.

use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::AsFd;
use std::time::Instant;

use headway_connection::{Body, BodyUse, Connection, Delegate, Next, Phase};
use headway_event::Interest;
use headway_http::chunked::DrainProgress;
use headway_http::{Framing, Method, Reject, Status};
use headway_http2::Session;
use headway_metrics::calls::Call;
use headway_request::Request;
use headway_tls::{Client, Received};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

pub(super) mod client_address;

use super::Disposition;
use super::context::LoopContext;
use super::handler::Step;

/// How long a lingering close waits for the client to read the last response.
pub(super) const LINGER_TIMEOUT_MS: u64 = 2_000;
/// The most input that a lingering close discards.
const LINGER_BYTES_MAX: usize = 256 * 1024;

/// Fewer bytes are decrypted without a look at the clock.
const TIMED_BYTES: usize = 4 << 10;

impl LoopContext {
    /// Answers input that is no request.
    pub(super) fn reject_input(
        &mut self,
        connection: &mut Connection,
        input: &[u8],
        reject: &Reject,
    ) -> Next {
        self.counters.requests_received += 1;
        self.counters.count_rejected(reject.kind);
        let started_us = self.first_byte_us(connection);
        let mut request = Box::new(Request::unparsed(input, started_us));
        request.virtual_host = self.hosts.default_at(connection.listener);
        request.reject_reason = Some(reject.reason);
        self.close_with_error(connection, request, reject.status)
    }

    /// Receives bytes. Returns `None` if there are none now, and an error if the client has closed
    /// or reset the connection.
    pub(super) fn receive_into(
        &mut self,
        connection: &mut Connection,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, ()> {
        if let Some(of) = &mut connection.stream {
            return match of.stream.receive(buffer) {
                headway_http2::Received::Data(count) => Ok(Some(count)),
                headway_http2::Received::Nothing => Ok(None),
                headway_http2::Received::End | headway_http2::Received::Reset => Err(()),
            };
        }
        let session = connection.http2.as_deref().map(|of| &of.session);
        let input_max = session.map_or(usize::MAX, Session::input_max);
        match connection.tls.is_some() {
            true => self.receive_records(connection, buffer, input_max),
            false => self.receive_bytes(connection, first(buffer, input_max)),
        }
    }

    /// Receives from a client that speaks TLS.
    fn receive_records(
        &mut self,
        connection: &mut Connection,
        buffer: &mut [u8],
        input_max: usize,
    ) -> Result<Option<usize>, ()> {
        let Some(mut client) = connection.tls.take_if(|client| client.is_open()) else {
            // It lingers after a handshake that has failed.
            return self.receive_bytes(connection, buffer);
        };
        let mut raw = std::mem::take(&mut self.raw);
        let kept = client.restore_input(&mut raw);
        let received = match client.has_input() {
            true => Ok(Some(0)),
            false => self.receive_bytes(connection, first(&mut raw[kept..], input_max)),
        };
        let opened = match received {
            Ok(Some(count)) => match self.open_records(&mut client, &raw[..kept + count], buffer) {
                Received::Data(count) => Ok(Some(count)),
                Received::Nothing => Ok(None),
                Received::End => Err(()),
                Received::Failed(_) => {
                    self.counters.tls_connections_failed += 1;
                    Err(())
                }
            },
            Ok(None) => {
                client.keep_input(&raw[..kept]);
                Ok(None)
            }
            Err(()) => Err(()),
        };
        self.raw = raw;
        // An alert, or the answer to new keys. More of a response may wait in front of it.
        let flushed = headway_send::flush(&mut client, &connection.socket, &self.tracer);
        connection.tls = Some(client);
        match flushed {
            Ok(_) => opened,
            Err(_) => Err(()),
        }
    }

    /// Opens records. The time of long ones is counted.
    fn open_records(&mut self, client: &mut Client, raw: &[u8], buffer: &mut [u8]) -> Received {
        if raw.len() < TIMED_BYTES {
            return client.open(raw, buffer);
        }
        let begun = Instant::now();
        let received = client.open(raw, buffer);
        self.crypto_ns += begun.elapsed().as_nanos() as u64;
        received
    }

    /// Receives bytes as they are.
    pub(super) fn receive_bytes(
        &mut self,
        connection: &Connection,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, ()> {
        let room = buffer.len();
        let received = self.tracer.call(Call::Receive, || {
            rustix::net::recv(&connection.socket, buffer, RecvFlags::DONTWAIT)
        });
        match received {
            Ok((0, _)) => Err(()),
            Ok((count, _)) => {
                self.counters.received_bytes += count as u64;
                if count < room {
                    self.events.drained(connection.socket.as_fd());
                }
                Ok(Some(count))
            }
            Err(error @ (Errno::AGAIN | Errno::INTR)) => {
                self.counters.receives_would_block += 1;
                if error == Errno::AGAIN {
                    self.events.drained(connection.socket.as_fd());
                }
                Ok(None)
            }
            Err(_) => {
                self.counters.connections_reset += 1;
                Err(())
            }
        }
    }

    /// Sends `100 Continue`, completely or not at all.
    ///
    /// If the socket accepts nothing, the client has not read the previous response yet; it may
    /// send its body without the interim response (RFC 9110, 10.1.1). If the socket accepts only a
    /// part, the connection closes, because the next response would be read as the rest of this
    /// one. An error means that the connection must close.
    pub(super) fn send_continue(&mut self, connection: &mut Connection) -> Result<(), ()> {
        if connection.stream.is_some() {
            return Ok(());
        }
        let line = b"HTTP/1.1 100 Continue\r\n\r\n";
        match self.send_now(connection, line, false) {
            Ok(sent) => {
                self.counters.sent_bytes += sent as u64;
                if sent < line.len() || connection.has_unsent() {
                    self.counters.responses_aborted += 1;
                    return Err(());
                }
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => {
                self.counters.connections_reset += 1;
                Err(())
            }
        }
    }

    /// As [`peek`](LoopContext::peek), but opens the records of a client that speaks TLS: a client which
    /// disconnects may send a record first.
    pub(super) fn look_ahead(&mut self, connection: &mut Connection) -> Result<usize, Errno> {
        if connection.has_received() {
            return Ok(1);
        }
        if connection.tls.is_none() || connection.stream.is_some() {
            return self.peek(connection);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let received = self.receive_into(connection, &mut scratch);
        if let (Ok(Some(count)), Some(client)) = (received, &mut connection.tls) {
            client.keep_opened(&scratch[..count]);
        }
        self.scratch = scratch;
        match received {
            Ok(Some(count)) => Ok(count),
            Ok(None) => Err(Errno::AGAIN),
            Err(()) => Ok(0),
        }
    }

    /// Polls for `interest` only, without input, because the client sends more than can be processed now. Done only
    /// when it happens: most clients wait for their response.
    pub(super) fn watch_only(
        &mut self,
        connection: &mut Connection,
        interest: Interest,
    ) -> Disposition {
        self.watch(connection, interest);
        Disposition::Keep
    }

    /// Whether the connection was reset. Needed because select reports a hang-up as readable.
    pub(super) fn is_reset(&self, connection: &Connection) -> bool {
        !matches!(
            self.peek(connection),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR)
        )
    }

    /// Whether the client has sent more while something else was waited for.
    pub(super) fn has_unread_input(&self, connection: &Connection) -> bool {
        connection.has_received() || (connection.may_have_input && self.has_input(connection))
    }

    /// Whether the socket has received what was not read yet.
    pub(super) fn has_input(&self, connection: &Connection) -> bool {
        connection.has_received() || matches!(self.peek(connection), Ok(1..))
    }

    pub(super) fn peek(&self, connection: &Connection) -> Result<usize, Errno> {
        // Its input is found when the frames of its client are read.
        if connection.stream.is_some() {
            return Err(Errno::AGAIN);
        }
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = self.tracer.call(Call::Receive, || {
            rustix::net::recv(&connection.socket, &mut [0; 1], flags)
        });
        peeked.map(|(count, _)| count)
    }

    /// Waits for the next header or the rest of one.
    pub(super) fn await_head(&mut self, connection: &mut Connection, rest: &[u8]) -> Disposition {
        connection.phase = Phase::AwaitHead;
        connection.stash_input(rest);
        if rest.is_empty() {
            connection.header_partial = false;
            self.set_timeout(
                connection,
                match connection.requests {
                    // Only a PROXY header has come.
                    0 => self.config.header_timeout_ms,
                    _ => self.config.idle_timeout_ms,
                },
            );
        } else if !connection.header_partial {
            // The deadline runs from the first byte and is not extended, so sending a byte at a
            // time gains nothing.
            (connection.header_partial, connection.header_since_us) = (true, self.now_us);
            self.set_timeout(connection, self.config.header_timeout_ms);
        }
        self.watch(connection, Interest::READ);
        Disposition::Keep
    }

    /// Closes a connection after its last response. If unread input is left, closing at once would
    /// reset the connection and could destroy the response, so the server closes its sending side
    /// and reads on for a while.
    pub(super) fn linger_close(
        &mut self,
        connection: &mut Connection,
        unread: bool,
    ) -> Disposition {
        if let Some(of) = &mut connection.stream {
            if connection.outgoing.pieces.is_empty() {
                of.stream.end();
            }
            return Disposition::Close;
        }
        if !unread {
            return Disposition::Close;
        }
        self.end_tls(connection);
        let _ = self.tracer.call(Call::Shutdown, || {
            rustix::net::shutdown(&connection.socket, Shutdown::Write)
        });
        connection.phase = Phase::Linger;
        connection.rx_buffer = Vec::new();
        self.set_timeout(connection, LINGER_TIMEOUT_MS);
        self.watch(connection, Interest::READ);
        Disposition::Keep
    }

    /// Discards input during a lingering close. A client that sends on and on is read from no more, so
    /// that its sending stops; it has the rest of the time to read the response.
    pub(super) fn discard_lingering(&mut self, connection: &mut Connection) -> Disposition {
        let mut scratch = std::mem::take(&mut self.scratch);
        let received = self.receive_into(connection, &mut scratch);
        self.scratch = scratch;
        match received {
            Ok(count) => {
                connection.lingered_bytes += count.unwrap_or(0);
                match connection.lingered_bytes > LINGER_BYTES_MAX {
                    true => self.watch_only(connection, Interest::NONE),
                    false => Disposition::Keep,
                }
            }
            Err(()) => Disposition::Close,
        }
    }
}

/// The body of a request that is received before the request is answered.
impl LoopContext {
    /// Skips the body of a request whose handler does not use it, or waits for the rest of it.
    pub(super) fn skip_body(
        &mut self,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &mut &[u8],
    ) -> Step {
        let framing = request.head.framing();
        if framing == Framing::None || request.body_read {
            return Continue(request);
        }
        let expects_continue = request.head.expects_continue();
        let bytes_max = self.config.max_body_bytes;
        let mut body = Body::new(framing, bytes_max);
        let status = match framing {
            _ if expects_continue && matches!(request.head.method(), Method::Other(_)) => {
                Status::METHOD_NOT_ALLOWED
            }
            Framing::Length(length) if length > bytes_max => Status::CONTENT_TOO_LARGE,
            _ => match body.feed(input) {
                DrainProgress::Done(used) => {
                    *input = &input[used..];
                    request.body_read = true;
                    return Continue(request);
                }
                DrainProgress::More => {
                    let is_first = std::mem::take(input).is_empty();
                    let expected = expects_continue && is_first;
                    let use_of = BodyUse::Discard;
                    return Break(self.wait_for_body(connection, request, body, use_of, expected));
                }
                DrainProgress::TooLarge => Status::CONTENT_TOO_LARGE,
                DrainProgress::Bad => self.reject_body(&mut request),
            },
        };
        Break(self.close_with_error(connection, request, status))
    }

    /// Notes that the body of a request is not validly framed, and returns the status to answer with.
    pub(super) fn reject_body(&mut self, request: &mut Request) -> Status {
        self.counters.requests_rejected_body += 1;
        request.reject_reason = Some("invalid chunk");
        Status::BAD_REQUEST
    }

    /// Makes a request wait for the rest of its body.
    pub(super) fn wait_for_body(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        body: Body,
        body_use: BodyUse,
        expected: bool,
    ) -> Next {
        if expected && self.send_continue(connection).is_err() {
            return Next::Close(None);
        }
        self.set_timeout(connection, self.config.body_timeout_ms);
        self.watch(connection, Interest::READ);
        Next::Wait(Phase::AwaitBody(request, body, body_use))
    }

    /// Receives more of a body. The request starts again when the body is complete, because what
    /// answers it may have changed meanwhile, unless the body belongs to an application.
    pub(super) fn receive_body(&mut self, connection: &mut Connection) -> Next {
        let mut scratch = std::mem::take(&mut self.scratch);
        let next = match self.receive_into(connection, &mut scratch) {
            Ok(Some(count)) => self.take_body(connection, &scratch[..count]),
            Ok(None) => Next::Wait(connection.take_phase()),
            Err(()) => Next::Close(None),
        };
        self.scratch = scratch;
        next
    }

    fn take_body(&mut self, connection: &mut Connection, received: &[u8]) -> Next {
        let (mut request, mut body, body_use) = match connection.take_phase() {
            Phase::AwaitBody(request, body, body_use) => (request, body, body_use),
            other => return Next::Wait(other),
        };
        let progress = match body_use {
            BodyUse::Discard => body.feed(received),
            BodyUse::Application(_) => body.feed_into(received, &mut request.body),
        };
        if body_use != BodyUse::Discard {
            self.buffers.charge_body(&mut request);
        }
        let status = match progress {
            DrainProgress::More if body_use != BodyUse::Discard && !self.buffers.has_memory() => {
                self.counters.buffers_full += 1;
                Status::SERVICE_UNAVAILABLE
            }
            // The deadline covers the whole body, so it is not extended.
            DrainProgress::More => return Next::Wait(Phase::AwaitBody(request, body, body_use)),
            DrainProgress::Done(used) => {
                connection.stash_input(&received[used..]);
                request.body_read = true;
                return match body_use {
                    BodyUse::Discard => Next::Start(request),
                    BodyUse::Application(route) => {
                        Next::Delegate(request, Delegate::Application(route))
                    }
                };
            }
            DrainProgress::TooLarge => Status::CONTENT_TOO_LARGE,
            DrainProgress::Bad => self.reject_body(&mut request),
        };
        self.close_with_error(connection, request, status)
    }
}

fn first(buffer: &mut [u8], bytes_max: usize) -> &mut [u8] {
    let length = buffer.len().min(bytes_max);
    &mut buffer[..length]
}
