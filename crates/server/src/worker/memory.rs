//! Reserves and locks a worker's memory before it serves.
//!
//! Memory can block a process as a disk can. A page fault on evicted program text reads it from the
//! disk, and one on fresh heap may have to reclaim pages first, which the kernel throttles by
//! sleeping. So the worker touches the memory it will use and locks it.

use headway_os::mapping::lockable_bytes;
use rustix::mm::{MlockAllFlags, mlockall};

/// The most that is reserved for everything except the response cache and the chunks of larger files.
const BASE_BYTES_HIGHEST: usize = headway_config::WORKER_BASE_BYTES as usize;

/// The heap is touched in blocks of this size, below the size from which malloc uses mmap.
const TOUCH_BLOCK_BYTES: usize = 64 << 10;

/// The least distance of pages.
const PAGE_BYTES: usize = 4096;

/// Reserves and locks memory for `bytes`: file content and everything else. The
/// configuration check has made sure that this memory exists. The error is a message for the
/// operator; the worker can serve without the lock.
///
/// If the worker maps files (`maps_files`), only current memory is locked: locking future mappings
/// would pin the page cache of every file it sends, beyond `RLIMIT_MEMLOCK`.
pub(super) fn reserve_and_lock(bytes: u64, maps_files: bool) -> Result<(), String> {
    let heap_bytes = bytes as usize;
    let locked = if may_lock_all() && maps_files {
        touch_heap(heap_bytes);
        mlockall(MlockAllFlags::CURRENT)
    } else if may_lock_all() {
        touch_heap(heap_bytes);
        let later = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
        mlockall(MlockAllFlags::CURRENT).and_then(|()| mlockall(later))
    } else {
        // Lock what exists before the heap grows: the program's text and libraries.
        let locked = mlockall(MlockAllFlags::CURRENT);
        touch_heap(heap_bytes);
        locked
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

/// Makes malloc own `bytes` of memory that has been written to (malloc(3), mallopt(3)).
fn touch_heap(bytes: usize) {
    // Freeing a mapped block raises malloc's mmap threshold, so tables that grow later use the heap
    // touched here instead of fresh pages.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(
        BASE_BYTES_HIGHEST,
    )));
    let pieces: Vec<Vec<u8>> = (0..bytes / TOUCH_BLOCK_BYTES)
        .map(|_| touched_block())
        .collect();
    // The last block is never freed: malloc returns memory from the top of the heap only, and this
    // block is the top.
    std::mem::forget(touched_block());
    drop(pieces);
}

/// A block of which each page has been written to.
fn touched_block() -> Vec<u8> {
    let mut block = Vec::with_capacity(TOUCH_BLOCK_BYTES);
    let pages = block.spare_capacity_mut().chunks_mut(PAGE_BYTES);
    pages.for_each(|page| _ = page[0].write(1));
    std::hint::black_box(block)
}
