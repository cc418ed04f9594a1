//! Blocks of work on several threads, their results in the order of the blocks.
//!
//! A caller that adds the results up in that order gets the same sum, to the last bit, from any
//! number of threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Does blocks 0 to `blocks` − 1; each thread takes the next free one.
pub(super) fn in_order<T: Send>(
    blocks: u64,
    threads: usize,
    work: impl Fn(u64) -> T + Sync,
) -> Vec<T> {
    let next = AtomicU64::new(0);
    let done = Mutex::new(Vec::new());
    let take = || {
        loop {
            let block = next.fetch_add(1, Ordering::Relaxed);
            if block >= blocks {
                return;
            }
            let result = work(block);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((block, result));
        }
    };
    thread::scope(|scope| {
        // The calling thread works too.
        (1..threads.min(blocks as usize)).for_each(|_| drop(scope.spawn(take)));
        take();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(block, _)| *block);
    done.into_iter().map(|(_, result)| result).collect()
}

/// How many threads run at once here.
pub(super) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_blocks_when_threads_share_them() {
        for threads in [0, 1, 3, 100] {
            let squares = in_order(50, threads, |block| block * block);
            assert!(squares.into_iter().eq((0..50).map(|n| n * n)));
        }
    }
}
