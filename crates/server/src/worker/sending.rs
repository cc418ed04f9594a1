//! Sends responses as far as the socket, the write quantum and the page cache allow, and continues
//! them later. Every whole response passes [`LoopContext::start_response`], except cached ones, which
//! `files/static_file.rs` sends with one call, and errors after which the connection closes.

use std::ops::Range;
use std::os::fd::AsFd;
use std::rc::Rc;

use headway_config::{Config, SendOrder};
use headway_connection::{Connection, Next, Phase};
use headway_event::Interest;
use headway_files::{CHUNK_BYTES, Failure, Full, OpenFile, PREFETCH_BYTES};
use headway_http::Status;
use headway_metrics::Counters;
use headway_metrics::calls::Call;
use headway_request::{Outgoing, Request};
use headway_respond::ResponseContext;
use headway_send::{ChunkPool, Sealer, SendContext, SendFiles, SendProgress};

use super::Disposition;
use super::context::LoopContext;

/// After this many read-ins of a chunk that was evicted each time, a helper copies it instead.
pub(super) const READ_INS_MAX: u8 = 3;
/// After this many helper requests in all, the file is given up: it is one of sysfs, or is being
/// written all the time.
pub(super) const HELPER_REQUESTS_MAX: u8 = 2 * READ_INS_MAX;
/// Bytes of long responses sent in one round: while the events of an iteration are handled, or the
/// run queue. The rest waits for the next round, so that a short response does not wait until
/// hundreds of sockets are full.
const ROUND_BYTES_MAX: u64 = 4 << 20;
/// A sealed byte counts as this many bytes, since sealing takes longer.
const SEALED_WEIGHT: u64 = 8;
/// The most bytes that one TLS connection sends at a time. Sealing them takes about 0.1 ms.
const SEALED_QUANTUM_BYTES: u64 = 256 << 10;
/// Shorter responses are always sent at once.
const LONG_RESPONSE_BYTES: u64 = 64 << 10;

/// Less is sent without a look at the clock.
const TIMED_BYTES: u64 = 16 << 10;

/// The buffers and caches of the ways to send a file.
pub(super) struct Sender {
    /// Buffers for chunks of larger files.
    chunks: ChunkPool,
    /// What sends files in place of the configured method, in a research server.
    pub other: Option<Box<dyn SendFiles>>,
    /// What helpers should read ahead.
    prefetch: Vec<(Rc<OpenFile>, Range<u64>)>,
    /// Bytes sent in this round.
    round_bytes: u64,
    /// Long responses wait for the run queue, which the shortest one leaves first.
    sorts: bool,
    /// Whether this is the round of the run queue.
    is_queue_round: bool,
    /// Until when `send = "auto"` copies.
    copies_until_ms: u64,
}

impl Sender {
    pub(super) fn new(config: &Config, other: Option<Box<dyn SendFiles>>) -> Self {
        Self {
            chunks: ChunkPool::new(config.chunk_cache_max_bytes),
            other,
            prefetch: Vec::new(),
            round_bytes: 0,
            sorts: config.research.send_order == SendOrder::Shortest,
            is_queue_round: false,
            copies_until_ms: 0,
        }
    }

    /// `send = "auto"` copies all the time, because nothing shows a `sendfile` that sleeps.
    pub(super) fn always_copy(&mut self) {
        self.copies_until_ms = u64::MAX;
    }

    /// From here on long responses may be sent again: while events are handled.
    pub(super) fn begin_round(&mut self) {
        (self.round_bytes, self.is_queue_round) = (0, false);
    }

    /// The same while the run queue is handled. It has a round of its own, so that new responses cannot
    /// keep those in the queue from going on.
    pub(super) fn begin_queue_round(&mut self) {
        (self.round_bytes, self.is_queue_round) = (0, true);
    }

    /// Whether the run queue goes by the bytes left.
    pub(super) fn sorts(&self) -> bool {
        self.sorts
    }

    /// Whether long responses wait for the next round.
    pub(super) fn is_round_full(&self) -> bool {
        self.round_bytes >= ROUND_BYTES_MAX || self.sorts && !self.is_queue_round
    }

    /// Accounts for bytes that were sent in this round.
    pub(super) fn count_sent(&mut self, bytes: u64, is_sealed: bool) {
        self.round_bytes += match is_sealed {
            true => bytes * SEALED_WEIGHT,
            false => bytes,
        };
    }

    /// Whether files are sent from mappings.
    pub(super) fn maps_files(&self) -> bool {
        self.other.as_ref().is_some_and(|other| other.maps_files())
    }

    /// Bytes of `owed` that a helper reads at a time. The methods of the papers check and read each
    /// chunk by itself.
    fn read_in_bytes(&self, owed: Range<u64>) -> u64 {
        match &self.other {
            None => PREFETCH_BYTES.min(owed.end - owed.start),
            Some(_) => CHUNK_BYTES,
        }
    }

    /// Sets the gauges of a snapshot.
    pub(super) fn gauges(&self, counters: &mut Counters) {
        if let Some(other) = &self.other {
            other.gauges(counters);
        }
    }
}

impl LoopContext {
    /// Starts to send a response; without `eager_write` only once the socket is reported writable.
    pub(super) fn start_response(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        outgoing: Outgoing,
    ) -> Next {
        connection.outgoing = outgoing;
        connection.outgoing.method = request.method;
        self.enter_send(connection, &request);
        let progress = match self.config.research.eager_write {
            true => self.transmit_in_round(connection),
            false => SendProgress::SocketFull,
        };
        self.after_send(connection, request, progress)
    }

    /// Sends as much of the response as possible, and nothing of a long one after a full round.
    pub(super) fn transmit_in_round(&mut self, connection: &mut Connection) -> SendProgress {
        let is_long = connection.outgoing.bytes_left() >= LONG_RESPONSE_BYTES;
        if is_long && self.sender.is_round_full() {
            return SendProgress::QuantumSpent;
        }
        let before = connection.outgoing.sent_bytes;
        let progress = self.transmit(connection);
        let sent = connection.outgoing.sent_bytes - before;
        self.sender.count_sent(sent, connection.tls.is_some());
        progress
    }

    /// Counts the time of sending, if this number of bytes is long.
    pub(super) fn timed_send<T>(&mut self, bytes: u64, send: impl FnOnce(&mut Self) -> T) -> T {
        if bytes < TIMED_BYTES {
            return send(self);
        }
        let (begun_us, crypto_ns) = (self.clock.now_us(), self.crypto_ns);
        let result = send(self);
        let crypto_us = (self.crypto_ns - crypto_ns) / 1000;
        let elapsed_us = self.clock.now_us().saturating_sub(begun_us);
        self.sending_us += elapsed_us.saturating_sub(crypto_us);
        result
    }

    /// Sends as much of the response as possible. A response is counted when its first byte is
    /// sent: until then it can still be replaced by an error.
    pub(super) fn transmit(&mut self, connection: &mut Connection) -> SendProgress {
        let bytes = connection.outgoing.bytes_left();
        self.timed_send(bytes, |context| context.transmit_now(connection))
    }

    fn transmit_now(&mut self, connection: &mut Connection) -> SendProgress {
        let is_first = connection.outgoing.sent_bytes == 0;
        let quantum_bytes = match connection.tls {
            Some(_) => self.config.write_quantum_bytes.min(SEALED_QUANTUM_BYTES),
            None => self.config.write_quantum_bytes,
        };
        let mut context = SendContext {
            tracer: &self.tracer,
            residency: &self.residency,
            method: self.config.send,
            now_ms: self.now_ms,
            copies_until_ms: &mut self.sender.copies_until_ms,
            tls: connection.tls.as_deref_mut().map(|client| Sealer {
                client,
                buffer: &mut self.sealed,
                now_ms: self.now_ms,
                sealing_ns: &mut self.crypto_ns,
            }),
            stream: connection.stream.as_mut().map(|of| &mut of.stream),
            was_passed: connection.was_passed,
            without_more: false,
            chunks: &mut self.sender.chunks,
            write_size_hint: &mut connection.write_size_hint,
            quantum_bytes,
            counters: &mut self.counters,
            prefetch: &mut self.sender.prefetch,
            known_resident: None,
        };
        let progress = headway_send::send(
            &mut connection.outgoing,
            connection.socket.as_fd(),
            &mut context,
            self.sender.other.as_deref_mut(),
        );
        if is_first && connection.outgoing.sent_bytes > 0 {
            let (status, method) = (connection.outgoing.status, connection.outgoing.method);
            self.counters.http_requests.record(status, method);
        }
        progress
    }

    /// Decides what to do after an attempt to send.
    pub(super) fn after_send(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        progress: SendProgress,
    ) -> Next {
        match progress {
            SendProgress::Finished => return Next::Finished(request),
            SendProgress::SocketFull => self.watch(connection, Interest::WRITE),
            SendProgress::QuantumSpent => self.queue_turn(connection),
            SendProgress::NotResident(file, offset) => {
                return self.request_chunk(connection, request, &file, offset, false);
            }
            SendProgress::ResidencyUnknown(file, offset) => {
                return self.request_chunk(connection, request, &file, offset, true);
            }
            SendProgress::Unchecked(file, left) => {
                return self.check_sent(connection, request, &file, &left);
            }
            SendProgress::Changed if connection.outgoing.sent_bytes == 0 => {
                return self.start_again(connection, request);
            }
            SendProgress::Changed => {
                self.counters.chunks_changed += 1;
                return self.abort_response(connection, request, Status::SERVICE_UNAVAILABLE);
            }
            SendProgress::Unreadable(failure) => {
                self.counters.io_errors += u64::from(failure != Failure::Exhausted);
                return self.abort_response(connection, request, status_of(failure));
            }
            SendProgress::Disconnected => {
                self.counters.connections_reset += 1;
                return Next::Close(Some(request));
            }
        }
        self.deadlines
            .set(connection.slot(), self.now_ms + self.config.send_timeout_ms);
        Next::Wait(Phase::AwaitSend(request))
    }

    /// Continues to send: after the run queue, when the socket has room, or when a chunk was read.
    pub(super) fn continue_sending(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Next {
        let progress = self.transmit_in_round(connection);
        self.after_send(connection, request, progress)
    }

    /// Has a helper read the next chunk: into the page cache, or as a copy if the loop cannot tell
    /// what is resident or the chunk was evicted again and again.
    fn request_chunk(
        &mut self,
        connection: &mut Connection,
        mut request: Box<Request>,
        file: &Rc<OpenFile>,
        offset: u64,
        opaque: bool,
    ) -> Next {
        let times = request.count_helper_request(offset);
        let waiter = connection.waiter(&request);
        let owed = connection.outgoing.file_range().unwrap_or(offset..offset);
        let queued = if opaque || times > READ_INS_MAX {
            self.pool.submit_copy(file, owed.start, CHUNK_BYTES, waiter)
        } else {
            let length = self.sender.read_in_bytes(offset..owed.end);
            self.pool.submit_read_in(file, offset, length, Some(waiter))
        };
        match queued {
            Ok(()) => self.wait_for_helper(connection, request, Phase::AwaitChunk),
            Err(_) => self.abort_response(connection, request, Status::SERVICE_UNAVAILABLE),
        }
    }

    /// Has a helper compare what was sent with a file that has changed, and copy the next bytes.
    fn check_sent(
        &mut self,
        connection: &mut Connection,
        mut request: Box<Request>,
        file: &Rc<OpenFile>,
        left: &Range<u64>,
    ) -> Next {
        let sent = connection.outgoing.sent_prefix.as_ref();
        // The next of several ranges: a comparison knows one piece of the file.
        if !sent.is_some_and(|sent| sent.ends_at(left.start)) {
            return self.after_send(connection, request, SendProgress::Changed);
        }
        let times = request.count_helper_request(left.start);
        let waiter = connection.waiter(&request);
        let length = CHUNK_BYTES.min(left.end - left.start);
        let submitted = match &mut connection.outgoing.sent_prefix {
            Some(sent) if times <= HELPER_REQUESTS_MAX => {
                self.pool.submit_checked_copy(file, sent, length, waiter)
            }
            _ => Err(Full),
        };
        match submitted {
            Ok(()) => self.wait_for_helper(connection, request, Phase::AwaitChunk),
            Err(Full) => self.abort_response(connection, request, Status::SERVICE_UNAVAILABLE),
        }
    }

    /// The file has changed before anything was sent: the new version is sent.
    fn start_again(&mut self, connection: &mut Connection, mut request: Box<Request>) -> Next {
        self.counters.chunks_changed += 1;
        if request.count_helper_request(0) > HELPER_REQUESTS_MAX {
            return self.abort_response(connection, request, Status::SERVICE_UNAVAILABLE);
        }
        connection.outgoing.clear();
        Next::Start(request)
    }

    /// Has the router decide again, unless that has happened too often. Nothing has been sent.
    pub(super) fn route_again(
        &mut self,
        connection: &mut Connection,
        mut request: Box<Request>,
    ) -> Next {
        match request.count_helper_request(0) > HELPER_REQUESTS_MAX {
            true => self.send_overloaded(connection, request),
            false => Next::Start(request),
        }
    }

    /// Sends a helper's copy of the next bytes. The file is compared only after the copy was made,
    /// because the copy itself does not show that the file was rewritten.
    pub(super) fn send_copy(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        copy: &Rc<OpenFile>,
    ) -> Next {
        let progress = self.check_copy(&mut connection.outgoing, copy);
        if let Some(progress) = progress {
            return self.after_send(connection, request, progress);
        }
        connection.outgoing.substitute(copy.clone());
        self.continue_sending(connection, request)
    }

    /// Whether a copy may not be sent: the file has changed, or what was sent must be compared first.
    fn check_copy(&self, outgoing: &mut Outgoing, copy: &OpenFile) -> Option<SendProgress> {
        let (file, left) = (outgoing.file()?.clone(), outgoing.file_range()?);
        let Some(sent) = outgoing.sent_prefix.as_deref_mut() else {
            return match self.is_unchanged(&file) {
                Ok(true) => None,
                Ok(false) => Some(SendProgress::Changed),
                Err(failure) => Some(SendProgress::Unreadable(failure)),
            };
        };
        if sent.end_check() {
            // A shorter copy: the file was truncated while it was compared.
            let length = CHUNK_BYTES.min(left.end - left.start);
            return (copy.meta().size < length).then_some(SendProgress::Changed);
        }
        // Without its status, reading the file will report the error.
        let version = self.tracer.call(Call::Status, || file.version());
        if version.is_ok_and(|version| sent.note(version).is_err()) {
            return Some(SendProgress::Changed);
        }
        sent.note_unknown();
        sent.is_due(&left)
            .then_some(SendProgress::Unchecked(file, left))
    }

    /// A helper could not read the chunk: because of a disk error, or a temporary shortage.
    pub(super) fn chunk_failed(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        failure: Failure,
    ) -> Next {
        match failure {
            Failure::Io | Failure::Stale => {
                self.after_send(connection, request, SendProgress::Unreadable(failure))
            }
            Failure::Changed => self.after_send(connection, request, SendProgress::Changed),
            _ => self.abort_response(connection, request, Status::SERVICE_UNAVAILABLE),
        }
    }

    /// Records that the requested chunk was read in, where that counts as residency.
    pub(super) fn note_chunk_read(&mut self, connection: &Connection, request: &Request) {
        if let Some(other) = &mut self.sender.other
            && let Some(file) = connection.outgoing.file()
        {
            other.chunk_was_read(file, request.requested_offset());
        }
    }

    /// Has helpers read ahead what will be sent next.
    pub(super) fn submit_prefetches(&mut self) {
        for (file, range) in std::mem::take(&mut self.sender.prefetch) {
            // A read-ahead is optional: drop it if the queue is full.
            let length = self.sender.read_in_bytes(range.clone());
            let _ = self.pool.submit_read_in(&file, range.start, length, None);
        }
    }

    /// Whether bytes that were just read are of the version that was opened. Without a status they may be
    /// of another one. What the file server has forgotten is looked up again, as a file that has changed.
    pub(super) fn is_unchanged(&self, file: &OpenFile) -> Result<bool, Failure> {
        let unchanged = self.tracer.call(Call::Status, || file.unchanged());
        match unchanged.map_err(|error| Failure::of_read(&error)) {
            Err(Failure::Stale) => Ok(false),
            known => known,
        }
    }

    /// Makes a request wait for a helper.
    pub(super) fn wait_for_helper(
        &mut self,
        connection: &mut Connection,
        mut request: Box<Request>,
        phase: impl FnOnce(Box<Request>) -> Phase,
    ) -> Next {
        request.had_helper = true;
        self.counters.requests_waited_for_helper += 1;
        self.watch_for_disconnect(connection);
        self.set_timeout(connection, self.config.send_timeout_ms);
        Next::Wait(phase(request))
    }

    /// Aborts a response that cannot be finished: sends an error instead if nothing was sent yet,
    /// else closes the connection, so that the client can see that the body is short.
    fn abort_response(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        status: Status,
    ) -> Next {
        if connection.outgoing.sent_bytes > 0 {
            return self.cut_response(connection, request);
        }
        connection.keep_alive = false;
        // Only GET sends files, so the error may have a body.
        self.replace_response(connection, &request, status, false);
        let progress = self.transmit(connection);
        self.after_send(connection, request, progress)
    }

    /// Ends a response that is cut off. Its client sees that the body is short; the responses before it
    /// must reach the client, as with any last response.
    pub(super) fn cut_response(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Next {
        self.counters.responses_aborted += 1;
        connection.cut_tls();
        if !self.has_input(connection) {
            return Next::Close(Some(request));
        }
        self.finish_response(connection, request);
        Next::Linger
    }

    /// Accounts for a finished response. The result says whether the connection stays open.
    pub(super) fn finish_response(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Disposition {
        let outgoing = &connection.outgoing;
        self.counters.sent_body_bytes += outgoing.sent_bytes.saturating_sub(outgoing.head_bytes);
        self.end_request(connection, &request);
        self.requests.recycle(request);
        connection.outgoing.clear();
        connection.requests += 1;
        match connection.keep_alive && !connection.must_end() {
            true => Disposition::Keep,
            false => Disposition::Close,
        }
    }

    pub(super) fn replace_response(
        &mut self,
        connection: &mut Connection,
        request: &Request,
        status: Status,
        head_only: bool,
    ) {
        let context =
            ResponseContext::without_request(&self.response_settings, &self.date, head_only);
        let host = self.hosts.get(request.virtual_host);
        connection.outgoing = headway_respond::error(&context, status, Some(host), None);
        connection.outgoing.method = request.method;
        self.enter_send(connection, request);
    }
}

/// Whether a complete header follows, so that another response will be sent at once. With MSG_MORE
/// the kernel delays the last packet by up to 200 ms if no more data comes (tcp(7), `TCP_CORK`), so
/// the start of a header or a stray line end does not count.
pub(super) fn holds_a_head(bytes: &[u8]) -> bool {
    bytes.len() > 4 && memchr::memmem::find(bytes, b"\r\n\r\n").is_some()
}

/// The status code for a failed lookup or read.
pub(super) fn status_of(failure: Failure) -> Status {
    match failure {
        Failure::NotFound => Status::NOT_FOUND,
        Failure::NameTooLong => Status::NOT_FOUND,
        Failure::Forbidden | Failure::NotRegular => Status::FORBIDDEN,
        Failure::Exhausted | Failure::Overloaded | Failure::GivenUp | Failure::Changed => {
            Status::SERVICE_UNAVAILABLE
        }
        Failure::Io | Failure::Stale => Status::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn more_flag_is_set_only_when_a_complete_header_follows() {
        for bytes in ["", "\r\n", "G", "GET / HTTP/1.1\r\nHost: x\r\n"] {
            assert!(!super::holds_a_head(bytes.as_bytes()), "{bytes:?}");
        }
        assert!(super::holds_a_head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET"));
    }
}
