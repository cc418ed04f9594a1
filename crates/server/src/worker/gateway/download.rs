//! Passes a response from the program or upstream to the client.
//!
//! One piece at a time: what was read is sent, or goes into the `response_buffer`, before more is
//! read. So a slow client slows its program down in the end, and no connection keeps much in
//! memory. A response that arrives whole at the first read gets a `Content-Length`, which keeps the
//! connection alive even for HTTP/1.0.

use std::ops::ControlFlow::{Break, Continue};

use headway_config::HandlerConfig;
use headway_connection::{Connection, Exchange, Reader};
use headway_gateway::cgi::NphEvent;
use headway_gateway::upstream::UpstreamOutcome;
use headway_gateway::{InvalidResponse, ResponseAction, ResponseEvent, ResponseHead};
use headway_http::Status;
use headway_metrics::RequestStage;
use headway_metrics::calls::Call;
use headway_request::{Frame, Outgoing};
use headway_respond::handlers::{SWITCHING_PROTOCOLS, begin_response, chunk};
use headway_send::SendProgress;
use rustix::io::Errno;

use super::internal_redirect::InternalRedirect;
use super::{ExchangeEnd, ExchangeStep, Gateway, READ_BUFFER_BYTES};
use crate::worker::context::LoopContext;

impl Gateway {
    /// Handles readable output of a program.
    pub(super) fn on_output(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        if !exchange.download.wanted {
            return Continue(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut body = Gateway::take_tail(exchange);
        let before = body.len();
        let read = self.read_output(context, connection, exchange, &mut buffer, &mut body);
        self.buffer = buffer;
        read?;
        self.check_and_forward(context, connection, exchange, body, before)?;
        self.send_if_eager(context, connection, exchange)
    }

    /// Sends right after reading, without asking the event mechanism first, unless eager writes are
    /// off. A client with a buffered response is known to be slow.
    pub(super) fn send_if_eager(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        match context.config.research.eager_write && exchange.download.response_buffer.is_empty() {
            true => self.send_response(context, connection, exchange),
            false => Continue(()),
        }
    }

    /// Reads until nothing is left or one piece is full. Body bytes are appended to `body`.
    fn read_output(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        buffer: &mut [u8],
        body: &mut Vec<u8>,
    ) -> ExchangeStep {
        let mut read_bytes = 0;
        while read_bytes < READ_BUFFER_BYTES {
            let Some(source) = &exchange.download.source else {
                break;
            };
            let read = context
                .tracer
                .call(Call::ProgramRead, || rustix::io::read(source, &mut *buffer));
            match read {
                Ok(count @ 1..) => {
                    read_bytes += count;
                    context.counters.handler_response_bytes += count as u64;
                    self.parse_output(context, connection, exchange, &buffer[..count], body)?;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) if self.was_killed_with_spawner(context, exchange) => {
                    return Break(ExchangeEnd::Fail(Status::BAD_GATEWAY));
                }
                Ok(_) | Err(_) => {
                    exchange.download.ended = true;
                    break;
                }
            }
        }
        if read_bytes > 0 {
            Gateway::note_activity(context, connection, exchange);
        }
        Continue(())
    }

    /// Checks a part of the response and queues it for sending. The first `before` bytes of `body` have
    /// been checked.
    pub(super) fn check_and_forward(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        body: Vec<u8>,
        before: usize,
    ) -> ExchangeStep {
        self.check_response(context, exchange, (body.len() - before) as u64)?;
        self.forward_response(context, connection, exchange, body)
    }

    /// Parses the output of a program. Body bytes are appended to `body`.
    pub(super) fn parse_output(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        mut input: &[u8],
        body: &mut Vec<u8>,
    ) -> ExchangeStep {
        loop {
            let event = match &mut exchange.download.reader {
                Reader::Cgi(reader) => match reader.feed(&mut input) {
                    Ok(Some(ResponseEvent::Head(ResponseAction::Response(response)))) => {
                        Ok(Some(response))
                    }
                    Ok(Some(ResponseEvent::Head(ResponseAction::LocalRedirect(location)))) => {
                        return Break(InternalRedirect::local(location));
                    }
                    Ok(Some(ResponseEvent::Body(bytes))) => {
                        body.extend_from_slice(bytes);
                        Ok(None)
                    }
                    // A program's output has no such events.
                    Ok(Some(ResponseEvent::Stderr(_) | ResponseEvent::End(_))) => Ok(None),
                    Ok(None) => return Continue(()),
                    Err(refusal) => Err(refusal),
                },
                Reader::Upstream => return Continue(()),
                Reader::Nph(reader) => match reader.feed(&mut input) {
                    Ok(Some(NphEvent::Begin { status, line })) => {
                        connection.outgoing = Outgoing::new(status, line);
                        connection.outgoing.method = exchange.request.method;
                        // Only the end of the connection ends such a response.
                        connection.keep_alive = false;
                        exchange.download.frame = Some(Frame::Close);
                        Gateway::note_first_byte(context, exchange);
                        Ok(None)
                    }
                    Ok(Some(NphEvent::Raw(bytes))) => {
                        body.extend_from_slice(bytes);
                        Ok(None)
                    }
                    Ok(None) => return Continue(()),
                    Err(refusal) => Err(refusal),
                },
            };
            match event {
                Ok(None) => {}
                Ok(Some(response)) => self.on_response_head(context, exchange, response)?,
                Err(refusal) => {
                    return self.reject_response(context, exchange, &refusal.to_string());
                }
            }
        }
    }

    pub(super) fn on_response_head(
        &mut self,
        context: &mut LoopContext,
        exchange: &mut Exchange,
        response: ResponseHead,
    ) -> ExchangeStep {
        Gateway::note_first_byte(context, exchange);
        if let Some(accel_redirect) = &response.accel_redirect {
            if Gateway::allows_accel_redirect(context, exchange) {
                return self.accel_redirect(context, exchange, accel_redirect, &response.fields);
            }
            let why = "X-Sendfile and X-Accel-Redirect need accel-redirect = true in the location";
            return self.reject_response(context, exchange, why);
        }
        if response.status == SWITCHING_PROTOCOLS && !self.may_upgrade(context, exchange) {
            context.counters.handler_queue_full += 1;
            self.release_upstream(context, exchange, UpstreamOutcome::Answered, false);
            return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
        }
        exchange.download.length = response.length.filter(|_| !response.is_bodiless());
        exchange.download.response = Some(response);
        Continue(())
    }

    fn may_upgrade(&self, context: &LoopContext, exchange: &Exchange) -> bool {
        let route = context.routes.get(exchange.program.route);
        match &route.location.handler {
            HandlerConfig::Upstreams(upstreams) => {
                self.has_upgrade_slot(route.number, upstreams.max_upgrades)
            }
            _ => false,
        }
    }

    fn note_first_byte(context: &mut LoopContext, exchange: &Exchange) {
        let waited_us = exchange.begun.elapsed().as_micros() as u64;
        context.counters.handler_first_byte_us.record(waited_us);
    }

    /// Rejects a response with 502, and logs why for the author of the program.
    pub(super) fn reject_response(
        &mut self,
        context: &mut LoopContext,
        exchange: &Exchange,
        why: &str,
    ) -> ExchangeStep {
        context.counters.handler_invalid_responses += 1;
        let name = String::from_utf8_lossy(&exchange.program.file).into_owned();
        self.log_program(context, exchange.id, &format!("{name}: {why}"));
        Break(ExchangeEnd::Fail(Status::BAD_GATEWAY))
    }

    /// Counts `more` bytes of the body, and rejects the response if it as a whole is invalid.
    fn check_response(
        &mut self,
        context: &mut LoopContext,
        exchange: &mut Exchange,
        more: u64,
    ) -> ExchangeStep {
        let most = context
            .routes
            .get(exchange.program.route)
            .location
            .output_max_bytes;
        let download = &mut exchange.download;
        download.bytes += more;
        let expected = download.length.unwrap_or(0).max(download.bytes);
        // Bytes of an upgraded connection are not a response.
        let head = download.response.as_ref();
        let is_other = head.is_some_and(|response| response.status == SWITCHING_PROTOCOLS);
        if most > 0 && expected > most && !is_other {
            let why = format!("the response is longer than {most} bytes (output-max)");
            return self.reject_response(context, exchange, &why);
        }
        let finished: Result<(), InvalidResponse> = match (&download.reader, download.ended) {
            (_, false) => Ok(()),
            (Reader::Cgi(reader), true) => reader.finish().map(drop),
            (Reader::Nph(reader), true) => reader.finish(),
            (Reader::Upstream, true) => Ok(()),
        };
        // A program's response is complete when its declared length has come. An upstream reports
        // the end itself, and its connection can only be reused after that.
        let is_told = matches!(download.reader, Reader::Upstream);
        download.ended |= !is_told && download.length == Some(download.bytes);
        match finished {
            Ok(()) => Continue(()),
            Err(refusal) => self.reject_response(context, exchange, &refusal.to_string()),
        }
    }

    /// Queues a part of the response for sending.
    fn forward_response(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        body: Vec<u8>,
    ) -> ExchangeStep {
        let waits = exchange.download.frame.is_some()
            && (connection.has_unsent() || !exchange.download.response_buffer.is_empty());
        if let Some(response) = exchange.download.response.take() {
            Gateway::write_response_head(context, connection, exchange, response, body.len());
        }
        let Some(frame) = exchange.download.frame else {
            return Continue(());
        };
        exchange.download.ended |= frame == Frame::Bodiless;
        if frame != Frame::Bodiless {
            let download = &exchange.download;
            let last = download.ended.then_some(&download.trailers);
            let (bytes, framing) = chunk(frame, body, last);
            connection.outgoing.head_bytes += framing as u64;
            match waits {
                true => exchange.download.response_buffer.push(bytes),
                false if bytes.is_empty() => {}
                false => connection.outgoing.push_bytes(bytes),
            }
        }
        if exchange.download.ended {
            let source = exchange.download.source.take();
            Gateway::close_channel(context, source);
            // The client may never read what is queued, so the handler must not wait for that.
            if waits {
                exchange.download.response_buffer.fit();
                self.release_early(context, exchange);
            }
        }
        if frame == Frame::Upgraded {
            exchange.download.wanted = false;
            return self.begin_upgrade(context, connection, exchange);
        }
        Gateway::spool_response(context, connection, exchange);
        Gateway::update_wanted(context, connection, exchange);
        Continue(())
    }

    /// Writes the head of the response.
    fn write_response_head(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        response: ResponseHead,
        body_bytes: usize,
    ) {
        let now_us = context.clock.now_us();
        let head = exchange.request.head.head();
        let context = context.response_context(&head, exchange.request.virtual_host, connection);
        // Trailers follow only chunks.
        let is_whole = exchange.download.ended && exchange.download.trailers.is_empty();
        let complete = is_whole.then_some(body_bytes as u64);
        let status = response.status;
        let (bytes, frame, keep_alive) = begin_response(&context, response, complete);
        drop(context);
        connection.stages.enter(RequestStage::Send, now_us);
        connection.outgoing = Outgoing::new(status, bytes);
        connection.outgoing.method = exchange.request.method;
        connection.keep_alive = keep_alive;
        exchange.download.frame = Some(frame);
    }

    /// Sends what is queued, then what is buffered. When all has been sent, the response is
    /// complete or more of it may be read.
    pub(super) fn send_response(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        loop {
            if connection.has_unsent() {
                match self.send_some(context, connection, exchange) {
                    SendProgress::Finished => {}
                    SendProgress::SocketFull | SendProgress::QuantumSpent => break,
                    SendProgress::Disconnected => return Break(ExchangeEnd::ClientGone),
                    _ => return Break(ExchangeEnd::Abort),
                }
            }
            Gateway::send_buffered(context, connection, exchange)?;
            if connection.outgoing.pieces.is_empty() {
                break;
            }
        }
        let download = &exchange.download;
        let all_sent = !connection.has_unsent() && download.response_buffer.is_empty();
        if download.ended && download.frame.is_some() && all_sent {
            return Break(ExchangeEnd::Done);
        }
        Gateway::spool_response(context, connection, exchange);
        Gateway::update_wanted(context, connection, exchange);
        Continue(())
    }

    fn send_some(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> SendProgress {
        let before = connection.outgoing.sent_bytes;
        let progress = context.transmit(connection);
        let sent_bytes = connection.outgoing.sent_bytes - before;
        if sent_bytes > 0 {
            let (config, now_ms) = (&context.config, context.now_ms);
            let (rate, timeout_ms) = (config.min_transfer_rate, config.send_timeout_ms);
            exchange
                .download
                .pace
                .progress(sent_bytes, rate, now_ms, timeout_ms);
            Gateway::renew_deadline(context, connection, exchange);
        }
        // The client is slow; the program need not wait for it.
        if exchange.download.ended && matches!(progress, SendProgress::SocketFull) {
            self.release_early(context, exchange);
        }
        progress
    }
}
