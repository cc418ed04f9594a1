//! Buffers a request body whose length must be known before its program starts.
//!
//! Up to a limit the body stays in memory. Beyond it, a helper writes the body chunk by chunk into
//! an unnamed temporary file. The client is not read from while a helper writes, so a request keeps
//! at most one chunk in memory and the loop never writes to a disk. The program then gets the file
//! as its input.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use headway_files::{Failure, OpenFile};
use headway_http::Status;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::{ExchangeStep, Gateway};
use crate::calls::Call;
use crate::connection::{Connection, Exchange, Stage};
use crate::worker::context::LoopContext;
use crate::worker::sending::status_of;

/// A body or response is written to disk in chunks of at least this size.
pub(super) const SPOOL_CHUNK_BYTES: usize = 256 * 1024;

impl Gateway {
    /// Starts buffering: the first part of the body has arrived.
    pub(super) fn buffer_body(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        match Gateway::continue_if_expected(context, connection, exchange) {
            ExchangeStep::Continue => {
                Gateway::renew_deadline(context, connection, exchange);
                ExchangeStep::Continue
            }
            other => other,
        }
    }

    /// More of the body has arrived.
    pub(super) fn buffer_more(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        Gateway::renew_deadline(context, connection, exchange);
        match exchange.upload.waiting.len() >= SPOOL_CHUNK_BYTES {
            true => Gateway::spool_body(context, connection, exchange),
            false => ExchangeStep::Continue,
        }
    }

    /// The body is complete: the handler may start once the last chunk is on disk.
    pub(super) fn body_buffered(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        match exchange.upload.spooled {
            Some(_) if !exchange.upload.waiting.is_empty() => {
                Gateway::spool_body(context, connection, exchange)
            }
            _ => self.admit(context, connection, exchange),
        }
    }

    /// Has a helper write the buffered part to the spool file.
    fn spool_body(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let upload = &mut exchange.upload;
        let piece = context
            .tracer
            .call(Call::BodyMemfd, || body_memfd(&upload.waiting));
        let Ok(piece) = piece else {
            return ExchangeStep::Fail(Status::SERVICE_UNAVAILABLE);
        };
        let directory = context.config.temp_directory.as_os_str().as_bytes();
        let submitted = context.pool.submit_spool(
            directory,
            upload.spooled.as_ref(),
            piece,
            upload.spooled_bytes,
            connection.waiter(&exchange.request),
        );
        if submitted.is_err() {
            return ExchangeStep::Fail(Status::SERVICE_UNAVAILABLE);
        }
        context.counters.handler_request_spooled_bytes += upload.waiting.len() as u64;
        upload.spooled_bytes += upload.waiting.len() as u64;
        upload.waiting.clear();
        upload.spooling = true;
        exchange.request.admitted = true;
        Gateway::renew_deadline(context, connection, exchange);
        ExchangeStep::Continue
    }

    /// A helper has written a chunk of a body or a response, or failed to.
    pub(super) fn on_spool_written(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        file: &Result<Rc<OpenFile>, Failure>,
    ) -> ExchangeStep {
        if exchange.download.response_buffer.spooling {
            return self.on_response_spooled(context, connection, exchange, file);
        }
        if exchange.stage != Stage::BufferingBody || !exchange.upload.spooling {
            return ExchangeStep::Continue;
        }
        exchange.upload.spooling = false;
        match file {
            Ok(file) => exchange.upload.spooled = Some(file.clone()),
            Err(failure) => {
                context.counters.io_errors += u64::from(*failure == Failure::Io);
                return ExchangeStep::Fail(status_of(*failure));
            }
        }
        match exchange.upload.body.is_some() {
            true => Gateway::buffer_more(context, connection, exchange),
            false => self.body_buffered(context, connection, exchange),
        }
    }
}

/// Copies `bytes` into a new memfd that can be passed to another process. Its offset is at the
/// start.
pub(super) fn body_memfd(bytes: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("headway-body", MemfdFlags::CLOEXEC)?;
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::pwrite(&memory, &bytes[written..], written as u64) {
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(memory)
}
