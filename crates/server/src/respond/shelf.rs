//! The shelf of small files in memory: who stays when it is full.
//!
//! GreedyDual-Size with a second chance. A content has a rank: the shelf's floor when it came, and
//! what a byte of it is worth, which is more the smaller it is, since every content spares one
//! file, whatever its size. When room is needed the lowest rank is looked at and becomes the floor:
//! one that was asked for since is ranked anew from there, another one leaves. So a page of 50 kB
//! does not push a hundred of 500 bytes out, and those go too when nobody asks for them. A hit only
//! sets a flag, so the shelf costs the hot path one store. Contents that are being sent are passed
//! over: to forget them would give no memory back before they are sent.
//!
//! Source: P. Cao, S. Irani, *Cost-Aware WWW Proxy Caching Algorithms*, USITS 1997, section 4.1,
//! with a cost of 1.

use std::cell::Cell;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::rc::{Rc, Weak};

use crate::request::{Content, Entry, Variant};

/// Entries looked at for each content that wants a place, so that a full shelf of favourites costs
/// a bounded time.
const LOOKS_MAX: usize = 64;

/// Fewer places than this are not worth sweeping.
const SWEEP_LEAST: usize = 256;

/// What one content spares, in ranks a byte. The floor rises by that of a whole content only once
/// in the time in which all others have been looked at, so ranks do not come to their end.
const WORTH: u64 = 1 << 40;

/// Small files in memory, up to a total.
pub struct Shelf {
    total: Rc<Cell<u64>>,
    bytes_max: u64,
    /// The lowest rank first.
    places: BinaryHeap<Reverse<Place>>,
    /// The rank that was looked at last.
    floor: u64,
    /// Tells apart those of one rank; the older one goes first.
    next: u64,
    /// With so many places, those of forgotten names are swept.
    sweep_at: usize,
    evicted: u64,
}

/// Where a content stands.
struct Place {
    order: (u64, u64),
    entry: Weak<Entry>,
    variant: Variant,
}

impl Shelf {
    /// An empty shelf for at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            total: Rc::new(Cell::new(0)),
            bytes_max,
            places: BinaryHeap::new(),
            floor: 0,
            next: 0,
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
        if self.places.len() >= self.sweep_at {
            self.sweep();
        }
        self.place(Rc::downgrade(entry), variant, content.bytes.len());
    }

    fn place(&mut self, entry: Weak<Entry>, variant: Variant, bytes: usize) {
        let rank = self.floor.saturating_add(WORTH / (bytes as u64).max(1));
        let order = (rank, self.next);
        self.next += 1;
        self.places.push(Reverse(Place {
            order,
            entry,
            variant,
        }));
    }

    /// Forgets the places of names that are forgotten themselves, wherever they stand: each keeps
    /// the memory of its entry, and behind one name that lasts they would gather without end. Each
    /// sweep is paid for by as many new places as it looks at.
    fn sweep(&mut self) {
        self.places
            .retain(|Reverse(place)| place.entry.strong_count() > 0);
        self.sweep_at = (2 * self.places.len()).max(SWEEP_LEAST);
    }

    fn make_room(&mut self) {
        let mut looks = 0;
        while (self.total.get() > self.bytes_max && looks < LOOKS_MAX) || self.lowest_is_stale() {
            looks += 1;
            let Some(Reverse(place)) = self.places.pop() else {
                return;
            };
            let Some(entry) = place.entry.upgrade() else {
                continue;
            };
            self.floor = place.order.0;
            self.look_at(&entry, place);
        }
    }

    /// Lets the content of a place go, or gives it another one.
    fn look_at(&mut self, entry: &Entry, place: Place) {
        let variant = place.variant;
        let mut held = entry.prepared.contents[variant].borrow_mut();
        let Some(content) = &*held else { return };
        let is_being_sent = Rc::strong_count(content) > 1;
        if entry.prepared.used.replace(false) || is_being_sent {
            self.place(place.entry, variant, content.bytes.len());
        } else {
            *held = None;
            self.evicted += 1;
        }
    }

    /// Entries that left the name cache leave their place behind; it goes when it is the lowest.
    fn lowest_is_stale(&self) -> bool {
        self.places
            .peek()
            .is_some_and(|Reverse(place)| place.entry.strong_count() == 0)
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Place {}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order.cmp(&other.order)
    }
}

#[cfg(test)]
mod tests {
    use headway_files::{Answer, Names, NamesBounds, RootId};

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

        fn content(&self, bytes: u64) -> Rc<Content> {
            Rc::new(Content {
                bytes: vec![0; bytes as usize].into_boxed_slice(),
                start: 0,
                body_at: 0,
                date_at: 0,
                date_second: 0,
                charge: Charge::new(self.shelf.total(), bytes),
            })
        }

        /// A name that is asked for once, with its content put on the shelf.
        fn put(&mut self, name: &str) -> Rc<Entry> {
            self.put_of(name, BYTES)
        }

        fn put_of(&mut self, name: &str, bytes: u64) -> Rc<Entry> {
            let path = name.as_bytes();
            let entry = self.names.insert(RootId(0), path, Answer::Directory, 0);
            let content = self.content(bytes);
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
    fn larger_content_leaves_first_and_a_small_one_when_it_is_not_asked_for_in_the_end() {
        let mut all = Fixture::for_contents(10);
        let small = all.put_of("small", BYTES);
        let mut rounds = 0;
        let mut before = None;
        while is_there(&small) {
            assert!(rounds < 100, "kept for ever");
            let large = all.put_of(&rounds.to_string(), 6 * BYTES);
            assert!(is_there(&large));
            if let Some(gone) = before.replace(large) {
                assert!(!is_there(&gone) || !is_there(&small), "two do not fit");
            }
            rounds += 1;
        }
        assert!(
            rounds >= 6,
            "six times as small is worth six times as much, not {rounds}"
        );
    }

    #[test]
    fn small_content_stays_when_it_is_asked_for_among_many_large_ones() {
        let mut all = Fixture::for_contents(10);
        let small = all.put_of("small", BYTES);
        for round in 0..500 {
            if round % 3 == 0 {
                small.prepared.used.set(true);
            }
            drop(all.put_of(&round.to_string(), 6 * BYTES));
            assert!(is_there(&small), "gone in round {round}");
        }
        assert!(all.shelf.evicted() > 400);
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
        assert!(all.shelf.places.len() <= 1, "{}", all.shelf.places.len());
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
        let places = all.shelf.places.len();
        assert!(places <= 2 * SWEEP_LEAST, "{places} places for one content");
        assert!(is_there(&lasting));
    }
}
