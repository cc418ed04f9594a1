//! The sums of one thread in its lane of the file. A lane has one writer at a time, which adds by a
//! load and a store.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::collect::format::{lane, site, sleep};
use crate::collect::histogram;
use crate::record::{Record, Sleep};

/// The sums of one thread, or of several one after another: a table of call sites and one of their
/// sleeps.
#[derive(Clone, Copy, Debug)]
pub struct ThreadTotals<'a> {
    pub(super) words: &'a [AtomicU64; lane::WORDS],
    pub(super) thread: u32,
}

impl<'a> ThreadTotals<'a> {
    /// The thread it belongs to.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Gives the lane back. The sums stay.
    pub fn release(self) {
        self.words[lane::OWNER].store(0, Ordering::Release);
    }

    /// Adds the record of a call made from `site`, a return address. True if the site is a new one.
    #[inline]
    pub fn add(&self, site: u64, failed: bool, record: &Record) -> bool {
        self.increase(lane::CALLS, 1);
        let Some((index, new)) = self.site(site, record.number) else {
            self.increase(lane::SITES_DROPPED, 1);
            return false;
        };
        let words = self.site_words(index);
        let wall_ns = record.wall_ns;
        increase(words, site::COUNT, 1);
        increase(words, site::ERRORS, u64::from(failed));
        increase(words, site::WALL_NS, wall_ns);
        raise_to(words, site::WALL_MAX_NS, wall_ns);
        lower_to(words, site::WALL_MIN_NS, wall_ns);
        let in_band_ns = wall_ns.saturating_sub(record.preemptions.total_ns);
        raise_to(words, site::IN_BAND_MAX_NS, in_band_ns);
        lower_to(words, site::IN_BAND_MIN_NS, in_band_ns);
        let bucket = histogram::bucket(wall_ns);
        increase(
            words,
            site::HISTOGRAM + bucket / 2,
            1 << (32 * (bucket % 2)),
        );
        if record.faults_minor.unwrap_or(0) + record.faults_major.unwrap_or(0) > 0 {
            let faults = |count: Option<u32>| u64::from(count.unwrap_or(0));
            increase(words, site::FAULTS_MINOR, faults(record.faults_minor));
            increase(words, site::FAULTS_MAJOR, faults(record.faults_major));
        }
        if record.left_cpu() {
            self.add_absences(index, record);
        }
        new
    }

    /// Counts a call that will not come back if all goes well, as an exec.
    pub fn count_departing_call(&self, site: u64, number: u32) {
        self.increase(lane::CALLS, 1);
        if let Some((index, _)) = self.site(site, number) {
            increase(self.site_words(index), site::COUNT, 1);
        }
    }

    /// Takes a count of [`ThreadTotals::count_departing_call`] back: the call failed and its record
    /// follows.
    pub fn uncount_departing_call(&self, site: u64, number: u32) {
        self.increase(lane::CALLS, 1_u64.wrapping_neg());
        if let Some((index, _)) = self.site(site, number) {
            increase(self.site_words(index), site::COUNT, 1_u64.wrapping_neg());
        }
    }

    /// Counts a call made in a signal handler while another one was under way. What it slept
    /// belongs to that other call.
    pub fn count_nested_call(&self) {
        self.increase(lane::NESTED, 1);
    }

    /// Counts a record that met the conditions of the policy and returns how many had before it.
    pub fn count_match(&self) -> u64 {
        let before = self.words[lane::MET].load(Ordering::Relaxed);
        self.words[lane::MET].store(before + 1, Ordering::Relaxed);
        before
    }

    #[cold]
    #[inline(never)]
    fn add_absences(&self, index: usize, record: &Record) {
        let words = self.site_words(index);
        increase(words, site::PREEMPTIONS, record.preemptions.count);
        increase(words, site::PREEMPTED_NS, record.preemptions.total_ns);
        increase(words, site::SLEPT, record.slept_count());
        increase(words, site::BLOCKED_NS, record.blocked_ns());
        increase(words, site::WAKEUP_NS, record.wakeup_ns.unwrap_or(0));
        self.increase(lane::LOST, record.lost);
        self.increase(lane::SLEEPS_DROPPED, u64::from(record.sleeps_dropped));
        for sleep in record.sleeps() {
            self.add_sleep(index, sleep);
        }
    }

    fn add_sleep(&self, site: usize, sleep: &Sleep) {
        let used =
            (self.words[lane::SLEEPS_USED].load(Ordering::Relaxed) as usize).min(lane::SLEEPS_MAX);
        let index = (0..used).find(|&index| self.is_sleep(index, site, sleep));
        let Some(index) = index.or_else(|| self.new_sleep(used, site, sleep)) else {
            return self.increase(lane::SLEEPS_DROPPED, u64::from(sleep.count));
        };
        let words = self.sleep_words(index);
        increase(words, sleep::COUNT, u64::from(sleep.count));
        increase(words, sleep::BLOCKED_NS, sleep.blocked_ns);
        raise_to(words, sleep::MAX_NS, sleep.max_ns);
    }

    fn is_sleep(&self, index: usize, site: usize, sleep: &Sleep) -> bool {
        let words = self.sleep_words(index);
        let frames = sleep.stack.frames();
        words[sleep::SITE].load(Ordering::Relaxed) == site as u64
            && words[sleep::DEPTH].load(Ordering::Relaxed) == frames.len() as u64
            && words[sleep::FRAMES..]
                .iter()
                .zip(frames)
                .all(|(word, &frame)| word.load(Ordering::Relaxed) == frame)
    }

    fn new_sleep(&self, index: usize, site: usize, sleep: &Sleep) -> Option<usize> {
        if index == lane::SLEEPS_MAX {
            return None;
        }
        let words = self.sleep_words(index);
        let frames = sleep.stack.frames();
        words[sleep::SITE].store(site as u64, Ordering::Relaxed);
        words[sleep::DEPTH].store(frames.len() as u64, Ordering::Relaxed);
        for (word, &frame) in words[sleep::FRAMES..].iter().zip(frames) {
            word.store(frame, Ordering::Relaxed);
        }
        self.words[lane::SLEEPS_USED].store(index as u64 + 1, Ordering::Release);
        Some(index)
    }

    /// The slot of a site and whether it is new; `None` if the table is full.
    #[inline]
    fn site(&self, address: u64, number: u32) -> Option<(usize, bool)> {
        let mut probe = hash(address, number);
        loop {
            let entry = self.words[lane::INDEX + probe].load(Ordering::Relaxed) as usize;
            if entry == 0 || entry > lane::SITES_MAX {
                return self.new_site(probe, address, number);
            }
            let words = self.site_words(entry - 1);
            if words[site::ADDRESS].load(Ordering::Relaxed) == address
                && words[site::CALL].load(Ordering::Relaxed) == u64::from(number)
            {
                return Some((entry - 1, false));
            }
            // At most half of the index is in use, so the loop finds a free entry.
            probe = (probe + 1) % lane::INDEX_WORDS;
        }
    }

    #[cold]
    #[inline(never)]
    fn new_site(&self, probe: usize, address: u64, number: u32) -> Option<(usize, bool)> {
        let index = self.words[lane::SITES_USED].load(Ordering::Relaxed) as usize;
        if index >= lane::SITES_MAX {
            return None;
        }
        let words = self.site_words(index);
        words[site::ADDRESS].store(address, Ordering::Relaxed);
        words[site::CALL].store(u64::from(number), Ordering::Relaxed);
        words[site::WALL_MIN_NS].store(u64::MAX, Ordering::Relaxed);
        words[site::IN_BAND_MIN_NS].store(u64::MAX, Ordering::Relaxed);
        self.words[lane::SITES_USED].store(index as u64 + 1, Ordering::Release);
        self.words[lane::INDEX + probe].store(index as u64 + 1, Ordering::Release);
        Some((index, true))
    }

    #[inline]
    fn site_words(&self, index: usize) -> &'a [AtomicU64] {
        let start = lane::SITES + index * site::WORDS;
        &self.words[start..start + site::WORDS]
    }

    fn sleep_words(&self, index: usize) -> &'a [AtomicU64] {
        let start = lane::SLEEPS + index * sleep::WORDS;
        &self.words[start..start + sleep::WORDS]
    }

    #[inline]
    pub(super) fn increase(&self, word: usize, by: u64) {
        increase(self.words, word, by);
    }
}

const _: () = assert!(lane::INDEX_WORDS >= 2 * lane::SITES_MAX);

/// Fibonacci hashing: the upper bits of the product are the mixed ones.
#[inline]
fn hash(address: u64, number: u32) -> usize {
    let key = address ^ u64::from(number) << 48;
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - lane::INDEX_WORDS.trailing_zeros())) as usize
}

#[inline(always)]
fn increase(words: &[AtomicU64], word: usize, by: u64) {
    let sum = words[word].load(Ordering::Relaxed).wrapping_add(by);
    words[word].store(sum, Ordering::Relaxed);
}

#[inline(always)]
fn raise_to(words: &[AtomicU64], word: usize, value: u64) {
    if words[word].load(Ordering::Relaxed) < value {
        words[word].store(value, Ordering::Relaxed);
    }
}

#[inline(always)]
fn lower_to(words: &[AtomicU64], word: usize, value: u64) {
    if words[word].load(Ordering::Relaxed) > value {
        words[word].store(value, Ordering::Relaxed);
    }
}
