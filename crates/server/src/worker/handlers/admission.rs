//! Admission of a request to a handler: checks the length of its body, keeps the part that has
//! arrived, and starts the handler or queues the request.
//!
//! A program must know the length of the body before it starts (RFC 3875, 4.1.2). A body with
//! `Content-Length` is passed on as it arrives; a chunked body is buffered first.

use std::time::Instant;

use headway_gateway::HeadLimits;
use headway_gateway::cgi::{NphReader, ResponseReader};
use headway_gateway::upstream::TriedUpstreams;
use headway_http::chunked::DrainProgress;
use headway_http::path::normalise;
use headway_http::{Framing, Head, Method, Status, Target};

use super::{ExchangeStep, Found};
use crate::config::Handler;
use crate::connection::{Body, Connection, Download, Exchange, Phase, Reader, Stage, Upload};
use crate::request::ProgramName;
use crate::respond;
use crate::respond::handlers::{Route, is_nph};
use crate::worker::request_handling::Handled;
use crate::worker::{Disposition, Worker};

/// Result of admitting a request.
enum AdmitOutcome {
    /// The exchange has started. The number of bytes after the request's head that belong to it.
    Started(usize),
    /// The request gets an error response and the connection may stay open. The number of bytes
    /// that belonged to it.
    Failed(Status, usize),
    /// The request got an error response, and the connection closes.
    Refused(Disposition),
}

impl Worker {
    /// Passes a request to its handler. Returns how many bytes belonged to it, or what happens to
    /// the connection instead.
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
                    AdmitOutcome::Started(used) => {
                        return Ok((head.length + used, Handled::Sending));
                    }
                    AdmitOutcome::Failed(status, used) => (status, used),
                    AdmitOutcome::Refused(disposition) => return Err(disposition),
                }
            }
            Found::Waiting => {
                // Body bytes that have arrived are kept together with the head.
                connection.stash_input(bytes);
                return Err(Disposition::Keep);
            }
            // The rest of a body would be parsed as the next request.
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

    /// Redirects a directory of programs that was requested without its final slash.
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
        let response = respond::redirect(&context, &path.bytes, path.query);
        self.start_response(connection, response)
    }

    /// Starts the exchange of a request. `bytes` starts with its head.
    fn begin_exchange(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
        program: ProgramName,
    ) -> AdmitOutcome {
        let bytes_max = self.routes.get(program.route).location.max_body_bytes;
        if matches!(head.framing, Framing::Length(length) if length > bytes_max) {
            return self.refuse_request(connection, head, Status::CONTENT_TOO_LARGE);
        }
        let mut upload = Upload::default();
        let after = &bytes[head.length..];
        let used = match take_early_body(&mut upload, head, after, bytes_max) {
            Ok(used) => used,
            Err(status) => return self.refuse_request(connection, head, status),
        };
        connection.keep_alive = self.keeps_alive(connection, head);
        // Header fields of an earlier internal redirect do not apply to a handler's response.
        connection.accel_fields = None;
        let handler = &self.routes.get(program.route).location.handler;
        self.counters.count_handler_request(handler);
        connection.program_asked = true;
        let mut exchange = Box::new(self.new_exchange(connection, head, bytes, program, upload));
        let step = match exchange.stage {
            Stage::BufferingBody => self.buffer_body(connection, &mut exchange),
            _ => self.admit(connection, &mut exchange),
        };
        match step {
            ExchangeStep::Continue => {
                if exchange.stage != Stage::HandedOff {
                    self.watch_client(connection, &exchange);
                    self.watch_program(connection.token, &mut exchange);
                }
                connection.phase = Phase::Exchange(exchange);
                AdmitOutcome::Started(used)
            }
            ExchangeStep::Fail(status) if exchange.upload.body.is_none() => {
                self.kill_program(&mut exchange);
                AdmitOutcome::Failed(status, used)
            }
            ExchangeStep::Fail(status) => {
                self.kill_program(&mut exchange);
                self.refuse_request(connection, head, status)
            }
            _ => {
                self.kill_program(&mut exchange);
                AdmitOutcome::Refused(Disposition::Close)
            }
        }
    }

    fn refuse_request(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        status: Status,
    ) -> AdmitOutcome {
        self.record(connection, head);
        AdmitOutcome::Refused(self.close_with_error(connection, head.request_line, status))
    }

    fn new_exchange(
        &mut self,
        connection: &Connection,
        head: &Head<'_>,
        bytes: &[u8],
        program: ProgramName,
        upload: Upload,
    ) -> Exchange {
        let location = &self.routes.get(program.route).location;
        let time_max_ms = location.request_timeout_ms;
        // A long-running process must not wait for a slow client's body.
        let whole = match location.handler {
            Handler::Direct(_) | Handler::Pipe(_) => true,
            _ => head.framing == Framing::Chunked && location.needs_length(),
        };
        let gathers = whole && upload.body.is_some();
        let now = Instant::now();
        let reader = match is_nph(&program) {
            _ if matches!(location.handler, Handler::Upstreams(_)) => Reader::Upstream,
            true if matches!(location.handler, Handler::Cgi(_)) => {
                Reader::Nph(NphReader::default())
            }
            _ => {
                let head_only = head.method == Method::Head;
                Reader::Cgi(ResponseReader::new(&HeadLimits::default(), head_only))
            }
        };
        Exchange {
            id: self.next_exchange_id(),
            client: connection.token,
            program,
            head: bytes[..head.length].to_vec(),
            stage: if gathers {
                Stage::BufferingBody
            } else {
                Stage::Queued
            },
            begun: now,
            admitted: now,
            end_ms: match time_max_ms {
                0 => u64::MAX,
                time_max_ms => self.now_ms + time_max_ms,
            },
            read_closed: false,
            written_before: None,
            upstream: None,
            process: None,
            upgraded: None,
            tried: TriedUpstreams::default(),
            needs_new_conn: false,
            holds_slot: false,
            upload,
            download: Download::new(reader),
        }
    }

    fn next_exchange_id(&mut self) -> u64 {
        let Some(handlers) = &mut self.handlers else {
            return 0;
        };
        handlers.next_id += 1;
        handlers.next_id
    }

    /// Sends `100 Continue` once the body is certainly wanted.
    pub(super) fn continue_if_expected(
        &mut self,
        connection: &Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        if !std::mem::take(&mut exchange.upload.expects_continue) {
            return ExchangeStep::Continue;
        }
        match self.send_continue(connection) {
            Ok(()) => ExchangeStep::Continue,
            Err(_) => ExchangeStep::ClientGone,
        }
    }

    /// Starts the handler, or queues the request.
    pub(super) fn admit(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let route = self.routes.get(exchange.program.route).clone();
        let may_start = self.may_start(&route);
        exchange.admitted = Instant::now();
        let Some(handlers) = &mut self.handlers else {
            return ExchangeStep::Fail(Status::INTERNAL_SERVER_ERROR);
        };
        let queue = &mut handlers.queues[route.number];
        // A slot that has just become free belongs to the queue, even if the queue has not been
        // served yet.
        if may_start && queue.is_empty() {
            return self.start_program(connection, exchange);
        }
        if queue.len() >= route.location.queue as usize {
            self.counters.handler_queue_full += 1;
            return ExchangeStep::Fail(Status::SERVICE_UNAVAILABLE);
        }
        queue.push_back(connection.token);
        exchange.stage = Stage::Queued;
        self.renew_deadline(connection, exchange);
        ExchangeStep::Continue
    }

    /// Whether this location may start one more request now.
    pub(super) fn may_start(&mut self, route: &Route) -> bool {
        if route.location.stays() {
            return self.has_idle_process(route);
        }
        let Some(handlers) = &self.handlers else {
            return false;
        };
        let is_possible = handlers.has_spawner() || !route.location.needs_spawner();
        is_possible && handlers.running[route.number] < route.location.concurrency
    }

    /// Starts queued requests while there are free slots.
    pub(super) fn start_next(&mut self, number: usize) {
        let route = self.routes.get(number).clone();
        while self.may_start(&route) {
            let next = match &mut self.handlers {
                Some(handlers) => handlers.queues[number].pop_front(),
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
                        _ => ExchangeStep::Continue,
                    }
                })
            });
        }
    }
}

/// Takes the part of the body that arrived with the head, and returns how many bytes that was.
fn take_early_body(
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
            upload.expects_continue = head.expect_continue && after.is_empty();
            Ok(after.len())
        }
        DrainProgress::TooLarge => Err(Status::CONTENT_TOO_LARGE),
        DrainProgress::Bad => Err(Status::BAD_REQUEST),
    }
}
