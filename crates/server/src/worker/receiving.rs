//! Receives from a client's socket, for every stage that takes bytes of a request.

use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::AsFd;

use super::context::LoopContext;
use crate::calls::Call;
use crate::connection::{Body, BodyUse, Connection, Next, Phase};
use crate::request::Request;
use crate::send;

impl LoopContext {
    /// Receives bytes. Returns `None` if there are none now, and an error if the client has closed
    /// or reset the connection.
    pub(super) fn receive_into(
        &mut self,
        connection: &Connection,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, ()> {
        let room = buffer.len();
        let received = self.tracer.call(Call::Receive, || {
            rustix::net::recv(&connection.socket, buffer, RecvFlags::DONTWAIT)
        });
        match received {
            Ok((0, _)) => Err(()),
            Ok((count, _)) => {
                self.counters.received_bytes += count as u64;
                if count < room {
                    self.events.drained(connection.socket.as_fd());
                }
                Ok(Some(count))
            }
            Err(error @ (Errno::AGAIN | Errno::INTR)) => {
                self.counters.receives_would_block += 1;
                if error == Errno::AGAIN {
                    self.events.drained(connection.socket.as_fd());
                }
                Ok(None)
            }
            Err(_) => {
                self.counters.connections_reset += 1;
                Err(())
            }
        }
    }

    /// Sends `100 Continue`, completely or not at all.
    ///
    /// If the socket accepts nothing, the client has not read the previous response yet; it may
    /// send its body without the interim response (RFC 9110, 10.1.1). If the socket accepts only a
    /// part, the connection closes, because the next response would be read as the rest of this
    /// one. An error means that the connection must close.
    pub(super) fn send_continue(&mut self, connection: &Connection) -> Result<(), ()> {
        let line = b"HTTP/1.1 100 Continue\r\n\r\n";
        match send::send_whole(&connection.socket, line, false, &self.tracer) {
            Ok(sent) => {
                self.counters.sent_bytes += sent as u64;
                if sent < line.len() {
                    self.counters.responses_aborted += 1;
                    return Err(());
                }
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => {
                self.counters.connections_reset += 1;
                Err(())
            }
        }
    }

    /// Makes a request wait for the rest of its body.
    pub(super) fn wait_for_body(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        body: Body,
        body_use: BodyUse,
        expected: bool,
    ) -> Next {
        if expected && self.send_continue(connection).is_err() {
            return Next::Close(None);
        }
        let deadline = self.now_ms + self.config.body_timeout_ms;
        self.deadlines.set(connection.slot(), deadline);
        self.watch(connection, headway_event::Interest::READ);
        Next::Wait(Phase::Body(request, body, body_use))
    }
}
