//! Memory that is zero in a forked child, by which the child is recognised.
//!
//! `pthread_atfork` does not cover every way to fork, and reading the process id would be a system
//! call. The kernel does it without cost since Linux 4.14.
//!
//! Source: madvise(2), `MADV_WIPEONFORK`.

use crate::next::raw;

/// Zeroed pages, zeroed again in every child; null if there are none. Never goes through libc.
pub fn pages(bytes: usize) -> *mut u8 {
    const ERROR_MIN: usize = -4095_isize as usize;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let address = unsafe { raw(libc::SYS_mmap, [0, bytes, protection, flags, usize::MAX, 0]) };
    if address >= ERROR_MIN {
        return std::ptr::null_mut();
    }
    let advice = libc::MADV_WIPEONFORK as usize;
    // SAFETY: the pages were mapped just now and belong to this code alone.
    let refused = unsafe { raw(libc::SYS_madvise, [address, bytes, advice, 0, 0, 0]) };
    let pages = std::ptr::with_exposed_provenance_mut(address);
    if refused != 0 {
        // A child could not recognise itself: no trace is better than a wrong one.
        // SAFETY: no other code knows the pages yet.
        unsafe { free(pages, bytes) };
        return std::ptr::null_mut();
    }
    pages
}

/// Unmaps pages.
///
/// # Safety
///
/// The pages come from [`pages`] with this length, and no reference to them is left.
pub unsafe fn free(pages: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise. Failing could only leak them.
    unsafe {
        raw(
            libc::SYS_munmap,
            [pages.expose_provenance(), bytes, 0, 0, 0, 0],
        )
    };
}
