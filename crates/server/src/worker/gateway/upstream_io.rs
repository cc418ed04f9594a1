//! Transfers a request and its body to an upstream, and the response from it, through the
//! protocol's codec.
//!
//! Both directions use one socket and apply back pressure: the body is read from the client as fast
//! as the upstream accepts it, and the response is read as fast as the client reads it.

use std::os::fd::AsFd;
use std::rc::Rc;

use headway_event::{Interest, Ready};
use headway_files::{Failure, Meta, OpenFile};
use headway_gateway::cgi::is_local;
use headway_gateway::upstream::{AttemptStage, UpstreamOutcome, is_idempotent};
use headway_gateway::{
    AccelRedirect, CodecError, FieldList, InvalidResponse, ResponseAction, ResponseEvent,
};
use headway_http::Status;
use rustix::io::Errno;

use super::response_buffer::SPOOL_READ_BYTES;
use super::{ExchangeStep, Gateway, InternalRedirect, READ_BUFFER_BYTES};
use crate::calls::Call;
use crate::config::{Handler, Protocol};
use crate::connection::{Connection, Exchange, UpstreamRequest};
use crate::respond::handlers::accel_redirect::{file_below, passed_fields};
use crate::spawner::escape_control;
use crate::worker::context::LoopContext;

impl Gateway {
    /// Handles an event on the socket of an upstream.
    pub(super) fn on_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        event: &Ready,
    ) -> ExchangeStep {
        if event.writable {
            match self.write_upstream(context, connection, exchange) {
                ExchangeStep::Continue => {}
                other => return other,
            }
        }
        match event.readable || event.hangup {
            true => self.on_output(context, connection, exchange),
            false => ExchangeStep::Continue,
        }
    }

    /// Writes as much of the request as the upstream accepts.
    pub(super) fn write_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let mut progressed = false;
        while let Some(upstream) = &mut exchange.upstream
            && !upstream.write_closed
        {
            let upload = &mut exchange.upload;
            // The body stays here until the connection is established, so that it can be sent
            // elsewhere.
            if upstream.started {
                let taken = upstream.codec.push_body(upload.remaining());
                upload.advance(taken);
                upstream.body_bytes += taken as u64;
                context.counters.handler_request_bytes += taken as u64;
            }
            if upload.is_complete() && !upstream.body_ended {
                upstream.body_ended = true;
                upstream.codec.end_body();
            }
            if upstream.codec.unsent().is_empty() {
                break;
            }
            let written = context.tracer.call(Call::UpstreamWrite, || {
                rustix::io::write(&upstream.conn.socket, upstream.codec.unsent())
            });
            match written {
                Ok(count) => {
                    upstream.codec.sent(count);
                    upstream.started = true;
                    progressed = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) if !upstream.started => {
                    let why = format!("connecting: {errno}");
                    let failure = (Status::BAD_GATEWAY, why.as_str());
                    return self.upstream_failed(
                        context,
                        connection,
                        exchange,
                        AttemptStage::Unsent,
                        failure,
                    );
                }
                // The upstream may have answered before it stopped reading.
                Err(_) => upstream.write_closed = true,
            }
        }
        if progressed {
            Gateway::renew_deadline(context, connection, exchange);
        }
        Gateway::read_spooled_body(context, connection, exchange)
    }

    /// Has a helper read the next chunk of a spooled body when the previous one has been sent.
    fn read_spooled_body(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let upload = &mut exchange.upload;
        let is_free = !upload.reading_back && !exchange.download.response_buffer.reading_back;
        let is_due = exchange.upstream.is_some() && is_free && upload.remaining().is_empty();
        let Some(file) = upload.spooled.as_ref().filter(|_| is_due) else {
            return ExchangeStep::Continue;
        };
        if upload.read_back_bytes == upload.spooled_bytes {
            return ExchangeStep::Continue;
        }
        let file = match with_identity(file, &context.pool.deferred_closes()) {
            Ok(file) => file,
            Err(_) => return ExchangeStep::Fail(Status::INTERNAL_SERVER_ERROR),
        };
        let length = SPOOL_READ_BYTES.min(upload.spooled_bytes - upload.read_back_bytes);
        let submitted = context.pool.submit_copy(
            &file,
            upload.read_back_bytes,
            length,
            connection.waiter(&exchange.request),
        );
        if submitted.is_err() {
            return ExchangeStep::Fail(Status::SERVICE_UNAVAILABLE);
        }
        upload.reading_back = true;
        exchange.request.admitted = true;
        ExchangeStep::Continue
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
            return ExchangeStep::Continue;
        }
        if exchange.upstream.is_some() {
            let bytes = match Gateway::copied(context, copy) {
                Ok(bytes) => bytes,
                Err(status) => return ExchangeStep::Fail(status),
            };
            exchange.upload.waiting.extend_from_slice(&bytes);
            exchange.upload.read_back_bytes += bytes.len() as u64;
            Gateway::renew_deadline(context, connection, exchange);
            match self.write_upstream(context, connection, exchange) {
                ExchangeStep::Continue => {}
                other => return other,
            }
        }
        // A part of the response may have been waiting for this read.
        match connection.outgoing.pieces.is_empty()
            && exchange.download.response_buffer.file.is_some()
        {
            true => self.send_response(context, connection, exchange),
            false => ExchangeStep::Continue,
        }
    }

    /// Reads until nothing is left or one piece is full. Body bytes are appended to `body`.
    pub(super) fn read_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        buffer: &mut [u8],
        body: &mut Vec<u8>,
    ) -> ExchangeStep {
        let mut read_bytes = 0;
        while read_bytes < READ_BUFFER_BYTES {
            let Some(upstream) = &mut exchange.upstream else {
                break;
            };
            let read = context.tracer.call(Call::UpstreamRead, || {
                rustix::io::read(&upstream.conn.socket, &mut *buffer)
            });
            let step = match read {
                Ok(count @ 1..) => {
                    read_bytes += count;
                    context.counters.handler_response_bytes += count as u64;
                    if count < buffer.len() {
                        context.events.drained(upstream.conn.socket.as_fd());
                    }
                    self.parse_upstream(context, connection, exchange, &buffer[..count], body)
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Ok(_) => self.upstream_closed(context, connection, exchange),
                Err(_) => self.upstream_reset(context, connection, exchange),
            };
            match step {
                ExchangeStep::Continue => {}
                other => return other,
            }
        }
        if read_bytes > 0 {
            Gateway::note_activity(context, connection, exchange);
        }
        ExchangeStep::Continue
    }

    fn parse_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        mut input: &[u8],
        body: &mut Vec<u8>,
    ) -> ExchangeStep {
        while let Some(upstream) = &mut exchange.upstream {
            let event = match upstream.codec.feed(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(fault) => {
                    return self.upstream_protocol_error(context, connection, exchange, &fault);
                }
            };
            match event {
                ResponseEvent::Head(ResponseAction::Response(response)) => {
                    match self.on_response_head(context, exchange, response) {
                        ExchangeStep::Continue => {}
                        other => return other,
                    }
                }
                ResponseEvent::Head(ResponseAction::LocalRedirect(location)) => {
                    self.release_upstream(context, exchange, UpstreamOutcome::Answered, false);
                    return ExchangeStep::internal_redirect(location);
                }
                ResponseEvent::Body(bytes) => body.extend_from_slice(bytes),
                ResponseEvent::Stderr(bytes) => Gateway::relay_stderr(context, exchange, bytes),
                ResponseEvent::End(end) => {
                    exchange.download.ended = true;
                    self.release_upstream(
                        context,
                        exchange,
                        UpstreamOutcome::Answered,
                        end.reusable,
                    );
                    self.release_slot(exchange);
                }
            }
        }
        ExchangeStep::Continue
    }

    /// Logs standard error of a FastCGI application: one message per line, control characters
    /// escaped.
    fn relay_stderr(context: &mut LoopContext, exchange: &Exchange, bytes: &[u8]) {
        let name = escape_control(&exchange.program.file);
        for line in bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            context.notice(format!("{name}: {}", line.escape_ascii()));
        }
    }

    /// The connection was reset. An upstream that is killed before it has read the whole request
    /// resets its connection, but its response may still be complete if the length was declared.
    fn upstream_reset(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let upstream = exchange.upstream.as_ref();
        match upstream.is_some_and(|upstream| upstream.codec.is_open_ended()) {
            true => {
                self.upstream_protocol_error(context, connection, exchange, &CodecError::Closed)
            }
            false => self.upstream_closed(context, connection, exchange),
        }
    }

    fn upstream_closed(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let finished = exchange
            .upstream
            .as_mut()
            .map(|upstream| upstream.codec.finish());
        match finished {
            Some(Err(fault)) => self.upstream_protocol_error(context, connection, exchange, &fault),
            _ => {
                exchange.download.ended = true;
                self.release_upstream(context, exchange, UpstreamOutcome::Answered, false);
                self.release_slot(exchange);
                ExchangeStep::Continue
            }
        }
    }

    /// The upstream violated the protocol, rejected the request or closed the connection. An
    /// invalid CGI-style response is the script's mistake and does not count against the FastCGI or
    /// SCGI server; for a proxied upstream it does.
    fn upstream_protocol_error(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        fault: &CodecError,
    ) -> ExchangeStep {
        let started = exchange
            .upstream
            .as_ref()
            .is_some_and(|upstream| upstream.started);
        let progressed = match fault {
            CodecError::Response(InvalidResponse::Empty) if started => AttemptStage::Sent,
            CodecError::Response(InvalidResponse::Empty) => AttemptStage::Unsent,
            fault if fault.is_untouched() => AttemptStage::Untouched,
            // Leftovers of an earlier response on a reused connection. FastCGI would have detected
            // them itself.
            CodecError::Response(_) if Gateway::may_be_stale_response(context, exchange) => {
                AttemptStage::Sent
            }
            CodecError::Response(refusal) => {
                let outcome = match Gateway::is_proxied(context, exchange) {
                    true => UpstreamOutcome::Failed,
                    false => UpstreamOutcome::Answered,
                };
                context.counters.upstream_failures += u64::from(outcome == UpstreamOutcome::Failed);
                self.release_upstream(context, exchange, outcome, false);
                return self.reject_response(context, exchange, &refusal.to_string());
            }
            _ => AttemptStage::Answered,
        };
        let failure = (fault.status(), fault.to_string());
        self.upstream_failed(
            context,
            connection,
            exchange,
            progressed,
            (failure.0, &failure.1),
        )
    }

    /// Whether an invalid response may be left over from an earlier request, so that a retry over a
    /// new connection is worthwhile.
    fn may_be_stale_response(context: &LoopContext, exchange: &Exchange) -> bool {
        let lost_before_response =
            |upstream: &UpstreamRequest| upstream.reused && !upstream.codec.has_head();
        exchange
            .upstream
            .as_deref()
            .is_some_and(lost_before_response)
            && Gateway::is_proxied(context, exchange)
            && is_idempotent(exchange.request.head.method())
    }

    fn is_proxied(context: &LoopContext, exchange: &Exchange) -> bool {
        let location = &context.routes.get(exchange.program.route).location;
        matches!(&location.handler, Handler::Upstreams(upstreams) if upstreams.protocol == Protocol::Proxy)
    }

    /// Sends a file of the server in place of the response's body (`X-Accel-Redirect`,
    /// `X-Sendfile`).
    pub(super) fn accel_redirect(
        &mut self,
        context: &mut LoopContext,
        exchange: &mut Exchange,
        accel_redirect: &AccelRedirect,
        fields: &FieldList,
    ) -> ExchangeStep {
        let (location, why) = match accel_redirect {
            AccelRedirect::Location(location) => (
                is_local(location).then(|| location.to_vec()),
                "X-Accel-Redirect is not a path of this server",
            ),
            AccelRedirect::File(file) => (
                file_below(&exchange.program.document_root, file),
                "X-Sendfile is not a file below the document root",
            ),
        };
        match location {
            Some(location) => {
                self.release_upstream(context, exchange, UpstreamOutcome::Answered, false);
                ExchangeStep::InternalRedirect(Box::new(InternalRedirect {
                    location: location.into(),
                    accel_fields: Some(passed_fields(fields)),
                }))
            }
            None => self.reject_response(context, exchange, why),
        }
    }

    /// Whether this location allows `X-Accel-Redirect` and `X-Sendfile`.
    pub(super) fn allows_accel_redirect(context: &LoopContext, exchange: &Exchange) -> bool {
        let route = context.routes.get(exchange.program.route);
        route.location.accel_redirect
    }

    /// Watches the socket of the upstream for what is needed next.
    pub(super) fn watch_upstream(context: &mut LoopContext, exchange: &mut Exchange) {
        let Some(upstream) = &mut exchange.upstream else {
            return;
        };
        let writes = !upstream.write_closed && !upstream.codec.unsent().is_empty();
        let wanted = match (exchange.download.wanted, writes) {
            (true, true) => Some(Interest::BOTH),
            (true, false) => Some(Interest::READ),
            (false, true) => Some(Interest::WRITE),
            (false, false) => None,
        };
        Gateway::watch_upstream_conn(context, &mut upstream.conn, wanted);
    }
}

/// Duplicates a spool file and fills in its device and inode, which distinguish the
/// results of helpers. An unnamed file is returned without them.
pub(super) fn with_identity(
    file: &Rc<OpenFile>,
    deferred_closes: &headway_files::DeferredCloses,
) -> std::io::Result<Rc<OpenFile>> {
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
