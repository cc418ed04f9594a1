//! Buffers a request body before its handler starts.
//!
//! Up to a limit the body stays in memory. Beyond it, a helper writes the body chunk by chunk into
//! an unnamed temporary file. The client is not read from while a helper writes, so a request keeps
//! at most one chunk in memory and the loop never writes to a disk. The program then gets the file
//! as its input, and an upstream gets what helpers read back.
//!
//! All bodies share the worker's room (`buffers`). While memory is scarce, the parts of silent
//! clients are written to disk as well. Without room a client is held.

use std::io;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use headway_connection::{Connection, Exchange, Phase, Stage};
use headway_event::Token;
use headway_files::{DeferredCloses, Failure, Meta, OpenFile};
use headway_http::Status;
use headway_metrics::calls::Call;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::{ExchangeEnd, ExchangeStep, Gateway};
use crate::worker::buffers::{CHUNK_BYTES, Lack};
use crate::worker::context::LoopContext;
use crate::worker::sending::status_of;

/// The least that is written to disk of a client that sends or reads nothing.
const SILENT_BYTES_MIN: usize = 4 * 1024;
/// Connections that are searched for silent clients in one iteration.
const SEARCHED_PER_TICK: usize = 256;
/// How soon the search goes on if others wait for its result.
const SEARCH_INTERVAL_MS: u64 = 5;
/// Held clients that go on in one iteration.
const RESUMED_PER_TICK: usize = 64;
/// Jobs of the helpers that may wait when the parts of silent clients are written.
const JOBS_WAITING_MAX: u64 = 64;

impl Gateway {
    /// Starts buffering: the first part of the body has arrived.
    pub(super) fn buffer_body(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        if Gateway::must_hold(context, exchange) {
            return Gateway::hold(context, connection, exchange, Lack::Memory);
        }
        Gateway::continue_if_expected(context, connection, exchange)?;
        Gateway::buffer_more(context, connection, exchange)
    }

    /// More of the body has arrived.
    pub(super) fn buffer_more(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        Gateway::renew_deadline(context, connection, exchange);
        let waiting_bytes = exchange.upload.waiting.len();
        if waiting_bytes < context.buffers.chunk_bytes_min() {
            return Continue(());
        }
        match context.buffers.has_disk(exchange.upload.spooled_bytes == 0) {
            true => Gateway::spool_body(context, connection, exchange),
            false if waiting_bytes >= CHUNK_BYTES => {
                Gateway::hold(context, connection, exchange, Lack::Disk)
            }
            false => Continue(()),
        }
    }

    /// Whether there is no memory for more of a body.
    pub(super) fn must_hold(context: &LoopContext, exchange: &Exchange) -> bool {
        exchange.stage == Stage::BufferingBody && !context.buffers.has_memory()
    }

    /// Stops reading from a client until there is room for its body.
    pub(super) fn hold(
        context: &mut LoopContext,
        connection: &Connection,
        exchange: &mut Exchange,
        lack: Lack,
    ) -> ExchangeStep {
        let upload = &mut exchange.upload;
        upload.held = true;
        if upload.held_until_ms == 0 {
            context.counters.buffer_holds += 1;
            upload.held_until_ms = context.now_ms + context.config.body_timeout_ms;
        }
        context.buffers.hold(exchange, lack);
        Gateway::renew_deadline(context, connection, exchange);
        Continue(())
    }

    /// There may be room again for the body of a held client.
    fn resume_held(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        if !std::mem::take(&mut exchange.upload.held) {
            return Continue(());
        }
        match exchange.upload.body.is_some() {
            true => Gateway::buffer_body(context, connection, exchange),
            false => self.body_buffered(context, connection, exchange),
        }
    }

    /// Makes room where it is scarce, and gives it to those who wait for it.
    pub(super) fn maintain_buffers(&mut self, context: &mut LoopContext) {
        self.leave_departed(context);
        self.write_silent_parts(context);
        for _ in 0..RESUMED_PER_TICK {
            let Some(client) = context.buffers.next_held() else {
                return;
            };
            self.step_client(context, client, Gateway::resume_held);
        }
    }

    /// When [`Gateway::maintain_buffers`] has more to do.
    pub(super) fn buffers_next_ms(context: &LoopContext) -> Option<u64> {
        match context.buffers.has_next() {
            true => Some(context.now_ms),
            false if context.buffers.is_awaited() => Some(context.now_ms + SEARCH_INTERVAL_MS),
            false => context.buffers.departures_next_ms(),
        }
    }

    /// Ends the exchanges of held clients that have disconnected, for others wait for their places.
    /// Nothing watches their sockets: unread input would be reported at every wait.
    fn leave_departed(&mut self, context: &mut LoopContext) {
        let held = context
            .buffers
            .take_for_departures(context.now_ms, SEARCHED_PER_TICK);
        if held.is_empty() {
            return;
        }
        let connections = held.into_iter();
        let connections: Vec<&Connection> = connections
            .filter_map(|client| context.connections.of_token(client))
            .collect();
        let mut polled: Vec<PollFd<'_>> = connections
            .iter()
            .map(|connection| PollFd::new(&connection.socket, PollFlags::RDHUP))
            .collect();
        let ready = context.tracer.call(Call::ClientPoll, || {
            poll(&mut polled, Some(&Timespec::default()))
        });
        if !ready.is_ok_and(|count| count > 0) {
            return;
        }
        let ended = polled.iter().map(|polled| !polled.revents().is_empty());
        let ended: Vec<Token> = std::iter::zip(&connections, ended)
            .filter(|(connection, has_ended)| *has_ended && cannot_complete(connection))
            .map(|(connection, _)| connection.token)
            .collect();
        for client in ended {
            self.step_client(context, client, |_, _, _, _| Break(ExchangeEnd::ClientGone));
        }
    }

    /// While memory is scarce, has helpers write parts of bodies and responses whose clients have gone
    /// silent. Goes round the connections, a few in each iteration.
    fn write_silent_parts(&mut self, context: &mut LoopContext) {
        let slots = context.connections.slots();
        for _ in 0..slots.min(SEARCHED_PER_TICK) {
            let has_helper = context.pool.statistics().queue < JOBS_WAITING_MAX;
            if !context.buffers.is_scarce() || !context.buffers.has_disk(true) || !has_helper {
                return;
            }
            context.buffers.hand = (context.buffers.hand + 1) % slots;
            let connection = context.connections.get(context.buffers.hand);
            let Some(Connection {
                token,
                phase: Phase::Exchange(exchange),
                ..
            }) = connection
            else {
                continue;
            };
            let upload = &exchange.upload;
            let is_body = exchange.stage == Stage::BufferingBody
                && upload.body.is_some()
                && !upload.is_spooling()
                && upload.waiting.len() >= SILENT_BYTES_MIN;
            let response = &exchange.download.response_buffer;
            let is_response =
                !response.is_busy() && response.tail.len() >= context.buffers.chunk_bytes_min();
            let client = *token;
            if is_body || is_response {
                self.step_client(context, client, |_, context, connection, exchange| {
                    if is_body {
                        return Gateway::spool_body(context, connection, exchange);
                    }
                    Gateway::spool_response(context, connection, exchange);
                    Continue(())
                });
            }
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
                match context.buffers.has_disk(false) {
                    true => Gateway::spool_body(context, connection, exchange),
                    false => Gateway::hold(context, connection, exchange, Lack::Disk),
                }
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
        let piece = context.tracer.call(Call::BodyMemfd, || {
            context.pool.spool_piece(&upload.waiting, context.now_ms)
        });
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
        let bytes = std::mem::take(&mut upload.waiting).len() as u64;
        context.counters.handler_request_spooled_bytes += bytes;
        upload.spooled_bytes += bytes;
        upload.spooling_bytes = bytes;
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
        if exchange.download.response_buffer.is_spooling() {
            return self.on_response_spooled(context, connection, exchange, file);
        }
        if exchange.stage != Stage::BufferingBody || !exchange.upload.is_spooling() {
            return Continue(());
        }
        exchange.upload.spooling_bytes = 0;
        match file {
            Ok(file) => exchange.upload.spooled = Some(file.clone()),
            Err(failure) => {
                context.counters.io_errors += u64::from(*failure == Failure::Io);
                context.counters.buffers_full += u64::from(*failure == Failure::Exhausted);
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
            // Only descriptors can be missing.
            Err(_) => return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE)),
        };
        let length = context
            .buffers
            .read_back_bytes()
            .min(upload.spooled_bytes - upload.read_back_bytes);
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

/// Whether a client that sends nothing more has sent too little. What has not been read may be the
/// rest of the body.
fn cannot_complete(connection: &Connection) -> bool {
    let Phase::Exchange(exchange) = &connection.phase else {
        return false;
    };
    if connection.has_received() || connection.stream.is_some() {
        return false;
    }
    let unread = rustix::io::ioctl_fionread(&connection.socket).unwrap_or(0);
    let body = exchange.upload.body.as_ref();
    body.is_some_and(|body| exchange.upload.held && unread < body.left_bytes_min())
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
