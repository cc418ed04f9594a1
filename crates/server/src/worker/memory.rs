//! A worker's memory, taken before it serves and kept.
//!
//! Memory can make a process wait as well as a disk can: a page fault on program text that was
//! evicted reads it in again, and one on fresh heap may have to reclaim somebody else's pages
//! first, which the kernel throttles by sleeping. So the worker touches what it is going to use and
//! locks it.

use headway_os::mapping::lockable_bytes;
use rustix::mm::{MlockAllFlags, mlockall};

/// Beside the contents of small files and the windows of larger ones.
const REST_BYTES: usize = crate::config::REST_BYTES as usize;

/// Heap is touched in pieces of this size, below the size from which malloc maps memory of its own.
const PIECE_BYTES: usize = 64 << 10;

/// Takes and locks memory for `content_bytes` of files and the rest; the configuration's check has
/// seen that there is so much. The error is a sentence for a
/// person; the worker can serve without the lock.
///
/// A worker that `maps` files locks only what it has by now: a lock on mappings to come would keep
/// the page cache of every file it sends, against the kernel's will and beyond `RLIMIT_MEMLOCK`.
pub(super) fn hold(content_bytes: u64, maps: bool) -> Result<(), String> {
    let heap_bytes = content_bytes as usize + REST_BYTES;
    let locked = if may_lock_all() && maps {
        touch_heap(heap_bytes);
        mlockall(MlockAllFlags::CURRENT)
    } else if may_lock_all() {
        touch_heap(heap_bytes);
        let later = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
        mlockall(MlockAllFlags::CURRENT).and_then(|()| mlockall(later))
    } else {
        // What is there before the heap grows: the program's text and libraries.
        let locked = mlockall(MlockAllFlags::CURRENT);
        touch_heap(heap_bytes);
        locked
    };
    locked.map_err(|error| {
        format!(
            "mlockall: {error}; serving on, but under memory pressure the worker's own code may be \
             evicted and a page fault wait for the disk (it takes CAP_IPC_LOCK or a higher \
             RLIMIT_MEMLOCK)"
        )
    })
}

/// Whether memory that is still to come may be locked, too. Where there is a limit, `MCL_FUTURE`
/// makes every allocation beyond it fail (mlockall(2)), and a worker that gets no memory ends.
fn may_lock_all() -> bool {
    lockable_bytes().is_none()
}

/// Makes malloc own `bytes` of memory that has been written to (malloc(3), mallopt(3)).
fn touch_heap(bytes: usize) {
    // Freeing a mapped block raises the size from which malloc maps: tables that grow later come
    // from the heap that is touched here, not from fresh pages.
    drop(std::hint::black_box(vec![1_u8; REST_BYTES]));
    let pieces: Vec<Vec<u8>> = (0..bytes / PIECE_BYTES)
        .map(|_| std::hint::black_box(vec![1; PIECE_BYTES]))
        .collect();
    // The last block stays for the life of the process: malloc gives memory back from the top of
    // the heap only, and this is the top.
    std::mem::forget(std::hint::black_box(vec![1_u8; PIECE_BYTES]));
    drop(pieces);
}
