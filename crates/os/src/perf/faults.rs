//! Page faults of the calling thread, counted in memory the thread can read.
//!
//! A software event cannot be read without a system call, but each fault can be made to leave a record
//! of fixed size in a ring. A ring mapped read-only is one the kernel overwrites and never calls full,
//! so the count of bytes written, divided by the size of a record, is the count of faults: two loads, no
//! parsing, nothing lost.
//!
//! Sources: perf_event_open(2), "MMAP layout"; `perf_output_begin` in kernel/events/ring_buffer.c.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::attributes;
use crate::fork::Home;

/// Which faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The page was in memory, only not mapped.
    Minor,
    /// The page had to be read from a disk.
    Major,
}

/// A count of the page faults of the thread that opened it, those inside system calls included.
///
/// Neither `Send` nor `Sync`, like [`Ring`](super::Ring).
#[derive(Debug)]
pub struct FaultCounter {
    map: super::NonNull<u8>,
    map_bytes: usize,
    home: Home,
}

/// A header and a time: what the kernel writes for each fault.
const RECORD_BYTES: u64 = 16;

impl FaultCounter {
    /// Starts counting.
    ///
    /// # Errors
    ///
    /// As [`Ring::open`](super::Ring::open) with [`Detail::Stacks`](super::Detail::Stacks): the faults of
    /// a system call are the kernel's, so `kernel.perf_event_paranoid` has to be ≤ 1.
    pub fn open(fault: Fault) -> io::Result<FaultCounter> {
        let event = attributes::open_fault_event(fault)?;
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
        // The mapping holds the event, so the number is given back: a program may count its descriptors.
        drop(event);
        Ok(FaultCounter {
            map,
            map_bytes,
            home: Home::here(),
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
        if !self.home.is_here() {
            return;
        }
        // SAFETY: this is the mapping `open` made, and no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, FaultCounter};

    #[test]
    fn every_first_touch_is_counted_when_fresh_memory_is_written() {
        let counter = match FaultCounter::open(Fault::Minor) {
            Ok(counter) => counter,
            Err(error) => return println!("SKIP: perf_event_open: {error}"),
        };
        let page = rustix::param::page_size();
        // Many times the ring, so that a ring that can be full would be seen.
        let pages = 3000;
        let before = counter.count();
        let mut file = tempfile::tempfile().expect("a temporary file");
        std::io::Write::write_all(&mut file, &vec![1; page]).expect("room for a page");
        // One file page mapped again and again: huge pages and fault-around cannot merge the faults.
        for _ in 0..pages {
            // SAFETY: a new read-only mapping that nothing else refers to.
            let map = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    page,
                    rustix::mm::ProtFlags::READ,
                    rustix::mm::MapFlags::PRIVATE,
                    &file,
                    0,
                )
            }
            .expect("a mapping");
            // SAFETY: mapped and at least a byte long.
            let byte = unsafe { map.cast::<u8>().read_volatile() };
            assert_eq!(byte, 1);
            // SAFETY: the mapping made above.
            unsafe { rustix::mm::munmap(map, page) }.expect("unmap");
        }
        let counted = counter.count() - before;
        assert!((pages..pages + 1500).contains(&counted), "{counted}");
    }
}
