//! The shelf of small files in memory: who stays when it is full.
//!
//! Second chance: contents stand in a ring in the order they came; one that was asked for since the
//! last look goes to the back once more, another one leaves. A hit only sets a flag, so the shelf
//! costs the hot path one store. Contents that are being sent are passed over: to forget them would give
//! no memory back before they are sent.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use crate::request::{Content, Entry, Variant};

/// Entries looked at for each content that wants a place, so that a full shelf of favourites costs a
/// bounded time.
const LOOKS_MAX: usize = 64;

/// A ring shorter than this is not worth sweeping.
const SWEEP_LEAST: usize = 256;

/// Small files in memory, up to a total.
pub struct Shelf {
    total: Rc<Cell<u64>>,
    bytes_max: u64,
    ring: VecDeque<(Weak<Entry>, Variant)>,
    /// At this length the ring is swept of the places of forgotten names.
    sweep_at: usize,
    evicted: u64,
}

impl Shelf {
    /// An empty shelf for at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            total: Rc::new(Cell::new(0)),
            bytes_max,
            ring: VecDeque::new(),
            sweep_at: SWEEP_LEAST,
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
        if self.ring.len() >= self.sweep_at {
            self.sweep();
        }
        self.ring.push_back((Rc::downgrade(entry), variant));
    }

    /// Forgets the places of names that are forgotten themselves, wherever they stand: each keeps the
    /// memory of its entry, and behind one name that lasts they would gather without end. Each sweep
    /// is paid for by as many new places as it looks at.
    fn sweep(&mut self) {
        self.ring.retain(|(weak, _)| weak.strong_count() > 0);
        self.sweep_at = (2 * self.ring.len()).max(SWEEP_LEAST);
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
            if entry.prepared.used.replace(false) || is_being_sent(&entry, variant) {
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

fn is_being_sent(entry: &Entry, variant: Variant) -> bool {
    let place = entry.prepared.contents[variant].borrow();
    place
        .as_ref()
        .is_some_and(|content| Rc::strong_count(content) > 1)
}

#[cfg(test)]
mod tests {
    use files::{Answer, Names, NamesBounds, RootId};

    use super::*;
    use crate::request::{Charge, Prepared};

    const BYTES: u64 = 100;

    struct Fixture {
        shelf: Shelf,
        names: Names<Prepared>,
    }

    impl Fixture {
        fn for_contents(count: u64) -> Fixture {
            let bounds = NamesBounds {
                entries_max: 1000,
                descriptors_max: 1000,
            };
            Fixture {
                shelf: Shelf::new(count * BYTES),
                names: Names::new(bounds),
            }
        }

        fn content(&self) -> Rc<Content> {
            Rc::new(Content {
                bytes: vec![0; BYTES as usize].into_boxed_slice(),
                start: 0,
                body_at: 0,
                date_at: 0,
                date_second: 0,
                charge: Charge::new(self.shelf.total(), BYTES),
            })
        }

        /// A name that is asked for once, with its content put on the shelf.
        fn put(&mut self, name: &str) -> Rc<Entry> {
            let path = name.as_bytes();
            let entry = self.names.insert(RootId(0), path, Answer::Directory, 0);
            let content = self.content();
            self.shelf.put(&entry, 0, &content);
            entry
        }
    }

    fn is_there(entry: &Entry) -> bool {
        entry.prepared.contents[0].borrow().is_some()
    }

    #[test]
    fn oldest_content_leaves_when_the_shelf_is_full() {
        let mut all = Fixture::for_contents(2);
        let (first, second) = (all.put("first"), all.put("second"));
        assert_eq!(all.shelf.evicted(), 0);
        let third = all.put("third");
        assert!(!is_there(&first) && is_there(&second) && is_there(&third));
        assert_eq!(all.shelf.evicted(), 1);
        assert_eq!(all.shelf.total().get(), 2 * BYTES);
    }

    #[test]
    fn content_that_was_asked_for_gets_a_second_chance_and_no_third() {
        let mut all = Fixture::for_contents(2);
        let (first, second) = (all.put("first"), all.put("second"));
        first.prepared.used.set(true);
        let third = all.put("third");
        assert!(is_there(&first) && !is_there(&second));
        all.put("fourth");
        assert!(!is_there(&first), "nobody asked for it again");
        assert!(is_there(&third));
    }

    #[test]
    fn charge_is_given_back_when_the_name_is_forgotten_and_after_the_last_send() {
        let mut all = Fixture::for_contents(2);
        let entry = all.put("name");
        let being_sent = entry.prepared.contents[0].borrow().clone();
        all.names.remove(RootId(0), b"name");
        drop(entry);
        assert_eq!(all.shelf.total().get(), BYTES, "it is still being sent");
        drop(being_sent);
        assert_eq!(all.shelf.total().get(), 0);
    }

    #[test]
    fn content_is_not_kept_when_no_room_can_be_made() {
        let mut all = Fixture::for_contents(1);
        let kept = all.put("kept");
        let being_sent = kept.prepared.contents[0].borrow().clone();
        let other = all.put("other");
        assert!(!is_there(&other), "what is being sent holds its memory");
        assert!(is_there(&kept), "and is not forgotten for nothing");
        assert_eq!((all.shelf.total().get(), all.shelf.evicted()), (BYTES, 0));
        drop(being_sent);
        let next = all.put("next");
        assert!(is_there(&next) && !is_there(&kept));
    }

    #[test]
    fn places_of_forgotten_names_are_swept_when_others_come() {
        let mut all = Fixture::for_contents(2);
        for round in 0..1000 {
            let name = round.to_string();
            drop(all.put(&name));
            all.names.remove(RootId(0), name.as_bytes());
        }
        assert!(all.shelf.ring.len() <= 1, "{}", all.shelf.ring.len());
        assert_eq!(all.shelf.evicted(), 0);
    }

    #[test]
    fn places_of_forgotten_names_are_swept_when_a_lasting_one_stands_before_them() {
        let mut all = Fixture::for_contents(10_000);
        let lasting = all.put("lasting");
        for round in 0..10_000 {
            let name = round.to_string();
            drop(all.put(&name));
            all.names.remove(RootId(0), name.as_bytes());
        }
        let places = all.shelf.ring.len();
        assert!(places <= 2 * SWEEP_LEAST, "{places} places for one content");
        assert!(is_there(&lasting));
    }
}
