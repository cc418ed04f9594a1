//! Connections to back ends, from their beginning to their end: whom each serves, and what it is
//! waited for.
//!
//! The event mechanism knows a connection by one name, however many requests it serves. One that
//! waits for its next request stays known: that its back end closes it, or says what nobody has
//! asked for, is told like anything else, and between two requests there is nothing to tell the
//! kernel.

use std::os::fd::{AsFd, OwnedFd};

use headway_debox::Call;
use headway_event::{EVENTS_PER_WAIT_MAX, Interest, Ready, Token};

use super::Dynamic;
use crate::connection::Line;
use crate::worker::{LINE, Worker};

/// Generations are 24 bits of a token.
const GENERATIONS: u32 = 1 << 24;

/// Whom a connection serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// The request of this client.
    Client(Token),
    /// The next request to a back end of a location.
    Next { place: usize, back_end: usize },
    /// Nobody: its request has been given up.
    Nobody,
}

/// Whom each connection serves, by its name.
#[derive(Default)]
pub(super) struct Lines {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    serves: Option<Serves>,
}

impl Lines {
    /// A name for a connection that serves somebody from now on.
    fn open(&mut self, serves: Serves) -> Token {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[number as usize];
        slot.serves = Some(serves);
        Token::new(LINE, number, slot.generation)
    }

    fn slot(&mut self, name: Token) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(name.slot() as usize)?;
        (slot.generation == name.generation() && slot.serves.is_some()).then_some(slot)
    }

    /// It serves somebody else.
    pub(super) fn assign(&mut self, name: Token, serves: Serves) {
        if let Some(slot) = self.slot(name) {
            slot.serves = Some(serves);
        }
    }

    /// Its name is dead from here on.
    fn close(&mut self, name: Token) {
        if let Some(slot) = self.slot(name) {
            slot.serves = None;
            slot.generation = (slot.generation + 1) % GENERATIONS;
            self.free.push(name.slot());
        }
    }
}

impl Worker {
    /// Before anything else in a turn: what connections say that wait for their next request, so
    /// that nobody takes one of which that could have been known.
    pub(in crate::worker) fn hear_idle_lines(&mut self, ready: &[Ready]) {
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        dynamic.turn += 1;
        dynamic.all_told = ready.len() < EVENTS_PER_WAIT_MAX;
        for event in ready.iter().filter(|event| event.token.kind() == LINE) {
            if let Some(Serves::Next { place, back_end }) = self.serves(event.token) {
                self.hear_idle(place, back_end, event.token);
            }
        }
    }

    fn serves(&mut self, name: Token) -> Option<Serves> {
        self.dynamic.as_mut()?.lines.slot(name)?.serves
    }

    /// An event on a connection to a back end.
    pub(in crate::worker) fn on_line(&mut self, event: &Ready) {
        match self.serves(event.token) {
            Some(Serves::Client(client)) => self.on_back_end(client, event),
            Some(Serves::Next { place, back_end }) => self.hear_idle(place, back_end, event.token),
            Some(Serves::Nobody) => self.on_aborted(event),
            None => {}
        }
    }

    fn on_back_end(&mut self, client: Token, event: &Ready) {
        let Some(slot) = self.connections.find(client) else {
            return;
        };
        self.with_connection(slot, |worker, connection| {
            worker.step_exchange(connection, |worker, connection, exchange| {
                match exchange.tunnel.is_some() {
                    true => worker.on_tunnel_back_end(connection, exchange, event),
                    false => worker.on_peer(connection, exchange, event),
                }
            })
        });
    }

    /// A connection that has just been begun, for this client's request.
    pub(super) fn open_line(dynamic: &mut Dynamic, socket: OwnedFd, client: Token) -> Line {
        Line {
            socket,
            name: dynamic.lines.open(Serves::Client(client)),
            interest: None,
        }
    }

    /// Tells the event mechanism what a connection is waited for, if it does not know. Nothing: a
    /// hang-up would be told at every wait, so it is not registered at all.
    pub(super) fn watch_line(&mut self, line: &mut Line, wanted: Option<Interest>) {
        if wanted == line.interest {
            return;
        }
        let (socket, name) = (line.socket.as_fd(), line.name);
        let told = self
            .tracer
            .call(Call::EventControl, || match (line.interest, wanted) {
                (None, Some(wanted)) => self.events.add(socket, name, wanted),
                (_, Some(wanted)) => self.events.modify(socket, name, wanted),
                (_, None) => self.events.remove(socket),
            });
        match told {
            Ok(()) => line.interest = wanted,
            // Out of memory or watches: the deadline will end this exchange, nobody else's.
            Err(error) => self.notice(format!("watching a back end: {error}")),
        }
    }

    /// Ends a connection.
    pub(super) fn close_line(&mut self, mut line: Line) {
        self.watch_line(&mut line, None);
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.lines.close(line.name);
        }
        self.tracer.call(Call::Close, || drop(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_token_is_invalid_when_its_slot_was_reused() {
        let next = Serves::Next {
            place: 3,
            back_end: 1,
        };
        let mut lines = Lines::default();
        let first = lines.open(Serves::Nobody);
        lines.assign(first, next);
        assert_eq!(lines.slot(first).and_then(|slot| slot.serves), Some(next));
        lines.close(first);
        let second = lines.open(Serves::Nobody);
        assert_eq!(second.slot(), first.slot());
        lines.assign(first, next);
        lines.close(first);
        assert!(lines.slot(first).is_none());
        let found = lines.slot(second).and_then(|slot| slot.serves);
        assert_eq!(found, Some(Serves::Nobody));
    }
}
