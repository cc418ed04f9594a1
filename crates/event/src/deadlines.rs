//! One deadline per slot, for connections whose deadline moves with every request.
//!
//! With a heap or a timer wheel every move has a cost, and nearly every deadline of a busy server
//! moves many times before it is reached, if ever. Here a move is a store and a comparison. In
//! return all slots are scanned, at most once per tick, because deadlines are rounded up to ticks
//! and a scan leaves only later ones. 10,000 slots are 80 kB: some microseconds four times per
//! second.
//!
//! Expired slots come in no particular order, and the precision is one tick: a deadline is met up
//! to one tick late, never early.

use std::time::Duration;

use crate::clock::whole_ms;

/// No deadline: an instant beyond any clock.
const NEVER: u64 = u64::MAX;

/// The deadlines of slots.
///
/// ```
/// use headway_event::Deadlines;
/// use std::time::Duration;
///
/// let mut deadlines = Deadlines::new(Duration::from_millis(256));
/// deadlines.set(3, 1_000); // rounded up to 1024
/// deadlines.set(5, 30_000);
/// deadlines.set(3, 2_000); // slot 3 made progress: rounded up to 2048
///
/// let mut expired = Vec::new();
/// let mut now_ms = 0;
/// let mut wakeups = 0;
/// while expired.is_empty() {
///     // A loop would wait for events until then.
///     now_ms = deadlines.next_ms().unwrap();
///     deadlines.expire(now_ms, &mut expired);
///     wakeups += 1;
/// }
/// assert_eq!((now_ms, expired), (2048, vec![3]));
/// assert_eq!(wakeups, 2); // 1024 was a lower bound, and found nothing
/// ```
#[derive(Clone, Debug)]
pub struct Deadlines {
    tick_ms: u64,
    /// Deadlines by slot, rounded up to the tick, or [`NEVER`].
    at_ms: Vec<u64>,
    armed: usize,
    /// Lower bound of all deadlines that are set.
    earliest_ms: u64,
}

impl Deadlines {
    /// A tick that suits timeouts of seconds.
    pub const TICK_DEFAULT: Duration = Duration::from_millis(256);

    /// Creates an empty set. The tick is rounded up to whole milliseconds, at least one.
    pub fn new(tick: Duration) -> Deadlines {
        let tick_ms = whole_ms(tick).max(1);
        Deadlines {
            tick_ms,
            at_ms: Vec::new(),
            armed: 0,
            earliest_ms: NEVER,
        }
    }

    /// Sets or moves the slot's deadline, rounded up to the tick. Slots are indices of a dense
    /// vector that grows to the highest one. An instant within a tick of `u64::MAX` is no deadline.
    pub fn set(&mut self, slot: usize, at_ms: u64) {
        if slot >= self.at_ms.len() {
            self.at_ms.resize(slot + 1, NEVER);
        }
        let at_ms = at_ms.div_ceil(self.tick_ms).saturating_mul(self.tick_ms);
        let before_ms = std::mem::replace(&mut self.at_ms[slot], at_ms);
        self.count(before_ms, at_ms);
        self.earliest_ms = self.earliest_ms.min(at_ms);
    }

    /// Clears the slot's deadline, if it has one.
    pub fn clear(&mut self, slot: usize) {
        if let Some(at_ms) = self.at_ms.get_mut(slot) {
            let before_ms = std::mem::replace(at_ms, NEVER);
            self.count(before_ms, NEVER);
        }
    }

    /// Returns a lower bound of the earliest deadline; `None` if no slot has one. A wakeup at that
    /// time may find nothing, because a deadline that was moved later is noticed only then.
    pub fn next_ms(&self) -> Option<u64> {
        (self.armed > 0).then_some(self.earliest_ms)
    }

    /// Replaces `expired` by the slots whose deadline is at or before `now_ms`, each once, and
    /// clears their deadlines. This costs a comparison until the lower bound is reached, then one
    /// scan.
    pub fn expire(&mut self, now_ms: u64, expired: &mut Vec<usize>) {
        expired.clear();
        if self.armed == 0 || now_ms < self.earliest_ms {
            return;
        }
        self.earliest_ms = NEVER;
        for (slot, at_ms) in self.at_ms.iter_mut().enumerate() {
            if *at_ms == NEVER {
                continue;
            }
            if *at_ms <= now_ms {
                *at_ms = NEVER;
                expired.push(slot);
            } else {
                self.earliest_ms = self.earliest_ms.min(*at_ms);
            }
        }
        self.armed -= expired.len();
    }

    fn count(&mut self, before_ms: u64, after_ms: u64) {
        self.armed += usize::from(after_ms != NEVER);
        self.armed -= usize::from(before_ms != NEVER);
        if self.armed == 0 {
            self.earliest_ms = NEVER;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn deadlines() -> Deadlines {
        Deadlines::new(Deadlines::TICK_DEFAULT)
    }

    fn expired_at(deadlines: &mut Deadlines, now_ms: u64) -> Vec<usize> {
        let mut expired = vec![usize::MAX];
        deadlines.expire(now_ms, &mut expired);
        expired
    }

    #[test]
    fn nothing_is_next_when_no_slot_has_a_deadline() {
        let mut deadlines = deadlines();
        assert_eq!(deadlines.next_ms(), None);
        deadlines.set(2, 10);
        deadlines.clear(2);
        deadlines.clear(2);
        deadlines.clear(99);
        assert_eq!(deadlines.next_ms(), None);
        assert_eq!(expired_at(&mut deadlines, u64::MAX), []);
    }

    #[test]
    fn slot_expires_once_when_its_tick_is_reached() {
        let mut deadlines = deadlines();
        deadlines.set(4, 257);
        assert_eq!(deadlines.next_ms(), Some(512));
        assert_eq!(expired_at(&mut deadlines, 511), []);
        assert_eq!(expired_at(&mut deadlines, 512), [4]);
        assert_eq!(expired_at(&mut deadlines, 9999), []);
        assert_eq!(deadlines.next_ms(), None);
    }

    #[test]
    fn scans_are_a_tick_apart_when_many_deadlines_move() {
        let mut deadlines = deadlines();
        let mut scans = 0;
        for now_ms in 0..2560 {
            deadlines.set(now_ms as usize % 97, now_ms + 1000);
            if deadlines.next_ms().is_some_and(|next_ms| now_ms >= next_ms) {
                scans += 1;
                assert_eq!(expired_at(&mut deadlines, now_ms), []);
            }
        }
        assert!((1..=10).contains(&scans), "{scans} scans in 10 ticks");
    }

    #[test]
    fn lower_bound_follows_when_a_deadline_is_moved_earlier() {
        let mut deadlines = deadlines();
        deadlines.set(0, 10_240);
        deadlines.set(0, 256);
        assert_eq!(deadlines.next_ms(), Some(256));
        assert_eq!(expired_at(&mut deadlines, 256), [0]);
    }

    #[test]
    fn deadline_is_never_when_rounding_it_up_leaves_the_clock() {
        let mut deadlines = deadlines();
        deadlines.set(0, u64::MAX - 3);
        assert_eq!(deadlines.next_ms(), None);
    }

    #[derive(Clone, Debug)]
    enum DeadlineStep {
        Set(usize, u64),
        Clear(usize),
        Expire(u64),
    }

    fn step() -> impl Strategy<Value = DeadlineStep> {
        prop_oneof![
            3 => (0..6_usize, 0..4000_u64).prop_map(|(slot, in_ms)| DeadlineStep::Set(slot, in_ms)),
            1 => (0..6_usize).prop_map(DeadlineStep::Clear),
            2 => (0..900_u64).prop_map(DeadlineStep::Expire),
        ]
    }

    proptest! {
        #[test]
        fn expires_as_a_map_would_when_steps_are_random(
            tick_ms in 1..300_u64,
            steps in prop::collection::vec(step(), 0..60),
        ) {
            let mut deadlines = Deadlines::new(Duration::from_millis(tick_ms));
            let mut model = BTreeMap::new();
            let mut now_ms = 0;
            for step in steps {
                match step {
                    DeadlineStep::Set(slot, in_ms) => {
                        deadlines.set(slot, now_ms + in_ms);
                        model.insert(slot, (now_ms + in_ms).div_ceil(tick_ms) * tick_ms);
                    }
                    DeadlineStep::Clear(slot) => {
                        deadlines.clear(slot);
                        model.remove(&slot);
                    }
                    DeadlineStep::Expire(in_ms) => {
                        now_ms += in_ms;
                        let due = model.extract_if(.., |_, at_ms| *at_ms <= now_ms);
                        let due: Vec<usize> = due.map(|(slot, _)| slot).collect();
                        prop_assert_eq!(expired_at(&mut deadlines, now_ms), due);
                    }
                }
                let earliest = model.values().min();
                prop_assert_eq!(deadlines.next_ms().is_some(), earliest.is_some());
                prop_assert!(deadlines.next_ms() <= earliest.copied());
            }
        }
    }
}
