//! The service's clients: their identity, their requests under way, and their unsent answers.
//!
//! No client can delay another. Nothing here blocks, a client has at most [`REQUESTS_MAX`] requests
//! under way and is not read from beyond that, its socket holds a few answers only, and a client
//! that does not receive them is disconnected.

use crate::service::wire::{ClientReply, encode_reply};
use headway_event::{Deadlines, Events, Interest, Slots, Token};
use headway_os::fd_passing::{Wait, send_with_descriptors};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use std::collections::VecDeque;
use std::time::Duration;

/// Limit of requests of one client under way, including unsent answers.
pub(super) const REQUESTS_MAX: usize = 16;
/// What the kernel holds for a client that does not read: a few answers.
const SEND_BUFFER_BYTES: usize = 4096;

/// One connected client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) token: Token,
    /// Requests of the client that a helper works for, by the finder's numbers.
    pub(super) requests: Vec<u64>,
    replies: VecDeque<ClientReply>,
    interest: Interest,
}

impl Client {
    /// Whether the client may have one more request under way.
    pub(super) fn has_room(&self) -> bool {
        self.requests.len() + self.replies.len() < REQUESTS_MAX
    }
}

/// Whether a client is still there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClientState {
    Alive,
    /// Close the client's connection.
    Gone,
}

/// All clients, by slot.
#[derive(Debug)]
pub(super) struct Clients {
    clients: Slots<Client>,
    stalls: Deadlines,
    /// A client that does not receive an answer for this long is disconnected.
    send_timeout: Duration,
}

impl Clients {
    /// Creates the table; its tokens are of this kind.
    pub(super) fn new(kind: u8, send_timeout: Duration) -> Clients {
        Clients {
            send_timeout,
            clients: Slots::new(kind),
            stalls: Deadlines::new(Deadlines::TICK_DEFAULT),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Take a client in and register it.
    pub(super) fn insert(&mut self, socket: OwnedFd, events: &mut Events) -> std::io::Result<()> {
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)?;
        let token = self.clients.next_token();
        events.add(socket.as_fd(), token, Interest::READ)?;
        self.clients.insert(Client {
            socket,
            token,
            requests: Vec::new(),
            replies: VecDeque::new(),
            interest: Interest::READ,
        });
        Ok(())
    }

    /// The client of a token, if it is still the same.
    pub(super) fn get(&mut self, token: Token) -> Option<&mut Client> {
        self.clients.get_mut(token)
    }

    /// Take a client out; its socket closes when the result is dropped.
    pub(super) fn remove(&mut self, token: Token, events: &mut Events) -> Option<Client> {
        let client = self.clients.remove(token)?;
        self.stalls.clear(token.slot() as usize);
        // Removed explicitly, not by closing: while a thread starts a helper, the child has a copy
        // of every descriptor until it executes, and the kernel would still report events of the
        // old socket under the number of the next client's.
        let _ = events.remove(client.socket.as_fd());
        Some(client)
    }

    /// Send an answer, or keep it until there is room.
    pub(super) fn answer(
        &mut self,
        token: Token,
        reply: ClientReply,
        now_ms: u64,
        events: &mut Events,
    ) -> ClientState {
        let Some(client) = self.get(token) else {
            return ClientState::Alive;
        };
        client.replies.push_back(reply);
        if client.replies.len() > 1 {
            return ClientState::Alive;
        }
        self.flush(token, now_ms, events)
    }

    /// Sends as much as the client's socket accepts.
    pub(super) fn flush(&mut self, token: Token, now_ms: u64, events: &mut Events) -> ClientState {
        let Some(client) = self.clients.get_mut(token) else {
            return ClientState::Alive;
        };
        let before = client.replies.len();
        while let Some(first) = client.replies.front() {
            match send(&client.socket, first) {
                Ok(true) => drop(client.replies.pop_front()),
                Ok(false) => break,
                Err(_) => return ClientState::Gone,
            }
        }
        let slot = token.slot() as usize;
        match client.replies.len() {
            0 => self.stalls.clear(slot),
            // It has received something, or the timeout starts now.
            left if left < before || before <= 1 => {
                self.stalls
                    .set(slot, now_ms + self.send_timeout.as_millis() as u64);
            }
            _ => {}
        }
        self.heed(token, events)
    }

    /// Updates which events of a client are watched.
    pub(super) fn heed(&mut self, token: Token, events: &mut Events) -> ClientState {
        let Some(client) = self.get(token) else {
            return ClientState::Alive;
        };
        let interest = match (client.has_room(), client.replies.is_empty()) {
            (true, true) => Interest::READ,
            (true, false) => Interest::BOTH,
            (false, false) => Interest::WRITE,
            (false, true) => Interest::NONE,
        };
        if interest != client.interest {
            client.interest = interest;
            let (socket, token) = (client.socket.as_fd(), client.token);
            if events.modify(socket, token, interest).is_err() {
                return ClientState::Gone;
            }
        }
        ClientState::Alive
    }

    /// When [`Clients::stalled`] has something to say at the earliest.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.stalls.next_ms()
    }

    /// Clients that have not received an answer for too long.
    pub(super) fn stalled(&mut self, now_ms: u64) -> Vec<Token> {
        let mut slots = Vec::new();
        self.stalls.expire(now_ms, &mut slots);
        let tokens = slots.into_iter().filter_map(|slot| self.clients.at(slot));
        tokens.map(|client| client.token).collect()
    }
}

/// `Ok(false)` when the socket is full.
fn send(socket: &OwnedFd, reply: &ClientReply) -> Result<bool, Errno> {
    let bytes = encode_reply(reply);
    let sent = send_with_descriptors(socket, &[IoSlice::new(&bytes)], &[], Wait::Never)?;
    Ok(sent.is_some())
}
