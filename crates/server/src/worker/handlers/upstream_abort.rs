//! Cancels FastCGI requests over keep-alive connections when their clients have left.
//!
//! A connection without keep-alive is simply closed. A keep-alive connection would be lost that
//! way, so the application gets FCGI_ABORT_REQUEST, and its remaining output is discarded until the
//! request ends. Then the connection is idle again. An application that ignores the abort is
//! disconnected after a timeout. There are never more such connections than `keepalive` allows.

use headway_debox::Call;
use headway_event::{Interest, Ready};
use headway_gateway::fastcgi::Aborted;
use headway_gateway::upstream::UpstreamOutcome;
use rustix::io::Errno;

use super::Handlers;
use super::upstream_conn::ConnUse;
use crate::config::Handler;
use crate::connection::{Exchange, UpstreamConn, UpstreamRequest};
use crate::worker::Worker;

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

impl Handlers {
    /// When the next cancelled request times out.
    pub(super) fn aborts_next_ms(&self) -> Option<u64> {
        self.aborts.iter().map(|one| one.until_ms).min()
    }

    fn aborts_at(&self, route: usize, upstream: usize) -> usize {
        let is_there = |one: &&AbortedRequest| one.route == route && one.upstream == upstream;
        self.aborts.iter().filter(is_there).count()
    }
}

impl Worker {
    /// The client has left: cancels its request if the connection has keep-alive.
    pub(super) fn abort_upstream(&mut self, exchange: &mut Exchange) {
        let route = self.routes.get(exchange.program.route).clone();
        let Handler::Upstreams(upstreams) = &route.location.handler else {
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
        self.end_lease(route.number, lease, UpstreamOutcome::Unknown);
        let others = self
            .handlers
            .as_ref()
            .map_or(0, |all| all.aborts_at(route.number, upstream));
        let codec = codec
            .abort()
            .filter(|_| others < upstreams.keepalive as usize);
        match (codec, &mut self.handlers) {
            (Some(codec), Some(handlers)) => {
                handlers.upstream_conns.assign(conn.token, ConnUse::Aborted);
                self.counters.upstream_aborts += 1;
                self.keep_aborted(AbortedRequest {
                    conn,
                    codec,
                    route: route.number,
                    upstream,
                    until_ms: self.now_ms + ABORT_TIMEOUT_MS,
                });
            }
            _ => self.close_upstream_conn(conn),
        }
    }

    /// Handles an event on a connection with a cancelled request.
    pub(super) fn on_aborted(&mut self, event: &Ready) {
        let Some(handlers) = &mut self.handlers else {
            return;
        };
        let mut all = handlers.aborts.iter();
        let Some(at) = all.position(|one| one.conn.token == event.token) else {
            return;
        };
        let mut one = handlers.aborts.swap_remove(at);
        let end = match self.write_aborted(&mut one) {
            AbortProgress::Open => self.read_aborted(&mut one),
            other => other,
        };
        match end {
            AbortProgress::Open => self.keep_aborted(one),
            AbortProgress::Reusable => self.end_aborted(one, true),
            AbortProgress::Closed => self.end_aborted(one, false),
        }
    }

    fn write_aborted(&self, one: &mut AbortedRequest) -> AbortProgress {
        while !one.codec.unsent().is_empty() {
            let written = self.tracer.call(Call::UpstreamWrite, || {
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

    fn read_aborted(&mut self, one: &mut AbortedRequest) -> AbortProgress {
        let Some(handlers) = &mut self.handlers else {
            return AbortProgress::Closed;
        };
        for _ in 0..READS_PER_EVENT_MAX {
            let buffer = &mut handlers.buffer;
            let read = self.tracer.call(Call::UpstreamRead, || {
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
    fn keep_aborted(&mut self, mut one: AbortedRequest) {
        let wanted = match one.codec.unsent().is_empty() {
            true => Interest::READ,
            false => Interest::BOTH,
        };
        self.watch_upstream_conn(&mut one.conn, Some(wanted));
        match &mut self.handlers {
            Some(handlers) if one.conn.interest == Some(wanted) => handlers.aborts.push(one),
            // Without an event registration its output would go unnoticed.
            _ => self.end_aborted(one, false),
        }
    }

    fn end_aborted(&mut self, one: AbortedRequest, reusable: bool) {
        self.put_idle(one.route, one.upstream, one.conn, reusable);
    }

    /// Runs once per loop iteration: closes connections whose cancelled request has timed out.
    pub(super) fn maintain_aborted(&mut self) {
        let now_ms = self.now_ms;
        while let Some(handlers) = &mut self.handlers
            && let Some(at) = handlers
                .aborts
                .iter()
                .position(|one| now_ms >= one.until_ms)
        {
            let one = handlers.aborts.swap_remove(at);
            self.end_aborted(one, false);
        }
    }
}
