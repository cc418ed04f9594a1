//! The table of connections. Slots are reused, so a token carries the generation of its slot: an
//! event or a helper's answer for a closed connection is dropped instead of reaching another one.

use headway_event::Token;

use super::Connection;

/// The token kind of connections.
pub const CONNECTION: u8 = 1;

/// A token has 24 bits for the generation.
const GENERATIONS: u32 = 1 << 24;

#[derive(Default)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// Connections by slot.
#[derive(Default)]
pub struct ConnectionTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl ConnectionTable {
    /// Inserts the connection that `make` builds for its token.
    pub fn insert(&mut self, make: impl FnOnce(Token) -> Connection) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        let token = Token::new(CONNECTION, slot, entry.generation);
        entry.connection = Some(Box::new(make(token)));
        slot as usize
    }

    /// The slot of a token, if its connection still exists.
    pub fn find(&self, token: Token) -> Option<usize> {
        let slot = self.slots.get(token.slot() as usize)?;
        (slot.generation == token.generation() && slot.connection.is_some())
            .then_some(token.slot() as usize)
    }

    /// Takes a connection out for one step; [`ConnectionTable::put_back`] returns it.
    pub fn take(&mut self, slot: usize) -> Option<Box<Connection>> {
        self.slots.get_mut(slot)?.connection.take()
    }

    /// Puts a connection back after a step.
    pub fn put_back(&mut self, slot: usize, connection: Box<Connection>) {
        self.slots[slot].connection = Some(connection);
    }

    /// The connection in a slot, if there is one.
    pub fn get(&mut self, slot: usize) -> Option<&mut Connection> {
        self.slots.get_mut(slot)?.connection.as_deref_mut()
    }

    /// Removes a connection; its token becomes invalid.
    pub fn remove(&mut self, slot: usize) -> Option<Box<Connection>> {
        let entry = self.slots.get_mut(slot)?;
        let connection = entry.connection.take()?;
        entry.generation = (entry.generation + 1) % GENERATIONS;
        self.free.push(slot as u32);
        Some(connection)
    }

    /// The number of connections.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Number of keep-alive connections that wait for their next request.
    pub fn idle(&self) -> usize {
        let connections = self
            .slots
            .iter()
            .filter_map(|slot| slot.connection.as_ref());
        connections
            .filter(|connection| connection.is_idle())
            .count()
    }

    /// The occupied slots.
    pub fn occupied(&self) -> Vec<usize> {
        (0..self.slots.len())
            .filter(|&slot| self.slots[slot].connection.is_some())
            .collect()
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
        assert_eq!(slots.len(), 1);
    }
}
