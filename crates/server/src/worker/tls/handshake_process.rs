//! The worker's state of the handshake process, and the clients that wait for it.

use std::collections::VecDeque;

use headway_event::Token;

use super::channel::Channel;

/// The most clients whose records the handshake process has at a time.
const AWAY_MAX: usize = 64;

/// The most clients whose records wait in the worker: up to 64 KiB each, but usually 2 KiB. More clients wait in
/// the accept queue.
const WAITING_MAX: usize = 256;

/// The handshake process, and the clients that wait for it.
#[derive(Default)]
pub(super) struct HandshakeProcess {
    /// `None` while there is no process: before the first one, or until a dead one is replaced.
    pub(super) channel: Option<Channel>,
    /// Clients whose records the process has.
    pub(super) away: usize,
    /// Clients whose records wait in the worker.
    waiting: VecDeque<Token>,
    /// Too many clients wait. It ends when only half as many wait.
    pub(super) is_crowded: bool,
}

impl HandshakeProcess {
    /// Clients that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.channel.is_some() && self.away < AWAY_MAX
    }

    pub(super) fn wait(&mut self, token: Token) {
        self.waiting.push_back(token);
        self.is_crowded |= self.waiting.len() >= WAITING_MAX;
    }

    pub(super) fn next_waiting(&mut self) -> Option<Token> {
        let next = match self.has_room() {
            true => self.waiting.pop_front(),
            false => None,
        };
        self.is_crowded &= self.waiting.len() > WAITING_MAX / 2;
        next
    }
}
