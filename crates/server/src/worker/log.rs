//! The worker's end of the access log: lines go into a bounded queue, batches to the log process.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use headway_debox::Call;
use headway_http::Head;

use super::Worker;
use crate::config::LogFormat;
use crate::connection::Connection;
use crate::request::LogRecord;
use crate::tally::access_log::{LogLine, LogQueue};

/// Lines on their way to the log process.
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

    /// A new log process; the lines that wait go to it.
    pub(super) fn reconnect(&mut self, socket: OwnedFd) {
        self.socket = socket;
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.queue.next_ms()
    }

    /// Lines handed over and lines dropped.
    pub(super) fn lines(&self) -> (u64, u64) {
        (self.queue.lines(), self.queue.dropped())
    }
}

impl Worker {
    /// The head is complete: what the log calls the duration begins.
    pub(super) fn start_clock(&self, connection: &mut Connection) {
        connection.started = self.log.as_ref().map(|_| Instant::now());
    }

    /// Keeps what the log line needs of a request whose reply is still under way.
    pub(super) fn record(&mut self, connection: &mut Connection, head: &Head<'_>) {
        if self.log.is_some() {
            connection.record = Some(Box::new(LogRecord::new(head)));
        }
    }

    /// Logs the reply that has just left. A request that was never understood has no record, and
    /// stands in the log with its status alone.
    pub(super) fn write_log(&mut self, connection: &mut Connection) {
        let record = connection.record.take();
        let Some(log) = &mut self.log else { return };
        let record = record.as_deref();
        let outgoing = &connection.outgoing;
        let line = LogLine {
            client: connection.peer,
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

    /// Hands a batch over when one is due.
    pub(super) fn tend_log(&mut self) {
        if self
            .log
            .as_ref()
            .is_some_and(|log| log.queue.due(self.now_ms))
        {
            self.flush_log();
        }
    }

    /// Hands over what there is.
    pub(super) fn flush_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        self.tracer.call(Call::LogSend, || {
            log.queue.flush(log.socket.as_fd(), self.now_ms)
        });
    }
}
