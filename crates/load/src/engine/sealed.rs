//! A request through TLS: the handshake, sealed sending and receiving, the end of the connection.
//!
//! The handshake belongs to the connection, as connect does, and its length is in the row of the
//! request that opened the connection. An end of the stream without `close_notify` may be an
//! attacker's (RFC 8446 section 6.1): a body whose end it would be is cut off.

use std::os::fd::AsFd;

use headway_event::Interest;
use headway_latency::Outcome;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

use super::core::Engine;
use super::exchange::RECEIVES_PER_EVENT_MAX;
use super::response::ResponseProgress;
use super::slot::{ConnectionSlot, Phase};

/// One receive of records.
enum Records {
    /// Bytes in the buffer, with what was kept before; whether the socket may have more.
    Bytes(usize, bool),
    /// The server closed its side of the connection.
    End,
    /// Nothing now.
    Nothing,
    Failed(Errno),
}

impl Engine<'_> {
    /// Takes the next step of what leaves: the handshake, then the request.
    pub(super) fn transmit_sealed(&mut self, index: u32) {
        let now_ns = self.now_ns;
        let slot = &mut self.pool.slots[index as usize];
        let Some(tls) = &mut slot.tls else { return };
        let connecting = slot.phase == Phase::Connecting;
        if connecting {
            slot.phase = Phase::Handshaking;
            if let Err(error) = tls.begin(now_ns) {
                return self.tls_failed(index, &error);
            }
        }
        loop {
            match flush(self.slot(index)) {
                Ok(true) => {}
                Ok(false) => return self.poll_or_fail(index, Interest::BOTH),
                // The server has closed; it may have said why before that.
                Err(Errno::PIPE) if self.slot(index).phase != Phase::Handshaking => {
                    self.slot(index).phase = Phase::Receiving;
                    return self.poll_or_fail(index, Interest::READ);
                }
                Err(error) => {
                    if connecting {
                        self.slot(index).phase = Phase::Connecting;
                    }
                    return self.connection_failed(index, error);
                }
            }
            if self.slot(index).phase == Phase::Handshaking {
                return self.poll_or_fail(index, Interest::READ);
            }
            match self.seal_more(index) {
                Ok(true) => {}
                Ok(false) => {
                    self.slot(index).phase = Phase::Receiving;
                    return self.poll_or_fail(index, Interest::READ);
                }
                Err(error) => return self.tls_failed(index, &error),
            }
        }
    }

    /// Seals the next piece of the slot's request. False if there is none.
    fn seal_more(&mut self, index: u32) -> Result<bool, rustls::Error> {
        let slot = &mut self.pool.slots[index as usize];
        let (document, target, last) = (slot.request.document, slot.request.target, slot.is_last());
        let bytes = match &slot.client {
            Some(client) => self.requests.form_for(&**client, target, last),
            None => self.requests.form(document, target, last),
        };
        let left = &bytes[slot.sent_bytes..];
        if left.is_empty() {
            return Ok(false);
        }
        if let Some(tls) = &mut slot.tls {
            slot.phase = Phase::Sending;
            slot.sent_bytes += tls.seal(left)?;
        }
        Ok(true)
    }

    /// Reads what has come: of the handshake, or for the slot's request.
    pub(super) fn receive_sealed(&mut self, index: u32) {
        for _ in 0..RECEIVES_PER_EVENT_MAX {
            let Some(allowed) = self.allowance(index) else {
                return;
            };
            let received = self.receive_records(index, allowed);
            self.update_clock();
            let (bytes, more) = match received {
                Records::Bytes(bytes, more) => (bytes, more),
                Records::End => return self.end_of_records(index),
                Records::Nothing => return,
                Records::Failed(error) => return self.connection_failed(index, error),
            };
            if self.open_records(index, bytes) || !more {
                return;
            }
        }
    }

    /// Opens what is in the buffer and takes the next step. True when that was the end of it.
    fn open_records(&mut self, index: u32, bytes: usize) -> bool {
        let now_ns = self.now_ns;
        let slot = &mut self.pool.slots[index as usize];
        let Some(tls) = &mut slot.tls else {
            return true;
        };
        let (response, first_byte_ns) = (&mut slot.response, &mut slot.request.first_byte_ns);
        let mut progress = Ok(ResponseProgress::More);
        let mut excess = false;
        let opened = tls.open(&mut self.buffer[..bytes], |piece| {
            if *first_byte_ns == 0 && !piece.is_empty() {
                *first_byte_ns = now_ns;
            }
            if progress == Ok(ResponseProgress::More) {
                let (server, client) = (&mut self.counters.server, slot.client.as_deref_mut());
                progress = response.feed_with_reader(piece, server, client);
                excess = matches!(progress, Ok(ResponseProgress::Done(end)) if end < piece.len());
            } else {
                excess |= !piece.is_empty();
            }
        });
        let (closed, established) = (tls.closed, tls.established);
        match (opened, progress) {
            (Err(error), _) => self.tls_failed(index, &error),
            (_, Err(_)) => self.finish(index, Outcome::Malformed, false),
            (_, Ok(ResponseProgress::Done(_))) => {
                self.slot(index).response.keeps &= !closed;
                self.judge(index, excess);
            }
            _ if closed => self.end_of_records(index),
            _ if self.slot(index).phase == Phase::Handshaking => match established {
                true => self.end_handshake(index),
                false => {
                    self.transmit_sealed(index);
                    return self.slot(index).phase != Phase::Handshaking;
                }
            },
            // An answer to a key update. What the socket does not take goes with the next request.
            _ => {
                let _ = flush(self.slot(index));
                return false;
            }
        }
        true
    }

    /// The connection is open; its first request follows the last message of the handshake.
    fn end_handshake(&mut self, index: u32) {
        let now_ns = self.now_ns;
        let pauses = !self.plan.first_pause.is_zero();
        let slot = &mut self.pool.slots[index as usize];
        if let Some(tls) = &slot.tls {
            slot.request.handshake_ns = now_ns.saturating_sub(tls.begun_ns).max(1);
            self.counters.count_handshake(tls);
        }
        if pauses {
            // The server waits for that message; the socket of a new connection has room for it.
            let _ = flush(slot);
            self.begin_first_pause(index);
        } else {
            slot.phase = Phase::Sending;
            self.transmit_sealed(index);
        }
    }

    fn receive_records(&mut self, index: u32, allowed: usize) -> Records {
        let slot = &mut self.pool.slots[index as usize];
        let (Some(socket), Some(tls)) = (&slot.socket, &slot.tls) else {
            return Records::Nothing;
        };
        let kept = tls.put_kept(&mut self.buffer);
        let room = &mut self.buffer[kept..];
        let requested = room.len().min(allowed);
        let result = loop {
            match net::recv(socket.as_fd(), &mut room[..requested], RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        let bytes = match result {
            Ok((_, bytes)) => bytes,
            Err(Errno::AGAIN) => return Records::Nothing,
            Err(error) => return Records::Failed(error),
        };
        self.counters.bytes += bytes as u64;
        if let Some(bandwidth) = self.bandwidth {
            bandwidth.spend(&mut slot.bucket, bytes as u64);
        }
        match bytes {
            0 => Records::End,
            _ => Records::Bytes(kept + bytes, bytes == requested),
        }
    }

    /// Nothing more comes, with `close_notify` or without.
    fn end_of_records(&mut self, index: u32) {
        let slot = &self.pool.slots[index as usize];
        let closed = slot.tls.as_ref().is_some_and(|tls| tls.closed);
        if slot.phase == Phase::Handshaking {
            let dialer = &self.dialers[usize::from(slot.request.target)];
            self.counters.failed(|| {
                dialer.describe_tls("the server closed the connection in the handshake")
            });
            self.finish(index, Outcome::Tls, false);
        } else if closed {
            self.end_of_stream(index);
        } else {
            self.cut_off(index);
        }
    }

    /// The handshake failed, or a record was invalid.
    fn tls_failed(&mut self, index: u32, error: &rustls::Error) {
        let slot = &mut self.pool.slots[index as usize];
        // The alert; the connection ends whether or not the server gets it.
        let _ = flush(slot);
        let established = slot.phase != Phase::Handshaking;
        let target = usize::from(slot.request.target);
        let dialer = &self.dialers[target];
        self.counters.failed(|| {
            let why = match established {
                true => crate::tls::explain_later(error),
                false => crate::tls::explain(error),
            };
            dialer.describe_tls(&why)
        });
        self.finish(index, Outcome::Tls, false);
    }

    /// Something came on a connection that carries no request: session tickets, or its end.
    pub(super) fn read_idle_sealed(&mut self, index: u32) {
        let bytes = match self.receive_records(index, self.buffer.len()) {
            Records::Bytes(bytes, _) => bytes,
            Records::Nothing => return,
            Records::End | Records::Failed(_) => return self.close_idle(index),
        };
        let slot = &mut self.pool.slots[index as usize];
        let Some(tls) = &mut slot.tls else { return };
        let mut content = false;
        let opened = tls.open(&mut self.buffer[..bytes], |piece| {
            content |= !piece.is_empty()
        });
        let ended = opened.is_err() || tls.closed || flush(slot).is_err();
        self.counters.unsolicited += u64::from(content);
        if content || ended {
            self.close_idle(index);
        }
    }

    /// Tells the server that the client is done, before its connection is closed.
    pub(super) fn say_goodbye(&mut self, index: u32) {
        let slot = &mut self.pool.slots[index as usize];
        let Some(mut tls) = slot.tls.take() else {
            return;
        };
        let Some(socket) = &slot.socket else { return };
        if tls.established && !tls.failed && tls.unsent().is_empty() {
            tls.seal_end();
            // Only politeness, so a full socket goes without.
            let _ = net::send(socket.as_fd(), tls.unsent(), SendFlags::NOSIGNAL);
        }
    }
}

/// Sends sealed bytes. False when the socket is full.
fn flush(slot: &mut ConnectionSlot) -> Result<bool, Errno> {
    let (Some(socket), Some(tls)) = (&slot.socket, &mut slot.tls) else {
        return Ok(true);
    };
    while !tls.unsent().is_empty() {
        match net::send(socket.as_fd(), tls.unsent(), SendFlags::NOSIGNAL) {
            Ok(bytes) => tls.sent(bytes),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
