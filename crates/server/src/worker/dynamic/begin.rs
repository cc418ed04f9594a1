//! A request is let in: its body's length is judged, the part of it that has arrived is kept, and
//! it gets a place among the programs under way, or one in the queue.
//!
//! A program has to be told the length of its request's body before it starts (RFC 3875, 4.1.2).
//! Where the client says it, the body is passed on as it comes. One in chunks is gathered first.

use std::time::Instant;

use headway_gateway::HeadLimits;
use headway_gateway::cgi::{NphReader, ReplyReader};
use headway_gateway::upstream::Tried;
use headway_http::chunked::DrainProgress;
use headway_http::path::normalise;
use headway_http::{Framing, Head, Method, Status, Target};

use super::{Found, Step};
use crate::config::Handler;
use crate::connection::{Body, Connection, Download, Exchange, Phase, Reader, Stage, Upload};
use crate::request::ProgramName;
use crate::respond;
use crate::respond::dynamic::{Place, is_nph};
use crate::worker::request_handling::Handled;
use crate::worker::{Disposition, Worker};

/// What became of a request that was to be let in.
enum Begun {
    /// It is under way; so many of the bytes behind its head belong to it.
    Sending(usize),
    /// It is answered with an error, and the connection may stay: so many of the bytes belonged to
    /// it.
    Failed(Status, usize),
    /// It was answered with an error, and the connection ends.
    Refused(Disposition),
}

impl Worker {
    /// Answers a request that is a program's: how many of the bytes belonged to it, or what becomes
    /// of the connection instead.
    pub(in crate::worker) fn serve_program(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
        found: Found,
    ) -> Result<(usize, Handled), Disposition> {
        let (status, used) = match found {
            Found::Program(program) => {
                match self.begin_exchange(connection, head, bytes, program) {
                    Begun::Sending(used) => return Ok((head.length + used, Handled::Sending)),
                    Begun::Failed(status, used) => (status, used),
                    Begun::Refused(disposition) => return Err(disposition),
                }
            }
            Found::Waiting => {
                // What has arrived of the body stays with its head.
                connection.stash_input(bytes);
                return Err(Disposition::Keep);
            }
            // The rest of a body would be taken for the next request.
            _ if head.framing != Framing::None => {
                self.record(connection, head);
                return Err(self.close_with_error(connection, head.request_line, found.status()));
            }
            Found::Directory => return Ok((head.length, self.redirect(connection, head))),
            found => (found.status(), 0),
        };
        connection.keep_alive = self.keeps_alive(connection, head);
        let hosts = self.hosts();
        let site = hosts.get(connection.virtual_host);
        let served = self.send_error(connection, head, site, status);
        Ok((head.length + used, served))
    }

    /// A directory of programs, asked for without its slash.
    fn redirect(&mut self, connection: &mut Connection, head: &Head<'_>) -> Handled {
        connection.keep_alive = self.keeps_alive(connection, head);
        let hosts = self.hosts();
        let path = match head.target {
            Target::Path(target) => normalise(target).ok(),
            _ => None,
        };
        let Some(path) = path else {
            let site = hosts.get(connection.virtual_host);
            return self.send_error(connection, head, site, Status::NOT_FOUND);
        };
        let context = self.context(head, connection);
        let reply = respond::redirect(&context, &path.bytes, path.query);
        self.start_reply(connection, reply)
    }

    /// Begins the exchange of a request with a program. `bytes` begin with its head.
    fn begin_exchange(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
        program: ProgramName,
    ) -> Begun {
        let bytes_max = self.places.get(program.place).location.max_body_bytes;
        if matches!(head.framing, Framing::Length(length) if length > bytes_max) {
            return self.refused(connection, head, Status::CONTENT_TOO_LARGE);
        }
        let mut upload = Upload::default();
        let after = &bytes[head.length..];
        let used = match take_first(&mut upload, head, after, bytes_max) {
            Ok(used) => used,
            Err(status) => return self.refused(connection, head, status),
        };
        connection.keep_alive = self.keeps_alive(connection, head);
        // It speaks for itself, whoever has sent the request here.
        connection.handed = None;
        self.counters.dynamic_requests += 1;
        connection.program_asked = true;
        let mut exchange = Box::new(self.exchange(connection, head, bytes, program, upload));
        let step = match exchange.stage {
            Stage::Gathering => self.gather(connection, &mut exchange),
            _ => self.admit(connection, &mut exchange),
        };
        match step {
            Step::Go => {
                if exchange.stage != Stage::Lent {
                    self.watch_client(connection, &exchange);
                    self.watch_program(connection.token, &mut exchange);
                }
                connection.phase = Phase::Exchange(exchange);
                Begun::Sending(used)
            }
            Step::Fail(status) if exchange.upload.body.is_none() => {
                self.kill_program(&mut exchange);
                Begun::Failed(status, used)
            }
            Step::Fail(status) => {
                self.kill_program(&mut exchange);
                self.refused(connection, head, status)
            }
            _ => {
                self.kill_program(&mut exchange);
                Begun::Refused(Disposition::Close)
            }
        }
    }

    fn refused(&mut self, connection: &mut Connection, head: &Head<'_>, status: Status) -> Begun {
        self.record(connection, head);
        Begun::Refused(self.close_with_error(connection, head.request_line, status))
    }

    fn exchange(
        &mut self,
        connection: &Connection,
        head: &Head<'_>,
        bytes: &[u8],
        program: ProgramName,
        upload: Upload,
    ) -> Exchange {
        let location = &self.places.get(program.place).location;
        let time_max_ms = location.request_timeout_ms;
        // A program that stays would have to wait for a slow client's body.
        let whole = match location.handler {
            Handler::Direct(_) | Handler::Pipe(_) => true,
            _ => head.framing == Framing::Chunked && location.needs_length(),
        };
        let gathers = whole && upload.body.is_some();
        let now = Instant::now();
        let reader = match is_nph(&program) {
            _ if matches!(location.handler, Handler::Upstreams(_)) => Reader::Peer,
            true if matches!(location.handler, Handler::Cgi(_)) => {
                Reader::Nph(NphReader::default())
            }
            _ => {
                let head_only = head.method == Method::Head;
                Reader::Cgi(ReplyReader::new(&HeadLimits::default(), head_only))
            }
        };
        Exchange {
            id: self.next_exchange(),
            client: connection.token,
            program,
            head: bytes[..head.length].to_vec(),
            stage: if gathers {
                Stage::Gathering
            } else {
                Stage::Queued
            },
            begun: now,
            admitted: now,
            end_ms: match time_max_ms {
                0 => u64::MAX,
                time_max_ms => self.now_ms + time_max_ms,
            },
            deaf: false,
            written_before: None,
            peer: None,
            process: None,
            tunnel: None,
            tried: Tried::default(),
            wants_new: false,
            holds_place: false,
            upload,
            download: Download::new(reader),
        }
    }

    fn next_exchange(&mut self) -> u64 {
        let Some(dynamic) = &mut self.dynamic else {
            return 0;
        };
        dynamic.next_id += 1;
        dynamic.next_id
    }

    /// `100 Continue`, when the body is wanted for certain.
    pub(super) fn invite(&mut self, connection: &Connection, exchange: &mut Exchange) -> Step {
        if !std::mem::take(&mut exchange.upload.expected) {
            return Step::Go;
        }
        match self.send_continue(connection) {
            Ok(()) => Step::Go,
            Err(_) => Step::Gone,
        }
    }

    /// Starts the program, or has the request wait for its turn.
    pub(super) fn admit(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        let place = self.places.get(exchange.program.place).clone();
        let may_start = self.may_start(&place);
        exchange.admitted = Instant::now();
        let Some(dynamic) = &mut self.dynamic else {
            return Step::Fail(Status::INTERNAL_SERVER_ERROR);
        };
        let queue = &mut dynamic.queues[place.number];
        // A place that has just become free is theirs who wait, though they have not been told yet.
        if may_start && queue.is_empty() {
            return self.start_program(connection, exchange);
        }
        if queue.len() >= place.location.queue as usize {
            self.counters.dynamic_queue_full += 1;
            return Step::Fail(Status::SERVICE_UNAVAILABLE);
        }
        queue.push_back(connection.token);
        exchange.stage = Stage::Queued;
        self.renew(connection, exchange);
        Step::Go
    }

    /// Whether one more program of this location may run now.
    pub(super) fn may_start(&mut self, place: &Place) -> bool {
        if place.location.stays() {
            return self.may_lend(place);
        }
        let Some(dynamic) = &self.dynamic else {
            return false;
        };
        let is_possible = dynamic.has_helper() || !place.location.needs_spawn_server();
        is_possible && dynamic.running[place.number] < place.location.concurrency
    }

    /// Those whose turn has come.
    pub(super) fn start_next(&mut self, number: usize) {
        let place = self.places.get(number).clone();
        while self.may_start(&place) {
            let next = match &mut self.dynamic {
                Some(dynamic) => dynamic.queues[number].pop_front(),
                None => None,
            };
            let Some(client) = next else { return };
            let Some(slot) = self.connections.find(client) else {
                continue;
            };
            self.with_connection(slot, |worker, connection| {
                worker.step_exchange(connection, |worker, connection, exchange| {
                    match exchange.stage {
                        Stage::Queued => worker.start_program(connection, exchange),
                        _ => Step::Go,
                    }
                })
            });
        }
    }
}

/// Takes what has arrived of the body: how many of the bytes belong to it.
fn take_first(
    upload: &mut Upload,
    head: &Head<'_>,
    after: &[u8],
    bytes_max: u64,
) -> Result<usize, Status> {
    if head.framing == Framing::None {
        return Ok(0);
    }
    let mut body = Body::new(head.framing, bytes_max);
    let progress = body.feed_into(after, &mut upload.waiting);
    upload.bytes = upload.waiting.len() as u64;
    match progress {
        DrainProgress::Done(used) => Ok(used),
        DrainProgress::More => {
            upload.body = Some(body);
            upload.expected = head.expect_continue && after.is_empty();
            Ok(after.len())
        }
        DrainProgress::TooLarge => Err(Status::CONTENT_TOO_LARGE),
        DrainProgress::Bad => Err(Status::BAD_REQUEST),
    }
}
