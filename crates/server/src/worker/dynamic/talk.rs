//! What is said with a back end: the request and its body towards it, the reply from it.
//!
//! Both directions go over one socket and hold each other back as with a program: a body is taken
//! from the client while the back end takes it, a reply is read while the client takes it.

use std::os::fd::AsFd;
use std::rc::Rc;

use headway_debox::Call;
use headway_event::{Interest, Ready};
use headway_files::{Failure, Meta, OpenFile};
use headway_gateway::cgi::is_local;
use headway_gateway::upstream::{Outcome, Stage as Progressed, is_idempotent};
use headway_gateway::{Answer, Event, Fault, FieldList, Handoff, Refusal};
use headway_http::{Parsed, Status};
use rustix::io::Errno;

use super::backlog::RESTORE_BYTES;
use super::{Elsewhere, READ_BYTES, Step};
use crate::config::{Handler, Protocol};
use crate::connection::{Connection, Exchange, Peer};
use crate::forker::harmless;
use crate::respond::dynamic::handoff::{file_below, kept_fields};
use crate::worker::{Disposition, Worker};

impl Worker {
    /// An event on the socket of a back end.
    pub(super) fn on_peer(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        event: &Ready,
    ) -> Step {
        if event.writable {
            match self.feed_peer(connection, exchange) {
                Step::Go => {}
                other => return other,
            }
        }
        match event.readable || event.hangup {
            true => self.take_output(connection, exchange),
            false => Step::Go,
        }
    }

    /// Sends the back end what it takes of the request.
    pub(super) fn feed_peer(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        let mut progressed = false;
        while let Some(peer) = &mut exchange.peer
            && !peer.mute
        {
            let upload = &mut exchange.upload;
            // The body stays here until it is certain that somebody is there to take it.
            if peer.begun {
                let taken = peer.talk.push_body(upload.left());
                upload.advance(taken);
                peer.body_bytes += taken as u64;
                self.counters.dynamic_received_bytes += taken as u64;
            }
            if upload.is_complete() && !peer.body_ended {
                peer.body_ended = true;
                peer.talk.end_body();
            }
            if peer.talk.unsent().is_empty() {
                break;
            }
            let written = self.tracer.call(Call::BackendWrite, || {
                rustix::io::write(&peer.line.socket, peer.talk.unsent())
            });
            match written {
                Ok(count) => {
                    peer.talk.sent(count);
                    peer.begun = true;
                    progressed = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) if !peer.begun => {
                    let why = format!("connecting: {errno}");
                    let failure = (Status::BAD_GATEWAY, why.as_str());
                    return self.peer_failed(connection, exchange, Progressed::Unsent, failure);
                }
                // It may have answered before it stopped to listen.
                Err(_) => peer.mute = true,
            }
        }
        if progressed {
            self.renew(connection, exchange);
        }
        self.restore(connection, exchange)
    }

    /// Has a helper read the next part of a body that was spilled, when the one before has left.
    fn restore(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        let upload = &mut exchange.upload;
        let is_free = !upload.restoring && !exchange.download.backlog.restoring;
        let is_due = exchange.peer.is_some() && is_free && upload.left().is_empty();
        let Some(file) = upload.spilled.as_ref().filter(|_| is_due) else {
            return Step::Go;
        };
        if upload.restored_bytes == upload.spilled_bytes {
            return Step::Go;
        }
        let file = match identified(file, &self.pool.retire_list()) {
            Ok(file) => file,
            Err(_) => return Step::Fail(Status::INTERNAL_SERVER_ERROR),
        };
        let length = RESTORE_BYTES.min(upload.spilled_bytes - upload.restored_bytes);
        let asked = self
            .pool
            .read(&file, upload.restored_bytes, length, connection.waiter());
        if asked.is_err() {
            return Step::Fail(Status::SERVICE_UNAVAILABLE);
        }
        upload.restoring = true;
        connection.admitted = true;
        Step::Go
    }

    /// A helper has read a part of a spilled body or reply, or could not.
    pub(in crate::worker) fn wake_restorer(
        &mut self,
        connection: &mut Connection,
        copy: &Result<Rc<OpenFile>, Failure>,
    ) -> Disposition {
        self.step_exchange(connection, |worker, connection, exchange| {
            if exchange.download.backlog.restoring {
                return worker.reply_restored(connection, exchange, copy);
            }
            if !std::mem::take(&mut exchange.upload.restoring) {
                return Step::Go;
            }
            if exchange.peer.is_some() {
                let bytes = match worker.copied(copy) {
                    Ok(bytes) => bytes,
                    Err(status) => return Step::Fail(status),
                };
                exchange.upload.waiting.extend_from_slice(&bytes);
                exchange.upload.restored_bytes += bytes.len() as u64;
                worker.renew(connection, exchange);
                match worker.feed_peer(connection, exchange) {
                    Step::Go => {}
                    other => return other,
                }
            }
            // A part of the reply may have had to wait for this.
            match connection.outgoing.pieces.is_empty() && exchange.download.backlog.file.is_some()
            {
                true => worker.send_reply(connection, exchange),
                false => Step::Go,
            }
        })
    }

    /// Reads until there is nothing now, or enough for one piece; the body's bytes are appended to
    /// `body`.
    pub(super) fn read_peer(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        buffer: &mut [u8],
        body: &mut Vec<u8>,
    ) -> Step {
        let mut read_bytes = 0;
        while read_bytes < READ_BYTES {
            let Some(peer) = &mut exchange.peer else {
                break;
            };
            let read = self.tracer.call(Call::BackendRead, || {
                rustix::io::read(&peer.line.socket, &mut *buffer)
            });
            let step = match read {
                Ok(count @ 1..) => {
                    read_bytes += count;
                    self.counters.dynamic_sent_bytes += count as u64;
                    if count < buffer.len() {
                        self.events.drained(peer.line.socket.as_fd());
                    }
                    self.understand_peer(connection, exchange, &buffer[..count], body)
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Ok(_) => self.peer_closed(connection, exchange),
                Err(_) => self.peer_broke_off(connection, exchange),
            };
            match step {
                Step::Go => {}
                other => return other,
            }
        }
        if read_bytes > 0 {
            self.note_word(connection, exchange);
        }
        Step::Go
    }

    fn understand_peer(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        mut input: &[u8],
        body: &mut Vec<u8>,
    ) -> Step {
        while let Some(peer) = &mut exchange.peer {
            let event = match peer.talk.feed(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(fault) => return self.peer_at_fault(connection, exchange, &fault),
            };
            match event {
                Event::Head(Answer::Reply(reply)) => match self.take_head(exchange, reply) {
                    Step::Go => {}
                    other => return other,
                },
                Event::Head(Answer::LocalRedirect(location)) => {
                    self.leave_peer(exchange, Outcome::Answered, false);
                    return Step::away(location);
                }
                Event::Body(bytes) => body.extend_from_slice(bytes),
                Event::Stderr(words) => self.pass_words_on(exchange, words),
                Event::End(end) => {
                    exchange.download.ended = true;
                    self.leave_peer(exchange, Outcome::Answered, end.reusable);
                    self.give_place_back(exchange);
                }
            }
        }
        Step::Go
    }

    /// What an application says besides its reply: a line each, control characters as escapes.
    fn pass_words_on(&mut self, exchange: &Exchange, words: &[u8]) {
        let name = harmless(&exchange.program.file);
        for line in words
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            self.notice(format!("{name}: {}", line.escape_ascii()));
        }
    }

    /// The connection was reset. One that is killed does so if it has not read all of the request;
    /// what it has said may be complete all the same, if its length was told.
    fn peer_broke_off(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        let peer = exchange.peer.as_ref();
        match peer.is_some_and(|peer| peer.talk.is_open_ended()) {
            true => self.peer_at_fault(connection, exchange, &Fault::Closed),
            false => self.peer_closed(connection, exchange),
        }
    }

    fn peer_closed(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        let finished = exchange.peer.as_mut().map(|peer| peer.talk.finish());
        match finished {
            Some(Err(fault)) => self.peer_at_fault(connection, exchange, &fault),
            _ => {
                exchange.download.ended = true;
                self.leave_peer(exchange, Outcome::Answered, false);
                self.give_place_back(exchange);
                Step::Go
            }
        }
    }

    /// The back end broke its protocol, said that it does not answer, or left. A program's reply
    /// that cannot be passed on is its own mistake, and the server that runs it is not blamed; of a
    /// proxied one the reply is the protocol.
    fn peer_at_fault(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        fault: &Fault,
    ) -> Step {
        let begun = exchange.peer.as_ref().is_some_and(|peer| peer.begun);
        let progressed = match fault {
            Fault::Reply(Refusal::Empty) if begun => Progressed::Sent,
            Fault::Reply(Refusal::Empty) => Progressed::Unsent,
            fault if fault.is_untouched() => Progressed::Untouched,
            // What was said over a kept connection before this request is no reply to it. An
            // application's own protocol would have told the two apart.
            Fault::Reply(_) if self.is_foreign(exchange) => Progressed::Sent,
            Fault::Reply(refusal) => {
                let outcome = match self.is_proxied(exchange) {
                    true => Outcome::Failed,
                    false => Outcome::Answered,
                };
                self.counters.backend_failures += u64::from(outcome == Outcome::Failed);
                self.leave_peer(exchange, outcome, false);
                return self.refuse_reply(exchange, &refusal.to_string());
            }
            _ => Progressed::Answered,
        };
        let failure = (fault.status(), fault.to_string());
        self.peer_failed(connection, exchange, progressed, (failure.0, &failure.1))
    }

    /// Whether words that are no reply may belong to an earlier one, or to none, and asking again
    /// over a connection of its own will tell.
    fn is_foreign(&self, exchange: &Exchange) -> bool {
        let Parsed::Complete(head) = headway_http::parse(&exchange.head, &self.limits) else {
            return false;
        };
        let unheard = |peer: &Peer| peer.kept && !peer.talk.has_head();
        exchange.peer.as_deref().is_some_and(unheard)
            && self.is_proxied(exchange)
            && is_idempotent(head.method)
    }

    fn is_proxied(&self, exchange: &Exchange) -> bool {
        let location = &self.places.get(exchange.program.place).location;
        matches!(&location.handler, Handler::Upstreams(peers) if peers.protocol == Protocol::Proxy)
    }

    /// A reply whose body comes from a file of the server's.
    pub(super) fn hand_over(
        &mut self,
        exchange: &mut Exchange,
        handoff: &Handoff,
        fields: &FieldList,
    ) -> Step {
        let (location, why) = match handoff {
            Handoff::Location(location) => (
                is_local(location).then(|| location.to_vec()),
                "X-Accel-Redirect names no path of this server",
            ),
            Handoff::File(file) => (
                file_below(&exchange.program.document_root, file),
                "X-Sendfile names no file below the document root",
            ),
        };
        match location {
            Some(location) => {
                self.leave_peer(exchange, Outcome::Answered, false);
                Step::Elsewhere(Box::new(Elsewhere {
                    location: location.into(),
                    handed: Some(kept_fields(fields)),
                }))
            }
            None => self.refuse_reply(exchange, why),
        }
    }

    /// Whether whoever answers at this location may have the server send a file.
    pub(super) fn may_hand_over(&self, exchange: &Exchange) -> bool {
        let place = self.places.get(exchange.program.place);
        place.location.accel_redirect
    }

    /// What the socket of a back end is waited for.
    pub(super) fn watch_peer(&mut self, exchange: &mut Exchange) {
        let Some(peer) = &mut exchange.peer else {
            return;
        };
        let writes = !peer.mute && !peer.talk.unsent().is_empty();
        let wanted = match (exchange.download.wanted, writes) {
            (true, true) => Some(Interest::BOTH),
            (true, false) => Some(Interest::READ),
            (false, true) => Some(Interest::WRITE),
            (false, false) => None,
        };
        self.watch_line(&mut peer.line, wanted);
    }
}

/// The same file under its own number: helpers' answers are told apart by it, and what was made
/// without a name came without one.
pub(super) fn identified(
    file: &Rc<OpenFile>,
    retire: &headway_files::RetireList,
) -> std::io::Result<Rc<OpenFile>> {
    let descriptor = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
    let status = rustix::fs::fstat(&descriptor)?;
    let meta = Meta {
        size: status.st_size.unsigned_abs(),
        modified: (0, 0),
        changed: (0, 0),
        device: status.st_dev,
        inode: status.st_ino,
    };
    Ok(Rc::new(OpenFile::new(descriptor, meta).retiring_to(retire)))
}
