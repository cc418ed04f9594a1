//! Spans of sampled requests: a queue, and the socket to the span process.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use headway_connection::Connection;
use headway_metrics::calls::Call;
use headway_metrics::{RequestStage, StageClock};
use headway_otlp::{Span, SpanQueue};
use headway_request::Request;

use super::context::LoopContext;

/// Spans on their way to the span process. While there is none, they wait, up to the queue's limit.
pub(super) struct Spans {
    pub queue: SpanQueue,
    socket: Option<OwnedFd>,
}

impl Spans {
    pub(super) fn new() -> Spans {
        Spans {
            queue: SpanQueue::default(),
            socket: None,
        }
    }

    /// When to flush; never without a socket.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.socket.as_ref()?;
        self.queue.next_ms()
    }
}

impl LoopContext {
    /// Queues the span of a request that has ended, if its trace is sampled.
    pub(super) fn write_span(
        &mut self,
        (connection, clock): (&Connection, &StageClock),
        request: &Request,
        (status, duration_us): (u16, u64),
    ) {
        let Some(spans) = &mut self.spans else { return };
        let Some(trace) = request.trace.as_ref().filter(|trace| trace.is_sampled()) else {
            return;
        };
        let head = request.head.head();
        let target = request.target();
        let end = target.iter().position(|byte| *byte == b'?');
        let spent = |stage: RequestStage| Some((stage.as_str(), clock.spent_us(stage)?));
        let stages: Vec<_> = RequestStage::ALL.into_iter().filter_map(spent).collect();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let outgoing = &connection.outgoing;
        let span = Span {
            trace_id: trace.trace_id(),
            span_id: trace.request_id(),
            parent_id: trace.parent_id(),
            end_ns: since.map_or(0, |since| since.as_nanos() as u64),
            duration_us,
            method: head.method.as_str().as_bytes(),
            path: &target[..end.unwrap_or(target.len())],
            scheme: if connection.is_secure {
                "https"
            } else {
                "http"
            },
            host: head.host,
            version: match (&connection.stream, head.version.as_str()) {
                (Some(_), _) => "2",
                (None, text) => text.strip_prefix("HTTP/").unwrap_or(text),
            },
            client: connection.client,
            user_agent: head.user_agent,
            status,
            body_bytes: outgoing.sent_bytes.saturating_sub(outgoing.head_bytes),
            handler: request.handler.as_str(),
            stages: &stages,
        };
        spans.queue.push_with(|out| span.write(out), self.now_ms);
    }

    /// Switches to a new span process.
    pub(super) fn connect_spans(&mut self, socket: OwnedFd) {
        if let Some(spans) = &mut self.spans {
            spans.socket = Some(socket);
        }
    }

    /// Sends a batch when one is due.
    pub(super) fn maintain_spans(&mut self) {
        let is_due = |spans: &Spans| spans.queue.due(self.now_ms);
        if self.spans.as_ref().is_some_and(is_due) {
            self.flush_spans();
        }
    }

    /// Sends all queued spans.
    pub(super) fn flush_spans(&mut self) {
        let Some(spans) = &mut self.spans else { return };
        if let Some(socket) = &spans.socket {
            let now_ms = self.now_ms;
            self.tracer
                .call(Call::LogSend, || spans.queue.flush(socket.as_fd(), now_ms));
        }
    }
}
