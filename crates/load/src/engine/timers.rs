//! Timers of slots: after think time, after a failed connection, or when bandwidth is available
//! again.
//!
//! A slot waits for one thing at a time, so a heap with room for every slot never grows. A
//! cancelled entry stays in the heap; the slot's ticket then differs, and the entry is dropped when
//! it expires. Timeouts change with every request and are in `headway_event::Deadlines`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One instant a slot, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// The ticket each slot's valid entry has.
    tickets: Vec<u32>,
}

impl Timers {
    pub(super) fn with_capacity(slots: usize) -> Timers {
        Timers {
            heap: BinaryHeap::with_capacity(slots),
            tickets: Vec::with_capacity(slots),
        }
    }

    /// Sets or moves the slot's instant.
    pub(super) fn set(&mut self, slot: u32, at_ns: u64) {
        self.clear(slot);
        let ticket = self.tickets[slot as usize];
        self.heap.push(Reverse((at_ns, slot, ticket)));
    }

    /// Forgets the slot's instant, if it has one.
    pub(super) fn clear(&mut self, slot: u32) {
        let index = slot as usize;
        if index >= self.tickets.len() {
            self.tickets.resize(index + 1, 0);
        }
        self.tickets[index] = self.tickets[index].wrapping_add(1);
    }

    /// The earliest instant.
    pub(super) fn next_ns(&mut self) -> Option<u64> {
        while let Some(&Reverse((at_ns, slot, ticket))) = self.heap.peek() {
            if self.tickets[slot as usize] == ticket {
                return Some(at_ns);
            }
            self.heap.pop();
        }
        None
    }

    /// Removes the earliest slot whose instant is not after `now_ns`, and returns it with that
    /// instant.
    pub(super) fn expire(&mut self, now_ns: u64) -> Option<(u32, u64)> {
        let at_ns = self.next_ns().filter(|&at_ns| at_ns <= now_ns)?;
        let Reverse((_, slot, _)) = self.heap.pop()?;
        self.clear(slot);
        Some((slot, at_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_expire_in_order_of_their_deadlines() {
        let mut timers = Timers::with_capacity(3);
        timers.set(0, 30);
        timers.set(1, 10);
        timers.set(2, 20);
        assert_eq!(timers.expire(9), None);
        assert_eq!(timers.expire(25), Some((1, 10)));
        assert_eq!(timers.expire(25), Some((2, 20)));
        assert_eq!(timers.expire(25), None);
        assert_eq!(timers.next_ns(), Some(30));
    }

    #[test]
    fn only_the_latest_deadline_of_a_slot_counts() {
        let mut timers = Timers::with_capacity(2);
        timers.set(0, 10);
        timers.set(0, 40);
        timers.set(1, 20);
        timers.clear(1);
        assert_eq!(timers.next_ns(), Some(40));
        assert_eq!(timers.expire(39), None);
        assert_eq!(timers.expire(40), Some((0, 40)));
        assert_eq!(timers.next_ns(), None);
    }
}
