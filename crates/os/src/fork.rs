//! Distinguishes a process from the copies that fork(2) makes of it, at the cost of a load.
//!
//! A mapping that fork does not copy (a perf ring's) must not be touched in the child, where its
//! address may belong to another mapping. A system call for the process number at each use is too
//! slow. A page that the kernel empties in the child (`MADV_WIPEONFORK`) costs a load, and works
//! for every way to fork.
//!
//! The guard does not notice a child that shares the memory (`vfork`, threads): there nothing was
//! copied, and the mapping is there.
//!
//! Source: madvise(2), Linux 4.14. Before that every process counts as the original.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// Made in one process; knows whether it is still there.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    page: &'static AtomicU64,
    number: u64,
}

/// Numbers given to processes along a line of forks; the copy in a child continues where the parent
/// was.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

impl ForkGuard {
    /// The calling process.
    pub fn current() -> ForkGuard {
        static PAGE: OnceLock<&'static AtomicU64> = OnceLock::new();
        let page = *PAGE.get_or_init(|| emptied_page().unwrap_or(&NEVER_EMPTIED));
        if page.load(Ordering::Relaxed) == 0 {
            let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
            // Another thread may have been faster: its number is as good.
            let _ = page.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        }
        ForkGuard {
            page,
            number: page.load(Ordering::Relaxed),
        }
    }

    /// False in a child that fork made since.
    #[inline(always)]
    pub fn is_same_process(&self) -> bool {
        self.page.load(Ordering::Relaxed) == self.number
    }
}

/// For kernels that cannot empty a page.
static NEVER_EMPTIED: AtomicU64 = AtomicU64::new(0);

/// A page of its own, never unmapped, that reads zero in a child.
fn emptied_page() -> Option<&'static AtomicU64> {
    // Miri knows neither fork nor this advice.
    if cfg!(miri) {
        return None;
    }
    let bytes = rustix::param::page_size();
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
    let address = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .ok()?;
    // SAFETY: the mapping made above, whole.
    let advised = unsafe { libc::madvise(address, bytes, libc::MADV_WIPEONFORK) };
    if advised != 0 {
        // SAFETY: the mapping made above, to which nothing refers.
        let _ = unsafe { rustix::mm::munmap(address, bytes) };
        return None;
    }
    // SAFETY: mapped for the life of the process, zeroed and aligned.
    Some(unsafe { &*address.cast::<AtomicU64>() })
}

#[cfg(test)]
mod tests {
    use super::ForkGuard;

    #[test]
    fn child_is_another_process_and_makes_its_own_guard_when_forked() {
        let guard = ForkGuard::current();
        assert!(guard.is_same_process());
        // SAFETY: the child makes only loads, stores and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let lost = !guard.is_same_process();
            let own = ForkGuard::current();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe {
                libc::_exit(i32::from(
                    !(lost && own.is_same_process() && !guard.is_same_process()),
                ))
            };
        }
        let mut status = 0;
        // SAFETY: a pointer to a local.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 0);
        assert!(guard.is_same_process());
    }
}
