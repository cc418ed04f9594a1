//! From functions in the order of their returns to the calls of each thread, within a limit.
//!
//! A function is never shorter than one it calls. So if there is room only for some functions, the
//! longest are kept, and they still form a tree: only leaves are left out.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::format::Exit;

/// A kernel function, timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The function's first address, or a few bytes behind that.
    pub address: u64,
    /// How many timed functions it was called from.
    pub depth: u16,
    /// When the function was called, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// Nanoseconds until the function returned, sleeps included.
    pub length_ns: u64,
}

/// A function that was entered from outside the kernel, and what it called.
#[derive(Debug)]
struct Tree {
    start_ns: u64,
    length_ns: u64,
    functions: Vec<Function>,
    dropped: u64,
}

/// The functions of one system call, in the order they were called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Functions {
    /// The longest, as many as there was room for; empty if none is known.
    pub functions: Vec<Function>,
    /// Shorter ones that found no room.
    pub dropped: u64,
}

/// Functions that have returned in a call that is under way.
#[derive(Debug, Default)]
struct Pending {
    functions: Vec<Function>,
    dropped: u64,
    last_ns: u64,
}

/// The function calls of all threads.
#[derive(Debug)]
pub struct Trees {
    /// Limit of the functions of each tree.
    functions_max: usize,
    /// Limit of the functions of all trees.
    total_max: usize,
    total: usize,
    pending: HashMap<u32, Pending>,
    pending_total: usize,
    whole: HashMap<u32, Vec<Tree>>,
    /// Trees that made room for longer ones.
    dropped: u64,
}

impl Trees {
    pub fn new(functions_max: usize, total_max: usize) -> Trees {
        Trees {
            functions_max,
            total_max,
            total: 0,
            pending: HashMap::new(),
            pending_total: 0,
            whole: HashMap::new(),
            dropped: 0,
        }
    }

    /// Adds a function whose return the ring recorded at `end_ns`.
    ///
    /// An interrupt may come between the return and the ring's time stamp. So only the tracer's own
    /// clock says which function began first, and until the outermost one returns the start times
    /// are on that clock.
    pub fn add(&mut self, exit: Exit, end_ns: u64) {
        let function = Function {
            address: exit.address,
            depth: exit.depth,
            start_ns: exit.called_ns,
            length_ns: exit.length_ns,
        };
        if exit.depth > 0 {
            return self.wait(exit.thread, function, end_ns);
        }
        let inner = self.pending.remove(&exit.thread).unwrap_or_default();
        self.pending_total -= inner.functions.len();
        let (mut functions, mut dropped) = (inner.functions, inner.dropped);
        // A thread with the same number may have ended in the middle of a call.
        let before = functions.len();
        functions.retain(|inner| inner.start_ns >= function.start_ns);
        dropped += (before - functions.len()) as u64;
        functions.push(function);
        dropped += keep_longest(&mut functions, self.functions_max);
        functions.sort_by_key(|function| (function.start_ns, function.depth));
        let start_ns = end_ns.saturating_sub(exit.length_ns);
        let apart = start_ns.wrapping_sub(exit.called_ns);
        for function in &mut functions {
            function.start_ns = function.start_ns.wrapping_add(apart);
        }
        self.total += functions.len();
        self.whole.entry(exit.thread).or_default().push(Tree {
            start_ns,
            length_ns: function.length_ns,
            functions,
            dropped,
        });
        if self.total > self.total_max {
            self.make_room();
        }
    }

    /// Keeps a function until the outermost one returns.
    fn wait(&mut self, thread: u32, function: Function, end_ns: u64) {
        let pending = self.pending.entry(thread).or_default();
        pending.functions.push(function);
        pending.last_ns = end_ns;
        self.pending_total += 1;
        if pending.functions.len() >= 2 * self.functions_max.max(64) {
            let gone = keep_longest(&mut pending.functions, self.functions_max);
            pending.dropped += gone;
            self.pending_total -= gone as usize;
        }
        if self.pending_total > self.total_max {
            self.discard_oldest_pending();
        }
    }

    /// Threads that ended in a call never return from it. Those with the oldest last event are
    /// discarded; if such a thread does continue, its call counts the lost functions.
    fn discard_oldest_pending(&mut self) {
        let mut lasts: Vec<u64> = self.pending.values().map(|thread| thread.last_ns).collect();
        let half = lasts.len() / 2;
        let (_, &mut last_ns, _) = lasts.select_nth_unstable(half);
        for thread in self.pending.values_mut() {
            if thread.last_ns <= last_ns {
                self.pending_total -= thread.functions.len();
                thread.dropped += thread.functions.len() as u64;
                thread.functions = Vec::new();
            }
        }
    }

    /// The functions of a call of a thread: those whose outermost function lies mostly inside that
    /// time.
    pub fn of_call(&self, thread: u32, start_ns: u64, wall_ns: u64) -> Functions {
        let mut found = Functions::default();
        let Some(trees) = self.whole.get(&thread) else {
            return found;
        };
        // Trees are whole in the order of their ends; a thread runs one at a time.
        let first = trees.partition_point(|tree| tree.start_ns + tree.length_ns < start_ns);
        let end_ns = start_ns + wall_ns;
        for tree in trees[first..]
            .iter()
            .take_while(|tree| tree.start_ns <= end_ns)
        {
            let middle_ns = tree.start_ns + tree.length_ns / 2;
            if (start_ns..=end_ns).contains(&middle_ns) {
                found.functions.extend(&tree.functions);
                found.dropped += tree.dropped;
            }
        }
        found.dropped += keep_longest(&mut found.functions, self.functions_max);
        found
    }

    /// Trees that were removed, since longer ones needed the room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Removes the complete trees of a thread.
    pub fn forget(&mut self, thread: u32) {
        let trees = self.whole.remove(&thread).unwrap_or_default();
        let functions: usize = trees.iter().map(|tree| tree.functions.len()).sum();
        self.total -= functions;
    }

    /// Drops the shorter half: a policy keeps long calls far more often than short ones.
    fn make_room(&mut self) {
        let mut lengths: Vec<u64> = (self.whole.values().flatten())
            .map(|tree| tree.length_ns)
            .collect();
        let half = lengths.len() / 2;
        let (_, &mut least_ns, _) = lengths.select_nth_unstable(half);
        let before = lengths.len();
        for trees in self.whole.values_mut() {
            trees.retain(|tree| tree.length_ns > least_ns);
        }
        self.whole.retain(|_, trees| !trees.is_empty());
        let left = self.whole.values().flatten();
        self.total = left.clone().map(|tree| tree.functions.len()).sum();
        self.dropped += (before - left.count()) as u64;
    }
}

/// Keeps the longest functions, in their order. Returns how many were removed.
fn keep_longest(functions: &mut Vec<Function>, most: usize) -> u64 {
    let gone = functions.len().saturating_sub(most);
    if gone > 0 {
        let mut indices: Vec<usize> = (0..functions.len()).collect();
        // Among functions of the same length the outer ones are kept, or a function would be left
        // without its caller.
        indices.sort_by_key(|&index| (Reverse(functions[index].length_ns), functions[index].depth));
        indices.truncate(most);
        indices.sort_unstable();
        *functions = indices.iter().map(|&index| functions[index]).collect();
    }
    gone as u64
}

#[cfg(test)]
mod tests {
    use super::{Function, Functions, Trees};
    use crate::functions::format::Exit;

    /// A function that returns at this time.
    fn exit(trees: &mut Trees, thread: u32, depth: u16, start_ns: u64, end_ns: u64) {
        let exit = Exit {
            thread,
            // Something to know it by.
            address: start_ns,
            depth,
            called_ns: start_ns,
            length_ns: end_ns - start_ns,
        };
        trees.add(exit, end_ns);
    }

    fn starts(functions: &Functions) -> Vec<u64> {
        functions
            .functions
            .iter()
            .map(|function| function.start_ns)
            .collect()
    }

    #[test]
    fn functions_are_those_of_the_call_when_threads_and_calls_follow_each_other() {
        let mut trees = Trees::new(10, 1000);
        exit(&mut trees, 1, 1, 110, 130);
        exit(&mut trees, 2, 0, 105, 195);
        exit(&mut trees, 1, 0, 100, 150);
        exit(&mut trees, 1, 0, 200, 260);
        // Still under way.
        exit(&mut trees, 1, 1, 310, 320);
        assert_eq!(starts(&trees.of_call(1, 95, 60)), [100, 110]);
        assert_eq!(starts(&trees.of_call(1, 195, 70)), [200]);
        assert_eq!(starts(&trees.of_call(2, 100, 100)), [105]);
        // Both, as for a call whose return causes work of its own.
        assert_eq!(starts(&trees.of_call(1, 90, 200)), [100, 110, 200]);
        assert_eq!(trees.of_call(3, 0, 1000), Functions::default());
        assert_eq!(trees.of_call(1, 300, 50), Functions::default());
    }

    #[test]
    fn callers_precede_their_callees_when_the_ring_has_returns_in_reverse_order() {
        let mut trees = Trees::new(10, 1000);
        // The ring's clock is 5000 ahead of the tracer's; an interrupt of 500 came before two of
        // the returns were written.
        for (depth, called_ns, length_ns, late_ns) in [
            (2, 115, 5, 0),
            (1, 110, 20, 500),
            (2, 145, 10, 0),
            (1, 140, 30, 0),
            (0, 100, 100, 500),
        ] {
            let exit = Exit {
                thread: 1,
                address: called_ns,
                depth,
                called_ns,
                length_ns,
            };
            trees.add(exit, 5000 + called_ns + length_ns + late_ns);
        }
        let found = trees.of_call(1, 5000, 1000);
        let calls: Vec<(u64, u16)> = (found.functions.iter())
            .map(|function| (function.address, function.depth))
            .collect();
        assert_eq!(calls, [(100, 0), (110, 1), (115, 2), (140, 1), (145, 2)]);
        assert_eq!(starts(&found), [5600, 5610, 5615, 5640, 5645]);
        assert_eq!(found.dropped, 0);
    }

    #[test]
    fn functions_of_adjacent_calls_are_excluded_when_they_touch_the_call() {
        let mut trees = Trees::new(10, 1000);
        exit(&mut trees, 1, 0, 100, 200);
        exit(&mut trees, 1, 0, 210, 300);
        // The call began at 190 as its clock sees it.
        assert_eq!(starts(&trees.of_call(1, 190, 115)), [210]);
    }

    #[test]
    fn longest_functions_and_their_callers_are_kept_when_the_limit_is_exceeded() {
        let mut trees = Trees::new(3, 10_000);
        // A thousand short ones in the second of two calls, the first of which is longer.
        exit(&mut trees, 1, 1, 1_010, 1_900);
        for at in 0..1000 {
            exit(&mut trees, 1, 2, 2_000 + 2 * at, 2_001 + 2 * at);
        }
        exit(&mut trees, 1, 1, 2_000, 4_000);
        exit(&mut trees, 1, 0, 1_000, 4_100);
        let found = trees.of_call(1, 900, 4_000);
        assert_eq!(starts(&found), [1_000, 1_010, 2_000]);
        assert_eq!(found.dropped, 1000);
        let depths: Vec<u16> = found
            .functions
            .iter()
            .map(|function| function.depth)
            .collect();
        assert_eq!(depths, [0, 1, 1]);
    }

    #[test]
    fn shorter_calls_are_evicted_and_counted_when_there_are_too_many() {
        let mut trees = Trees::new(4, 100);
        for call in 0..101_u64 {
            exit(&mut trees, 1, 0, 1000 * call, 1000 * call + call);
        }
        assert!((45..=55).contains(&trees.dropped()), "{}", trees.dropped());
        assert_eq!(starts(&trees.of_call(1, 100_000, 500)), [100_000]);
        assert_eq!(trees.of_call(1, 3_000, 500), Functions::default());
    }

    #[test]
    fn other_threads_keep_their_functions_when_one_thread_is_removed() {
        let mut trees = Trees::new(4, 100);
        for thread in [1, 2] {
            exit(&mut trees, thread, 1, 110, 120);
            exit(&mut trees, thread, 0, 100, 200);
        }
        trees.forget(1);
        assert_eq!(trees.of_call(1, 90, 200), Functions::default());
        assert_eq!(starts(&trees.of_call(2, 90, 200)), [100, 110]);
        assert_eq!(trees.total, 2);
    }

    #[test]
    fn pending_functions_are_limited_when_threads_end_inside_calls() {
        let mut trees = Trees::new(4, 100);
        for thread in 1..=101 {
            exit(
                &mut trees,
                thread,
                1,
                10 * u64::from(thread),
                10 * u64::from(thread) + 5,
            );
        }
        assert!(trees.pending_total <= 50, "{}", trees.pending_total);
        exit(&mut trees, 1, 0, 5, 2000);
        exit(&mut trees, 101, 0, 1005, 2000);
        let (old, new) = (trees.of_call(1, 0, 3000), trees.of_call(101, 0, 3000));
        assert_eq!((starts(&old), old.dropped), (vec![5], 1));
        assert_eq!((starts(&new), new.dropped), (vec![1005, 1010], 0));
    }

    #[test]
    fn unfinished_call_is_discarded_when_its_thread_ended_in_it() {
        let mut trees = Trees::new(4, 100);
        exit(&mut trees, 1, 3, 100, 110);
        exit(&mut trees, 1, 0, 500, 600);
        let found = trees.of_call(1, 450, 200).functions;
        assert_eq!(
            found,
            [Function {
                address: 500,
                depth: 0,
                start_ns: 500,
                length_ns: 100
            }]
        );
    }
}
