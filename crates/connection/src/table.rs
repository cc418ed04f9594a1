//! The table of connections, by slot.

use headway_event::{Slots, Token};

use super::Connection;
use super::idle_order::IdleOrder;

/// The token kind of connections.
pub const CONNECTION: u8 = 1;

/// Connections by slot. A connection is taken out of its slot for each step.
pub struct ConnectionTable {
    slots: Slots<Box<Connection>>,
    /// Those that wait for a request, and are in their slots.
    waiting: IdleOrder,
    /// How many represent HTTP/2 requests.
    streams: usize,
}

impl Default for ConnectionTable {
    fn default() -> ConnectionTable {
        ConnectionTable {
            slots: Slots::new(CONNECTION),
            waiting: IdleOrder::default(),
            streams: 0,
        }
    }
}

impl ConnectionTable {
    /// Inserts the connection that `make` builds for its token.
    pub fn insert(&mut self, make: impl FnOnce(Token) -> Connection) -> usize {
        let token = self.slots.next_token();
        let connection = Box::new(make(token));
        self.streams += usize::from(connection.stream.is_some());
        self.slots.insert(connection).slot() as usize
    }

    /// The slot of a token, if its connection still exists.
    pub fn find(&self, token: Token) -> Option<usize> {
        self.slots.get(token).map(|_| token.slot() as usize)
    }

    /// Takes a connection out for one step; [`ConnectionTable::put_back`] returns it.
    pub fn take(&mut self, slot: usize) -> Option<Box<Connection>> {
        self.waiting.remove(slot);
        self.slots.take(slot)
    }

    /// Puts a connection back after a step.
    pub fn put_back(&mut self, slot: usize, connection: Box<Connection>, now_ms: u64) {
        if connection.waits_for_request() {
            self.waiting.push(slot, now_ms);
        }
        self.slots.put_back(slot, connection);
    }

    /// The connection that has waited for a request longest, and since when.
    pub fn longest_waiting(&self) -> Option<(usize, u64)> {
        self.waiting.first()
    }

    /// Since when the connection in a slot has waited for a request, if it does.
    pub fn waiting_since_ms(&self, slot: usize) -> Option<u64> {
        self.waiting.since_ms(slot)
    }

    /// The connection of a token, if it still exists.
    pub fn of_token(&self, token: Token) -> Option<&Connection> {
        self.slots.get(token).map(Box::as_ref)
    }

    /// The connection in a slot, if there is one.
    pub fn get(&mut self, slot: usize) -> Option<&mut Connection> {
        self.slots.at_mut(slot).map(Box::as_mut)
    }

    /// Removes a connection; its token becomes invalid.
    pub fn remove(&mut self, slot: usize) -> Option<Box<Connection>> {
        self.waiting.remove(slot);
        let removed = self.slots.remove_at(slot)?;
        self.streams -= usize::from(removed.stream.is_some());
        Some(removed)
    }

    /// The number of slots, free ones included.
    pub fn slots(&self) -> usize {
        self.slots.slots()
    }

    /// The number of connections of clients.
    pub fn count(&self) -> usize {
        self.slots.len() - self.streams
    }

    /// The number of requests of HTTP/2.
    pub fn streams(&self) -> usize {
        self.streams
    }

    /// Number of keep-alive connections that wait for their next request.
    pub fn idle(&self) -> usize {
        self.slots
            .iter()
            .filter(|(_, connection)| connection.is_idle())
            .count()
    }

    /// The occupied slots.
    pub fn occupied(&self) -> Vec<usize> {
        self.slots.iter().map(|(slot, _)| slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn connection(token: Token) -> Connection {
        let socket: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        Connection::new(socket, "127.0.0.1:1".parse().unwrap(), token)
    }

    #[test]
    fn connection_token_is_invalid_when_its_slot_was_reused() {
        let mut slots = ConnectionTable::default();
        let first = slots.insert(connection);
        let old = slots.get(first).unwrap().token;
        slots.remove(first);
        let second = slots.insert(connection);
        assert_eq!(first, second, "the slot is used again");
        assert_eq!(slots.find(old), None);
        let new = slots.get(second).unwrap().token;
        assert_eq!(slots.find(new), Some(second));
        assert_eq!(slots.count(), 1);
    }

    #[test]
    fn longest_waiting_connection_is_none_that_has_begun_a_request() {
        let mut table = ConnectionTable::default();
        let all = [0, 1, 2].map(|_| table.insert(connection));
        assert_eq!(
            table.longest_waiting(),
            None,
            "none has taken its first step"
        );
        for (now_ms, slot) in all.into_iter().enumerate() {
            let connection = table.take(slot).unwrap();
            table.put_back(slot, connection, now_ms as u64);
        }
        assert_eq!(table.longest_waiting(), Some((all[0], 0)));
        let mut busy = table.take(all[0]).unwrap();
        busy.header_partial = true;
        table.put_back(all[0], busy, 3);
        assert_eq!(table.longest_waiting(), Some((all[1], 1)));
        assert_eq!(table.waiting_since_ms(all[1]), Some(1));
        assert_eq!(table.waiting_since_ms(all[0]), None, "it has begun one");
        table.remove(all[1]);
        assert_eq!(table.longest_waiting(), Some((all[2], 2)));
    }
}
