//! The shelf of small files in memory: who stays when it is full.
//!
//! Second chance: contents stand in a ring in the order they came; one that was asked for since the
//! last look goes to the back once more, another one leaves. A hit only sets a flag, so the shelf
//! costs the hot path one store. Contents that are being sent live until they are sent; the shelf
//! just forgets them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use crate::request::{Content, Entry, Variant};

/// Entries looked at for each content that wants a place, so that a full shelf of favourites costs a
/// bounded time.
const LOOKS_MAX: usize = 64;

/// Small files in memory, up to a total.
pub struct Shelf {
    total: Rc<Cell<u64>>,
    bytes_max: u64,
    ring: VecDeque<(Weak<Entry>, Variant)>,
    evicted: u64,
}

impl Shelf {
    /// An empty shelf for at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            total: Rc::new(Cell::new(0)),
            bytes_max,
            ring: VecDeque::new(),
            evicted: 0,
        }
    }

    /// What contents are charged to.
    pub fn total(&self) -> &Rc<Cell<u64>> {
        &self.total
    }

    /// Contents that had to leave.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Puts a content beside its entry, if there is room or room can be made.
    pub fn put(&mut self, entry: &Rc<Entry>, variant: Variant, content: &Rc<Content>) {
        self.make_room();
        if self.total.get() > self.bytes_max {
            return;
        }
        *entry.prepared.contents[variant].borrow_mut() = Some(content.clone());
        self.ring.push_back((Rc::downgrade(entry), variant));
    }

    fn make_room(&mut self) {
        let mut looks = 0;
        while (self.total.get() > self.bytes_max && looks < LOOKS_MAX) || self.ring_is_stale() {
            looks += 1;
            let Some((weak, variant)) = self.ring.pop_front() else {
                return;
            };
            let Some(entry) = weak.upgrade() else {
                continue;
            };
            if entry.prepared.used.replace(false) {
                self.ring.push_back((weak, variant));
                continue;
            }
            if entry.prepared.contents[variant]
                .borrow_mut()
                .take()
                .is_some()
            {
                self.evicted += 1;
            }
        }
    }

    /// Entries that left the name cache leave their place in the ring behind; it is swept from the
    /// front, which is where the oldest stand.
    fn ring_is_stale(&self) -> bool {
        self.ring
            .front()
            .is_some_and(|(weak, _)| weak.strong_count() == 0)
    }
}
