//! Direct jumps to libc's functions.
//!
//! A thread that is not traced should pay nothing. But an indirect jump right after a system call
//! is expensive if the kernel clears the branch predictor on its way out (30 ns on one such
//! machine). So each function has an entry here. It begins as an indirect jump through the table,
//! and becomes a direct one when the target is known, like the kernel's static calls.
//!
//! The new entries are written to a copy, made executable, and moved over the old ones in one step.
//! So memory is never writable and executable, and no entry is half written. Where that is
//! forbidden (a service with `MemoryDenyWriteExecute`), the indirect jumps stay.
//!
//! The entries are made with the tables ([`crate::functions`]), with one label each, so that
//! calling one is a direct call.
//!
//! Sources: mremap(2); systemd.exec(5).

use crate::functions::COUNT;
use crate::next::{NEXT, raw};

const ENTRY_BYTES: usize = 16;
const PAGE_BYTES: usize = 4096;
const BYTES: usize = (COUNT * ENTRY_BYTES).next_multiple_of(PAGE_BYTES);

unsafe extern "C" {
    /// The first entry; never called from here.
    #[link_name = "headway_hook_jumps"]
    static ENTRIES: [[u8; ENTRY_BYTES]; COUNT];
}

/// Makes the jumps direct, where a target is known and within two gigabytes: once the table is
/// filled, and where threads are to be expected that are not traced, since it costs each process
/// some 50 us.
pub fn make_jumps_direct() {
    let start = (&raw const ENTRIES).expose_provenance();
    let Some(fresh) = copy(start) else { return };
    for (index, target) in NEXT.iter().enumerate() {
        let target = target.load(std::sync::atomic::Ordering::Acquire) as usize;
        // The distance counts from the end of the instruction of five bytes.
        let from = start + index * ENTRY_BYTES + 5;
        let distance = target.wrapping_sub(from) as isize;
        let Ok(distance) = i32::try_from(distance) else {
            continue;
        };
        if target == 0 {
            continue;
        }
        let [a, b, c, d] = distance.to_le_bytes();
        let entry = std::ptr::with_exposed_provenance_mut(fresh + index * ENTRY_BYTES);
        // SAFETY: within the copy, which no other code knows.
        unsafe { std::ptr::write::<[u8; 5]>(entry, [0xE9, a, b, c, d]) };
    }
    replace(start, fresh);
}

/// A writable copy of the entries.
fn copy(start: usize) -> Option<usize> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let arguments = [0, BYTES, protection, flags, usize::MAX, 0];
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let fresh = unsafe { raw(libc::SYS_mmap, arguments) };
    if fresh > -4096_isize as usize {
        return None;
    }
    let from = std::ptr::with_exposed_provenance::<u8>(start);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(fresh);
    // SAFETY: the section is that long, and the copy was mapped with that length just now.
    unsafe { std::ptr::copy_nonoverlapping(from, to, BYTES) };
    Some(fresh)
}

/// Moves the copy over the original, or drops it.
fn replace(start: usize, fresh: usize) {
    let protection = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    // SAFETY: the copy is ours alone.
    let refused = unsafe { raw(libc::SYS_mprotect, [fresh, BYTES, protection, 0, 0, 0]) };
    if refused == 0 {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
        // SAFETY: the pages that go are the section's, and those that come do the same.
        let moved = unsafe { raw(libc::SYS_mremap, [fresh, BYTES, BYTES, flags, start, 0]) };
        if moved == start {
            return;
        }
    }
    // SAFETY: the copy is ours alone and nothing refers to it.
    unsafe { raw(libc::SYS_munmap, [fresh, BYTES, 0, 0, 0, 0]) };
}
