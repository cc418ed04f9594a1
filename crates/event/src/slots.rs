//! Values by token: a table whose slots are reused, and whose tokens are not.

use crate::types::Token;

/// Values of one kind, each known by the [`Token`] that its descriptor is registered with.
///
/// Slots are reused, so a token carries the generation of its slot: an event or an answer for a
/// value that has been removed finds nothing, instead of the next value in that slot.
///
/// ```
/// use headway_event::Slots;
///
/// let mut slots = Slots::new(1);
/// let old = slots.insert("first");
/// assert_eq!(slots.remove(old), Some("first"));
/// let new = slots.insert("second");
/// assert_eq!(new.slot(), old.slot());
/// assert_eq!((slots.get(old), slots.get(new)), (None, Some(&"second")));
/// ```
#[derive(Debug)]
pub struct Slots<T> {
    kind: u8,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    /// Absent while the slot is free or its value is taken out.
    value: Option<T>,
}

impl<T> Slots<T> {
    /// An empty table, whose tokens are of this kind.
    pub const fn new(kind: u8) -> Slots<T> {
        Slots {
            kind,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The token that the next value will have, for a value which holds its own.
    pub fn next_token(&self) -> Token {
        let number = self.free.last().copied();
        let number = number.unwrap_or(self.slots.len() as u32);
        let slot = self.slots.get(number as usize);
        Token::new(self.kind, number, slot.map_or(0, |slot| slot.generation))
    }

    /// Inserts a value.
    pub fn insert(&mut self, value: T) -> Token {
        let token = self.next_token();
        let value = Some(value);
        match self.free.pop() {
            Some(number) => self.slots[number as usize].value = value,
            None => self.slots.push(Slot {
                generation: 0,
                value,
            }),
        }
        token
    }

    /// The value of a token, if it is still there.
    pub fn get(&self, token: Token) -> Option<&T> {
        let slot = self.slots.get(token.slot() as usize)?;
        slot.value.as_ref().filter(|_| slot.is_of(token))
    }

    /// The value of a token, if it is still there.
    pub fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let slot = self.slots.get_mut(token.slot() as usize)?;
        let is_same = slot.is_of(token);
        slot.value.as_mut().filter(|_| is_same)
    }

    /// The value in a slot, whatever its token is.
    pub fn at(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot)?.value.as_ref()
    }

    /// The value in a slot, whatever its token is.
    pub fn at_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.value.as_mut()
    }

    /// The number of slots, free ones included.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Takes a value out for one step. Its slot stays occupied; [`Slots::put_back`] returns it.
    pub fn take(&mut self, slot: usize) -> Option<T> {
        self.slots.get_mut(slot)?.value.take()
    }

    /// Puts a value back after a step.
    ///
    /// # Panics
    /// When there has never been such a slot.
    pub fn put_back(&mut self, slot: usize, value: T) {
        self.slots[slot].value = Some(value);
    }

    /// Removes a value; its token becomes invalid.
    pub fn remove(&mut self, token: Token) -> Option<T> {
        self.get(token)?;
        self.remove_at(token.slot() as usize)
    }

    /// Removes the value in a slot; its token becomes invalid.
    pub fn remove_at(&mut self, slot: usize) -> Option<T> {
        let entry = self.slots.get_mut(slot)?;
        let value = entry.value.take()?;
        entry.generation = Token::next_generation(entry.generation);
        self.free.push(slot as u32);
        Some(value)
    }

    /// The number of values, those taken out for a step included.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values that are not taken out, with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let values = self.slots.iter().enumerate();
        values.filter_map(|(slot, entry)| Some((slot, entry.value.as_ref()?)))
    }
}

impl<T> Slot<T> {
    fn is_of(&self, token: Token) -> bool {
        self.generation == token.generation()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: u8 = 3;

    #[test]
    fn old_token_finds_nothing_when_its_slot_was_reused() {
        let mut slots = Slots::new(KIND);
        let old = slots.insert(1);
        assert_eq!(slots.remove(old), Some(1));
        let new = slots.insert(2);
        assert_eq!((new.kind(), new.slot()), (KIND, old.slot()));
        assert_eq!(slots.get(old), None);
        assert_eq!(slots.get_mut(old), None);
        assert_eq!(slots.remove(old), None);
        assert_eq!((slots.get(new), slots.len()), (Some(&2), 1));
    }

    #[test]
    fn slot_stays_occupied_when_its_value_is_taken_out() {
        let mut slots = Slots::new(KIND);
        let token = slots.insert("value");
        let slot = token.slot() as usize;
        let value = slots.take(slot).expect("it was inserted");
        assert_eq!((slots.get(token), slots.len()), (None, 1));
        assert_eq!((slots.take(slot), slots.remove_at(slot)), (None, None));
        assert_ne!(slots.insert("other").slot(), token.slot());
        slots.put_back(slot, value);
        assert_eq!(slots.get(token), Some(&"value"));
    }

    #[test]
    fn next_token_is_that_of_the_next_value() {
        let mut slots = Slots::new(KIND);
        for _ in 0..3 {
            let token = slots.next_token();
            assert_eq!(slots.insert(token), token);
        }
        let found: Vec<Token> = slots.iter().map(|(_, token)| *token).collect();
        assert_eq!(slots.remove_at(1), Some(found[1]));
        let token = slots.next_token();
        assert_eq!(token.slot(), 1);
        assert_eq!(slots.insert(token), token);
        assert_eq!(slots.at(1).copied(), Some(token));
        assert_eq!(slots.at_mut(3), None);
        assert_eq!(slots.len(), 3);
    }

    #[test]
    fn generation_wraps_within_the_bits_of_a_token() {
        let mut slots = Slots::new(KIND);
        let token = slots.insert(1);
        slots.slots[0].generation = Token::new(0, 0, u32::MAX).generation();
        let last = Token::new(KIND, 0, u32::MAX);
        assert_eq!(slots.remove(last), Some(1));
        let next = slots.insert(2);
        assert_eq!(next, token, "the first generation again");
        assert_eq!(slots.get(next), Some(&2));
    }
}
