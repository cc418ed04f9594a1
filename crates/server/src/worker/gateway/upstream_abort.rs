//! Cancels FastCGI requests over keep-alive connections when their clients have left.
//!
//! A connection without keep-alive is simply closed. A keep-alive connection would be lost that
//! way, so the application gets FCGI_ABORT_REQUEST, and its remaining output is discarded until the
//! request ends. Then the connection is idle again. An application that ignores the abort is
//! disconnected after a timeout. There are never more such connections than `keepalive` allows.

use headway_config::HandlerConfig;
use headway_connection::{Exchange, UpstreamConn, UpstreamRequest};
use headway_event::{Interest, Ready};
use headway_gateway::fastcgi::Aborted;
use headway_gateway::upstream::UpstreamOutcome;
use headway_metrics::calls::Call;
use rustix::io::Errno;

use super::Gateway;
use super::upstream_conn::ConnUse;
use crate::worker::context::LoopContext;

/// How long an application may take to end a cancelled request.
const ABORT_TIMEOUT_MS: u64 = 5_000;
/// Most reads in a row, so that one connection does not delay others.
const READS_PER_EVENT_MAX: usize = 16;

/// A connection whose request has been cancelled.
pub(super) struct AbortedRequest {
    conn: UpstreamConn,
    codec: Aborted,
    route: usize,
    upstream: usize,
    until_ms: u64,
}

/// State of a cancelled request after a step.
enum AbortProgress {
    /// The request has not ended yet.
    Open,
    /// The connection can be reused.
    Reusable,
    /// The connection cannot be reused.
    Closed,
}

impl Gateway {
    /// When the next cancelled request times out.
    pub(super) fn aborts_next_ms(&self) -> Option<u64> {
        self.aborts.iter().map(|one| one.until_ms).min()
    }

    fn aborts_at(&self, route: usize, upstream: usize) -> usize {
        let is_there = |one: &&AbortedRequest| one.route == route && one.upstream == upstream;
        self.aborts.iter().filter(is_there).count()
    }
}

impl Gateway {
    /// The client has left: cancels its request if the connection has keep-alive.
    pub(super) fn abort_upstream(&mut self, context: &mut LoopContext, exchange: &mut Exchange) {
        let route = context.routes.get(exchange.program.route).clone();
        let HandlerConfig::Upstreams(upstreams) = &route.location.handler else {
            return;
        };
        let may = |upstream: &UpstreamRequest| {
            upstream.started && !upstream.write_closed && upstreams.keepalive > 0
        };
        if !exchange.upstream.as_deref().is_some_and(may) {
            return;
        }
        let Some(upstream) = exchange.upstream.take() else {
            return;
        };
        let UpstreamRequest {
            codec, conn, lease, ..
        } = *upstream;
        let upstream = lease.upstream();
        self.end_lease(context, route.number, lease, UpstreamOutcome::Unknown);
        let others = self.aborts_at(route.number, upstream);
        let codec = codec
            .abort()
            .filter(|_| others < upstreams.keepalive as usize);
        match codec {
            Some(codec) => {
                self.assign_conn(conn.token, ConnUse::Aborted);
                context.counters.upstream_aborts += 1;
                self.keep_aborted(
                    context,
                    AbortedRequest {
                        conn,
                        codec,
                        route: route.number,
                        upstream,
                        until_ms: context.now_ms + ABORT_TIMEOUT_MS,
                    },
                );
            }
            None => self.close_upstream_conn(context, conn),
        }
    }

    /// Handles an event on a connection with a cancelled request.
    pub(super) fn on_aborted(&mut self, context: &mut LoopContext, event: &Ready) {
        let mut all = self.aborts.iter();
        let Some(at) = all.position(|one| one.conn.token == event.token) else {
            return;
        };
        let mut one = self.aborts.swap_remove(at);
        let end = match Gateway::write_aborted(context, &mut one) {
            AbortProgress::Open => self.read_aborted(context, &mut one),
            other => other,
        };
        match end {
            AbortProgress::Open => self.keep_aborted(context, one),
            AbortProgress::Reusable => self.end_aborted(context, one, true),
            AbortProgress::Closed => self.end_aborted(context, one, false),
        }
    }

    fn write_aborted(context: &LoopContext, one: &mut AbortedRequest) -> AbortProgress {
        while !one.codec.unsent().is_empty() {
            let written = context.tracer.call(Call::UpstreamWrite, || {
                rustix::io::write(&one.conn.socket, one.codec.unsent())
            });
            match written {
                Ok(count) => one.codec.sent(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return AbortProgress::Closed,
            }
        }
        AbortProgress::Open
    }

    fn read_aborted(
        &mut self,
        context: &mut LoopContext,
        one: &mut AbortedRequest,
    ) -> AbortProgress {
        for _ in 0..READS_PER_EVENT_MAX {
            let buffer = &mut self.buffer;
            let read = context.tracer.call(Call::UpstreamRead, || {
                rustix::io::read(&one.conn.socket, &mut buffer[..])
            });
            match read {
                Ok(count @ 1..) => match one.codec.feed(&buffer[..count]) {
                    Ok(None) => {}
                    Ok(Some(true)) => return AbortProgress::Reusable,
                    Ok(Some(false)) | Err(_) => return AbortProgress::Closed,
                },
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return AbortProgress::Open,
                Ok(_) | Err(_) => return AbortProgress::Closed,
            }
        }
        AbortProgress::Open
    }

    /// Continues to wait; for room to write only while there is something to send.
    fn keep_aborted(&mut self, context: &mut LoopContext, mut one: AbortedRequest) {
        let wanted = match one.codec.unsent().is_empty() {
            true => Interest::READ,
            false => Interest::BOTH,
        };
        Gateway::watch_upstream_conn(context, &mut one.conn, Some(wanted));
        match one.conn.interest == Some(wanted) {
            true => self.aborts.push(one),
            // Without an event registration its output would go unnoticed.
            false => self.end_aborted(context, one, false),
        }
    }

    fn end_aborted(&mut self, context: &mut LoopContext, one: AbortedRequest, reusable: bool) {
        self.put_idle(context, one.route, one.upstream, one.conn, reusable);
    }

    /// Runs once per loop iteration: closes connections whose cancelled request has timed out.
    pub(super) fn maintain_aborted(&mut self, context: &mut LoopContext) {
        let now_ms = context.now_ms;
        while let Some(at) = self.aborts.iter().position(|one| now_ms >= one.until_ms) {
            let one = self.aborts.swap_remove(at);
            self.end_aborted(context, one, false);
        }
    }
}
