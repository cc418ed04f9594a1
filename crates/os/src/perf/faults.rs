//! Page faults of the calling thread, counted in memory the thread can read.
//!
//! A software event cannot be read without a system call, but each fault can be made to leave a
//! record of fixed size in a ring. A ring mapped read-only is one the kernel overwrites and never
//! calls full, so the count of bytes written, divided by the size of a record, is the count of
//! faults: two loads, no parsing, nothing lost.
//!
//! Sources: perf_event_open(2), "MMAP layout"; `perf_output_begin` in kernel/events/ring_buffer.c.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::attributes;
use crate::fork::ForkGuard;

/// The two kinds of page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The page was in memory, only not mapped.
    Minor,
    /// The page had to be read from a disk.
    Major,
}

/// Where the counted faults happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultScope {
    /// The program's own faults and those inside system calls. The kernel writes a record for each:
    /// some 0.3 µs that a program pays which touches much fresh memory, such as a compiler.
    Everywhere,
    /// Faults inside system calls: the kernel does not record the program's own.
    InKernel,
}

/// A count of the page faults of the thread that opened it.
///
/// Neither `Send` nor `Sync`, like [`Ring`](super::Ring).
#[derive(Debug)]
pub struct FaultCounter {
    map: super::NonNull<u8>,
    map_bytes: usize,
    fork_guard: ForkGuard,
}

/// A header and a time: what the kernel writes for each fault.
const RECORD_BYTES: u64 = 16;

impl FaultCounter {
    /// Starts counting.
    ///
    /// # Errors
    ///
    /// As [`Ring::open`](super::Ring::open) with [`Detail::Stacks`](super::Detail::Stacks): the
    /// faults of a system call are the kernel's, so `kernel.perf_event_paranoid` has to be ≤ 1.
    pub fn open(fault: FaultKind, scope: FaultScope) -> io::Result<FaultCounter> {
        let event = attributes::open_fault_event(fault, scope)?;
        let page_bytes = rustix::param::page_size();
        let map_bytes = 2 * page_bytes;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let address = unsafe {
            rustix::mm::mmap(
                super::ptr::null_mut(),
                map_bytes,
                ProtFlags::READ,
                MapFlags::SHARED,
                &event,
                0,
            )
        }?;
        let map = super::NonNull::new(address.cast::<u8>()).expect("mmap never returns page zero");
        // The mapping holds the event, so the number is given back: a program may count its
        // descriptors.
        drop(event);
        Ok(FaultCounter {
            map,
            map_bytes,
            fork_guard: ForkGuard::current(),
        })
    }

    /// Faults since the counter was opened.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        // SAFETY: the offset lies in the first page of the mapping.
        let head = unsafe { self.map.add(super::DATA_HEAD_OFFSET) }.cast::<AtomicU64>();
        // SAFETY: mapped as long as `self` lives, aligned, and only ever loaded, since the page is
        // read-only.
        let head = unsafe { head.as_ref() };
        head.load(Ordering::Acquire) / RECORD_BYTES
    }
}

impl Drop for FaultCounter {
    fn drop(&mut self) {
        // As for the ring: in a forked child another mapping may be at this address.
        if !self.fork_guard.is_same_process() {
            return;
        }
        // SAFETY: this is the mapping `open` made, and no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use rustix::mm::{MapFlags, ProtFlags};

    use super::{FaultCounter, FaultKind, FaultScope};

    /// Many times the ring, so that a ring that can be full would be seen.
    const PAGES: u64 = 3000;

    /// Touches one page of a file several times, each time in its own mapping, so that huge pages
    /// and fault-around cannot merge the faults, and hands each to `touch`.
    fn meet_fresh_pages(mut touch: impl FnMut(&[u8])) {
        let page = rustix::param::page_size();
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&vec![1; page]).expect("room for a page");
        for _ in 0..PAGES {
            // SAFETY: a new read-only mapping that nothing else refers to.
            let map = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    page,
                    ProtFlags::READ,
                    MapFlags::PRIVATE,
                    &file,
                    0,
                )
            }
            .expect("a mapping");
            // SAFETY: mapped, as long as that, and not written meanwhile.
            touch(unsafe { std::slice::from_raw_parts(map.cast(), page) });
            // SAFETY: the mapping made above; `touch` kept nothing of it.
            unsafe { rustix::mm::munmap(map, page) }.expect("unmap");
        }
    }

    fn read_a_byte(page: &[u8]) {
        // SAFETY: a reference can be read; volatile, so that it is.
        assert_eq!(unsafe { page.as_ptr().read_volatile() }, 1);
    }

    fn counter(scope: FaultScope) -> Option<FaultCounter> {
        let opened = FaultCounter::open(FaultKind::Minor, scope);
        opened
            .inspect_err(|error| println!("SKIP: perf_event_open: {error}"))
            .ok()
    }

    #[test]
    fn every_first_touch_is_counted_when_fresh_memory_is_read() {
        let Some(counter) = counter(FaultScope::Everywhere) else {
            return;
        };
        let before = counter.count();
        meet_fresh_pages(read_a_byte);
        let counted = counter.count() - before;
        assert!((PAGES..PAGES + 1500).contains(&counted), "{counted}");
    }

    #[test]
    fn only_faults_inside_calls_are_counted_when_the_scope_is_the_kernel() {
        let Some(counter) = counter(FaultScope::InKernel) else {
            return;
        };
        let before = counter.count();
        meet_fresh_pages(read_a_byte);
        let own = counter.count() - before;
        assert!(own < PAGES / 10, "{own}");
        let mut copy = tempfile::tempfile().expect("a temporary file");
        let before = counter.count();
        meet_fresh_pages(|page| {
            copy.rewind().expect("a file can be rewound");
            // The kernel meets the page while it copies.
            copy.write_all(&page[..8]).expect("room for eight bytes");
        });
        let inside = counter.count() - before;
        assert!((PAGES..PAGES + 1500).contains(&inside), "{inside}");
    }
}
