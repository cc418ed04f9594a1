//! A connection after both its ends have changed to another protocol (WebSocket): bytes pass,
//! nothing is understood.
//!
//! Either direction has a bounded buffer, and the side that fills it is not read from meanwhile. An
//! end of one direction is passed on when what came before it has been, and the other direction
//! goes on; when both have ended, or the back end is gone, so is the connection. Nothing in either
//! direction for `upgrade-timeout` ends it, too. The connection to the back end is never used again,
//! and the request is none of those that its location has under way: a WebSocket may stay for
//! hours.
//!
//! Sources: RFC 9110 section 7.8; RFC 6455 sections 1.3 and 7.1.1.

use headway_debox::Call;
use headway_event::{Interest, Ready};
use headway_gateway::upstream::Outcome;
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::{Dynamic, Step};
use crate::connection::{Connection, Exchange, Peer, Tunnel};
use crate::request::Piece;
use crate::worker::Worker;

impl Dynamic {
    /// Whether one more connection of a location may change to another protocol.
    pub(super) fn has_tunnels(&self, place: usize, most: u32) -> bool {
        self.tunnels[place] < most
    }
}

impl Worker {
    /// The back end has agreed, and its answer is on its way to the client.
    pub(super) fn open_tunnel(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        let Some(peer) = exchange.peer.take() else {
            // It has said all it wanted to say, and is gone.
            return Step::Go;
        };
        if !peer.talk.unsent().is_empty() {
            exchange.peer = Some(peer);
            let why = "it changed the protocol before it had the whole request";
            return self.refuse_reply(exchange, why);
        }
        let Peer { line, lease, .. } = *peer;
        let place = exchange.program.place;
        self.end_lease(place, lease, Outcome::Answered);
        self.give_place_back(exchange);
        exchange.tunnel = Some(Box::new(Tunnel {
            line,
            client_ended: false,
            told_back_end: false,
            back_end_ended: false,
            told_client: false,
            mute: false,
        }));
        exchange.end_ms = u64::MAX;
        // What came behind the request's head is not HTTP any more.
        exchange.upload.waiting = std::mem::take(&mut connection.rx_buffer);
        self.counters.tunnels_opened += 1;
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.tunnels[place] += 1;
        }
        self.renew(connection, exchange);
        Step::Go
    }

    /// An event on the client's socket.
    pub(super) fn on_tunnel_client(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        event: &Ready,
    ) -> Step {
        if event.readable || event.hangup {
            match self.hear_tunnel_client(connection, exchange) {
                Step::Go => self.feed_tunnel(connection, exchange),
                other => return other,
            }
        }
        if event.writable {
            match self.send_reply(connection, exchange) {
                Step::Go => {}
                other => return other,
            }
        }
        self.pass_ends_on(connection, exchange)
    }

    /// An event on the back end's socket.
    pub(super) fn on_tunnel_back_end(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        event: &Ready,
    ) -> Step {
        if event.writable || event.hangup {
            self.feed_tunnel(connection, exchange);
        }
        if event.readable || event.hangup {
            self.hear_tunnel_back_end(connection, exchange);
            if self.config.eager_write {
                match self.send_reply(connection, exchange) {
                    Step::Go => {}
                    other => return other,
                }
            }
        }
        self.pass_ends_on(connection, exchange)
    }

    /// Takes what the client has sent, if there is room for it.
    fn hear_tunnel_client(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        if !self.hears_tunnel_client(exchange) {
            return Step::Go;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let resets = self.counters.resets;
        let received = self.receive_into(connection, &mut scratch);
        let upload = &mut exchange.upload;
        let step = match received {
            Ok(Some(count)) => {
                if !upload.unwanted {
                    upload.waiting.extend_from_slice(&scratch[..count]);
                    upload.bytes += count as u64;
                }
                Step::Go
            }
            Ok(None) => Step::Go,
            Err(()) if self.counters.resets > resets => Step::Gone,
            Err(()) => {
                if let Some(tunnel) = &mut exchange.tunnel {
                    tunnel.client_ended = true;
                }
                Step::Go
            }
        };
        self.scratch = scratch;
        step
    }

    /// Whether more of what the client sends may be taken now.
    pub(super) fn hears_tunnel_client(&self, exchange: &Exchange) -> bool {
        let open = |tunnel: &Tunnel| !tunnel.client_ended;
        exchange.tunnel.as_deref().is_some_and(open) && exchange.upload.has_room()
    }

    /// Gives the back end what it takes.
    fn feed_tunnel(&mut self, connection: &Connection, exchange: &mut Exchange) {
        let mut progressed = false;
        while let Some(tunnel) = &mut exchange.tunnel
            && !exchange.upload.left().is_empty()
        {
            let written = self.tracer.call(Call::BackendWrite, || {
                rustix::io::write(&tunnel.line.socket, exchange.upload.left())
            });
            match written {
                Ok(count) => {
                    exchange.upload.advance(count);
                    self.counters.dynamic_received_bytes += count as u64;
                    progressed = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // It has gone. What it has still said comes first.
                Err(_) => {
                    tunnel.mute = true;
                    exchange.upload.throw_away();
                }
            }
        }
        if progressed {
            self.renew(connection, exchange);
        }
    }

    /// Takes what the back end has sent, when what came before has left.
    fn hear_tunnel_back_end(&mut self, connection: &mut Connection, exchange: &mut Exchange) {
        let (Some(tunnel), Some(dynamic)) = (&mut exchange.tunnel, &mut self.dynamic) else {
            return;
        };
        if !exchange.download.wanted || tunnel.back_end_ended {
            return;
        }
        let buffer = &mut dynamic.buffer;
        let read = self.tracer.call(Call::BackendRead, || {
            rustix::io::read(&tunnel.line.socket, &mut buffer[..])
        });
        match read {
            Ok(count @ 1..) => {
                let bytes = buffer[..count].to_vec();
                connection.outgoing.push(Piece::bytes(bytes));
                exchange.download.wanted = false;
                self.counters.dynamic_sent_bytes += count as u64;
                self.renew(connection, exchange);
            }
            Ok(_) => tunnel.back_end_ended = true,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                (tunnel.back_end_ended, tunnel.mute) = (true, true);
                exchange.upload.throw_away();
            }
        }
    }

    /// Passes on that a side sends nothing more, when all it has sent has been passed on.
    fn pass_ends_on(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        let Some(tunnel) = &mut exchange.tunnel else {
            return Step::Go;
        };
        let client_done = tunnel.client_ended && exchange.upload.left().is_empty();
        let back_end_done = tunnel.back_end_ended && connection.outgoing.pieces.is_empty();
        if back_end_done && (client_done || tunnel.mute) {
            return Step::Done;
        }
        if client_done && !std::mem::replace(&mut tunnel.told_back_end, true) {
            // One that is gone will be read as such.
            let _ = self.tracer.call(Call::Shutdown, || {
                rustix::net::shutdown(&tunnel.line.socket, Shutdown::Write)
            });
        }
        if back_end_done && !std::mem::replace(&mut tunnel.told_client, true) {
            let _ = self.tracer.call(Call::Shutdown, || {
                rustix::net::shutdown(&connection.socket, Shutdown::Write)
            });
        }
        Step::Go
    }

    /// What the back end's socket is waited for.
    pub(super) fn watch_tunnel(&mut self, exchange: &mut Exchange) {
        let Some(tunnel) = &mut exchange.tunnel else {
            return;
        };
        let reads = exchange.download.wanted && !tunnel.back_end_ended;
        let writes = !exchange.upload.left().is_empty();
        let wanted = match (reads, writes) {
            (true, true) => Some(Interest::BOTH),
            (true, false) => Some(Interest::READ),
            (false, true) => Some(Interest::WRITE),
            (false, false) => None,
        };
        self.watch_line(&mut tunnel.line, wanted);
    }

    /// Closes the connection to the back end.
    pub(super) fn leave_tunnel(&mut self, exchange: &mut Exchange) {
        let Some(tunnel) = exchange.tunnel.take() else {
            return;
        };
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.tunnels[exchange.program.place] -= 1;
        }
        self.close_line(tunnel.line);
    }
}
