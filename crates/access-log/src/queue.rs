//! The queue of access log lines from an event loop to the log process.
//!
//! The loop formats a line into a buffer and now and then sends the buffer as one packet. When the
//! log process does not keep up, whole lines are dropped and counted; a client never waits for its
//! log line.

use headway_config::LogFormat;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use super::LogLine;

/// Most lines of a packet: well below the size of the socket's buffer, so that several fit. Before them is the number
/// of their file.
pub const PACKET_BYTES_MAX: usize = 60 * 1024;
/// Batch size that is worth a system call.
const BATCH_BYTES: usize = 32 * 1024;
/// Longest time that a line waits in the worker.
const BATCH_AGE_MS: u64 = 200;
/// Lines that a worker buffers for a log process that does not read.
const PENDING_BYTES_MAX: usize = 256 * 1024;
/// Interval between attempts while the socket is full.
const RETRY_INTERVAL_MS: u64 = 20;

/// Outcome of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Everything was sent.
    All,
    /// The socket is full. The rest waits, up to the queue's limit.
    Full,
    /// The log process has ended. The lines wait for its replacement, up to the queue's limit.
    Gone,
}

/// Lines on their way from a worker to the log process.
///
/// ```
/// use headway_access_log::{LogLine, LogQueue, LogStages};
/// use headway_config::LogFormat;
/// let mut queue = LogQueue::new(LogFormat::Common);
/// let line = LogLine {
///     client: "192.0.2.1:4000".parse().unwrap(), time_ms: 971_186_136_000, host: None,
///     method: b"GET", target: b"/", version: "HTTP/1.1", status: 200, bytes: 5,
///     referer: None, user_agent: None, duration_us: 80, upstream: None,
///     stages: LogStages::default(), tls: None, trace_id: None, request_id: None, reason: None,
/// };
/// queue.push(&line, 0);
/// assert!(!queue.due(100), "a batch may still grow");
/// assert!(queue.due(200), "but a line does not wait for long");
/// ```
#[derive(Debug)]
pub struct LogQueue {
    /// The number of the file, which is the first byte of each packet.
    file: u8,
    format: LogFormat,
    /// Whole lines only.
    pending: Vec<u8>,
    /// When to flush next; `None` while nothing is pending.
    due_ms: Option<u64>,
    /// Whether the last attempt found the socket full or the log process ended.
    backing_off: bool,
    lines: u64,
    dropped: u64,
}

impl Default for LogQueue {
    fn default() -> LogQueue {
        LogQueue::new(LogFormat::default())
    }
}

impl LogQueue {
    /// An empty queue for the first file of the log.
    pub fn new(format: LogFormat) -> LogQueue {
        LogQueue::of_file(0, format)
    }

    /// An empty queue for the file with this number.
    pub fn of_file(file: u8, format: LogFormat) -> LogQueue {
        let pending = Vec::with_capacity(BATCH_BYTES + PACKET_BYTES_MAX);
        LogQueue {
            file,
            format,
            pending,
            due_ms: None,
            backing_off: false,
            lines: 0,
            dropped: 0,
        }
    }

    /// Adds a line, or drops and counts it when the queue is full.
    pub fn push(&mut self, line: &LogLine<'_>, now_ms: u64) {
        let before = self.pending.len();
        line.write(&self.format, &mut self.pending);
        self.pushed(before, now_ms);
    }

    /// The same with a line that `write` appends, with its newline. It has to fit in a packet.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>), now_ms: u64) {
        let before = self.pending.len();
        write(&mut self.pending);
        self.pushed(before, now_ms);
    }

    fn pushed(&mut self, before: usize, now_ms: u64) {
        if self.pending.len() > PENDING_BYTES_MAX {
            self.pending.truncate(before);
            self.dropped += 1;
            return;
        }
        if self.due_ms.is_none() {
            self.due_ms = Some(now_ms + BATCH_AGE_MS);
        }
        if self.pending.len() >= BATCH_BYTES && !self.backing_off {
            self.due_ms = Some(now_ms);
        }
    }

    /// Whether the queue is to be flushed now. Costs two comparisons, which is cheap enough for
    /// every iteration.
    pub fn due(&self, now_ms: u64) -> bool {
        self.due_ms.is_some_and(|due| due <= now_ms)
    }

    /// When the next flush is due, for the loop's timeout.
    pub fn next_ms(&self) -> Option<u64> {
        self.due_ms
    }

    /// Sends pending lines to the log process; never blocks.
    pub fn flush(&mut self, socket: BorrowedFd<'_>, now_ms: u64) -> Flushed {
        let (sent, flushed) = self.send_packets(socket);
        self.lines += newlines(&self.pending[..sent]);
        self.pending.drain(..sent);
        self.backing_off = flushed != Flushed::All;
        self.due_ms = self.backing_off.then_some(now_ms + RETRY_INTERVAL_MS);
        flushed
    }

    fn send_packets(&self, socket: BorrowedFd<'_>) -> (usize, Flushed) {
        let mut sent = 0;
        while sent < self.pending.len() {
            let packet = &self.pending[sent..sent + packet_length(&self.pending[sent..])];
            let parts = [
                IoSlice::new(std::slice::from_ref(&self.file)),
                IoSlice::new(packet),
            ];
            let mut no_descriptors = SendAncillaryBuffer::default();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(socket, &parts, &mut no_descriptors, flags) {
                // A packet is taken whole or not at all.
                Ok(_) => sent += packet.len(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return (sent, Flushed::Full),
                Err(_) => return (sent, Flushed::Gone),
            }
        }
        (sent, Flushed::All)
    }

    /// Lines passed to the log process so far.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Lines dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Length of as many whole lines as fit in a packet. One line always fits.
fn packet_length(lines: &[u8]) -> usize {
    if lines.len() <= PACKET_BYTES_MAX {
        return lines.len();
    }
    let end = lines[..PACKET_BYTES_MAX]
        .iter()
        .rposition(|byte| *byte == b'\n');
    end.map_or(PACKET_BYTES_MAX, |end| end + 1)
}

pub(super) fn newlines(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::line;
    use std::os::fd::AsFd;

    fn pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        let control = headway_control::Control::pair().unwrap();
        (control.0.into_inner(), control.1.into_inner())
    }

    #[test]
    fn log_lines_are_complete_when_they_need_several_packets() {
        let (worker, log) = pair();
        let mut queue = LogQueue::new(LogFormat::Combined);
        (0..600).for_each(|_| queue.push(&line(), 0));
        assert!(queue.due(0), "a long batch is due at once");
        assert_eq!(queue.flush(worker.as_fd(), 0), Flushed::All);
        assert_eq!(
            (queue.lines(), queue.dropped(), queue.next_ms()),
            (600, 0, None)
        );
        drop(worker);
        let (mut buffer, mut lines) = (vec![0; PACKET_BYTES_MAX + 1], 0);
        loop {
            let flags = rustix::net::RecvFlags::empty();
            let (bytes, _) = rustix::net::recv(&log, &mut buffer[..], flags).unwrap();
            if bytes == 0 {
                break;
            }
            assert!(bytes <= PACKET_BYTES_MAX + 1 && buffer[bytes - 1] == b'\n');
            assert_eq!(buffer[0], 0, "the number of the file");
            lines += newlines(&buffer[1..bytes]);
        }
        assert_eq!(lines, 600);
    }

    #[test]
    fn log_lines_are_dropped_and_counted_without_a_reader() {
        let (worker, log) = pair();
        let mut queue = LogQueue::new(LogFormat::Combined);
        let (mut pushed, mut full) = (0, false);
        for now_ms in 0..20_000 {
            queue.push(&line(), now_ms);
            pushed += 1;
            if queue.due(now_ms) {
                full |= queue.flush(worker.as_fd(), now_ms) == Flushed::Full;
            }
            assert!(queue.pending.len() <= PENDING_BYTES_MAX);
        }
        assert!(full && queue.dropped() > 0 && queue.lines() > 0);
        assert_eq!(
            queue.lines() + queue.dropped() + newlines(&queue.pending),
            pushed
        );
        drop(log);
    }

    #[test]
    fn full_log_socket_is_retried_after_the_retry_interval() {
        let (worker, _log) = pair();
        let mut queue = LogQueue::new(LogFormat::Combined);
        while queue.flush(worker.as_fd(), 0) == Flushed::All {
            (0..300).for_each(|_| queue.push(&line(), 0));
        }
        queue.push(&line(), 1);
        assert!(!queue.due(1) && queue.due(RETRY_INTERVAL_MS));
    }

    #[test]
    fn log_lines_stay_queued_until_the_log_process_is_restarted() {
        let (worker, log) = pair();
        drop(log);
        let mut queue = LogQueue::new(LogFormat::Combined);
        queue.push(&line(), 0);
        assert_eq!(queue.flush(worker.as_fd(), 200), Flushed::Gone);
        let (worker, _log) = pair();
        assert_eq!(queue.flush(worker.as_fd(), 400), Flushed::All);
        assert_eq!((queue.lines(), queue.dropped()), (1, 0));
    }
}
