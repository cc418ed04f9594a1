//! Passes a request body from the client to the program.
//!
//! While the program reads nothing, the client is read from only until a buffer is full. A program
//! that does not want the body closes its input or exits, and the rest is discarded.

use std::ops::ControlFlow::{Break, Continue};

use headway_connection::{Connection, Exchange, Stage};
use headway_gateway::trailers::passed;
use headway_http::Status;
use headway_http::chunked::DrainProgress;
use headway_metrics::calls::Call;
use rustix::io::Errno;

use super::{ExchangeEnd, ExchangeStep, Gateway};
use crate::worker::buffers::Lack;
use crate::worker::context::LoopContext;

impl Gateway {
    /// Whether more of the body may be received now.
    pub(super) fn takes_body(exchange: &Exchange) -> bool {
        match exchange.stage {
            Stage::BufferingBody => !exchange.upload.is_spooling() && !exchange.upload.held,
            Stage::Queued | Stage::HandedOff | Stage::Finished => false,
            Stage::Starting | Stage::Running => exchange.upload.has_room(),
        }
    }

    /// Handles a readable client socket: more of the body, a disconnect, or bytes of a later
    /// request.
    pub(super) fn read_client(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        if exchange.upload.body.is_some() {
            return match Gateway::takes_body(exchange) {
                true if Gateway::must_hold(context, exchange) => {
                    Gateway::hold(context, connection, exchange, Lack::Memory)
                }
                true => self.receive_upload(context, connection, exchange),
                false => Continue(()),
            };
        }
        if exchange.read_closed {
            return Continue(());
        }
        match context.look_ahead(connection) {
            Err(Errno::AGAIN | Errno::INTR) => Continue(()),
            Ok(1..) => {
                exchange.read_closed = true;
                Continue(())
            }
            Ok(0) if Gateway::answers_half_closed(context, exchange) => {
                exchange.read_closed = true;
                Continue(())
            }
            _ => Break(ExchangeEnd::ClientGone),
        }
    }

    fn answers_half_closed(context: &LoopContext, exchange: &Exchange) -> bool {
        context
            .routes
            .get(exchange.program.route)
            .location
            .half_close
    }

    fn receive_upload(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let mut scratch = std::mem::take(&mut context.scratch);
        let step = match context.receive_into(connection, &mut scratch) {
            Ok(Some(count)) => self.take_body(context, connection, exchange, &scratch[..count]),
            Ok(None) => Continue(()),
            Err(()) => Break(ExchangeEnd::ClientGone),
        };
        context.scratch = scratch;
        step
    }

    fn take_body(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        bytes: &[u8],
    ) -> ExchangeStep {
        let upload = &mut exchange.upload;
        let Some(body) = &mut upload.body else {
            return Continue(());
        };
        let (config, now_ms) = (&context.config, context.now_ms);
        let (received, rate) = (bytes.len() as u64, config.min_transfer_rate);
        upload
            .pace
            .progress(received, rate, now_ms, config.body_timeout_ms);
        upload.held_until_ms = 0;
        let before = upload.waiting.len();
        let progress = body.feed_into(bytes, &mut upload.waiting);
        upload.bytes += (upload.waiting.len() - before) as u64;
        if upload.discarded {
            upload.waiting.clear();
        }
        let gathers = exchange.stage == Stage::BufferingBody;
        match progress {
            DrainProgress::More if gathers => {
                return Gateway::buffer_more(context, connection, exchange);
            }
            DrainProgress::More => {}
            DrainProgress::Done(used) => {
                upload.trailers = passed(body.trailers());
                upload.body = None;
                connection.stash_input(&bytes[used..]);
                if gathers {
                    return self.body_buffered(context, connection, exchange);
                }
            }
            DrainProgress::TooLarge => return Break(ExchangeEnd::Fail(Status::CONTENT_TOO_LARGE)),
            DrainProgress::Bad => {
                let status = context.reject_body(&mut exchange.request);
                return Break(ExchangeEnd::Fail(status));
            }
        }
        Gateway::renew_deadline(context, connection, exchange);
        self.write_program(context, connection, exchange)
    }

    /// Writes the body to the program, as much as it accepts, and closes its input after the last
    /// byte.
    pub(super) fn write_program(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        if exchange.upstream.is_some() {
            return self.write_upstream(context, connection, exchange);
        }
        let mut progressed = false;
        while let Some(sink) = &exchange.upload.sink {
            let left = exchange.upload.remaining();
            if left.is_empty() {
                break;
            }
            let written = context
                .tracer
                .call(Call::ProgramWrite, || rustix::io::write(sink, left));
            match written {
                Ok(count) => {
                    exchange.upload.advance(count);
                    context.counters.handler_request_bytes += count as u64;
                    progressed = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    exchange.upload.discard();
                    let sink = exchange.upload.sink.take();
                    Gateway::close_channel(context, sink);
                }
            }
        }
        if exchange.upload.remaining().is_empty() && exchange.upload.body.is_none() {
            let sink = exchange.upload.sink.take();
            Gateway::close_channel(context, sink);
        }
        if progressed {
            Gateway::renew_deadline(context, connection, exchange);
        }
        Continue(())
    }
}
