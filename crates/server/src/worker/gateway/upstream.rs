//! The way of a proxied request, from top to bottom. FastCGI and SCGI requests take the same way
//! with another codec.
//!
//! 1. `start` makes an exchange of the request, and `admit` starts it or queues it (`admission`).
//! 2. `start_upstream` and `try_upstreams` choose an upstream (`upstream_pool`) and a connection to
//!    it (`upstream_conn`).
//! 3. `write_upstream` sends header and body, as far as the upstream accepts them.
//! 4. `on_upstream` handles the events of the connection; `read_upstream` and `parse_upstream` take
//!    what has come of the response.
//! 5. `check_and_forward` queues it for the client, and `send_if_eager` sends it (`download`), until
//!    the exchange is done. When the upstream has sent all, its connection is idle again.
//!
//! Both directions use one socket and apply back pressure: the body is read from the client as fast
//! as the upstream accepts it, and the response is read as fast as the client reads it. What goes
//! wrong is in `upstream_faults`.

use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::AsFd;

use headway_config::HandlerConfig;
use headway_connection::{Connection, Exchange, Stage};
use headway_event::{Interest, Ready};
use headway_gateway::upstream::{AttemptStage, Unavailable, UpstreamOutcome};
use headway_gateway::{ResponseAction, ResponseEvent};
use headway_http::Status;
use headway_metrics::calls::Call;
use rustix::io::Errno;

use super::internal_redirect::InternalRedirect;
use super::upstream_conn::ConnectFailed;
use super::{ExchangeEnd, ExchangeStep, Gateway, READ_BUFFER_BYTES};
use crate::worker::context::LoopContext;
use headway_respond::handlers::SWITCHING_PROTOCOLS;

impl Gateway {
    /// Sends a request to an upstream; its turn in the queue has come.
    pub(super) fn start_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        exchange.stage = Stage::Running;
        exchange.holds_slot = true;
        self.running[exchange.program.route] += 1;
        Gateway::continue_if_expected(context, connection, exchange)?;
        Gateway::renew_deadline(context, connection, exchange);
        self.try_upstreams(context, connection, exchange, Status::BAD_GATEWAY)
    }

    /// Tries upstreams until one can be connected to. `status` is the response if none is left.
    pub(super) fn try_upstreams(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        status: Status,
    ) -> ExchangeStep {
        let route = context.routes.get(exchange.program.route).clone();
        let HandlerConfig::Upstreams(upstreams) = &route.location.handler else {
            return Break(ExchangeEnd::Fail(Status::INTERNAL_SERVER_ERROR));
        };
        let now_ms = context.now_ms;
        loop {
            let Some(pool) = self.pool(route.number) else {
                return Break(ExchangeEnd::Fail(Status::INTERNAL_SERVER_ERROR));
            };
            let lease = match pool.choose(now_ms, &mut exchange.tried) {
                Ok(lease) => lease,
                Err(Unavailable::Busy) => {
                    return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
                }
                Err(Unavailable::Exhausted) => return Break(ExchangeEnd::Fail(status)),
            };
            exchange.request.upstream = pool.address(&lease).cloned();
            match self.connect_upstream(context, connection, exchange, &route, upstreams, &lease) {
                Ok(connected) => {
                    context.counters.upstream_retries += u64::from(exchange.tried.count() > 1);
                    exchange.upstream = Some(Box::new(connected.request(lease)));
                    Gateway::renew_deadline(context, connection, exchange);
                    return self.write_upstream(context, connection, exchange);
                }
                Err(ConnectFailed::Unreachable(errno)) => {
                    let why = format!("connecting: {errno}");
                    self.log_upstream_failure(context, exchange, &lease, &why);
                    self.end_lease(context, route.number, lease, UpstreamOutcome::Failed);
                }
                Err(ConnectFailed::Answer(status)) => {
                    self.end_lease(context, route.number, lease, UpstreamOutcome::Unknown);
                    return Break(ExchangeEnd::Fail(status));
                }
            }
        }
    }

    /// Handles an event on the socket of an upstream: sends more of the request, and passes on what
    /// has come of the response.
    pub(super) fn on_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        event: &Ready,
    ) -> ExchangeStep {
        if event.writable {
            self.write_upstream(context, connection, exchange)?;
        }
        let readable = event.readable || event.hangup;
        if !readable || !exchange.download.wanted {
            return Continue(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut body = Gateway::take_tail(exchange);
        let before = body.len();
        let read = self.read_upstream(context, connection, exchange, &mut buffer, &mut body);
        self.buffer = buffer;
        read?;
        self.check_and_forward(context, connection, exchange, body, before)?;
        self.send_if_eager(context, connection, exchange)
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
                upstream.codec.end_body(&upload.trailers);
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
                    let (stage, failure) = (AttemptStage::Unsent, (Status::BAD_GATEWAY, &*why));
                    return self.upstream_failed(context, connection, exchange, stage, failure);
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

    /// Reads until nothing is left or one piece is full. Body bytes are appended to `body`.
    fn read_upstream(
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
                    upstream.is_doubtful = false;
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
            step?;
            // What follows belongs to the other protocol, the end of this direction as well.
            let response = exchange.download.response.as_ref();
            if response.is_some_and(|response| response.status == SWITCHING_PROTOCOLS) {
                break;
            }
        }
        if read_bytes > 0 {
            Gateway::note_activity(context, connection, exchange);
            acknowledge(context, exchange);
        }
        Continue(())
    }

    /// Parses what has come of a response. Body bytes are appended to `body`.
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
                    self.on_response_head(context, exchange, response)?;
                }
                ResponseEvent::Head(ResponseAction::LocalRedirect(location)) => {
                    self.release_upstream(context, exchange, UpstreamOutcome::Answered, false);
                    return Break(InternalRedirect::local(location));
                }
                ResponseEvent::Body(bytes) => body.extend_from_slice(bytes),
                ResponseEvent::Stderr(bytes) => Gateway::relay_stderr(context, exchange, bytes),
                ResponseEvent::End(end) => {
                    exchange.download.ended = true;
                    exchange.download.trailers = upstream.codec.trailers();
                    let outcome = UpstreamOutcome::Answered;
                    self.release_upstream(context, exchange, outcome, end.reusable);
                    self.release_slot(exchange);
                }
            }
        }
        Continue(())
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

/// Acknowledges what has come of a response that is not complete. The kernel delays this by up to 40 ms. Without
/// `TCP_NODELAY`, as php-fpm has it, an upstream keeps back the last small part until then (Nagle's algorithm).
fn acknowledge(context: &LoopContext, exchange: &Exchange) {
    if let Some(upstream) = &exchange.upstream
        && upstream.conn.is_tcp
    {
        let socket = &upstream.conn.socket;
        // If it fails, the response comes later.
        let _ = context.tracer.call(Call::SocketOption, || {
            rustix::net::sockopt::set_tcp_quickack(socket, true)
        });
    }
}
