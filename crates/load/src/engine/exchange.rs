//! One request on one slot: connect, send, receive, judge, record.
//!
//! Every path ends in [`Engine::finish`], which writes the row. A complete response is judged; an
//! earlier end of its connection decides the outcome otherwise. If the server closes a keep-alive
//! connection before the first byte of a response, neither side made an error (RFC 9112 section
//! 9.3.1): the request is sent once more, on a new connection, and its time continues.

use std::os::fd::{AsFd, OwnedFd};

use headway_event::{Interest, Ready};
use headway_latency::{Outcome, Row};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

use super::core::{Engine, whole_ns};
use super::dial::{DialError, DialOutcome, outcome};
use super::proxy_header;
use super::response::{Malformed, ResponseProgress};
use super::slot::Phase;
use super::tls_session::TlsSession;

/// Receives per event; the rest waits for the next iteration, so that one fast response does not
/// delay others.
pub(super) const RECEIVES_PER_EVENT_MAX: usize = 4;

/// From this many missing bytes on, they are thrown away in the kernel rather than copied.
const DISCARD_MIN_BYTES: u64 = 16 * 1024;

/// Delay before a Unix socket whose listener's queue was full is tried again.
pub(super) const RETRY_CONNECT_NS: u64 = 1_000_000;

/// One receive.
enum Received {
    /// Bytes read into the buffer, and bytes requested.
    Bytes(usize, usize),
    /// Bytes of the body that were discarded, and bytes requested.
    Discarded(usize, usize),
    /// The server closed its side.
    End,
    /// Nothing now.
    Nothing,
    Failed(Errno),
}

impl Engine<'_> {
    /// Opens a connection for the slot's request.
    pub(super) fn dial(&mut self, index: u32) {
        if self.http2.is_some() {
            return self.join(index);
        }
        let Some(socket) = self.connect(index) else {
            return;
        };
        let target = self.slot(index).request.target;
        let local = self.dialers[usize::from(target)].is_local();
        let connection = self.part.number(self.counters.connections_opened);
        self.counters.opened();
        let now_ns = self.now_ns;
        let bucket = self.bandwidth.map(|bandwidth| bandwidth.open(now_ns));
        let per_connection = self.plan.requests_per_connection;
        let peer = &self.plan.targets[usize::from(target)].address;
        let tls = &self.plan.targets[usize::from(target)].tls;
        let tls = tls.as_ref().map(|tls| {
            let version = self.plan.proxy_version;
            let header = version.map(|version| proxy_header::of_socket(version, &socket, peer));
            TlsSession::new(tls, header.unwrap_or_default())
        });
        let slot = self.slot(index);
        slot.socket = Some(socket);
        slot.target = target;
        slot.generation = slot.generation.wrapping_add(1);
        slot.connection = connection;
        slot.ordinal = 0;
        slot.carries = match &mut slot.client {
            Some(client) => client.requests_on_connection().or(per_connection),
            None => per_connection,
        };
        slot.bucket = bucket.unwrap_or_default();
        slot.tls = tls.map(Box::new);
        slot.phase = Phase::Connecting;
        if local && self.plan.first_pause.is_zero() {
            // The handshake is over: asking the events first would cost two calls more.
            self.transmit(index);
        } else {
            self.poll_or_fail(index, Interest::WRITE);
        }
    }

    /// Opens a connection for the slot's request. `None` if there is none: that is tried again, or the
    /// request has failed.
    pub(super) fn connect(&mut self, index: u32) -> Option<OwnedFd> {
        let slot = self.slot(index);
        // The number of its last connection is not that of a request that gets none.
        slot.connection = Row::NO_CONNECTION;
        let target = slot.request.target;
        let dialer = &mut self.dialers[usize::from(target)];
        match dialer.dial(&mut self.counters.limits) {
            DialOutcome::Socket(socket) => return Some(socket),
            DialOutcome::Busy => {
                self.slot(index).phase = Phase::Connecting;
                self.timers.set(index, self.now_ns + RETRY_CONNECT_NS);
            }
            DialOutcome::Failed(cause) => {
                self.counters.failed(|| dialer.describe(cause));
                self.finish(index, cause.outcome, false);
            }
        }
        None
    }

    /// Something happened on a slot's connection.
    pub(super) fn on_event(&mut self, event: Ready) {
        if event.token.kind() == super::http2::TOKEN_KIND {
            return self.on_carrier_event(event);
        }
        let index = event.token.slot();
        let pauses = !self.plan.first_pause.is_zero();
        let slot = self.slot(index);
        // Only the low bits of the generation are in the token.
        let same = headway_event::Token::new(0, index, slot.generation) == event.token;
        if !same || slot.socket.is_none() {
            return;
        }
        match slot.phase {
            Phase::Connecting
                if pauses && slot.tls.is_none() && event.writable && !event.hangup =>
            {
                self.begin_first_pause(index);
            }
            Phase::Connecting | Phase::Sending => {
                if event.writable || event.hangup {
                    self.update_clock();
                    self.transmit(index);
                } else {
                    self.receive(index);
                }
            }
            // The client's next step needs the server's; a connection that failed is readable.
            Phase::Handshaking if event.readable => self.receive(index),
            Phase::Handshaking => self.transmit(index),
            Phase::FirstPause | Phase::Receiving => self.receive(index),
            Phase::Idle => self.read_idle(index),
            Phase::Free | Phase::Paused => {}
        }
    }

    /// The connection is open, and its first request comes after a pause. Responses before that are
    /// read.
    pub(super) fn begin_first_pause(&mut self, index: u32) {
        let now_ns = self.update_clock();
        let pause_ns = whole_ns(self.plan.first_pause);
        self.slot(index).phase = Phase::FirstPause;
        self.timers.set(index, now_ns.saturating_add(pause_ns));
        self.poll_or_fail(index, Interest::READ);
    }

    /// The pause is over.
    pub(super) fn end_first_pause(&mut self, index: u32) {
        self.update_clock();
        self.slot(index).phase = Phase::Sending;
        self.transmit(index);
    }

    /// Sends what is left of the slot's request.
    pub(super) fn transmit(&mut self, index: u32) {
        let slot = &mut self.pool.slots[index as usize];
        if slot.tls.is_some() {
            return self.transmit_sealed(index);
        }
        let Some(socket) = &slot.socket else { return };
        let (document, target, last) = (slot.request.document, slot.request.target, slot.is_last());
        let bytes = match &slot.client {
            Some(client) => self.requests.form_for(&**client, target, last),
            None => self.requests.form(document, target, last),
        };
        let bytes = match self.plan.proxy_version {
            Some(version) if slot.ordinal == 0 => {
                let peer = &self.plan.targets[usize::from(target)].address;
                let header = proxy_header::of_socket(version, socket, peer);
                self.requests.prepend(header)
            }
            _ => bytes,
        };
        loop {
            match net::send(
                socket.as_fd(),
                &bytes[slot.sent_bytes..],
                SendFlags::NOSIGNAL,
            ) {
                Ok(sent) => {
                    slot.sent_bytes += sent;
                    if slot.sent_bytes == bytes.len() {
                        slot.phase = Phase::Receiving;
                        return self.poll_or_fail(index, Interest::READ);
                    }
                    slot.phase = Phase::Sending;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if slot.phase == Phase::Connecting => {
                    return self.poll_or_fail(index, Interest::WRITE);
                }
                Err(Errno::AGAIN) => {
                    slot.phase = Phase::Sending;
                    return self.poll_or_fail(index, Interest::BOTH);
                }
                Err(Errno::PIPE) => {
                    // The server has closed; it may have said why before that.
                    slot.phase = Phase::Receiving;
                    return self.poll_or_fail(index, Interest::READ);
                }
                Err(error) => return self.connection_failed(index, error),
            }
        }
    }

    /// Reads on after a pause for bandwidth.
    pub(super) fn read_on(&mut self, index: u32) {
        self.update_clock();
        self.poll_or_fail(index, Interest::READ);
        self.receive(index);
    }

    pub(super) fn poll_or_fail(&mut self, index: u32, interest: Interest) {
        if !self.poll_for(index, interest) {
            self.counters.limits.descriptors += 1;
            self.finish(index, Outcome::NoDescriptor, false);
        }
    }

    /// Reads what has arrived for the slot's request.
    pub(super) fn receive(&mut self, index: u32) {
        if self.slot(index).tls.is_some() {
            return self.receive_sealed(index);
        }
        for _ in 0..RECEIVES_PER_EVENT_MAX {
            let Some(allowed) = self.allowance(index) else {
                return;
            };
            let received = self.receive_once(index, allowed);
            let now_ns = self.update_clock();
            let (progress, bytes, requested) = match received {
                Received::Bytes(bytes, requested) => {
                    let slot = &mut self.pool.slots[index as usize];
                    let (piece, server) = (&self.buffer[..bytes], &mut self.counters.server);
                    let fed =
                        slot.response
                            .feed_with_reader(piece, server, slot.client.as_deref_mut());
                    (fed, bytes, requested)
                }
                Received::Discarded(bytes, requested) => (
                    Ok(self.slot(index).response.discard(bytes as u64)),
                    0,
                    requested.min(bytes),
                ),
                Received::End => return self.end_of_stream(index),
                Received::Nothing => return,
                Received::Failed(error) => return self.connection_failed(index, error),
            };
            let slot = self.slot(index);
            if slot.request.first_byte_ns == 0 {
                slot.request.first_byte_ns = now_ns;
            }
            match progress {
                Ok(ResponseProgress::Done(consumed)) => {
                    return self.judge(index, consumed < bytes);
                }
                Err(Malformed) => return self.finish(index, Outcome::Malformed, false),
                // The socket is empty: asking it again would only say so.
                Ok(ResponseProgress::More) if bytes < requested => return,
                Ok(ResponseProgress::More) => {}
            }
        }
    }

    /// What may be read now; `None` when the connection has to wait until it has earned more.
    pub(super) fn allowance(&mut self, index: u32) -> Option<usize> {
        let most = self.buffer.len();
        let Some(bandwidth) = self.bandwidth else {
            return Some(most);
        };
        let now_ns = self.update_clock();
        let slot = self.slot(index);
        let available = bandwidth.available(&mut slot.bucket, now_ns);
        if available > 0 {
            return Some(most.min(available as usize));
        }
        let pause_ns = bandwidth.pause_ns(&slot.bucket);
        self.stop_polling(index);
        self.timers.set(index, now_ns + pause_ns);
        None
    }

    fn receive_once(&mut self, index: u32, allowed: usize) -> Received {
        let slot = &mut self.pool.slots[index as usize];
        let Some(socket) = &slot.socket else {
            return Received::Nothing;
        };
        let missing = slot
            .response
            .discardable_bytes()
            .filter(|&missing| missing >= DISCARD_MIN_BYTES);
        let discards = self.dialers[usize::from(slot.target)].discards();
        let (requested, flags) = match missing {
            Some(missing) if discards => (missing.min(allowed as u64) as usize, RecvFlags::TRUNC),
            _ => (allowed, RecvFlags::empty()),
        };
        let result = loop {
            match net::recv(socket.as_fd(), &mut self.buffer[..requested], flags) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        let bytes = match result {
            Ok((_, bytes)) => bytes.min(requested),
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(error) => return Received::Failed(error),
        };
        self.counters.bytes += bytes as u64;
        if let Some(bandwidth) = self.bandwidth {
            bandwidth.spend(&mut slot.bucket, bytes as u64);
        }
        match bytes {
            0 => Received::End,
            _ if flags == RecvFlags::TRUNC => Received::Discarded(bytes, requested),
            _ => Received::Bytes(bytes, requested),
        }
    }

    /// The response is whole.
    pub(super) fn judge(&mut self, index: u32, excess: bool) {
        let slot = &mut self.pool.slots[index as usize];
        // A response may overtake its request; what is left of that would begin the next one.
        let sent = slot.phase == Phase::Receiving;
        let keeps = slot.response.keeps && sent && !excess && !slot.is_last();
        let outcome = self.outcome_of_whole(index, excess);
        self.finish(index, outcome, keeps);
    }

    /// What a whole response is.
    pub(super) fn outcome_of_whole(&mut self, index: u32, excess: bool) -> Outcome {
        let slot = &mut self.pool.slots[index as usize];
        let (status, body_bytes) = (slot.response.status, slot.response.body_bytes);
        match &mut slot.client {
            Some(_) if excess => Outcome::Length,
            Some(client) => client.judge(status, body_bytes),
            None => self.outcome_of_document(index, excess),
        }
    }

    /// What a whole response is where all clients are alike.
    fn outcome_of_document(&self, index: u32, excess: bool) -> Outcome {
        let slot = &self.pool.slots[index as usize];
        let document = &self.plan.work.documents[slot.request.document as usize];
        let response = &slot.response;
        let expected = match self.plan.expect_status {
            Some(status) => response.status == status,
            None => (200..300).contains(&response.status),
        };
        if !expected {
            Outcome::Status
        } else if excess
            || document
                .size_bytes
                .is_some_and(|size| size != response.body_bytes && !response.without_body)
        {
            Outcome::Length
        } else if response
            .checksum()
            .is_some_and(|sum| document.checksum != Some(sum))
        {
            Outcome::Content
        } else {
            Outcome::Ok
        }
    }

    /// The server closed its side before the response was whole, unless that is how it ends.
    pub(super) fn end_of_stream(&mut self, index: u32) {
        if self.slot(index).response.close() {
            self.judge(index, false);
        } else {
            self.cut_off(index);
        }
    }

    /// The server left in the middle of a response, or before it.
    pub(super) fn cut_off(&mut self, index: u32) {
        if self.may_retry(index) {
            self.retry(index);
        } else {
            self.finish(index, Outcome::ClosedEarly, false);
        }
    }

    /// The connection failed.
    pub(super) fn connection_failed(&mut self, index: u32, error: Errno) {
        let slot = self.slot(index);
        let (opening, call) = match slot.phase {
            Phase::Handshaking => (true, "TLS handshake"),
            phase => (phase == Phase::Connecting, "connect"),
        };
        let outcome = match outcome(error) {
            Outcome::TimedOut if opening => Outcome::ConnectTimedOut,
            other => other,
        };
        if opening {
            let target = usize::from(slot.request.target);
            let dialer = &self.dialers[target];
            self.counters
                .failed(|| dialer.describe(DialError::after_connect(call, error)));
        } else if outcome == Outcome::Reset && self.may_retry(index) {
            return self.retry(index);
        }
        self.finish(index, outcome, false);
    }

    /// Sends the request again, on a new connection.
    fn retry(&mut self, index: u32) {
        self.counters.retried += 1;
        self.close_connection(index);
        let slot = self.slot(index);
        slot.sent_bytes = 0;
        self.dial(index);
    }

    /// The request has ended. `keeps`: its connection can carry another one.
    pub(super) fn finish(&mut self, index: u32, outcome: Outcome, keeps: bool) {
        self.record(index, outcome, self.now_ns);
        if let Some(client) = &mut self.slot(index).client {
            client.ended(outcome);
        }
        self.counters.in_flight -= 1;
        self.deadlines.clear(index as usize);
        let phase = self.slot(index).phase;
        if self.bandwidth.is_some() || matches!(phase, Phase::Connecting | Phase::FirstPause) {
            self.timers.clear(index);
        }
        if self.http2.is_some() {
            self.leave(index);
        } else if !keeps || !self.poll_for(index, Interest::READ) {
            self.close_connection(index);
        }
        self.next_request(index, outcome);
    }

    /// Something came on a connection that carries no request: its end, as a rule.
    fn read_idle(&mut self, index: u32) {
        if self.slot(index).tls.is_some() {
            return self.read_idle_sealed(index);
        }
        let Some(socket) = &self.pool.slots[index as usize].socket else {
            return;
        };
        match net::recv(socket.as_fd(), &mut self.buffer[..1], RecvFlags::empty()) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok((_, 1..)) => self.counters.unsolicited += 1,
            Ok((_, 0)) | Err(_) => {}
        }
        self.close_idle(index);
    }

    /// Whether the server may have closed a keep-alive connection just as the request was sent. A
    /// retry uses a new connection, so a request is sent at most twice; one that is not idempotent
    /// is never retried.
    fn may_retry(&self, index: u32) -> bool {
        let slot = &self.pool.slots[index as usize];
        slot.ordinal > 0 && !slot.response.begun() && self.repeats(index)
    }

    /// Whether the slot's request does no more when it is sent twice.
    pub(super) fn repeats(&self, index: u32) -> bool {
        match &self.pool.slots[index as usize].client {
            Some(client) => client.facts().repeats,
            None => self.plan.method.is_idempotent(),
        }
    }
}
