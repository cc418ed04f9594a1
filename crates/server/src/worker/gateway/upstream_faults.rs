//! What goes wrong between the server and an upstream: it is unreachable, disconnects, or violates its
//! protocol. Another upstream is tried if repeating the request is safe. Otherwise the client gets an
//! error response.

use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::AsFd;

use headway_config::{ErrorLevel, HandlerConfig, Location, Protocol};
use headway_connection::{Connection, Exchange, UpstreamRequest};
use headway_gateway::upstream::{AttemptStage, Lease, UpstreamOutcome, is_idempotent, may_retry};
use headway_gateway::{CodecError, InvalidResponse};
use headway_http::Status;
use headway_metrics::calls::Call;
use headway_os::socket::unacknowledged_ms;
use headway_spawner::escape_control;

use super::{ExchangeEnd, ExchangeStep, Gateway};
use crate::worker::context::LoopContext;

/// No kernel delays an acknowledgement for so long.
const LIFE_TIMEOUT_MIN_MS: u64 = 1_000;
/// The longest clock tick of a kernel.
const TICK_MS: u64 = 10;

impl Gateway {
    /// Handles the failure of an upstream: tries another one if repeating the request is safe.
    pub(super) fn upstream_failed(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        progressed: AttemptStage,
        (status, why): (Status, &str),
    ) -> ExchangeStep {
        let Some(upstream) = &exchange.upstream else {
            return Break(ExchangeEnd::Fail(status));
        };
        let upload = &exchange.upload;
        // The chunk that a helper is reading would be taken for the start of the body.
        let is_on_disk = upload.spooled.is_some() && !upload.reading_back;
        let body_is_kept = is_on_disk || (upstream.body_bytes == 0 && !upload.discarded);
        let may_repeat = may_retry(exchange.request.head.method(), progressed, body_is_kept);
        let ended_idle = upstream.reused && progressed != AttemptStage::Answered;
        if !(ended_idle && may_repeat) {
            self.log_upstream_failure(context, exchange, &upstream.lease, why);
        }
        let outcome = match ended_idle {
            // Not a failure: the upstream closed the connection just when it was reused.
            true => {
                exchange.tried.forget(upstream.lease.upstream());
                exchange.needs_new_conn = true;
                UpstreamOutcome::Unknown
            }
            false => UpstreamOutcome::Failed,
        };
        self.release_upstream(context, exchange, outcome, false);
        if !may_repeat {
            return Break(ExchangeEnd::Fail(status));
        }
        if exchange.upload.spooled.is_some() {
            exchange.upload.rewind();
        }
        self.try_upstreams(context, connection, exchange, status)
    }

    /// An upstream has not come up to a timeout at this stage.
    pub(super) fn upstream_timed_out(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        (stage, why): (AttemptStage, &str),
    ) -> ExchangeStep {
        let failure = (Status::GATEWAY_TIMEOUT, why);
        let step = self.upstream_failed(context, connection, exchange, stage, failure);
        let is_late = matches!(step, Break(ExchangeEnd::Fail(Status::GATEWAY_TIMEOUT)));
        context.counters.handler_timeouts += u64::from(is_late);
        step
    }

    /// How long an upstream may take to show that it is still there, after its connection was idle.
    pub(super) fn life_timeout_ms(location: &Location) -> u64 {
        let connect_ms = location.connect_timeout_ms();
        connect_ms.max(LIFE_TIMEOUT_MIN_MS).min(location.timeout_ms)
    }

    /// A connection that was idle has brought nothing for as long as connecting may take. If the
    /// upstream has not even acknowledged the request, the connection has died without a reset, as
    /// after a power failure or behind a firewall which has forgotten it. Then its other idle
    /// connections have, too.
    pub(super) fn check_idle_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let route = exchange.program.route;
        let Some(upstream) = &mut exchange.upstream else {
            return Continue(());
        };
        let location = &context.routes.get(route).location;
        let waited_ms = Gateway::life_timeout_ms(location);
        let unacknowledged = context.tracer.call(Call::UpstreamInfo, || {
            unacknowledged_ms(upstream.conn.socket.as_fd())
        });
        let is_dead =
            matches!(unacknowledged, Ok(Some(ms)) if u64::from(ms) + TICK_MS >= waited_ms);
        if !is_dead {
            upstream.is_doubtful = false;
            // The timeout began with the request.
            let rest_ms = location.timeout_ms - waited_ms;
            let deadline_ms = (context.now_ms + rest_ms).min(exchange.end_ms);
            context.deadlines.set(connection.slot(), deadline_ms);
            return Continue(());
        }
        let number = upstream.lease.upstream();
        while let Some(conn) = self.pool(route).and_then(|pool| pool.take_any_idle(number)) {
            self.close_upstream_conn(context, conn);
        }
        let failure = (AttemptStage::Sent, "does not acknowledge");
        self.upstream_timed_out(context, connection, exchange, failure)
    }

    /// Counts and reports the failure of an upstream.
    pub(super) fn log_upstream_failure(
        &mut self,
        context: &mut LoopContext,
        exchange: &Exchange,
        lease: &Lease,
        why: &str,
    ) {
        context.counters.upstream_failures += 1;
        let route = exchange.program.route;
        let pool = self.pools[route].as_ref();
        let address = pool.and_then(|pool| pool.address(lease));
        if let Some(address) = address {
            let text = format!("upstream {address}: {why}");
            context.notice_of(ErrorLevel::Error, (None, &exchange.request), text);
        }
    }

    /// The connection was reset. An upstream that is killed before it has read the whole request
    /// resets its connection, but its response may still be complete if the length was declared.
    pub(super) fn upstream_reset(
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

    pub(super) fn upstream_closed(
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
                Continue(())
            }
        }
    }

    /// The upstream violated the protocol, rejected the request or closed the connection. An
    /// invalid CGI-style response is the script's mistake and does not count against the FastCGI or
    /// SCGI server; for a proxied upstream it does.
    pub(super) fn upstream_protocol_error(
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
        matches!(&location.handler, HandlerConfig::Upstreams(upstreams) if upstreams.protocol == Protocol::Proxy)
    }

    /// Logs standard error of a FastCGI application: one message per line, control characters
    /// escaped.
    pub(super) fn relay_stderr(context: &mut LoopContext, exchange: &Exchange, bytes: &[u8]) {
        let name = escape_control(&exchange.program.file);
        for line in bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let text = format!("{name}: {}", line.escape_ascii());
            context.notice_of(ErrorLevel::Error, (None, &exchange.request), text);
        }
    }
}
