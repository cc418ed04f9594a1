//! The worker's side of the access log: lines go into a bounded queue, and batches to the log
//! process.

use std::os::fd::{AsFd, OwnedFd};

use headway_access_log::{LogLine, LogQueue, LogStages, LogTls};
use headway_config::{Host, LogConfig};
use headway_connection::Connection;
use headway_metrics::calls::Call;
use headway_metrics::{RequestStage, StageClock};
use headway_request::Request;

use super::context::LoopContext;

/// The queues of lines and the socket to the log process.
pub(super) struct Log {
    /// By the number of the file.
    queues: Vec<LogQueue>,
    /// The number for each host.
    of_hosts: Vec<Option<u8>>,
    socket: OwnedFd,
}

impl Log {
    pub(super) fn new(log: &LogConfig, hosts: &[Host], socket: OwnedFd) -> Self {
        let files = (0..).zip(log.files());
        Self {
            queues: files
                .map(|(number, file)| LogQueue::of_file(number, file.format))
                .collect(),
            of_hosts: hosts.iter().map(|host| log.number_of(host)).collect(),
            socket,
        }
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.queues.iter().filter_map(LogQueue::next_ms).min()
    }

    /// The queue for a request. One that could not be parsed is of the first file.
    fn queue(&mut self, request: &Request) -> Option<&mut LogQueue> {
        let number = match request.is_parsed() {
            true => (*self.of_hosts.get(request.virtual_host.0 as usize)?)?,
            false => 0,
        };
        self.queues.get_mut(usize::from(number))
    }

    /// The numbers of lines sent and lines dropped.
    pub(super) fn lines(&self) -> (u64, u64) {
        let lines = self.queues.iter().map(LogQueue::lines).sum();
        (lines, self.queues.iter().map(LogQueue::dropped).sum())
    }
}

impl LoopContext {
    /// Logs a response that was just finished or aborted. Of a request that could not be parsed the
    /// first line is logged.
    pub(super) fn write_log(
        &mut self,
        connection: &Connection,
        request: &Request,
        (status, duration_us): (u16, u64),
        stages: &StageClock,
    ) {
        let Some(log) = &mut self.log else { return };
        let upstream = request.upstream.as_ref().map(ToString::to_string);
        let spent = |stage| stages.spent_us(stage);
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
            upstream: upstream.as_deref(),
            stages: LogStages {
                queue_us: spent(RequestStage::Queue),
                lookup_us: spent(RequestStage::Lookup),
                upstream_us: spent(RequestStage::Upstream),
                send_us: spent(RequestStage::Send),
            },
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
        if let Some(queue) = log.queue(request) {
            queue.push(&line, self.now_ms);
        }
    }

    /// Switches to a new log process; queued lines go there.
    pub(super) fn reconnect_log(&mut self, socket: OwnedFd) {
        if let Some(log) = &mut self.log {
            log.socket = socket;
        }
    }

    /// Sends a batch when one is due.
    pub(super) fn maintain_log(&mut self) {
        let is_due = |log: &Log| log.queues.iter().any(|queue| queue.due(self.now_ms));
        if self.log.as_ref().is_some_and(is_due) {
            self.flush_log();
        }
    }

    /// Sends all queued lines.
    pub(super) fn flush_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        let pending = |queue: &&mut LogQueue| queue.next_ms().is_some();
        for queue in log.queues.iter_mut().filter(pending) {
            self.tracer.call(Call::LogSend, || {
                queue.flush(log.socket.as_fd(), self.now_ms)
            });
        }
    }
}
