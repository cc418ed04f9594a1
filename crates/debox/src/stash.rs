//! Off-CPU intervals that were in the ring when a call began. They belong to no call, unless that
//! call interrupted another.
//!
//! A signal handler may make calls while a call of the program sleeps. The handler's call finds the
//! sleep of the interrupted call in the ring, and cannot tell it from a page fault between calls.
//! So the intervals that a call finds at its beginning are stashed with a number. A call that ends
//! later and began earlier takes those that are its own.

use crate::off_cpu::OffCpuInterval;
use crate::record::Stack;

/// Intervals that are kept: more than one handler finds, unless it interrupts a call that sleeps
/// again and again.
const INTERVALS_MAX: u64 = 8;

#[derive(Clone, Copy, Debug)]
struct StashedInterval {
    length_ns: u64,
    preempted: bool,
    stack: Stack,
    /// An interval is taken only once, not again by an outer call.
    taken: bool,
}

/// The last few off_cpu found at the beginning of calls.
#[derive(Debug)]
pub(crate) struct Stash {
    kept: Vec<StashedInterval>,
    /// How many were ever put here; the newest has this number.
    count: u64,
}

impl Stash {
    pub(crate) fn new() -> Stash {
        Stash {
            kept: Vec::with_capacity(INTERVALS_MAX as usize),
            count: 0,
        }
    }

    pub(crate) fn push(&mut self, interval: OffCpuInterval<'_>) {
        let kept = StashedInterval {
            length_ns: interval.length_ns,
            preempted: interval.preempted,
            stack: Stack::new(interval.stack),
            taken: false,
        };
        let index = (self.count % INTERVALS_MAX) as usize;
        match self.kept.get_mut(index) {
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
    pub(crate) fn take(&mut self, before: u64, mut each: impl FnMut(OffCpuInterval<'_>)) -> u64 {
        let oldest = self.count.saturating_sub(INTERVALS_MAX);
        for number in before.max(oldest)..self.count {
            let kept = &mut self.kept[(number % INTERVALS_MAX) as usize];
            if !std::mem::replace(&mut kept.taken, true) {
                each(OffCpuInterval {
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
    use super::{INTERVALS_MAX, Stash};
    use crate::off_cpu::OffCpuInterval;

    fn push(stash: &mut Stash, lengths: std::ops::Range<u64>) {
        for length_ns in lengths {
            stash.push(OffCpuInterval {
                length_ns,
                preempted: false,
                stack: &[],
            });
        }
    }

    fn take(stash: &mut Stash, before: u64) -> (Vec<u64>, u64) {
        let mut lengths = Vec::new();
        let gone = stash.take(before, |interval| lengths.push(interval.length_ns));
        (lengths, gone)
    }

    #[test]
    fn only_new_intervals_are_taken_and_only_once() {
        let mut stash = Stash::new();
        push(&mut stash, 0..3);
        let before = stash.count();
        push(&mut stash, 3..5);
        assert_eq!(take(&mut stash, before), (vec![3, 4], 0));
        assert_eq!(take(&mut stash, 0), (vec![0, 1, 2], 0));
    }

    #[test]
    fn overwritten_intervals_are_counted_when_more_arrive_than_are_kept() {
        let mut stash = Stash::new();
        push(&mut stash, 0..INTERVALS_MAX + 5);
        let (lengths, gone) = take(&mut stash, 2);
        assert_eq!(lengths, (5..INTERVALS_MAX + 5).collect::<Vec<u64>>());
        assert_eq!(gone, 3);
    }
}
