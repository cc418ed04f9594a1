//! The end of an exchange: well, badly, elsewhere, or too late.
//!
//! The program is let go when its reply is complete: it may still have something to do. It is
//! killed, and its process group with it, when its reply is not wanted any more.

use std::rc::Rc;

use headway_gateway::upstream::{Outcome, Stage as Progressed};
use headway_http::{Parsed, Status};

use super::{Elsewhere, Program, Step};
use crate::config::Handler;
use crate::connection::{Connection, Exchange, Stage};
use crate::forker::wire::Order;
use crate::respond::dynamic::{Redirected, elsewhere};
use crate::worker::request_handling::{Handled, Resume};
use crate::worker::{Disposition, Worker};

/// How often in a row programs may send one request elsewhere.
const REDIRECTS_MAX: u8 = 8;

/// Whom an exchange waits for.
enum Waits {
    /// The client, to take some of the reply.
    Taker,
    /// The client, to send some of the body.
    Sender,
    /// Programs of other requests, to end; or a helper.
    Queue,
    /// A back end, to accept a connection.
    Acceptance,
    /// Whoever says something next, in another protocol.
    Anybody,
    /// The program.
    Program,
}

impl Worker {
    /// The reply has left.
    pub(super) fn end_well(
        &mut self,
        connection: &mut Connection,
        mut exchange: Exchange,
    ) -> Disposition {
        let tunnel = exchange.tunnel.as_deref();
        let heard = tunnel.is_none_or(|tunnel| tunnel.client_ended);
        let whole = exchange.upload.body.is_none() && heard;
        self.leave_helpers(&exchange);
        self.release_program(&mut exchange);
        if whole {
            return self.advance(connection, Handled::Done);
        }
        // The rest of the body would be taken for the next request.
        connection.keep_alive = false;
        self.finish_response(connection, None);
        self.linger_close(connection, true)
    }

    /// An error in place of a reply, or the end of the connection where some of one has left
    /// already.
    pub(super) fn answer_failure(
        &mut self,
        connection: &mut Connection,
        mut exchange: Exchange,
        status: Status,
    ) -> Disposition {
        if exchange.stage == Stage::Lent {
            return self.answer_lent(connection, exchange, status);
        }
        self.leave_helpers(&exchange);
        // One that has closed its output is ending by itself, and its end may tell why the reply is
        // bad.
        match exchange.download.ended {
            true => self.release_program(&mut exchange),
            false => self.kill_program(&mut exchange),
        }
        if exchange.download.frame.is_some() && connection.outgoing.sent_bytes > 0 {
            self.counters.aborted += 1;
            return Disposition::Close;
        }
        connection.outgoing.clear();
        let head = match headway_http::parse(&exchange.head, &self.limits) {
            Parsed::Complete(head) if exchange.upload.body.is_none() => head,
            _ => return self.close_with_error(connection, &exchange.head, status),
        };
        let hosts = self.hosts();
        connection.keep_alive = self.keeps_alive(connection, &head);
        let served = self.send_error(
            connection,
            &head,
            hosts.get(connection.virtual_host),
            status,
        );
        self.advance(connection, served)
    }

    /// The program has named another resource of this server, which answers instead (RFC 3875,
    /// 6.2.2).
    pub(super) fn send_elsewhere(
        &mut self,
        connection: &mut Connection,
        mut exchange: Exchange,
        there: Elsewhere,
    ) -> Disposition {
        connection.redirects += 1;
        if connection.redirects > REDIRECTS_MAX {
            self.tell(
                exchange.id,
                &format!(
                    "{}: the request was sent elsewhere {REDIRECTS_MAX} times in a row",
                    String::from_utf8_lossy(&exchange.program.file)
                ),
            );
            return self.answer_failure(connection, exchange, Status::BAD_GATEWAY);
        }
        self.leave_helpers(&exchange);
        self.release_program(&mut exchange);
        let whole = exchange.upload.body.is_none();
        let Parsed::Complete(head) = headway_http::parse(&exchange.head, &self.limits) else {
            return Disposition::Close;
        };
        let request = headway_gateway::Request::new(&head, &exchange.head);
        let how = match there.handed {
            Some(_) => Redirected::HandedOver,
            None => Redirected::Away,
        };
        let mut bytes = elsewhere(&request, &there.location, how, !whole);
        connection.handed = there.handed.map(Rc::new);
        bytes.append(&mut connection.rx_buffer);
        self.handle_requests(connection, &bytes, Resume::Start)
    }

    /// Its reply is complete, though its client has not got all of it: whoever made it is free for
    /// others.
    pub(super) fn let_go(&mut self, exchange: &mut Exchange) {
        if exchange.is_started() && exchange.upload.body.is_none() {
            self.release_program(exchange);
            exchange.stage = Stage::Over;
        }
    }

    /// Its reply is complete: it may end by itself.
    fn release_program(&mut self, exchange: &mut Exchange) {
        self.close_streams(exchange);
        if self.has_no_program(exchange) {
            return;
        }
        let patience_ms = self.places.get(exchange.program.place).location.timeout_ms;
        let until_ms = self.now_ms + patience_ms;
        if !exchange.is_started() {
            return;
        }
        match self
            .program(exchange.id)
            .and_then(|program| program.forked.as_mut())
        {
            Some(forked) => forked.release(until_ms),
            None => {
                let patience_ms = u32::try_from(patience_ms).unwrap_or(u32::MAX);
                let id = exchange.id;
                self.order(&Order::Release { id, patience_ms }, Vec::new());
            }
        }
    }

    /// Its reply is not wanted: it ends, and all of its group.
    pub(super) fn kill_program(&mut self, exchange: &mut Exchange) {
        self.abort_peer(exchange);
        self.close_streams(exchange);
        if exchange.stage == Stage::Queued {
            self.leave_queue(exchange);
        }
        if exchange.stage == Stage::Lent {
            self.reclaim(exchange);
        }
        self.leave_helpers(exchange);
        if !exchange.is_started() || self.has_no_program(exchange) {
            return;
        }
        let (id, now_ms) = (exchange.id, self.now_ms);
        if let Some(program) = self.program(id) {
            program.killed = true;
            let forked = program.forked.as_mut().map(|forked| forked.kill(now_ms));
            self.counters.programs_killed += 1;
            if forked.is_some() {
                return;
            }
        }
        // The helper keeps one that has ended until it is told that nobody needs it.
        let place = self.places.get(exchange.program.place);
        if place.location.needs_spawn_server() {
            self.order_end(id);
        }
    }

    /// Whatever helpers do for it, nobody waits for that: their answer would be taken for one to
    /// the next request.
    fn leave_helpers(&mut self, exchange: &Exchange) {
        let (upload, backlog) = (&exchange.upload, &exchange.download.backlog);
        if upload.spilling || upload.restoring || backlog.is_busy() {
            self.pool.leave(exchange.client.0);
        }
    }

    fn program(&mut self, id: u64) -> Option<&mut Program> {
        self.dynamic.as_mut()?.programs.get_mut(&id)
    }

    /// Whoever answers was there before the request and stays after it.
    fn has_no_program(&self, exchange: &Exchange) -> bool {
        let location = &self.places.get(exchange.program.place).location;
        !matches!(location.handler, Handler::Cgi(_))
    }

    fn close_streams(&mut self, exchange: &mut Exchange) {
        self.leave_peer(exchange, Outcome::Unknown, false);
        self.leave_tunnel(exchange);
        self.leave_process(exchange);
        self.give_place_back(exchange);
        let (sink, source) = (exchange.upload.sink.take(), exchange.download.source.take());
        self.close_channel(sink);
        self.close_channel(source);
    }

    /// Others move up. Its client is not known here, but its number is.
    fn leave_queue(&mut self, exchange: &Exchange) {
        let client = exchange.client;
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.queues[exchange.program.place].retain(|waiting| *waiting != client);
        }
    }

    /// The connection closes, whatever its exchange has come to.
    pub(in crate::worker) fn abandon(&mut self, connection: &mut Connection) {
        if let Some(mut exchange) = connection.take_exchange() {
            self.counters.dynamic_abandoned += 1;
            // Whoever has the socket is killed, which ends it as well; see `lent` for why it is not
            // touched.
            connection.lent &= exchange.stage != Stage::Lent;
            self.kill_program(&mut exchange);
        }
    }

    fn waits_for(&self, connection: &Connection, exchange: &Exchange) -> Waits {
        if !connection.outgoing.pieces.is_empty() {
            return Waits::Taker;
        }
        match exchange.stage {
            _ if exchange.tunnel.is_some() => Waits::Anybody,
            _ if exchange.is_connecting() => Waits::Acceptance,
            Stage::Queued => Waits::Queue,
            _ if exchange.download.backlog.is_busy() => Waits::Queue,
            Stage::Gathering if exchange.upload.spilling => Waits::Queue,
            Stage::Gathering => Waits::Sender,
            _ if exchange.upload.body.is_some() && exchange.upload.left().is_empty() => {
                Waits::Sender
            }
            _ => Waits::Program,
        }
    }

    /// The program has said something. That gives a client no more time to take what is in front of
    /// it.
    pub(super) fn note_word(&mut self, connection: &Connection, exchange: &Exchange) {
        if connection.outgoing.pieces.is_empty() {
            self.renew(connection, exchange);
        }
    }

    /// Something has moved: whoever is waited for has the whole of his time again.
    pub(super) fn renew(&mut self, connection: &Connection, exchange: &Exchange) {
        let location = &self.places.get(exchange.program.place).location;
        let span_ms = match self.waits_for(connection, exchange) {
            Waits::Taker => self.config.send_timeout_ms,
            Waits::Sender => self.config.body_timeout_ms,
            Waits::Queue | Waits::Program => location.timeout_ms,
            Waits::Acceptance => location.connect_timeout_ms(),
            Waits::Anybody => location.upgrade_timeout_ms(),
        };
        let deadline_ms = (self.now_ms + span_ms).min(exchange.end_ms);
        self.deadlines.set(connection.slot(), deadline_ms);
    }

    /// Nothing has moved for too long, or the request has taken too long in all.
    pub(in crate::worker) fn time_out_exchange(
        &mut self,
        connection: &mut Connection,
    ) -> Disposition {
        self.step_exchange(connection, |worker, connection, exchange| {
            if exchange.stage == Stage::Lent && worker.waits_for_death(exchange) {
                connection.lent = false;
                return Step::Abort;
            }
            let waits = worker.waits_for(connection, exchange);
            if worker.now_ms >= exchange.end_ms {
                worker.counters.dynamic_timeouts += 1;
                return Step::Fail(Status::GATEWAY_TIMEOUT);
            }
            match waits {
                Waits::Taker => {
                    worker.counters.timeouts_send += 1;
                    Step::Abort
                }
                Waits::Sender => {
                    worker.counters.timeouts_body += 1;
                    Step::Fail(Status::REQUEST_TIMEOUT)
                }
                Waits::Queue => {
                    worker.counters.dynamic_timeouts += 1;
                    Step::Fail(Status::SERVICE_UNAVAILABLE)
                }
                Waits::Acceptance => {
                    let failure = (Status::GATEWAY_TIMEOUT, "it does not accept a connection");
                    let unsent = Progressed::Unsent;
                    let step = worker.peer_failed(connection, exchange, unsent, failure);
                    let late = matches!(step, Step::Fail(Status::GATEWAY_TIMEOUT));
                    worker.counters.dynamic_timeouts += u64::from(late);
                    step
                }
                // Nobody has anything to say: an ordinary end.
                Waits::Anybody => {
                    worker.counters.dynamic_timeouts += 1;
                    Step::Done
                }
                Waits::Program => {
                    worker.counters.dynamic_timeouts += 1;
                    worker.leave_peer(exchange, Outcome::Failed, false);
                    worker.give_process_up(exchange)
                }
            }
        })
    }
}
