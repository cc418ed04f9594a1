//! The end of an exchange: success, error or timeout.
//!
//! After a complete response the program is released and may continue for a while. If its response
//! is not wanted any more, the program and its process group are killed.

use std::ops::ControlFlow::Break;

use headway_config::HandlerConfig;
use headway_connection::{Connection, Exchange, Next, Stage};
use headway_gateway::upstream::{AttemptStage, UpstreamOutcome};
use headway_http::Status;
use headway_request::Frame;
use headway_spawner::wire::SpawnerOrder;

use super::{ExchangeEnd, Gateway, Program};
use crate::worker::context::LoopContext;

/// What an exchange waits for.
enum WaitingFor {
    /// The client, to read some of the response.
    ClientRead,
    /// The client, to send some of the body.
    ClientBody,
    /// Room for more of the body.
    Room,
    /// A free slot, or a helper.
    Queue,
    /// An upstream, to accept a connection.
    Connect,
    /// An upstream, to show that it is still there: its connection was idle.
    SignOfLife,
    /// Either side of an upgraded connection.
    UpgradeTraffic,
    /// The handler.
    Program,
}

impl Gateway {
    /// Ends an exchange whose response has been sent.
    pub(super) fn finish_exchange(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut exchange: Exchange,
    ) -> Next {
        let upgraded = exchange.upgraded.as_deref();
        let client_done = upgraded.is_none_or(|upgraded| upgraded.client_ended);
        let whole = exchange.upload.body.is_none() && client_done;
        Gateway::cancel_helper_jobs(context, &exchange);
        self.release_program(context, &mut exchange);
        if whole {
            return Next::Finished(exchange.request);
        }
        // The rest of the body would be parsed as the next request.
        connection.keep_alive = false;
        context.finish_response(connection, exchange.request);
        Next::Linger
    }

    /// Answers with an error, or closes the connection if part of a response has been sent.
    pub(super) fn answer_error(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut exchange: Exchange,
        status: Status,
    ) -> Next {
        if exchange.stage == Stage::HandedOff {
            return self.answer_handed_off(context, connection, exchange, status);
        }
        Gateway::cancel_helper_jobs(context, &exchange);
        // A program that has closed its output is exiting by itself, and its exit status may
        // explain the invalid response.
        match exchange.download.ended {
            true => self.release_program(context, &mut exchange),
            false => self.kill_program(context, &mut exchange),
        }
        if exchange.download.frame.is_some() && connection.outgoing.sent_bytes > 0 {
            return Gateway::cut_response(context, connection, exchange);
        }
        connection.outgoing.clear();
        Gateway::send_exchange_error(context, connection, exchange, status)
    }

    /// Ends a response that cannot be completed.
    pub(super) fn cut_response(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: Exchange,
    ) -> Next {
        match exchange.download.frame {
            Some(Frame::Bodiless | Frame::Length | Frame::Chunked) => {
                context.cut_response(connection, exchange.request)
            }
            // An orderly end would be taken for the end of such a response, so it must not be made
            // more orderly.
            Some(Frame::Close | Frame::Upgraded) | None => {
                context.counters.responses_aborted += 1;
                Next::Close(Some(exchange.request))
            }
        }
    }

    /// The response is complete but its client has not read all of it: frees the handler for other
    /// requests.
    pub(super) fn release_early(&mut self, context: &mut LoopContext, exchange: &mut Exchange) {
        if exchange.is_started() && exchange.upload.body.is_none() {
            self.release_program(context, exchange);
            exchange.stage = Stage::Finished;
        }
    }

    /// The response is complete: the program may exit by itself.
    pub(super) fn release_program(&mut self, context: &mut LoopContext, exchange: &mut Exchange) {
        self.close_streams(context, exchange);
        if Gateway::has_no_program(context, exchange) {
            return;
        }
        let timeout_ms = context
            .routes
            .get(exchange.program.route)
            .location
            .timeout_ms;
        let until_ms = context.now_ms + timeout_ms;
        if !exchange.is_started() {
            return;
        }
        match self
            .program(exchange.id)
            .and_then(|program| program.forked.as_mut())
        {
            Some(forked) => forked.release(until_ms),
            None => {
                let timeout_ms = u32::try_from(timeout_ms).unwrap_or(u32::MAX);
                let id = exchange.id;
                self.send_order(
                    context,
                    &SpawnerOrder::Release { id, timeout_ms },
                    Vec::new(),
                );
            }
        }
    }

    /// The response is not wanted any more: kills the program and its process group.
    pub(super) fn kill_program(&mut self, context: &mut LoopContext, exchange: &mut Exchange) {
        self.abort_upstream(context, exchange);
        self.close_streams(context, exchange);
        context.buffers.forget(exchange);
        if exchange.stage == Stage::Queued {
            self.leave_queue(exchange);
        }
        if exchange.stage == Stage::HandedOff {
            self.abandon_handed_off(context, exchange);
        }
        Gateway::cancel_helper_jobs(context, exchange);
        if !exchange.is_started() || Gateway::has_no_program(context, exchange) {
            return;
        }
        let (id, now_ms) = (exchange.id, context.now_ms);
        if let Some(program) = self.program(id) {
            program.killed = true;
            let forked = program.forked.as_mut().map(|forked| forked.kill(now_ms));
            context.counters.handler_processes_killed += 1;
            if forked.is_some() {
                return;
            }
        }
        // The spawner keeps an exited program as a zombie until the worker releases or kills it.
        let route = context.routes.get(exchange.program.route);
        if route.location.needs_spawner() {
            self.order_kill(context, id);
        }
    }

    /// Cancels helper jobs: their results would be taken for results of the next request.
    pub(super) fn cancel_helper_jobs(context: &mut LoopContext, exchange: &Exchange) {
        let (upload, response_buffer) = (&exchange.upload, &exchange.download.response_buffer);
        if upload.is_spooling() || upload.reading_back || response_buffer.is_busy() {
            context.pool.leave(exchange.client.0);
        }
    }

    fn program(&mut self, id: u64) -> Option<&mut Program> {
        self.programs.get_mut(&id)
    }

    /// Whether the handler outlives the request (everything but CGI).
    fn has_no_program(context: &LoopContext, exchange: &Exchange) -> bool {
        let location = &context.routes.get(exchange.program.route).location;
        !matches!(location.handler, HandlerConfig::Cgi(_))
    }

    fn close_streams(&mut self, context: &mut LoopContext, exchange: &mut Exchange) {
        self.release_upstream(context, exchange, UpstreamOutcome::Unknown, false);
        self.close_upgraded(context, exchange);
        if let Some(research) = self.research {
            (research.piped.release)(self, context, exchange);
        }
        self.release_slot(exchange);
        let (sink, source) = (exchange.upload.sink.take(), exchange.download.source.take());
        Gateway::close_channel(context, sink);
        Gateway::close_channel(context, source);
    }

    /// Frees the place in the queue. The connection is not at hand here, but its token is.
    fn leave_queue(&mut self, exchange: &Exchange) {
        let client = exchange.client;
        self.queues[exchange.program.route].retain(|(waiting, _)| *waiting != client);
    }

    /// The connection closes, whatever the state of its exchange.
    pub(in crate::worker) fn abandon(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
    ) {
        if let Some(mut exchange) = connection.take_exchange() {
            context.counters.handler_abandoned += 1;
            // The owner of the socket is killed, which closes it; `handed_off` explains why the
            // worker does not touch it.
            connection.handed_off &= exchange.stage != Stage::HandedOff;
            self.kill_program(context, &mut exchange);
        }
    }

    fn waiting_for(connection: &Connection, exchange: &Exchange) -> WaitingFor {
        if connection.has_unsent() {
            return WaitingFor::ClientRead;
        }
        match exchange.stage {
            _ if exchange.upgraded.is_some() => WaitingFor::UpgradeTraffic,
            _ if exchange.is_connecting() => WaitingFor::Connect,
            Stage::Queued => WaitingFor::Queue,
            _ if exchange.download.response_buffer.is_busy() => WaitingFor::Queue,
            Stage::BufferingBody if exchange.upload.is_spooling() => WaitingFor::Queue,
            Stage::BufferingBody if exchange.upload.held => WaitingFor::Room,
            Stage::BufferingBody => WaitingFor::ClientBody,
            _ if exchange.upload.body.is_some() && exchange.upload.remaining().is_empty() => {
                WaitingFor::ClientBody
            }
            _ if exchange.is_upstream_doubtful() => WaitingFor::SignOfLife,
            _ => WaitingFor::Program,
        }
    }

    /// The handler has sent something. That does not extend the deadline of a client that reads too
    /// slowly.
    pub(super) fn note_activity(
        context: &mut LoopContext,
        connection: &Connection,
        exchange: &mut Exchange,
    ) {
        if !connection.has_unsent() {
            Gateway::renew_deadline(context, connection, exchange);
        }
    }

    /// Something has progressed: restarts the timeout that applies now.
    pub(super) fn renew_deadline(
        context: &mut LoopContext,
        connection: &Connection,
        exchange: &mut Exchange,
    ) {
        let (config, now_ms) = (&context.config, context.now_ms);
        let location = &context.routes.get(exchange.program.route).location;
        let waits = Gateway::waiting_for(connection, exchange);
        let is_read_from = Gateway::takes_body(exchange);
        let (sent, read) = (&mut exchange.upload.pace, &mut exchange.download.pace);
        if !is_read_from {
            sent.rest();
        }
        if !matches!(waits, WaitingFor::ClientRead) {
            read.rest();
        }
        let deadline_ms = match waits {
            WaitingFor::ClientRead => read.deadline_ms(now_ms, config.send_timeout_ms),
            WaitingFor::ClientBody => sent.deadline_ms(now_ms, config.body_timeout_ms),
            WaitingFor::Room => exchange.upload.held_until_ms,
            WaitingFor::Queue | WaitingFor::Program => now_ms + location.timeout_ms,
            WaitingFor::Connect => now_ms + location.connect_timeout_ms(),
            WaitingFor::SignOfLife => now_ms + Gateway::life_timeout_ms(location),
            WaitingFor::UpgradeTraffic => now_ms + location.upgrade_timeout_ms(),
        };
        let deadline_ms = deadline_ms.min(exchange.end_ms);
        context.deadlines.set(connection.slot(), deadline_ms);
    }

    /// Nothing has progressed for too long, or the request has reached `request-timeout`.
    pub(in crate::worker) fn time_out_exchange(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
    ) -> Next {
        self.step_exchange(
            context,
            connection,
            |gateway, context, connection, exchange| {
                if exchange.stage == Stage::HandedOff && gateway.waits_for_kill(exchange) {
                    connection.handed_off = false;
                    return Break(ExchangeEnd::Abort);
                }
                let waits = Gateway::waiting_for(connection, exchange);
                if context.now_ms >= exchange.end_ms {
                    context.counters.handler_timeouts += 1;
                    return Break(ExchangeEnd::Fail(Status::GATEWAY_TIMEOUT));
                }
                match waits {
                    WaitingFor::ClientRead => {
                        context.counters.timeouts_send += 1;
                        Break(ExchangeEnd::Abort)
                    }
                    WaitingFor::ClientBody => {
                        context.counters.timeouts_body += 1;
                        Break(ExchangeEnd::Fail(Status::REQUEST_TIMEOUT))
                    }
                    WaitingFor::Room => {
                        context.counters.buffers_full += 1;
                        Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE))
                    }
                    WaitingFor::Queue => {
                        context.counters.handler_timeouts += 1;
                        Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE))
                    }
                    WaitingFor::Connect => gateway.upstream_timed_out(
                        context,
                        connection,
                        exchange,
                        (AttemptStage::Unsent, "connect timeout"),
                    ),
                    WaitingFor::SignOfLife => {
                        gateway.check_idle_upstream(context, connection, exchange)
                    }
                    // An idle upgraded connection ends normally.
                    WaitingFor::UpgradeTraffic => {
                        context.counters.handler_timeouts += 1;
                        Break(ExchangeEnd::Done)
                    }
                    WaitingFor::Program => {
                        context.counters.handler_timeouts += 1;
                        gateway.release_upstream(context, exchange, UpstreamOutcome::Failed, false);
                        if let Some(slot) = exchange.process.take() {
                            gateway.remove_process(context, slot);
                        }
                        Break(ExchangeEnd::Fail(Status::GATEWAY_TIMEOUT))
                    }
                }
            },
        )
    }
}
