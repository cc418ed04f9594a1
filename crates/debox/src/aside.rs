//! Absences that were in the ring when a call began: nobody's, unless that call interrupted
//! another.
//!
//! A signal handler may make calls while a call of the program sleeps. The handler's call finds the
//! sleep of the interrupted one in the ring, and cannot tell it from a page fault between calls. So
//! what a call finds at its beginning is put aside for a while, numbered; a call that ends later
//! and began earlier takes what is its own.

use crate::absence::Absence;
use crate::record::Stack;

/// Absences kept aside: more than one handler finds unless it interrupts a call that sleeps again
/// and again.
const KEPT_MAX: u64 = 8;

#[derive(Clone, Copy, Debug)]
struct Kept {
    length_ns: u64,
    preempted: bool,
    stack: Stack,
    /// Once taken it is not taken again, by a call around the one that did.
    taken: bool,
}

/// The last few absences found at the beginning of calls.
#[derive(Debug)]
pub(crate) struct Aside {
    kept: Vec<Kept>,
    /// How many were ever put here; the newest has this number.
    count: u64,
}

impl Aside {
    pub(crate) fn new() -> Aside {
        Aside {
            kept: Vec::with_capacity(KEPT_MAX as usize),
            count: 0,
        }
    }

    pub(crate) fn put(&mut self, absence: Absence<'_>) {
        let kept = Kept {
            length_ns: absence.length_ns,
            preempted: absence.preempted,
            stack: Stack::new(absence.stack),
            taken: false,
        };
        let place = (self.count % KEPT_MAX) as usize;
        match self.kept.get_mut(place) {
            Some(oldest) => *oldest = kept,
            None => self.kept.push(kept),
        }
        self.count += 1;
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Hands over what was put here since there were `before`, oldest first, and returns how many
    /// of them are gone, overwritten by newer ones.
    pub(crate) fn take(&mut self, before: u64, mut each: impl FnMut(Absence<'_>)) -> u64 {
        let oldest = self.count.saturating_sub(KEPT_MAX);
        for number in before.max(oldest)..self.count {
            let kept = &mut self.kept[(number % KEPT_MAX) as usize];
            if !std::mem::replace(&mut kept.taken, true) {
                each(Absence {
                    length_ns: kept.length_ns,
                    preempted: kept.preempted,
                    stack: kept.stack.frames(),
                });
            }
        }
        oldest.saturating_sub(before)
    }
}

#[cfg(test)]
mod tests {
    use super::{Aside, KEPT_MAX};
    use crate::absence::Absence;

    fn put(aside: &mut Aside, lengths: std::ops::Range<u64>) {
        for length_ns in lengths {
            aside.put(Absence {
                length_ns,
                preempted: false,
                stack: &[],
            });
        }
    }

    fn take(aside: &mut Aside, before: u64) -> (Vec<u64>, u64) {
        let mut lengths = Vec::new();
        let gone = aside.take(before, |absence| lengths.push(absence.length_ns));
        (lengths, gone)
    }

    #[test]
    fn only_what_came_since_is_taken_and_only_once() {
        let mut aside = Aside::new();
        put(&mut aside, 0..3);
        let before = aside.count();
        put(&mut aside, 3..5);
        assert_eq!(take(&mut aside, before), (vec![3, 4], 0));
        assert_eq!(take(&mut aside, 0), (vec![0, 1, 2], 0));
    }

    #[test]
    fn what_is_gone_is_counted_when_more_come_than_are_kept() {
        let mut aside = Aside::new();
        put(&mut aside, 0..KEPT_MAX + 5);
        let (lengths, gone) = take(&mut aside, 2);
        assert_eq!(lengths, (5..KEPT_MAX + 5).collect::<Vec<u64>>());
        assert_eq!(gone, 3);
    }
}
