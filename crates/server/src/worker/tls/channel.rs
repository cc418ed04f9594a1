//! The worker's end of the socket to its handshake process. Nothing here waits: what the socket does not
//! take is queued, and the number of clients whose records the process may have limits the queue.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use headway_event::{Events, Interest, Token};
use headway_metrics::calls::{Call, Tracer};
use headway_os::codec::decode;
use headway_os::fd_passing::{Wait, receive_with_descriptors, send_with_descriptors};
use headway_tls::wire::{Answer, MESSAGE_BYTES_MAX, Order, RECORDS_BYTES_MAX, encode};
use rustix::io::{Errno, IoSlice};

use crate::worker::tokens::HANDSHAKES;

/// Bytes that are received from a client that speaks TLS at a time. With what was kept before, which is
/// less than a record, they fit into one message to the process.
pub(in crate::worker) const RAW_BYTES: usize = 64 << 10;
const _: () = assert!(RAW_BYTES <= RECORDS_BYTES_MAX && RECORDS_BYTES_MAX < MESSAGE_BYTES_MAX);

/// The worker's end of the socket.
pub(super) struct Channel {
    socket: OwnedFd,
    /// Messages that the socket has not taken.
    outbox: VecDeque<Vec<u8>>,
    /// The socket is watched for room to write.
    is_watched: bool,
    message: Vec<u8>,
    /// The longest message that the socket can send.
    message_bytes_max: usize,
}

/// The part of the send buffer that the kernel reserves (`unix_dgram_sendmsg`).
const SOCKET_OVERHEAD: usize = 32;
/// The bytes of a message to the process in addition to its records.
const ORDER_BYTES: usize = 9;

impl Channel {
    pub(super) fn new(socket: OwnedFd, events: &mut Events) -> io::Result<Channel> {
        let buffer = rustix::net::sockopt::socket_send_buffer_size(&socket)?;
        events.add(socket.as_fd(), Token::new(HANDSHAKES, 0, 0), Interest::READ)?;
        Ok(Channel {
            socket,
            outbox: VecDeque::new(),
            is_watched: false,
            message: Vec::new(),
            message_bytes_max: buffer.saturating_sub(SOCKET_OVERHEAD),
        })
    }

    /// Whether this number of bytes fits into one message.
    pub(super) fn takes(&self, records_bytes: usize) -> bool {
        ORDER_BYTES + records_bytes <= self.message_bytes_max
    }

    /// Passes records of a client on.
    pub(super) fn feed(&mut self, tracer: &Tracer, token: Token, records: &[u8]) {
        let token = token.0;
        encode(&Order::Feed { token, records }, &mut self.message);
        self.send(tracer);
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, tracer: &Tracer, token: Token) {
        encode(&Order::Forget { token: token.0 }, &mut self.message);
        self.send(tracer);
    }

    fn send(&mut self, tracer: &Tracer) {
        if !self.outbox.is_empty() || !self.try_send(tracer, &self.message) {
            self.outbox.push_back(std::mem::take(&mut self.message));
        }
    }

    /// Whether the message is out of the way: a process that has ended is noticed by receiving.
    fn try_send(&self, tracer: &Tracer, message: &[u8]) -> bool {
        let parts = [IoSlice::new(message)];
        let sent = tracer.call(Call::HandshakeSend, || {
            send_with_descriptors(&self.socket, &parts, &[], Wait::Never)
        });
        !matches!(sent, Ok(None) | Err(Errno::NOBUFS | Errno::NOMEM))
    }

    /// Sends what is queued, and watches the socket for room if some remains.
    pub(super) fn flush(&mut self, tracer: &Tracer, events: &mut Events) {
        while let Some(message) = self.outbox.front() {
            if !self.try_send(tracer, message) {
                break;
            }
            self.outbox.pop_front();
        }
        let wanted = !self.outbox.is_empty();
        if wanted != self.is_watched {
            let interest = match wanted {
                true => Interest::BOTH,
                false => Interest::READ,
            };
            let modified = tracer.call(Call::EventControl, || {
                events.modify(self.socket.as_fd(), Token::new(HANDSHAKES, 0, 0), interest)
            });
            if modified.is_ok() {
                self.is_watched = wanted;
            }
        }
    }

    /// Receives a message, and returns its length, too. An error means that the process has ended.
    pub(super) fn receive<'b>(
        &self,
        tracer: &Tracer,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<(Answer<'b>, usize)>, ()> {
        buffer.resize(MESSAGE_BYTES_MAX, 0);
        let received = tracer.call(Call::HandshakeReceive, || {
            receive_with_descriptors(&self.socket, buffer, 0, Wait::Never)
        });
        match received {
            Ok(None) => Ok(None),
            Ok(Some(received)) if !received.is_end() => {
                let answer = decode(&buffer[..received.length]).map_err(|_| ())?;
                Ok(Some((answer, received.length)))
            }
            _ => Err(()),
        }
    }

    pub(super) fn close(self, events: &mut Events) {
        // The descriptor number is free from here on; select and poll must know.
        let _ = events.remove(self.socket.as_fd());
    }
}
