//! Buffers a request body whose length must be known before its program starts.
//!
//! Up to a limit the body stays in memory. Beyond it, a helper writes the body chunk by chunk into
//! an unnamed temporary file. The client is not read from while a helper writes, so a request keeps
//! at most one chunk in memory and the loop never writes to a disk. The program then gets the file
//! as its input, and an upstream gets what helpers read back.

use std::io;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use headway_connection::{Connection, Exchange, Stage};
use headway_files::{DeferredCloses, Failure, Meta, OpenFile};
use headway_http::Status;
use headway_metrics::calls::Call;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::response_buffer::SPOOL_READ_BYTES;
use super::{ExchangeEnd, ExchangeStep, Gateway};
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
        Gateway::continue_if_expected(context, connection, exchange)?;
        Gateway::renew_deadline(context, connection, exchange);
        Continue(())
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
            false => Continue(()),
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
            return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
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
            return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
        }
        context.counters.handler_request_spooled_bytes += upload.waiting.len() as u64;
        upload.spooled_bytes += upload.waiting.len() as u64;
        upload.waiting.clear();
        upload.spooling = true;
        exchange.request.had_helper = true;
        Gateway::renew_deadline(context, connection, exchange);
        Continue(())
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
            return Continue(());
        }
        exchange.upload.spooling = false;
        match file {
            Ok(file) => exchange.upload.spooled = Some(file.clone()),
            Err(failure) => {
                context.counters.io_errors += u64::from(*failure == Failure::Io);
                return Break(ExchangeEnd::Fail(status_of(*failure)));
            }
        }
        match exchange.upload.body.is_some() {
            true => Gateway::buffer_more(context, connection, exchange),
            false => self.body_buffered(context, connection, exchange),
        }
    }

    /// Has a helper read the next chunk of a spooled body when the previous one has been sent.
    pub(super) fn read_spooled_body(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let upload = &mut exchange.upload;
        let is_free = !upload.reading_back && !exchange.download.response_buffer.reading_back;
        let is_due = exchange.upstream.is_some() && is_free && upload.remaining().is_empty();
        let Some(file) = upload.spooled.as_ref().filter(|_| is_due) else {
            return Continue(());
        };
        if upload.read_back_bytes == upload.spooled_bytes {
            return Continue(());
        }
        let file = match with_identity(file, &context.pool.deferred_closes()) {
            Ok(file) => file,
            Err(_) => return Break(ExchangeEnd::Fail(Status::INTERNAL_SERVER_ERROR)),
        };
        let length = SPOOL_READ_BYTES.min(upload.spooled_bytes - upload.read_back_bytes);
        let submitted = context.pool.submit_copy(
            &file,
            upload.read_back_bytes,
            length,
            connection.waiter(&exchange.request),
        );
        if submitted.is_err() {
            return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
        }
        upload.reading_back = true;
        exchange.request.had_helper = true;
        Continue(())
    }

    /// A helper has read a chunk of a spooled body or response, or failed to.
    pub(super) fn on_spool_read(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        copy: &Result<Rc<OpenFile>, Failure>,
    ) -> ExchangeStep {
        if exchange.download.response_buffer.reading_back {
            return self.on_response_read_back(context, connection, exchange, copy);
        }
        if !std::mem::take(&mut exchange.upload.reading_back) {
            return Continue(());
        }
        if exchange.upstream.is_some() {
            let bytes = Gateway::copied(context, copy)?;
            exchange.upload.waiting.extend_from_slice(&bytes);
            exchange.upload.read_back_bytes += bytes.len() as u64;
            Gateway::renew_deadline(context, connection, exchange);
            self.write_upstream(context, connection, exchange)?;
        }
        // A part of the response may have been waiting for this read.
        match connection.outgoing.pieces.is_empty()
            && exchange.download.response_buffer.file.is_some()
        {
            true => self.send_response(context, connection, exchange),
            false => Continue(()),
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

/// Duplicates a spool file and fills in its device and inode, which distinguish the
/// results of helpers. An unnamed file is returned without them.
pub(super) fn with_identity(
    file: &Rc<OpenFile>,
    deferred_closes: &DeferredCloses,
) -> io::Result<Rc<OpenFile>> {
    let descriptor = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
    let status = rustix::fs::fstat(&descriptor)?;
    let meta = Meta {
        size: status.st_size.unsigned_abs(),
        modified: (0, 0),
        changed: (0, 0),
        device: status.st_dev,
        inode: status.st_ino,
    };
    Ok(Rc::new(
        OpenFile::new(descriptor, meta).with_deferred_close(deferred_closes),
    ))
}
