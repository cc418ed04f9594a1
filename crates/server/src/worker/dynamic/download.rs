//! A reply on its way from the program to the client.
//!
//! One piece at a time: what was read has to leave, or to find a place in the `backlog`, before
//! more is read, so a slow client holds its program back in the end, and no connection keeps much
//! in memory. A reply that is whole at the first look gets its length; the connection stays then,
//! whatever the client speaks.

use headway_debox::Call;
use headway_gateway::cgi::NphEvent;
use headway_gateway::upstream::Outcome;
use headway_gateway::{Answer, Event, Refusal, Reply};
use headway_http::{Parsed, Status};
use rustix::io::Errno;

use super::{READ_BYTES, Step};
use crate::config::Handler;
use crate::connection::{Connection, Exchange, Reader};
use crate::request::{Frame, Outgoing, Piece};
use crate::respond::ReplyContext;
use crate::respond::dynamic::{SWITCHING_PROTOCOLS, begin_reply, chunk};
use crate::send::SendProgress;
use crate::worker::Worker;

impl Worker {
    /// The program's output is readable.
    pub(super) fn take_output(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        if !exchange.download.wanted {
            return Step::Go;
        }
        let buffer = self
            .dynamic
            .as_mut()
            .map(|dynamic| std::mem::take(&mut dynamic.buffer));
        let mut buffer = buffer.unwrap_or_default();
        let step = self.read_output(connection, exchange, &mut buffer);
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.buffer = buffer;
        }
        match step {
            Step::Go if self.sends_at_once(exchange) => self.send_reply(connection, exchange),
            other => other,
        }
    }

    /// What has come may leave before the event mechanism is asked. One whose reply waits already
    /// is known to be slow.
    pub(super) fn sends_at_once(&self, exchange: &Exchange) -> bool {
        self.config.eager_write && exchange.download.backlog.is_empty()
    }

    /// Reads until there is nothing now, or enough for one piece, and passes it on.
    fn read_output(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        buffer: &mut [u8],
    ) -> Step {
        let mut body = Vec::new();
        if exchange.peer.is_some() {
            return match self.read_peer(connection, exchange, buffer, &mut body) {
                Step::Go => self
                    .judge(exchange, body.len() as u64)
                    .unwrap_or_else(|| self.pass_on(connection, exchange, body)),
                other => other,
            };
        }
        let mut read_bytes = 0;
        while read_bytes < READ_BYTES {
            let Some(source) = &exchange.download.source else {
                break;
            };
            let read = self
                .tracer
                .call(Call::ProgramRead, || rustix::io::read(source, &mut *buffer));
            match read {
                Ok(count @ 1..) => {
                    read_bytes += count;
                    self.counters.dynamic_sent_bytes += count as u64;
                    match self.understand(connection, exchange, &buffer[..count], &mut body) {
                        Step::Go => {}
                        other => return other,
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) if self.was_killed_with_helper(exchange) => {
                    return Step::Fail(Status::BAD_GATEWAY);
                }
                Ok(_) | Err(_) => {
                    exchange.download.ended = true;
                    break;
                }
            }
        }
        if read_bytes > 0 {
            self.note_word(connection, exchange);
        }
        self.judge(exchange, body.len() as u64)
            .unwrap_or_else(|| self.pass_on(connection, exchange, body))
    }

    /// What a program's bytes mean. The body's are appended to `body`.
    pub(super) fn understand(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        mut input: &[u8],
        body: &mut Vec<u8>,
    ) -> Step {
        loop {
            let event = match &mut exchange.download.reader {
                Reader::Cgi(reader) => match reader.feed(&mut input) {
                    Ok(Some(Event::Head(Answer::Reply(reply)))) => Ok(Some(reply)),
                    Ok(Some(Event::Head(Answer::LocalRedirect(location)))) => {
                        return Step::away(location);
                    }
                    Ok(Some(Event::Body(bytes))) => {
                        body.extend_from_slice(bytes);
                        Ok(None)
                    }
                    // A program's output knows no others.
                    Ok(Some(Event::Stderr(_) | Event::End(_))) => Ok(None),
                    Ok(None) => return Step::Go,
                    Err(refusal) => Err(refusal),
                },
                Reader::Peer => return Step::Go,
                Reader::Nph(reader) => match reader.feed(&mut input) {
                    Ok(Some(NphEvent::Begin { status, line })) => {
                        connection.outgoing = Outgoing::new(status, line);
                        // Where such a reply ends is not known otherwise.
                        connection.keep_alive = false;
                        exchange.download.frame = Some(Frame::Close);
                        self.note_first_byte(exchange);
                        Ok(None)
                    }
                    Ok(Some(NphEvent::Raw(bytes))) => {
                        body.extend_from_slice(bytes);
                        Ok(None)
                    }
                    Ok(None) => return Step::Go,
                    Err(refusal) => Err(refusal),
                },
            };
            match event {
                Ok(None) => {}
                Ok(Some(reply)) => match self.take_head(exchange, reply) {
                    Step::Go => {}
                    other => return other,
                },
                Err(refusal) => return self.refuse_reply(exchange, &refusal.to_string()),
            }
        }
    }

    pub(super) fn take_head(&mut self, exchange: &mut Exchange, reply: Reply) -> Step {
        self.note_first_byte(exchange);
        if let Some(handoff) = &reply.handoff {
            if self.may_hand_over(exchange) {
                return self.hand_over(exchange, handoff, &reply.fields);
            }
            let why =
                "X-Sendfile and X-Accel-Redirect are for locations with accel-redirect = true";
            return self.refuse_reply(exchange, why);
        }
        if reply.status == SWITCHING_PROTOCOLS && !self.may_tunnel(exchange) {
            self.counters.dynamic_queue_full += 1;
            self.leave_peer(exchange, Outcome::Answered, false);
            return Step::Fail(Status::SERVICE_UNAVAILABLE);
        }
        exchange.download.length = reply.length.filter(|_| !reply.is_bodiless());
        exchange.download.reply = Some(reply);
        Step::Go
    }

    fn may_tunnel(&self, exchange: &Exchange) -> bool {
        let place = self.places.get(exchange.program.place);
        match (&place.location.handler, &self.dynamic) {
            (Handler::Upstreams(peers), Some(dynamic)) => {
                dynamic.has_tunnels(place.number, peers.max_upgrades)
            }
            _ => false,
        }
    }

    fn note_first_byte(&mut self, exchange: &Exchange) {
        let waited_us = exchange.begun.elapsed().as_micros() as u64;
        self.counters.dynamic_first_byte_us.record(waited_us);
    }

    /// A reply that is not passed on; whoever wrote the program learns why.
    pub(super) fn refuse_reply(&mut self, exchange: &Exchange, why: &str) -> Step {
        self.counters.dynamic_bad_replies += 1;
        let name = String::from_utf8_lossy(&exchange.program.file).into_owned();
        self.tell(exchange.id, &format!("{name}: {why}"));
        Step::Fail(Status::BAD_GATEWAY)
    }

    /// Counts `more` bytes of the body; what is wrong with the reply as a whole, if something is.
    pub(super) fn judge(&mut self, exchange: &mut Exchange, more: u64) -> Option<Step> {
        let most = self
            .places
            .get(exchange.program.place)
            .location
            .output_max_bytes;
        let download = &mut exchange.download;
        download.bytes += more;
        let expected = download.length.unwrap_or(0).max(download.bytes);
        // Another protocol's bytes are no reply.
        let head = download.reply.as_ref();
        let is_other = head.is_some_and(|reply| reply.status == SWITCHING_PROTOCOLS);
        if most > 0 && expected > most && !is_other {
            let why = format!("the reply is longer than {most} bytes (output-max)");
            return Some(self.refuse_reply(exchange, &why));
        }
        let finished: Result<(), Refusal> = match (&download.reader, download.ended) {
            (_, false) => Ok(()),
            (Reader::Cgi(reader), true) => reader.finish().map(drop),
            (Reader::Nph(reader), true) => reader.finish(),
            (Reader::Peer, true) => Ok(()),
        };
        // All that was promised is here, whatever the program still does. A back end says itself
        // when it is done, and its connection is of use only then.
        let is_told = matches!(download.reader, Reader::Peer);
        download.ended |= !is_told && download.length == Some(download.bytes);
        finished
            .err()
            .map(|refusal| self.refuse_reply(exchange, &refusal.to_string()))
    }

    /// Puts what has come in front of the client.
    pub(super) fn pass_on(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        body: Vec<u8>,
    ) -> Step {
        let waits = exchange.download.frame.is_some()
            && !(connection.outgoing.pieces.is_empty() && exchange.download.backlog.is_empty());
        if let Some(reply) = exchange.download.reply.take()
            && !self.begin(connection, exchange, reply, body.len())
        {
            return Step::Fail(Status::INTERNAL_SERVER_ERROR);
        }
        let Some(frame) = exchange.download.frame else {
            return Step::Go;
        };
        exchange.download.ended |= frame == Frame::Bodiless;
        if frame != Frame::Bodiless {
            let (bytes, framing) = chunk(frame, body, exchange.download.ended);
            connection.outgoing.head_bytes += framing as u64;
            match waits {
                true => exchange.download.backlog.tail.extend_from_slice(&bytes),
                false if bytes.is_empty() => {}
                false => connection.outgoing.push(Piece::bytes(bytes)),
            }
        }
        if exchange.download.ended {
            let source = exchange.download.source.take();
            self.close_channel(source);
            // Nobody may ever take what is in front of it.
            if waits {
                self.let_go(exchange);
            }
        }
        if frame == Frame::Tunnel {
            exchange.download.wanted = false;
            return self.open_tunnel(connection, exchange);
        }
        self.spill_reply(connection, exchange);
        self.note_room(connection, exchange);
        Step::Go
    }

    /// Makes the reply's head. `false`: the request's own cannot be understood any more, which
    /// cannot be.
    fn begin(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        reply: Reply,
        body_bytes: usize,
    ) -> bool {
        let Parsed::Complete(head) = headway_http::parse(&exchange.head, &self.limits) else {
            return false;
        };
        let context = ReplyContext::new(
            &self.reply_settings,
            &self.date,
            &head,
            connection.keep_alive,
        );
        let complete = exchange.download.ended.then_some(body_bytes as u64);
        let status = reply.status;
        let (bytes, frame, keep_alive) = begin_reply(&context, reply, complete);
        connection.outgoing = Outgoing::new(status, bytes);
        connection.keep_alive = keep_alive;
        exchange.download.frame = Some(frame);
        true
    }

    /// Sends what has come, and then what has waited; when all of it has left, the reply is over or
    /// more may come.
    pub(super) fn send_reply(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        loop {
            if !connection.outgoing.pieces.is_empty() {
                match self.send_some(connection, exchange) {
                    SendProgress::Finished => {}
                    SendProgress::SocketFull | SendProgress::QuantumSpent => break,
                    SendProgress::Disconnected => return Step::Gone,
                    _ => return Step::Abort,
                }
            }
            match self.refill(connection, exchange) {
                Step::Go if connection.outgoing.pieces.is_empty() => break,
                Step::Go => {}
                other => return other,
            }
        }
        let download = &exchange.download;
        let all_sent = connection.outgoing.pieces.is_empty() && download.backlog.is_empty();
        if download.ended && download.frame.is_some() && all_sent {
            return Step::Done;
        }
        self.spill_reply(connection, exchange);
        self.note_room(connection, exchange);
        Step::Go
    }

    fn send_some(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> SendProgress {
        let before = connection.outgoing.sent_bytes;
        let progress = self.transmit(connection);
        if connection.outgoing.sent_bytes > before {
            self.renew(connection, exchange);
        }
        // Its client is slow; the program need not be.
        if exchange.download.ended && matches!(progress, SendProgress::SocketFull) {
            self.let_go(exchange);
        }
        progress
    }
}
