//! Pointer chasing: each load's address is what the load before it has read, so loads cannot
//! overlap.
//!
//! Lines are visited in a random order within a page, pages in a random order, as lmbench's
//! `lat_mem_rd -t` does: a page's translation is looked up once for its 64 lines, so that the
//! latency is the caches' and not the TLB's, and prefetchers find no stride. The TLB has a
//! measurement of its own.

use std::hint::black_box;
use std::time::Instant;

use headway_base::random::{Draw, SplitMix64};
use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};

/// Words of a cache line and of a page; an entry is a `u32`.
const LINE_WORDS: usize = 64 / 4;
const PAGE_WORDS: usize = 4096 / 4;

/// Loads of one measurement: memory takes some milliseconds for them, so that not every one meets
/// the time slice of another program.
const LOADS: usize = 1 << 14;

/// Measurements. The one counts that is slower than a quarter of them: whatever else ran made
/// others slower, and the fastest may have met a part of the set that a farther cache still had.
const MEASUREMENTS: usize = 64;

/// Loads before them at most.
const WARMUP_LOADS_MAX: usize = 1 << 20;

/// Pages for the TLB: more than any second-level TLB holds, while a line of each fits into a
/// second-level cache.
const WALK_PAGES: usize = 8192;

/// Nanoseconds of an access in a working set of this size.
pub(super) fn latency_ns(set_bytes: u64) -> f64 {
    let pages = (set_bytes as usize / 4096).max(1);
    let mut random = SplitMix64(set_bytes);
    let mut path = Vec::with_capacity(pages * PAGE_WORDS / LINE_WORDS);
    for page in shuffled(pages, &mut random) {
        let lines = shuffled(PAGE_WORDS / LINE_WORDS, &mut random);
        path.extend(
            lines
                .into_iter()
                .map(|line| page * PAGE_WORDS + line * LINE_WORDS),
        );
    }
    time(&circle(&path, pages * PAGE_WORDS), path[0])
}

/// Nanoseconds that an access costs more when its page is in no TLB: as many lines, a page each and
/// all side by side.
pub(super) fn walk_ns() -> f64 {
    let _small = SmallPages::new();
    let mut random = SplitMix64(0);
    // A line of its own in each page, or all would fall into the same few places of a cache.
    let apart: Vec<usize> = shuffled(WALK_PAGES, &mut random)
        .into_iter()
        .map(|page| page * PAGE_WORDS + page % (PAGE_WORDS / LINE_WORDS) * LINE_WORDS)
        .collect();
    let dense: Vec<usize> = shuffled(WALK_PAGES, &mut random)
        .into_iter()
        .map(|line| line * LINE_WORDS)
        .collect();
    let far = time(&circle(&apart, WALK_PAGES * PAGE_WORDS), apart[0]);
    let near = time(&circle(&dense, WALK_PAGES * LINE_WORDS), dense[0]);
    (far - near).max(0.0)
}

/// A closed path through memory: each place holds the next.
fn circle(path: &[usize], words: usize) -> Vec<u32> {
    let mut next = vec![0_u32; words];
    for (index, line) in path.iter().enumerate() {
        next[*line] = path[(index + 1) % path.len()] as u32;
    }
    next
}

fn time(next: &[u32], start: usize) -> f64 {
    let mut at = start as u32;
    let mut run = |loads: usize| {
        for _ in 0..loads {
            at = next[at as usize];
        }
        black_box(at);
    };
    // Once around, so that all of it is where it will stay.
    run(WARMUP_LOADS_MAX.min(next.len() / LINE_WORDS).max(1));
    let tries = (0..MEASUREMENTS).map(|_| {
        let begun = Instant::now();
        run(LOADS);
        begun.elapsed().as_secs_f64() * 1e9 / LOADS as f64
    });
    let mut tries: Vec<f64> = tries.collect();
    tries.sort_by(f64::total_cmp);
    tries[MEASUREMENTS / 4]
}

/// While it is there, memory that this process takes comes in pages of the usual size: on many
/// systems large ranges would get huge pages, of which the TLB holds all.
struct SmallPages {
    were_disabled: bool,
}

impl SmallPages {
    fn new() -> SmallPages {
        // A kernel without huge pages refuses both calls, and has none to disable.
        let were_disabled = transparent_huge_pages_are_disabled().unwrap_or(true);
        let _ = disable_transparent_huge_pages(true);
        SmallPages { were_disabled }
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        let _ = disable_transparent_huge_pages(self.were_disabled);
    }
}

/// An order without a stride.
fn shuffled(count: usize, random: &mut SplitMix64) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    random.shuffle(&mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_chase_visits_every_line_once() {
        let path = shuffled(1000, &mut SplitMix64(7));
        let indices: Vec<usize> = path.iter().map(|line| line * LINE_WORDS).collect();
        let next = circle(&indices, 1000 * LINE_WORDS);
        let mut seen = vec![false; 1000];
        let mut index = indices[0];
        for _ in 0..1000 {
            assert!(!std::mem::replace(&mut seen[index / LINE_WORDS], true));
            index = next[index] as usize;
        }
        assert_eq!(index, indices[0], "it closes");
    }
}
