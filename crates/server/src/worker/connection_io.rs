//! Moves a connection through its phases: receiving, sending, timeouts, lingering close.

use std::os::fd::AsFd;

use headway_debox::Call;
use headway_event::{Interest, Ready};
use headway_http::Status;
use headway_http::chunked::DrainProgress;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::{Disposition, Worker};
use crate::accept::AdmissionControl;
use crate::connection::{BodyUse, Connection, Phase};
use crate::request::Request;
use crate::send;

/// How long a lingering close waits for the client to read the last response.
const LINGER_TIMEOUT_MS: u64 = 2_000;
/// After this many read-ins of a chunk that was evicted each time, a helper copies it instead.
pub(super) const READ_INS_MAX: u8 = 3;
/// After this many helper requests in all, the file is given up: it is one of sysfs, or is being
/// written all the time.
pub(super) const HELPER_REQUESTS_MAX: u8 = 2 * READ_INS_MAX;
/// The most reads in a row from one connection with `full_read`; then other connections run.
const READS_PER_EVENT_MAX: usize = 64;
/// First requests, of which one is checked for a client that has already disconnected.
const DISCONNECT_CHECK_INTERVAL: u64 = 16;
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
            Phase::Exchange(_) => self.on_client(connection, event),
            // The connection is in the run queue and continues from there.
            Phase::Send(_) if connection.is_queued => Disposition::Keep,
            Phase::Send(_) if event.writable || event.hangup => self.take_turn(connection),
            Phase::Send(_) => self.disable_reads(connection, Interest::WRITE),
            waiting if waiting.waits_for_a_helper() => {
                if event.hangup || (readable && self.is_reset(connection)) {
                    self.counters.connections_reset += 1;
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
        self.watch(connection, interest);
        Disposition::Keep
    }

    /// Watches for a disconnect while a helper works, so that the slot of a client that gives up
    /// becomes free. A client that only closes its sending side may still want the response.
    pub(super) fn watch_for_disconnect(&mut self, connection: &mut Connection) {
        if connection.interest.is_none() {
            self.watch(connection, Interest::READ);
        }
    }

    /// Whether the connection was reset. Needed because select reports a hang-up as readable.
    fn is_reset(&self, connection: &Connection) -> bool {
        let peeked = self.tracer.call(Call::Receive, || {
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
        let reads = if self.config.full_read {
            READS_PER_EVENT_MAX
        } else {
            1
        };
        for _ in 0..reads {
            let before = self.counters.receives_would_block;
            let disposition = self.receive_once(connection);
            let nothing = self.counters.receives_would_block > before;
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
        let mut scratch = std::mem::take(&mut self.scratch);
        let buffered = connection.rx_buffer.len();
        scratch[..buffered].copy_from_slice(&connection.rx_buffer);
        let disposition = match self.receive_into(connection, &mut scratch[buffered..]) {
            Ok(Some(_)) if self.client_disconnected(connection) => Disposition::Close,
            Ok(Some(count)) => {
                connection.rx_buffer.clear();
                self.handle_requests(connection, &scratch[..buffered + count])
            }
            Ok(None) => {
                self.watch(connection, Interest::READ);
                Disposition::Keep
            }
            Err(()) => Disposition::Close,
        };
        self.scratch = scratch;
        disposition
    }

    /// Whether the client of a first request that has just been received has given up.
    ///
    /// A client that has waited too long closes its connection, yet its request can still be
    /// received. So a sample of the first requests is checked; all are checked when more clients
    /// arrive than can be handled and some have waited long, because a response to a disconnected
    /// client then costs other clients' time. A client that has closed only its sending side looks
    /// the same. Therefore a closed client is dropped only after it has waited so long that giving
    /// up is the likelier reason.
    fn client_disconnected(&mut self, connection: &Connection) -> bool {
        let first = connection.requests == 0 && !connection.header_partial;
        let sampled = self.counters.requests_received % DISCONNECT_CHECK_INTERVAL
            == DISCONNECT_CHECK_INTERVAL - 1;
        let suspected = self
            .auto
            .as_ref()
            .is_some_and(AdmissionControl::may_be_abandoned);
        if !first || !(sampled || suspected) {
            return false;
        }
        self.counters.first_requests_sampled += 1;
        let peeked = self.tracer.call(Call::Receive, || {
            rustix::net::recv(&connection.socket, &mut [0; 1], RecvFlags::PEEK)
        });
        let gone = !matches!(peeked, Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR));
        self.counters.first_requests_disconnected += u64::from(gone);
        let Some(auto) = &mut self.auto else {
            return false;
        };
        if !gone && !sampled {
            return false;
        }
        let waited_ms = self.tracer.call(Call::SocketOption, || {
            headway_os::socket::last_data_ms(connection.socket.as_fd()).unwrap_or(0)
        });
        let departed = auto.is_abandoned(gone, waited_ms);
        self.counters.first_requests_abandoned += u64::from(departed);
        departed
    }

    /// Receives bytes. Returns `None` if there are none now, and an error if the client has closed
    /// or reset the connection.
    pub(super) fn receive_into(
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

    fn receive_body(&mut self, connection: &mut Connection) -> Disposition {
        let mut scratch = std::mem::take(&mut self.scratch);
        let disposition = self.receive_body_into(connection, &mut scratch);
        self.scratch = scratch;
        disposition
    }

    fn receive_body_into(
        &mut self,
        connection: &mut Connection,
        scratch: &mut [u8],
    ) -> Disposition {
        let count = match self.receive_into(connection, scratch) {
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
        let next = self.close_with_error(connection, request, status);
        self.advance(connection, next)
    }

    /// Sends `100 Continue`, completely or not at all.
    ///
    /// If the socket accepts nothing, the client has not read the previous response yet; it may
    /// send its body without the interim response (RFC 9110, 10.1.1). If the socket accepts only a
    /// part, the connection closes, because the next response would be read as the rest of this
    /// one. An error means that the connection must close.
    pub(super) fn send_continue(&mut self, connection: &Connection) -> Result<(), ()> {
        let line = b"HTTP/1.1 100 Continue\r\n\r\n";
        match send::send_whole(&connection.socket, line, false, &self.tracer) {
            Ok(sent) => {
                self.counters.sent_bytes += sent as u64;
                if sent < line.len() {
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

    /// Waits for the next header or the rest of one.
    pub(super) fn await_head(&mut self, connection: &mut Connection, rest: &[u8]) -> Disposition {
        connection.phase = Phase::Head;
        connection.stash_input(rest);
        if rest.is_empty() {
            connection.header_partial = false;
            self.deadlines
                .set(connection.slot(), self.now_ms + self.config.idle_timeout_ms);
        } else if !connection.header_partial {
            // The deadline runs from the first byte and is not extended, so sending a byte at a
            // time gains nothing.
            connection.header_partial = true;
            self.deadlines.set(
                connection.slot(),
                self.now_ms + self.config.header_timeout_ms,
            );
        }
        self.watch(connection, Interest::READ);
        Disposition::Keep
    }

    /// Accounts for a finished response. The result says whether the connection stays open.
    pub(super) fn finish_response(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Disposition {
        let outgoing = &connection.outgoing;
        self.counters.sent_body_bytes += outgoing.sent_bytes.saturating_sub(outgoing.head_bytes);
        self.write_log(connection, &request);
        self.requests.recycle(request);
        connection.outgoing.clear();
        connection.requests += 1;
        match connection.keep_alive {
            true => Disposition::Keep,
            false => Disposition::Close,
        }
    }

    /// Whether the client of a handler has sent more input that was not read meanwhile.
    pub(super) fn has_unread_input(&mut self, connection: &Connection) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peek = || {
            self.tracer.call(Call::Receive, || {
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
        let _ = self.tracer.call(Call::Shutdown, || {
            rustix::net::shutdown(&connection.socket, Shutdown::Write)
        });
        connection.phase = Phase::Linger;
        connection.rx_buffer = Vec::new();
        self.deadlines
            .set(connection.slot(), self.now_ms + LINGER_TIMEOUT_MS);
        self.watch(connection, Interest::READ);
        Disposition::Keep
    }

    /// Discards input during a lingering close.
    fn discard_lingering(&mut self, connection: &mut Connection) -> Disposition {
        let mut scratch = std::mem::take(&mut self.scratch);
        let received = self.receive_into(connection, &mut scratch);
        self.scratch = scratch;
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
        self.deadlines.expire(self.now_ms, &mut expired);
        for slot in expired {
            self.with_connection(slot, Worker::on_timeout);
        }
    }

    fn on_timeout(&mut self, connection: &mut Connection) -> Disposition {
        match &connection.phase {
            Phase::Head if connection.header_partial => {
                self.counters.timeouts_header += 1;
                let received = std::mem::take(&mut connection.rx_buffer);
                let request = Box::new(Request::unparsed(&received));
                let next = self.close_with_error(connection, request, Status::REQUEST_TIMEOUT);
                self.advance(connection, next)
            }
            Phase::Head if connection.requests == 0 => {
                self.counters.timeouts_header += 1;
                Disposition::Close
            }
            Phase::Head => {
                self.counters.timeouts_idle += 1;
                Disposition::Close
            }
            Phase::Body(..) => {
                self.counters.timeouts_body += 1;
                self.time_out_request(connection, Status::REQUEST_TIMEOUT)
            }
            Phase::Lookup(..)
            | Phase::Listing(_)
            | Phase::SmallFile(..)
            | Phase::ApplicationJob(..) => {
                self.counters.timeouts_send += 1;
                self.pool.leave(connection.token.0);
                self.time_out_request(connection, Status::SERVICE_UNAVAILABLE)
            }
            Phase::Chunk(_) | Phase::Send(_) | Phase::Yield => {
                self.counters.timeouts_send += 1;
                self.counters.responses_aborted += 1;
                Disposition::Close
            }
            Phase::Exchange(_) => self.time_out_exchange(connection),
            Phase::Linger => Disposition::Close,
        }
    }

    /// Answers the waiting request with an error and closes the connection.
    fn time_out_request(&mut self, connection: &mut Connection, status: Status) -> Disposition {
        let Some(request) = connection.take_phase().into_request() else {
            return Disposition::Close;
        };
        let next = self.close_with_error(connection, request, status);
        self.advance(connection, next)
    }

    /// Closes a connection and releases what it holds.
    pub(super) fn close(&mut self, slot: usize) {
        let Some(mut connection) = self.connections.remove(slot) else {
            return;
        };
        // Log an aborted response with the bytes that were sent.
        if connection.outgoing.status != 0
            && let Some(request) = connection.phase.request()
        {
            self.write_log(&connection, request);
        }
        if matches!(connection.phase, Phase::Exchange(_)) {
            self.abandon(&mut connection);
        }
        if connection.handed_off {
            // Another process may hold a copy of this socket, so closing ours would not end the
            // connection.
            let _ = self.tracer.call(Call::Shutdown, || {
                rustix::net::shutdown(&connection.socket, Shutdown::Both)
            });
            // A program may have set SO_LINGER, which would make close block (socket(7)).
            let _ = self.tracer.call(Call::SocketOption, || {
                rustix::net::sockopt::set_socket_linger(&connection.socket, None)
            });
        }
        if connection.phase.waits_for_a_helper() {
            self.pool.leave(connection.token.0);
        }
        self.addresses.leave(connection.client.ip());
        self.deadlines.clear(slot);
        if connection.interest.is_some() {
            self.events.forget(connection.socket.as_fd());
        }
        self.tracer.call(Call::Close, || drop(connection));
        self.counters.connections_closed += 1;
        self.listeners.set_full(false, &mut self.events);
        self.accepts_owed += u32::from(self.config.accept_on_close);
    }
}
