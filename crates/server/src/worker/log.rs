//! The worker's side of the access log: lines go into a bounded queue, and batches to the log
//! process.

use std::os::fd::{AsFd, OwnedFd};

use headway_access_log::{LogLine, LogQueue, LogTls};
use headway_config::LogFormat;
use headway_connection::Connection;
use headway_metrics::calls::Call;
use headway_request::Request;

use super::context::LoopContext;

/// The queue of lines and the socket to the log process.
pub(super) struct Log {
    queue: LogQueue,
    socket: OwnedFd,
}

impl Log {
    pub(super) fn new(format: LogFormat, socket: OwnedFd) -> Self {
        Self {
            queue: LogQueue::new(format),
            socket,
        }
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.queue.next_ms()
    }

    /// The numbers of lines sent and lines dropped.
    pub(super) fn lines(&self) -> (u64, u64) {
        (self.queue.lines(), self.queue.dropped())
    }
}

impl LoopContext {
    /// Logs a response that was just finished or aborted. Of a request that could not be parsed the
    /// first line is logged.
    pub(super) fn write_log(
        &mut self,
        connection: &Connection,
        request: &Request,
        status: u16,
        duration_us: u64,
    ) {
        let Some(log) = &mut self.log else { return };
        let head = request.is_parsed().then(|| request.head.head());
        let head = head.as_ref();
        let outgoing = &connection.outgoing;
        let line = LogLine {
            client: connection.client,
            time_ms: self.unix_ms.max(0) as u64,
            host: head.and_then(|head| head.host),
            method: head.map_or(b"", |head| head.method.as_str().as_bytes()),
            target: match head {
                Some(_) => request.target(),
                None => &request.first_line,
            },
            version: head.map_or("", |head| head.version.as_str()),
            status,
            bytes: outgoing.sent_bytes.saturating_sub(outgoing.head_bytes),
            referer: head.and_then(|head| head.referer),
            user_agent: head.and_then(|head| head.user_agent),
            duration_us,
            tls: connection.tls_summary.as_deref().map(|tls| LogTls {
                version: tls.version(),
                cipher: tls.cipher_suite(),
                server_name: tls.server_name.as_deref(),
                client: tls.certificate.as_ref().map(|one| one.subject.as_str()),
            }),
            trace_id: request.trace.as_ref().map(|trace| trace.trace_id()),
            request_id: request.trace.as_ref().map(|trace| trace.request_id()),
            reason: request.reject_reason,
        };
        log.queue.push(&line, self.now_ms);
    }

    /// Switches to a new log process; queued lines go there.
    pub(super) fn reconnect_log(&mut self, socket: OwnedFd) {
        if let Some(log) = &mut self.log {
            log.socket = socket;
        }
    }

    /// Sends a batch when one is due.
    pub(super) fn maintain_log(&mut self) {
        if self
            .log
            .as_ref()
            .is_some_and(|log| log.queue.due(self.now_ms))
        {
            self.flush_log();
        }
    }

    /// Sends all queued lines.
    pub(super) fn flush_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        self.tracer.call(Call::LogSend, || {
            log.queue.flush(log.socket.as_fd(), self.now_ms)
        });
    }
}
