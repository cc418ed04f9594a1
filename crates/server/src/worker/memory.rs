//! Reserves and locks a worker's memory before it serves.
//!
//! Memory can block a process as a disk can. A page fault on evicted program text reads it from the
//! disk. To extend the heap, the kernel locks the address space. A program that reads `/proc/PID/smaps`
//! holds this lock for milliseconds, and the worker would wait. So the program is locked in memory, and
//! the heap gets all of its addresses at the start.
//!
//! The heap gets most of its pages when it needs them, and they are locked then. So an idle worker has few
//! pages, and several workers leave more memory to the page cache.

use headway_os::mapping::lockable_bytes;
use rustix::mm::{MlockAllFlags, mlockall};

/// What the heap has pages for at the start.
const TOUCHED_BYTES: usize = 2 << 20;

/// The heap is touched in blocks of this size.
const TOUCH_BLOCK_BYTES: usize = 64 << 10;

/// The heap's addresses are taken in pieces of this size, below the size from which malloc uses mmap.
const PIECE_BYTES: usize = 8 << 20;

/// The least distance of pages.
const PAGE_BYTES: usize = 4096;

/// Reserves addresses for `bytes` of heap: file content and everything else. Locks the program, and the
/// heap as it gets pages. The configuration check has made sure that this memory exists. The error is a
/// message for the operator; the worker can serve without the lock.
///
/// If the worker maps files (`maps_files`), only current mappings are locked: locking future ones
/// would pin the page cache of every file it sends, beyond `RLIMIT_MEMLOCK`.
pub(super) fn reserve_and_lock(bytes: u64, maps_files: bool) -> Result<(), String> {
    // Brings the program in, before the heap has addresses without pages.
    let locked = mlockall(MlockAllFlags::CURRENT);
    reserve_heap(bytes as usize);
    let later = match maps_files {
        true => MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT,
        false => MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT,
    };
    let locked = match may_lock_all() {
        true => locked.and_then(|()| mlockall(later)),
        false => locked,
    };
    locked.map_err(|error| {
        format!(
            "mlockall: {error}; continuing, but under memory pressure page faults in the worker may \
             block on disk (grant CAP_IPC_LOCK or raise RLIMIT_MEMLOCK)"
        )
    })
}

/// Whether future memory may be locked as well. With a limit, `MCL_FUTURE` makes every allocation
/// beyond it fail (mlockall(2)), and the worker would abort.
fn may_lock_all() -> bool {
    lockable_bytes().is_none()
}

/// Makes malloc own `bytes` of addresses, and touches the first of them (malloc(3), mallopt(3)).
fn reserve_heap(bytes: usize) {
    // Freeing a mapped block raises malloc's mmap threshold, so tables that grow later use the heap
    // reserved here instead of fresh mappings.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(
        2 * PIECE_BYTES,
    )));
    let touched: Vec<Vec<u8>> = (0..TOUCHED_BYTES.min(bytes) / TOUCH_BLOCK_BYTES)
        .map(|_| touched_block())
        .collect();
    let pieces: Vec<Vec<u8>> = (0..bytes.div_ceil(PIECE_BYTES))
        .map(|_| std::hint::black_box(Vec::with_capacity(PIECE_BYTES)))
        .collect();
    // The last block is never freed: malloc returns memory from the top of the heap only, and this
    // block is the top.
    std::mem::forget(touched_block());
    drop((touched, pieces));
}

/// A block of which each page has been written to.
fn touched_block() -> Vec<u8> {
    let mut block = Vec::with_capacity(TOUCH_BLOCK_BYTES);
    let pages = block.spare_capacity_mut().chunks_mut(PAGE_BYTES);
    pages.for_each(|page| _ = page[0].write(1));
    std::hint::black_box(block)
}
