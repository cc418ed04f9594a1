//! Sends responses: a cached response at once, other responses as far as the socket, the write
//! quantum and the page cache allow; and continues them later.

use std::os::fd::AsFd;
use std::rc::Rc;

use headway_event::Interest;
use headway_files::{Failure, OpenFile};
use headway_http::Status;
use rustix::io::Errno;

use super::connection_io::READ_INS_MAX;
use super::request_handling::Handled;
use super::{Disposition, Worker};
use crate::connection::{Connection, Phase};
use crate::request::{Entry, Outgoing, Piece, Variant};
use crate::respond::{self, ResponseContext};
use crate::send::{self, SendContext, SendProgress};

impl Worker {
    /// Starts to send a response; without `eager_write` only once the socket is reported writable.
    pub(super) fn start_response(
        &mut self,
        connection: &mut Connection,
        outgoing: Outgoing,
    ) -> Handled {
        connection.outgoing = outgoing;
        let progress = match self.config.eager_write {
            true => self.transmit(connection),
            false => SendProgress::SocketFull,
        };
        self.after_send(connection, progress)
    }

    /// Sends a cached response with one call: the hot path. Returns `None` if there is none, or if
    /// it would have to be modified while another connection is sending it.
    pub(super) fn send_cached_response(
        &mut self,
        connection: &mut Connection,
        entry: &Entry,
        variant: Variant,
        more: bool,
    ) -> Option<Handled> {
        let mut cached = entry.prepared.responses[variant].borrow_mut();
        let content = cached.as_mut()?;
        let keep_alive = connection.keep_alive;
        if content.date_second != self.date.second || !content.is_for_keep_alive(keep_alive) {
            let content = Rc::get_mut(content)?;
            content.set_date(self.date.second, &self.date.text);
            content.set_keep_alive(keep_alive);
        }
        self.counters.response_cache_hits += 1;
        let response = &content.bytes[content.start..];
        let sent = match self.config.eager_write {
            true => send::send_whole(&connection.socket, response, more, &self.tracer),
            // Without eager writes the event mechanism reports first that the socket is writable.
            false => Err(Errno::AGAIN),
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => {
                self.counters.connections_reset += 1;
                return Some(Handled::Close);
            }
        };
        self.counters.sent_bytes += sent as u64;
        if sent > 0 {
            self.counters.http_requests.record(200, connection.method);
        }
        let outgoing = &mut connection.outgoing;
        outgoing.status = 200;
        outgoing.sent_bytes = sent as u64;
        outgoing.head_bytes = (content.body_at - content.start) as u64;
        if sent == response.len() {
            return Some(Handled::Done);
        }
        let rest = content.start + sent..content.bytes.len();
        outgoing
            .pieces
            .push_back(Piece::Cached(content.clone(), rest));
        drop(cached);
        Some(self.after_send(connection, SendProgress::SocketFull))
    }

    /// Sends as much of the response as possible. A response is counted when its first byte is
    /// sent: until then it can still be replaced by an error.
    pub(super) fn transmit(&mut self, connection: &mut Connection) -> SendProgress {
        let is_first = connection.outgoing.sent_bytes == 0;
        let mut context = SendContext {
            tracer: &self.tracer,
            residency: &self.residency,
            method: self.config.send,
            chunks: &mut self.chunks,
            mappings: &mut self.mappings,
            recent: &mut self.recent,
            write_size_hint: &mut connection.write_size_hint,
            quantum_bytes: self.config.write_quantum_bytes,
            counters: &mut self.counters,
            prefetch: &mut self.prefetch,
            known_resident: None,
        };
        let progress = send::send(
            &mut connection.outgoing,
            connection.socket.as_fd(),
            &mut context,
        );
        if is_first && connection.outgoing.sent_bytes > 0 {
            let status = connection.outgoing.status;
            self.counters
                .http_requests
                .record(status, connection.method);
        }
        progress
    }

    /// Decides what to do after an attempt to send.
    pub(super) fn after_send(
        &mut self,
        connection: &mut Connection,
        progress: SendProgress,
    ) -> Handled {
        match progress {
            SendProgress::Finished => return Handled::Done,
            SendProgress::SocketFull => {
                connection.phase = Phase::Send;
                self.watch(connection, Interest::WRITE);
            }
            SendProgress::QuantumSpent => {
                self.requeue(connection);
            }
            SendProgress::NotResident(file, offset) => {
                return self.request_chunk(connection, &file, offset, false);
            }
            SendProgress::ResidencyUnknown(file, offset) => {
                return self.request_chunk(connection, &file, offset, true);
            }
            SendProgress::Changed => {
                self.counters.chunks_changed += 1;
                return self.abort_response(connection, Status::SERVICE_UNAVAILABLE);
            }
            SendProgress::Unreadable => {
                self.counters.io_errors += 1;
                return self.abort_response(connection, Status::INTERNAL_SERVER_ERROR);
            }
            SendProgress::Disconnected => {
                self.counters.connections_reset += 1;
                return Handled::Close;
            }
        }
        self.deadlines
            .set(connection.slot(), self.now_ms + self.config.send_timeout_ms);
        Handled::Sending
    }

    /// Continues to send: after the run queue, when the socket has room, or when a chunk was read.
    pub(super) fn continue_sending(&mut self, connection: &mut Connection) -> Disposition {
        connection.is_queued = false;
        let progress = self.transmit(connection);
        let handled = self.after_send(connection, progress);
        self.advance(connection, handled)
    }

    /// Puts the connection into the run queue, behind the others.
    pub(super) fn requeue(&mut self, connection: &mut Connection) {
        connection.phase = Phase::Send;
        if !connection.is_queued {
            connection.is_queued = true;
            self.run_queue.push(connection.token);
        }
    }

    /// Has a helper read the next chunk: into the page cache, or as a copy if the loop cannot tell
    /// what is resident or the chunk was evicted again and again.
    pub(super) fn request_chunk(
        &mut self,
        connection: &mut Connection,
        file: &Rc<OpenFile>,
        offset: u64,
        opaque: bool,
    ) -> Handled {
        let times = connection.count_chunk_request(offset);
        let waiter = connection.waiter();
        let owed = connection.outgoing.file_range().unwrap_or(offset..offset);
        let queued = if opaque || times > READ_INS_MAX {
            self.pool
                .read(file, owed.start, headway_files::CHUNK_BYTES, waiter)
        } else {
            let length = self.config.send.read_in_bytes(offset..owed.end);
            self.pool.read_in(file, offset, length, Some(waiter))
        };
        if queued.is_err() {
            return self.abort_response(connection, Status::SERVICE_UNAVAILABLE);
        }
        connection.phase = Phase::Chunk;
        connection.admitted = true;
        self.watch_for_disconnect(connection);
        self.deadlines
            .set(connection.slot(), self.now_ms + self.config.send_timeout_ms);
        Handled::Sending
    }

    /// Sends a helper's copy of the next bytes. The file is compared only after the copy was made,
    /// because the copy itself does not show that the file was rewritten.
    pub(super) fn send_copy(
        &mut self,
        connection: &mut Connection,
        copy: &Rc<OpenFile>,
    ) -> Disposition {
        let file = connection.outgoing.file();
        if file.is_some_and(|file| !self.is_unchanged(file)) {
            let handled = self.after_send(connection, SendProgress::Changed);
            return self.advance(connection, handled);
        }
        connection.outgoing.substitute(copy.clone());
        self.continue_sending(connection)
    }

    /// A helper could not read the chunk: because of a disk error, or a temporary shortage.
    pub(super) fn chunk_failed(
        &mut self,
        connection: &mut Connection,
        failure: Failure,
    ) -> Disposition {
        let handled = match failure {
            Failure::Io => self.after_send(connection, SendProgress::Unreadable),
            _ => self.abort_response(connection, Status::SERVICE_UNAVAILABLE),
        };
        self.advance(connection, handled)
    }

    /// Aborts a response that cannot be finished: sends an error instead if nothing was sent yet,
    /// else closes the connection, so that the client can see that the body is short.
    pub(super) fn abort_response(
        &mut self,
        connection: &mut Connection,
        status: Status,
    ) -> Handled {
        if connection.outgoing.sent_bytes > 0 {
            self.counters.responses_aborted += 1;
            return Handled::Close;
        }
        connection.keep_alive = false;
        // Only GET sends files, so the error may have a body.
        let context = ResponseContext::for_unparsed(&self.response_settings, &self.date, false);
        let host = self.hosts.get(connection.virtual_host);
        connection.outgoing = respond::error(&context, status, Some(host), None);
        let progress = self.transmit(connection);
        self.after_send(connection, progress)
    }
}
