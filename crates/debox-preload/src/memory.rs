//! Memory that does not come from the program's allocator.
//!
//! A call may come from a signal handler that interrupted `malloc`, or from an allocator itself. So
//! the little memory that is needed is mapped from the kernel: small pieces from a region that only
//! grows, larger ones by themselves, which are unmapped again. Small pieces are few: the texts of
//! an error, and what printing a stack needs.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// From this size on a piece has pages of its own.
const OWN_PAGES_BYTES: usize = 2048;
const REGION_BYTES: usize = 256 * 1024;
const PAGE_BYTES: usize = 4096;

/// The library's allocator.
pub struct Pages;

/// The next free byte of the region; its end is the next multiple of the region's size.
static FREE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: pieces of the region are handed out once and never again, mappings are the kernel's own;
// both are aligned as asked, since no allocation asks for more than a page.
unsafe impl GlobalAlloc for Pages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE_BYTES {
            return null_mut();
        }
        if layout.size() >= OWN_PAGES_BYTES {
            return pages(layout.size());
        }
        small(layout)
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if layout.size() >= OWN_PAGES_BYTES {
            // SAFETY: mapped by `alloc` with this size, and the caller has done with it.
            let _ = unsafe { rustix::mm::munmap(address.cast(), layout.size()) };
        }
    }
}

/// Fresh zeroed pages; null if there are none.
pub fn pages(bytes: usize) -> *mut u8 {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, protection, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), <*mut _>::cast)
}

fn small(layout: Layout) -> *mut u8 {
    loop {
        let free = FREE.load(Ordering::Acquire);
        let start = free.next_multiple_of(layout.align());
        let end = start + layout.size();
        let fits = free != 0
            && end <= free.next_multiple_of(REGION_BYTES)
            && !end.is_multiple_of(REGION_BYTES);
        if fits {
            let taken = FREE.compare_exchange(free, end, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                return std::ptr::with_exposed_provenance_mut(start);
            }
            continue;
        }
        // Twice as much as needed, to find an aligned region in it; the rest is never touched.
        let fresh = pages(2 * REGION_BYTES);
        if fresh.is_null() {
            return null_mut();
        }
        // One byte behind the boundary, so that the region's end is the next one.
        let region = fresh.expose_provenance().next_multiple_of(REGION_BYTES) + 1;
        // If another thread was faster, this region stays unused.
        let _ = FREE.compare_exchange(free, region, Ordering::AcqRel, Ordering::Relaxed);
    }
}
