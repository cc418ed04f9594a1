//! Buffers a response that arrives faster than its client reads it, so that the handler does not
//! have to wait.
//!
//! The first chunk stays in memory. What exceeds it is written by a helper to an unnamed temporary
//! file and read back by a helper when it is due; the loop never touches the disk. The handler has
//! to wait when `temp-file-max` bytes are buffered, or when there is no room for more (`buffers`).
//! After the last byte the handler is released: a slow client occupies a file instead of a process of
//! the application.

use std::ops::ControlFlow::{Break, Continue};

use headway_connection::{Connection, Exchange};
use headway_files::{Failure, OpenFile, read_nowait};
use headway_http::Status;
use headway_metrics::calls::Call;
use headway_request::{Frame, Piece};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use super::buffer_body::with_identity;
use super::{ExchangeEnd, ExchangeStep, Gateway, READ_BUFFER_BYTES};
use crate::worker::buffers::CHUNK_BYTES;
use crate::worker::context::LoopContext;
use crate::worker::sending::status_of;

/// What the part in memory can hold: more is read while it is less than a chunk, and one read brings
/// less than two buffers.
const TAIL_BYTES_MAX: usize = CHUNK_BYTES + 2 * READ_BUFFER_BYTES;

impl Gateway {
    /// Updates whether more of the response may be read.
    pub(super) fn update_wanted(
        context: &mut LoopContext,
        connection: &Connection,
        exchange: &mut Exchange,
    ) {
        let response_buffer = &exchange.download.response_buffer;
        let idle = !connection.has_unsent() && response_buffer.is_empty();
        exchange.download.wanted = idle || Gateway::has_room(context, exchange);
    }

    /// Takes the part in memory, if what is read now is simply appended to it: that is not copied once
    /// more. [`Gateway::check_and_forward`] puts it back.
    pub(super) fn take_tail(exchange: &mut Exchange) -> Vec<u8> {
        let download = &mut exchange.download;
        if !matches!(download.frame, Some(Frame::Length | Frame::Close)) {
            return Vec::new();
        }
        let mut tail = std::mem::take(&mut download.response_buffer.tail);
        if tail.len() >= READ_BUFFER_BYTES {
            // It becomes a whole chunk, probably.
            tail.reserve_exact(TAIL_BYTES_MAX.saturating_sub(tail.len()));
        }
        tail
    }

    fn has_room(context: &LoopContext, exchange: &Exchange) -> bool {
        let location = &context.routes.get(exchange.program.route).location;
        let response_buffer = &exchange.download.response_buffer;
        let waiting = response_buffer.written_bytes + response_buffer.tail.len() as u64;
        // Data of an upgraded connection is not spooled: it is useless when it comes late.
        exchange.upgraded.is_none()
            && waiting < location.temp_file_max_bytes
            && response_buffer.tail.len() < CHUNK_BYTES
            && context.buffers.has_memory()
    }

    /// Has a helper write the buffered part, if there is enough of it.
    pub(super) fn spool_response(
        context: &mut LoopContext,
        connection: &Connection,
        exchange: &mut Exchange,
    ) {
        let location = &context.routes.get(exchange.program.route).location;
        let response_buffer = &mut exchange.download.response_buffer;
        let may = location.temp_file_max_bytes > 0
            && exchange.upgraded.is_none()
            && context.buffers.has_disk(response_buffer.written_bytes == 0);
        let is_due = response_buffer.tail.len() >= context.buffers.chunk_bytes_min();
        if !is_due || response_buffer.is_busy() || !may {
            return;
        }
        // If no helper is available, the part stays in memory and the handler waits.
        let Ok(piece) = context.tracer.call(Call::BodyMemfd, || {
            context
                .pool
                .spool_piece(&response_buffer.tail, context.now_ms)
        }) else {
            return;
        };
        let submitted = context.pool.submit_spool(
            context.config.temp_directory.as_os_str().as_bytes(),
            response_buffer.file.as_ref(),
            piece,
            response_buffer.written_bytes,
            connection.waiter(&exchange.request),
        );
        if submitted.is_ok() {
            let bytes = response_buffer.tail.len() as u64;
            response_buffer.tail.clear();
            if exchange.download.ended || context.buffers.is_scarce() {
                response_buffer.tail = Vec::new();
            }
            response_buffer.written_bytes += bytes;
            response_buffer.spooling_bytes = bytes;
            context.counters.handler_response_spooled_bytes += bytes;
            exchange.request.had_helper = true;
        }
    }

    /// A helper has written a chunk of the response, or failed to.
    pub(super) fn on_response_spooled(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        file: &Result<Rc<OpenFile>, Failure>,
    ) -> ExchangeStep {
        exchange.download.response_buffer.spooling_bytes = 0;
        match file {
            Ok(file) => exchange.download.response_buffer.file = Some(file.clone()),
            Err(failure) => {
                context.counters.io_errors += u64::from(*failure == Failure::Io);
                return Break(ExchangeEnd::Fail(status_of(*failure)));
            }
        }
        if !connection.has_unsent() {
            return self.send_response(context, connection, exchange);
        }
        Gateway::spool_response(context, connection, exchange);
        Gateway::update_wanted(context, connection, exchange);
        Continue(())
    }

    /// All queued pieces have been sent: takes the oldest buffered part next.
    pub(super) fn send_buffered(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        // One helper read per connection at a time, because two results could not be distinguished.
        let elsewhere = exchange.upload.reading_back;
        let response_buffer = &mut exchange.download.response_buffer;
        if response_buffer.is_busy() {
            return Continue(());
        }
        if response_buffer.read_back_bytes == response_buffer.written_bytes {
            (
                response_buffer.written_bytes,
                response_buffer.read_back_bytes,
            ) = (0, 0);
            response_buffer.file = None;
            if !response_buffer.tail.is_empty() {
                let tail = std::mem::take(&mut response_buffer.tail);
                connection.outgoing.push(Piece::bytes(tail));
            }
            return Continue(());
        }
        let Some(file) = response_buffer.file.as_ref().filter(|_| !elsewhere) else {
            return Continue(());
        };
        let Ok(file) = with_identity(file, &context.pool.deferred_closes()) else {
            return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
        };
        let length = context
            .buffers
            .read_back_bytes()
            .min(response_buffer.written_bytes - response_buffer.read_back_bytes);
        let waiter = connection.waiter(&exchange.request);
        let submitted =
            context
                .pool
                .submit_copy(&file, response_buffer.read_back_bytes, length, waiter);
        if submitted.is_err() {
            return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
        }
        response_buffer.reading_back = true;
        exchange.request.had_helper = true;
        Gateway::renew_deadline(context, connection, exchange);
        Continue(())
    }

    /// A helper has read the next chunk of the response, or failed to.
    pub(super) fn on_response_read_back(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        copy: &Result<Rc<OpenFile>, Failure>,
    ) -> ExchangeStep {
        exchange.download.response_buffer.reading_back = false;
        let bytes = Gateway::copied(context, copy)?;
        exchange.download.response_buffer.read_back_bytes += bytes.len() as u64;
        connection.outgoing.push(Piece::bytes(bytes));
        Gateway::renew_deadline(context, connection, exchange);
        self.send_response(context, connection, exchange)?;
        // A spooled body may have been waiting for this read.
        self.write_program(context, connection, exchange)
    }

    /// The bytes that a helper has read.
    pub(super) fn copied(
        context: &LoopContext,
        copy: &Result<Rc<OpenFile>, Failure>,
    ) -> ExchangeStep<Vec<u8>> {
        let file = match copy {
            Ok(file) => file,
            Err(failure) => return Break(ExchangeEnd::Fail(status_of(*failure))),
        };
        let mut bytes = vec![0; (file.meta().size as usize).min(CHUNK_BYTES)];
        let read = context
            .tracer
            .call(Call::ReadNowait, || read_nowait(file, &mut bytes, 0));
        match read {
            Ok(Some(count @ 1..)) => {
                bytes.truncate(count);
                Continue(bytes)
            }
            Err(error) => Break(ExchangeEnd::Fail(status_of(Failure::of_read(&error)))),
            // Shorter than what was written, or not in memory: there is nothing to continue with.
            Ok(_) => Break(ExchangeEnd::Fail(Status::INTERNAL_SERVER_ERROR)),
        }
    }
}
