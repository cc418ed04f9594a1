//! A connection's way through its phases: receiving, sending on, timing out, parting.

use std::os::fd::AsFd;
use std::rc::Rc;

use headway_debox::Call;
use headway_event::{Interest, Ready};
use headway_files::{Failure, OpenFile};
use headway_http::chunked::Progress as Drained;
use headway_http::{Head, Status};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::exchange::{Given, Served};
use super::{Fate, Worker};
use crate::accept::Auto;
use crate::connection::{Connection, Phase};
use crate::respond::{self, Context};
use crate::send::{self, Means, Progress};

/// How long a parting client may take to read our last words.
const LINGER_MS: u64 = 2_000;
/// After so many times that a window was read in and lost again, a helper copies it.
pub(super) const ASKS_MAX: u8 = 3;
/// After so many times in all a file is never going to be what its name says: it is one of sysfs,
/// or written all the time.
pub(super) const ASKS_IN_ALL_MAX: u8 = 2 * ASKS_MAX;
/// How often a connection is read from in a row, where it is to be read from until there is nothing
/// more: then the others have their turn.
const READS_MAX: usize = 64;
/// Of so many first requests of a connection one is looked at, whether its client is still there.
const LOOKED_AT_ONE_IN: u64 = 16;
/// What a parting client may still send before we stop listening.
const LINGER_BYTES_MAX: usize = 256 * 1024;

impl Worker {
    /// An event on a connection's socket.
    pub(super) fn on_event(&mut self, connection: &mut Connection, event: &Ready) -> Fate {
        let readable = event.readable || event.hangup;
        match connection.phase {
            Phase::Head if readable => self.receive(connection),
            Phase::Body(_) if readable => self.receive_body(connection),
            Phase::Linger if readable => self.receive_last(connection),
            Phase::Exchange(_) => self.on_client(connection, event),
            // Its turn comes after the others', whatever its socket says.
            Phase::Send if connection.in_line => Fate::Keep,
            Phase::Send if event.writable || event.hangup => self.continue_sending(connection),
            Phase::Send => self.look_away(connection, Interest::WRITE),
            Phase::Name | Phase::Content(_) | Phase::Errand | Phase::Window
                if event.hangup || (readable && self.is_reset(connection)) =>
            {
                self.counters.resets += 1;
                Fate::Close
            }
            Phase::Name | Phase::Content(_) | Phase::Errand | Phase::Window => {
                self.look_away(connection, Interest::NONE)
            }
            _ => Fate::Keep,
        }
    }

    /// The client sends more than it may now: stop hearing of it until its turn comes. Only done
    /// when it happens, because most clients wait for their reply.
    fn look_away(&mut self, connection: &mut Connection, interest: Interest) -> Fate {
        self.watch(connection, interest);
        Fate::Keep
    }

    /// A helper has been asked, which may take long: should the client give up meanwhile, its place
    /// is to be free. One that only ends its own side may still want the reply.
    pub(super) fn heed_departure(&mut self, connection: &mut Connection) {
        if connection.interest.is_none() {
            self.watch(connection, Interest::READ);
        }
    }

    /// select cannot tell a hang-up from data.
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

    /// Receives the next head, or more of it, and answers what is complete; once, or (`full_read`)
    /// again and again until there is nothing to read or something to wait for.
    pub(super) fn receive(&mut self, connection: &mut Connection) -> Fate {
        let reads = if self.config.full_read { READS_MAX } else { 1 };
        for _ in 0..reads {
            let before = self.counters.receives_would_block;
            let fate = self.receive_once(connection);
            let nothing = self.counters.receives_would_block > before;
            if nothing || fate == Fate::Close || !matches!(connection.phase, Phase::Head) {
                return fate;
            }
        }
        Fate::Keep
    }

    fn receive_once(&mut self, connection: &mut Connection) -> Fate {
        let mut scratch = std::mem::take(&mut self.scratch);
        let held = connection.held.len();
        scratch[..held].copy_from_slice(&connection.held);
        let fate = match self.receive_into(connection, &mut scratch[held..]) {
            Ok(Some(_)) if self.has_departed(connection) => Fate::Close,
            Ok(Some(count)) => {
                connection.held.clear();
                self.consume(connection, &scratch[..held + count], Given::Nothing)
            }
            Ok(None) => {
                self.watch(connection, Interest::READ);
                Fate::Keep
            }
            Err(()) => Fate::Close,
        };
        self.scratch = scratch;
        fate
    }

    /// Whether a client whose first request has just been read has given up, as far as one knows
    /// and it matters.
    ///
    /// A client that has waited for too long closes, and its request is received all the same:
    /// nothing in a stream tells that its reader has gone before its last byte is read. So some are
    /// looked at; and all, where more come than can be served and some had waited for long, because
    /// then it is other clients' time that an answer to nobody takes. One that has closed only its
    /// own side and still reads looks the same, so whoever has closed is answered unless it has
    /// waited for so long that giving up is the likelier reason.
    fn has_departed(&mut self, connection: &Connection) -> bool {
        let first = connection.requests == 0 && !connection.partial;
        let sampled = self.counters.requests % LOOKED_AT_ONE_IN == LOOKED_AT_ONE_IN - 1;
        let suspected = self.auto.as_ref().is_some_and(Auto::may_have_gone);
        if !first || !(sampled || suspected) {
            return false;
        }
        self.counters.first_requests_looked += 1;
        let peeked = self.tracer.call(Call::Receive, || {
            rustix::net::recv(&connection.socket, &mut [0; 1], RecvFlags::PEEK)
        });
        let gone = !matches!(peeked, Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR));
        self.counters.first_requests_late += u64::from(gone);
        let Some(auto) = &mut self.auto else {
            return false;
        };
        if !gone && !sampled {
            return false;
        }
        let waited_ms = self.tracer.call(Call::SocketOption, || {
            headway_os::socket::last_data_ms(connection.socket.as_fd()).unwrap_or(0)
        });
        let departed = auto.gives_up_on(gone, waited_ms);
        self.counters.first_requests_left += u64::from(departed);
        departed
    }

    /// Bytes received, `None` when there are none now; an error when the client has ended or is
    /// gone.
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
                self.counters.bytes_received += count as u64;
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
                self.counters.resets += 1;
                Err(())
            }
        }
    }

    fn receive_body(&mut self, connection: &mut Connection) -> Fate {
        let mut scratch = std::mem::take(&mut self.scratch);
        let fate = self.receive_body_into(connection, &mut scratch);
        self.scratch = scratch;
        fate
    }

    fn receive_body_into(&mut self, connection: &mut Connection, scratch: &mut [u8]) -> Fate {
        let count = match self.receive_into(connection, scratch) {
            Ok(Some(count)) => count,
            Ok(None) => return Fate::Keep,
            Err(()) => return Fate::Close,
        };
        let Phase::Body(body) = &mut connection.phase else {
            return Fate::Keep;
        };
        match body.feed(&scratch[..count]) {
            // The deadline stays: it is for the whole body, however small its pieces.
            Drained::More => Fate::Keep,
            Drained::Done(used) => {
                // The head is held; what follows the body goes behind it.
                connection.held.extend_from_slice(&scratch[used..count]);
                connection.body_read = true;
                self.resume(connection, Given::Nothing)
            }
            Drained::TooLarge => self.refuse_held(connection, Status::CONTENT_TOO_LARGE),
            Drained::Bad => self.refuse_held(connection, Status::BAD_REQUEST),
        }
    }

    /// `100 Continue`, whole or not at all. A client whose socket takes nothing has not read the
    /// last reply, and may send its body without being asked (RFC 9110, 10.1.1). If the socket
    /// takes a part of these few bytes the connection closes: whatever followed would be read as
    /// the rest of them, and a client that lets its replies pile up so exactly is not worth a place
    /// to keep the rest in.
    pub(super) fn send_continue(&mut self, connection: &Connection) -> Result<(), Fate> {
        let line = b"HTTP/1.1 100 Continue\r\n\r\n";
        match send::send_whole(&connection.socket, line, false, &self.tracer) {
            Ok(sent) => {
                self.counters.bytes_sent += sent as u64;
                if sent < line.len() {
                    self.counters.aborted += 1;
                    return Err(Fate::Close);
                }
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => {
                self.counters.resets += 1;
                Err(Fate::Close)
            }
        }
    }

    /// Waits for the rest of a head, or for the next one.
    pub(super) fn await_head(&mut self, connection: &mut Connection, rest: &[u8]) -> Fate {
        connection.phase = Phase::Head;
        connection.hold(rest);
        if rest.is_empty() {
            connection.partial = false;
            self.deadlines
                .set(connection.slot(), self.now_ms + self.config.idle_timeout_ms);
        } else if !connection.partial {
            // From the first byte on, and never again: a head sent a byte at a time gains nothing.
            connection.partial = true;
            self.deadlines.set(
                connection.slot(),
                self.now_ms + self.config.header_timeout_ms,
            );
        }
        self.watch(connection, Interest::READ);
        Fate::Keep
    }

    /// Sends what may leave now. A response is counted when its first byte leaves: until then it
    /// may become another one.
    pub(super) fn transmit(&mut self, connection: &mut Connection) -> Progress {
        let is_first = connection.outgoing.sent_bytes == 0;
        let mut means = Means {
            tracer: &self.tracer,
            residency: &self.residency,
            method: self.config.send,
            windows: &mut self.windows,
            maps: &mut self.maps,
            recent: &mut self.recent,
            uptake_bytes: &mut connection.uptake_bytes,
            budget_bytes: self.config.write_quantum_bytes,
            counters: &mut self.counters,
            prefetch: &mut self.prefetch,
            proven: None,
        };
        let progress = send::send(
            &mut connection.outgoing,
            connection.socket.as_fd(),
            &mut means,
        );
        if is_first && connection.outgoing.sent_bytes > 0 {
            self.counters.record_response(connection.outgoing.status);
        }
        progress
    }

    /// What to do after an attempt to send.
    pub(super) fn after_send(&mut self, connection: &mut Connection, progress: Progress) -> Served {
        match progress {
            Progress::Finished => return Served::Done,
            Progress::SocketFull => {
                connection.phase = Phase::Send;
                self.watch(connection, Interest::WRITE);
            }
            Progress::TurnSpent => {
                self.stand_in_line(connection);
            }
            Progress::Cold(file, offset) => {
                return self.fetch_window(connection, &file, offset, false);
            }
            Progress::Opaque(file, offset) => {
                return self.fetch_window(connection, &file, offset, true);
            }
            Progress::Changed => {
                self.counters.windows_changed += 1;
                return self.break_off(connection, Status::SERVICE_UNAVAILABLE);
            }
            Progress::Unreadable => {
                self.counters.io_errors += 1;
                return self.break_off(connection, Status::INTERNAL_SERVER_ERROR);
            }
            Progress::Gone => {
                self.counters.resets += 1;
                return Served::Close;
            }
        }
        self.deadlines
            .set(connection.slot(), self.now_ms + self.config.send_timeout_ms);
        Served::Sending
    }

    /// Has a helper bring the next window into reach: into the page cache, or as a copy where the
    /// loop cannot tell what is resident, or where the page cache has lost the window again and
    /// again.
    fn fetch_window(
        &mut self,
        connection: &mut Connection,
        file: &Rc<OpenFile>,
        offset: u64,
        opaque: bool,
    ) -> Served {
        let times = connection.ask_window(offset);
        let waiter = connection.waiter();
        let owed = connection.outgoing.file_range().unwrap_or(offset..offset);
        let asked = if opaque || times > ASKS_MAX {
            self.pool
                .read(file, owed.start, headway_files::WINDOW_BYTES, waiter)
        } else {
            let length = self.config.send.read_in_bytes(offset..owed.end);
            self.pool.read_in(file, offset, length, Some(waiter))
        };
        if asked.is_err() {
            return self.break_off(connection, Status::SERVICE_UNAVAILABLE);
        }
        connection.phase = Phase::Window;
        connection.admitted = true;
        self.heed_departure(connection);
        self.deadlines
            .set(connection.slot(), self.now_ms + self.config.send_timeout_ms);
        Served::Sending
    }

    /// Goes on in the next turn, after everybody else.
    pub(super) fn stand_in_line(&mut self, connection: &mut Connection) {
        connection.phase = Phase::Send;
        if !connection.in_line {
            connection.in_line = true;
            self.again.push(connection.token);
        }
    }

    /// A reply that cannot be finished: an error instead if none of it has left, else the end of
    /// the connection, so that the client sees a short body as short.
    pub(super) fn break_off(&mut self, connection: &mut Connection, status: Status) -> Served {
        if connection.outgoing.sent_bytes > 0 {
            self.counters.aborted += 1;
            return Served::Close;
        }
        connection.keep_alive = false;
        // Only GET sends files, so a body is in its place.
        let context = Context::unread(&self.rules, &self.date, false);
        let site = self.hosts.site(connection.site);
        connection.outgoing = respond::error(&context, status, Some(site), None);
        let progress = self.transmit(connection);
        self.after_send(connection, progress)
    }

    /// A window will not come: the disk's fault, or a want that may pass.
    pub(super) fn unreadable(&mut self, connection: &mut Connection, failure: Failure) -> Fate {
        let served = match failure {
            Failure::Io => self.after_send(connection, Progress::Unreadable),
            _ => self.break_off(connection, Status::SERVICE_UNAVAILABLE),
        };
        self.go_on(connection, served)
    }

    /// A helper's copy of the next bytes. Compared after they were copied: the copy itself does not
    /// show that its file was rewritten.
    pub(super) fn send_copy(&mut self, connection: &mut Connection, copy: &Rc<OpenFile>) -> Fate {
        let file = connection.outgoing.file();
        if file.is_some_and(|file| !self.is_unchanged(file)) {
            let served = self.after_send(connection, Progress::Changed);
            return self.go_on(connection, served);
        }
        connection.outgoing.substitute(copy.clone());
        self.continue_sending(connection)
    }

    /// Another turn, room in the socket, or a window that is resident now.
    pub(super) fn continue_sending(&mut self, connection: &mut Connection) -> Fate {
        connection.in_line = false;
        let progress = self.transmit(connection);
        let served = self.after_send(connection, progress);
        self.go_on(connection, served)
    }

    /// After a reply that did not leave at once: the next request, if it has.
    pub(super) fn go_on(&mut self, connection: &mut Connection, served: Served) -> Fate {
        match served {
            Served::Done => {
                let owed = connection.outgoing.status != 0;
                if owed && self.finish(connection, None) == Fate::Close {
                    let unread = !connection.held.is_empty() || self.has_said_more(connection);
                    return self.part(connection, unread);
                }
                self.resume(connection, Given::Nothing)
            }
            Served::Waiting | Served::Sending => Fate::Keep,
            Served::Close => Fate::Close,
        }
    }

    /// Accounts for a reply that has left; says whether the connection stays.
    pub(super) fn finish(&mut self, connection: &mut Connection, head: Option<&Head<'_>>) -> Fate {
        let outgoing = &connection.outgoing;
        self.counters.body_bytes_sent += outgoing.sent_bytes.saturating_sub(outgoing.head_bytes);
        if self.log.is_some() {
            if let Some(head) = head {
                self.record(connection, head);
            }
            self.write_log(connection);
        }
        connection.end_request();
        if connection.keep_alive {
            Fate::Keep
        } else {
            Fate::Close
        }
    }

    /// Whether a client that a program has answered has sent more, which nobody has read meanwhile.
    fn has_said_more(&mut self, connection: &Connection) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peek = || {
            self.tracer.call(Call::Receive, || {
                rustix::net::recv(&connection.socket, &mut [0; 1], flags)
            })
        };
        connection.program_asked && matches!(peek(), Ok((1.., _)))
    }

    /// The end of a connection that has got its last reply. If the client has sent more than was
    /// read, closing at once would reset the connection and could take the reply with it.
    pub(super) fn part(&mut self, connection: &mut Connection, unread: bool) -> Fate {
        if !unread {
            return Fate::Close;
        }
        let _ = self.tracer.call(Call::Shutdown, || {
            rustix::net::shutdown(&connection.socket, Shutdown::Write)
        });
        connection.phase = Phase::Linger;
        connection.held = Vec::new();
        self.deadlines
            .set(connection.slot(), self.now_ms + LINGER_MS);
        self.watch(connection, Interest::READ);
        Fate::Keep
    }

    /// Throws away what a parting client still sends.
    fn receive_last(&mut self, connection: &mut Connection) -> Fate {
        let mut scratch = std::mem::take(&mut self.scratch);
        let received = self.receive_into(connection, &mut scratch);
        self.scratch = scratch;
        match received {
            Ok(Some(count)) => {
                connection.lingered_bytes += count;
                if connection.lingered_bytes > LINGER_BYTES_MAX {
                    Fate::Close
                } else {
                    Fate::Keep
                }
            }
            Ok(None) => Fate::Keep,
            Err(()) => Fate::Close,
        }
    }

    /// Answers a request that is not understood, or comes too slowly, and parts. The page is the
    /// one of the site that was asked, or of the default site where no head says which.
    ///
    /// `asked` is what has arrived of the request: a reply to `HEAD` ends with its head, whatever
    /// the status (RFC 9112, 6.3).
    pub(super) fn refuse(
        &mut self,
        connection: &mut Connection,
        asked: &[u8],
        status: Status,
    ) -> Fate {
        connection.keep_alive = false;
        let head_only = asked
            .strip_prefix(b"\r\n")
            .unwrap_or(asked)
            .starts_with(b"HEAD ");
        let context = Context::unread(&self.rules, &self.date, head_only);
        let site = self.hosts.site(connection.site);
        let reply = respond::error(&context, status, Some(site), None);
        connection.outgoing = reply;
        match self.transmit(connection) {
            Progress::Finished => {
                self.finish(connection, None);
                self.part(connection, true)
            }
            // Our words do not fit into an empty socket: this client reads nothing.
            _ => Fate::Close,
        }
    }

    /// Refuses the request whose first bytes are held.
    fn refuse_held(&mut self, connection: &mut Connection, status: Status) -> Fate {
        let held = std::mem::take(&mut connection.held);
        self.refuse(connection, &held, status)
    }

    /// Ends what has taken too long.
    pub(super) fn expire(&mut self) {
        let mut expired = Vec::new();
        self.deadlines.expire(self.now_ms, &mut expired);
        for slot in expired {
            self.step(slot, Worker::time_out);
        }
    }

    fn time_out(&mut self, connection: &mut Connection) -> Fate {
        match connection.phase {
            Phase::Head if connection.partial => {
                self.counters.timeouts_head += 1;
                self.refuse_held(connection, Status::REQUEST_TIMEOUT)
            }
            Phase::Head if connection.requests == 0 => {
                self.counters.timeouts_head += 1;
                Fate::Close
            }
            Phase::Head => {
                self.counters.timeouts_idle += 1;
                Fate::Close
            }
            Phase::Body(_) => {
                self.counters.timeouts_body += 1;
                self.refuse_held(connection, Status::REQUEST_TIMEOUT)
            }
            Phase::Name | Phase::Content(_) | Phase::Errand => {
                self.counters.timeouts_send += 1;
                self.pool.leave(connection.token.0);
                self.refuse_held(connection, Status::SERVICE_UNAVAILABLE)
            }
            Phase::Window | Phase::Send => {
                self.counters.timeouts_send += 1;
                self.counters.aborted += 1;
                Fate::Close
            }
            Phase::Exchange(_) => self.time_out_exchange(connection),
            Phase::Linger => Fate::Close,
        }
    }
}
