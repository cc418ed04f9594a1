//! Admission of a request to a handler: checks the length of its body, keeps the part that has
//! arrived, and starts the handler or queues the request.
//!
//! The body is received before the request takes one of the slots of its location, so that slow
//! clients occupy no handler. With `request-buffering = false` only a chunked body is, since a program
//! must know the length before it starts (RFC 3875, 4.1.2).

use std::ops::ControlFlow::{Break, Continue};
use std::time::Instant;

use headway_config::HandlerConfig;
use headway_connection::{Body, Connection, Download, Exchange, Next, Reader, Stage, Upload};
use headway_gateway::cgi::{NphReader, ResponseReader};
use headway_gateway::trailers::passed;
use headway_gateway::upstream::TriedUpstreams;
use headway_http::chunked::DrainProgress;
use headway_http::{Framing, Status};
use headway_metrics::RequestStage;
use headway_request::{ProgramName, Request};
use headway_respond::handlers::{Route, is_nph};

use super::{ExchangeEnd, ExchangeStep, Gateway};
use crate::worker::context::LoopContext;
use crate::worker::handler::Handler;

impl Handler for Gateway {
    type Target = ProgramName;

    /// Starts the exchange of a request.
    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &mut &[u8],
        program: ProgramName,
    ) -> Next {
        let bytes_max = context.routes.get(program.route).location.max_body_bytes;
        if matches!(request.head.framing(), Framing::Length(length) if length > bytes_max) {
            return context.close_with_error(connection, request, Status::CONTENT_TOO_LARGE);
        }
        let mut upload = Upload::default();
        if let Err(status) = take_early_body(&mut upload, &request, input, bytes_max) {
            if status == Status::BAD_REQUEST {
                context.reject_body(&mut request);
            }
            return context.close_with_error(connection, request, status);
        }
        connection.keep_alive = context.keeps_alive(connection, &request);
        // Header fields of an earlier internal redirect do not apply to a handler's response.
        request.accel_fields = None;
        let handler = &context.routes.get(program.route).location.handler;
        request.handler = handler.into();
        context.counters.count_handler_request(request.handler);
        connection.may_have_input = true;
        let mut exchange =
            Box::new(self.new_exchange(context, connection, request, program, upload));
        let step = match exchange.stage {
            Stage::BufferingBody if context.buffers.is_full() => {
                context.counters.buffers_full += 1;
                Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE))
            }
            Stage::BufferingBody => Gateway::buffer_body(context, connection, &mut exchange),
            _ => self.admit(context, connection, &mut exchange),
        };
        self.apply_step(context, connection, exchange, step)
    }
}

impl Gateway {
    /// Answers the request of an exchange that has ended with an error. The connection closes if the
    /// rest of the body would be parsed as the next request.
    pub(super) fn send_exchange_error(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: Exchange,
        status: Status,
    ) -> Next {
        let request = exchange.request;
        if exchange.upload.body.is_some() {
            return context.close_with_error(connection, request, status);
        }
        connection.keep_alive = context.keeps_alive(connection, &request);
        context.answer_for_handler(connection, request, status)
    }

    fn new_exchange(
        &mut self,
        context: &LoopContext,
        connection: &Connection,
        request: Box<Request>,
        program: ProgramName,
        upload: Upload,
    ) -> Exchange {
        let location = &context.routes.get(program.route).location;
        let time_max_ms = location.request_timeout_ms;
        let whole = match location.handler {
            HandlerConfig::Direct(_) | HandlerConfig::Pipe(_) => true,
            _ if location.request_buffering => true,
            _ => request.head.framing() == Framing::Chunked && location.needs_length(),
        };
        let gathers = whole && upload.body.is_some();
        let now = Instant::now();
        let reader = match is_nph(&program) {
            _ if matches!(location.handler, HandlerConfig::Upstreams(_)) => Reader::Upstream,
            true if matches!(location.handler, HandlerConfig::Cgi(_)) => {
                Reader::Nph(NphReader::default())
            }
            _ => Reader::Cgi(Box::new(ResponseReader::new(
                &location.response_limits(),
                request.head_only,
            ))),
        };
        Exchange {
            id: self.next_exchange_id(),
            client: connection.token,
            program,
            request,
            stage: if gathers {
                Stage::BufferingBody
            } else {
                Stage::Queued
            },
            begun: now,
            admitted: now,
            end_ms: match time_max_ms {
                0 => u64::MAX,
                time_max_ms => context.now_ms + time_max_ms,
            },
            read_closed: false,
            written_before: None,
            upstream: None,
            process: None,
            upgraded: None,
            tried: TriedUpstreams::default(),
            needs_new_conn: false,
            holds_slot: false,
            address_slot: None,
            buffers: context.buffers.charges(),
            upload,
            download: Download::new(reader),
        }
    }

    fn next_exchange_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Sends `100 Continue` once the body is certainly wanted.
    pub(super) fn continue_if_expected(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        if !std::mem::take(&mut exchange.upload.expects_continue) {
            return Continue(());
        }
        match context.send_continue(connection) {
            Ok(()) => Continue(()),
            Err(()) => Break(ExchangeEnd::ClientGone),
        }
    }

    /// Starts the handler, or queues the request.
    pub(super) fn admit(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let route = context.routes.get(exchange.program.route).clone();
        let address = connection.client.ip();
        let may_start =
            self.may_start(context, &route) && self.addresses[route.number].has_free(address);
        exchange.admitted = Instant::now();
        let queue = &mut self.queues[route.number];
        // A slot that has just become free belongs to the queue, even if the queue has not been
        // served yet.
        if may_start && queue.is_empty() {
            exchange.address_slot = self.addresses[route.number].take(address);
            return self.start_program(context, connection, exchange);
        }
        if queue.len() >= route.location.queue as usize {
            context.counters.handler_queue_full += 1;
            return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
        }
        queue.push_back((connection.token, address));
        connection
            .stages
            .enter(RequestStage::Queue, context.clock.now_us());
        exchange.stage = Stage::Queued;
        Gateway::renew_deadline(context, connection, exchange);
        Continue(())
    }

    /// Whether this location may start one more request now.
    pub(super) fn may_start(&mut self, context: &mut LoopContext, route: &Route) -> bool {
        if route.location.stays() {
            return self.has_idle_process(context, route);
        }
        let is_possible = self.has_spawner() || !route.location.needs_spawner();
        is_possible && self.running[route.number] < route.location.concurrency
    }

    /// Frees the exchange's slot. The queue is served at the end of the loop iteration.
    pub(super) fn release_slot(&mut self, exchange: &mut Exchange) {
        let route = exchange.program.route;
        let had_slot = std::mem::take(&mut exchange.holds_slot);
        self.running[route] -= u32::from(had_slot);
        if exchange.address_slot.take().is_some() || had_slot {
            self.freed.push(route);
        }
    }

    /// Starts queued requests while there are free slots.
    pub(super) fn start_next(&mut self, context: &mut LoopContext, number: usize) {
        let route = context.routes.get(number).clone();
        while self.may_start(context, &route) {
            // The first whose address has a slot.
            let (queue, addresses) = (&mut self.queues[number], &self.addresses[number]);
            let next = queue
                .iter()
                .position(|(_, address)| addresses.has_free(*address));
            let Some((client, address)) = next.and_then(|at| queue.remove(at)) else {
                return;
            };
            self.step_client(context, client, |gateway, context, connection, exchange| {
                match exchange.stage {
                    Stage::Queued => {
                        exchange.address_slot = gateway.addresses[number].take(address);
                        gateway.start_program(context, connection, exchange)
                    }
                    _ => Continue(()),
                }
            });
        }
    }
}

/// Takes the part of the body that arrived with the head.
fn take_early_body(
    upload: &mut Upload,
    request: &Request,
    input: &mut &[u8],
    bytes_max: u64,
) -> Result<(), Status> {
    let framing = request.head.framing();
    if framing == Framing::None {
        return Ok(());
    }
    let mut body = Body::new(framing, bytes_max).keeping_trailers();
    let progress = body.feed_into(input, &mut upload.waiting);
    upload.bytes = upload.waiting.len() as u64;
    match progress {
        DrainProgress::Done(used) => {
            *input = &input[used..];
            upload.trailers = passed(body.trailers());
            Ok(())
        }
        DrainProgress::More => {
            upload.body = Some(body);
            let is_first = std::mem::take(input).is_empty();
            upload.expects_continue = request.head.expects_continue() && is_first;
            Ok(())
        }
        DrainProgress::TooLarge => Err(Status::CONTENT_TOO_LARGE),
        DrainProgress::Bad => Err(Status::BAD_REQUEST),
    }
}
