//! The worker's side of the access log: lines go into a bounded queue, and batches to the log
//! process.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use headway_debox::Call;
use headway_http::Head;

use super::Worker;
use crate::access_log::{LogLine, LogQueue};
use crate::config::LogFormat;
use crate::connection::Connection;
use crate::request::LogRecord;

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

    /// Switches to a new log process; queued lines go there.
    pub(super) fn reconnect(&mut self, socket: OwnedFd) {
        self.socket = socket;
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.queue.next_ms()
    }

    /// The numbers of lines sent and lines dropped.
    pub(super) fn lines(&self) -> (u64, u64) {
        (self.queue.lines(), self.queue.dropped())
    }
}

impl Worker {
    /// Starts the clock of the request's duration: its header is complete.
    pub(super) fn start_request_timer(&self, connection: &mut Connection) {
        connection.started = self.log.as_ref().map(|_| Instant::now());
    }

    /// Keeps what the log line needs of a request until its response is finished.
    pub(super) fn record(&mut self, connection: &mut Connection, head: &Head<'_>) {
        if self.log.is_some() {
            connection.record = Some(Box::new(LogRecord::new(head)));
        }
    }

    /// Logs the response that was just finished. A request that could not be parsed is logged with
    /// its status only.
    pub(super) fn write_log(&mut self, connection: &mut Connection) {
        let record = connection.record.take();
        let Some(log) = &mut self.log else { return };
        let record = record.as_deref();
        let outgoing = &connection.outgoing;
        let line = LogLine {
            client: connection.client,
            time_ms: self.date.second as u64 * 1000,
            method: record.map_or(b"", |record| record.method.as_bytes()),
            target: record.map_or(b"", LogRecord::target),
            version: record.map_or("", |record| record.version),
            status: outgoing.status,
            bytes: outgoing.sent_bytes.saturating_sub(outgoing.head_bytes),
            referer: record.and_then(|record| record.referer.as_deref()),
            user_agent: record.and_then(|record| record.user_agent.as_deref()),
            duration_us: connection
                .started
                .map_or(0, |at| at.elapsed().as_micros() as u64),
        };
        log.queue.push(&line, self.now_ms);
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
