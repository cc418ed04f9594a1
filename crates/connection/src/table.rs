//! The table of connections, by slot.

use headway_event::{Slots, Token};

use super::Connection;

/// The token kind of connections.
pub const CONNECTION: u8 = 1;

/// Connections by slot. A connection is taken out of its slot for each step.
pub struct ConnectionTable(Slots<Box<Connection>>);

impl Default for ConnectionTable {
    fn default() -> ConnectionTable {
        ConnectionTable(Slots::new(CONNECTION))
    }
}

impl ConnectionTable {
    /// Inserts the connection that `make` builds for its token.
    pub fn insert(&mut self, make: impl FnOnce(Token) -> Connection) -> usize {
        let token = self.0.next_token();
        self.0.insert(Box::new(make(token))).slot() as usize
    }

    /// The slot of a token, if its connection still exists.
    pub fn find(&self, token: Token) -> Option<usize> {
        self.0.get(token).map(|_| token.slot() as usize)
    }

    /// Takes a connection out for one step; [`ConnectionTable::put_back`] returns it.
    pub fn take(&mut self, slot: usize) -> Option<Box<Connection>> {
        self.0.take(slot)
    }

    /// Puts a connection back after a step.
    pub fn put_back(&mut self, slot: usize, connection: Box<Connection>) {
        self.0.put_back(slot, connection);
    }

    /// The connection in a slot, if there is one.
    pub fn get(&mut self, slot: usize) -> Option<&mut Connection> {
        self.0.at_mut(slot).map(Box::as_mut)
    }

    /// Removes a connection; its token becomes invalid.
    pub fn remove(&mut self, slot: usize) -> Option<Box<Connection>> {
        self.0.remove_at(slot)
    }

    /// The number of slots, free ones included.
    pub fn slots(&self) -> usize {
        self.0.slots()
    }

    /// The number of connections.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Number of keep-alive connections that wait for their next request.
    pub fn idle(&self) -> usize {
        self.0
            .iter()
            .filter(|(_, connection)| connection.is_idle())
            .count()
    }

    /// The occupied slots.
    pub fn occupied(&self) -> Vec<usize> {
        self.0.iter().map(|(slot, _)| slot).collect()
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
}
