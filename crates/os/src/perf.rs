//! The calling thread's own record of its context switches: a `perf_event` ring it reads itself.
//!
//! A [`Ring`] shows the thread that opened it when the kernel took the CPU away from it, when
//! it came back, and, if the privilege allows, on which kernel stack it went to sleep. The kernel
//! writes the records while the thread is off the CPU, so they are complete by the time the
//! system call that slept returns: reading them is a load of `data_head`, no system call.
//!
//! Page faults are counted beside it ([`FaultCounter`]), and any event of any thread or CPU
//! by [`counter`].
//!
//! The ring refuses to look at other threads, at user stacks and at hardware counters. It does not
//! say what a record means for the caller; `debox` does. In the request path it stands around every
//! system call of a worker.
//!
//! Sources: perf_event_open(2); include/uapi/linux/perf_event.h; the order of the records is that
//! of `perf_event_task_sched_out` in kernel/events/core.c (sample, then SWITCH out, then SWITCH
//! in).

use std::cell::Cell;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};

use crate::fork::ForkGuard;

mod attributes;
pub mod counter;
mod faults;

pub use attributes::Detail;
pub use faults::{FaultCounter, FaultKind, FaultScope};

/// Frames kept of a kernel stack, innermost first. Deeper frames are entry code and say nothing
/// about the resource waited for.
pub const STACK_FRAMES_MAX: usize = 24;

/// Offsets of the counters in the first mapped page (`struct perf_event_mmap_page`): they are kept
/// at 1024 bytes by the kernel's interface, whatever is added before them.
const DATA_HEAD_OFFSET: usize = 1024;
const DATA_TAIL_OFFSET: usize = 1032;

/// Record types (`enum perf_event_type`).
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
const RECORD_SWITCH: u32 = 14;

/// The longest record: a sample with the deepest stack and the markers around its parts.
const RECORD_BYTES_MAX: u64 = (STACK_FRAMES_MAX as u64 + 8) * 8;

/// How often [`Ring::force_record`] tries to sleep.
const SLEEP_TRIES_MAX: usize = 50;

/// Bits of `perf_event_header.misc` in a SWITCH record.
const MISC_SWITCH_OUT: u16 = 1 << 13;
const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;

/// Call chain entries from this value up are markers ("kernel frames follow"), not addresses
/// (`PERF_CONTEXT_MAX`, -4095).
const CONTEXT_MARKER_MIN: u64 = (-4095_i64) as u64;

/// One record of the ring. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The thread is about to leave the CPU; this is its kernel stack.
    Sample {
        /// Time of the record.
        time_ns: u64,
        /// Kernel addresses, innermost first, at most [`STACK_FRAMES_MAX`]. All but the first are
        /// return addresses.
        stack: &'a [u64],
    },
    /// The thread left the CPU.
    SwitchOut {
        /// Time of the record.
        time_ns: u64,
        /// True if the thread was still runnable: preempted or yielding, not waiting for anything.
        preempted: bool,
    },
    /// The thread got a CPU again.
    SwitchIn {
        /// Time of the record.
        time_ns: u64,
    },
    /// The ring was full and this many records before this one are missing.
    Lost {
        /// Number of lost records.
        count: u64,
    },
    /// Some other record, such as the throttling of an event.
    Other,
}

/// A mapped ring with the context switches of the thread that opened it.
///
/// A ring is neither `Send` nor `Sync`: on another thread, "everything up to now is in the ring"
/// would no longer hold. The kernel does not copy the mapping to a forked child (`VM_DONTCOPY`), so
/// a child must not touch a ring made by its parent ([`ForkGuard`] tells); it may drop it.
///
/// ```
/// use headway_os::perf::{Detail, Ring};
///
/// match Ring::open(Detail::SwitchesOnly, 16) {
///     Ok(ring) => {
///         std::thread::sleep(std::time::Duration::from_millis(1));
///         let mut records = 0;
///         ring.drain(|_record| records += 1);
///         assert!(records >= 2, "out and in again");
///     }
///     Err(error) => eprintln!("perf_event_open: {error}"),
/// }
/// ```
#[derive(Debug)]
pub struct Ring {
    event: Option<OwnedFd>,
    reports_lost: bool,
    map: NonNull<u8>,
    map_bytes: usize,
    data: NonNull<u64>,
    data_bytes: u64,
    tail: Cell<u64>,
    fork_guard: ForkGuard,
}

impl Ring {
    /// Starts recording the calling thread into a ring of `data_pages` pages (a power of two).
    ///
    /// # Errors
    ///
    /// `EACCES`: `kernel.perf_event_paranoid` is too high for this `detail` and the process lacks
    /// `CAP_PERFMON`; try [`Detail::SwitchesOnly`]. `EPERM`: a seccomp filter refuses the call, or
    /// the ring goes beyond `kernel.perf_event_mlock_kb` and `RLIMIT_MEMLOCK`; try fewer pages.
    /// `ENOSYS`, `EOPNOTSUPP`: this kernel has no such event. `EINVAL`: `data_pages` is no power of
    /// two.
    pub fn open(detail: Detail, data_pages: usize) -> io::Result<Ring> {
        if !data_pages.is_power_of_two() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let (event, reports_lost) = attributes::open_event(detail)?;
        let page_bytes = rustix::param::page_size();
        let data_bytes = data_pages * page_bytes;
        let map_bytes = page_bytes + data_bytes;
        // Writable, since only then does the kernel respect `data_tail` and keep what is unread.
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let address = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                map_bytes,
                protection,
                MapFlags::SHARED,
                &event,
                0,
            )
        }?;
        let map = NonNull::new(address.cast::<u8>()).expect("mmap never returns page zero");
        // SAFETY: the mapping is one page longer than the data, so the data starts inside it.
        let data = unsafe { map.add(page_bytes) }.cast::<u64>();
        Ok(Ring {
            event: Some(event),
            reports_lost,
            map,
            map_bytes,
            data,
            data_bytes: data_bytes as u64,
            tail: Cell::new(0),
            fork_guard: ForkGuard::current(),
        })
    }

    /// Closes the descriptor. The mapping holds the event, so recording continues; only
    /// [`Ring::lost`] can no longer read the kernel's count. For programs that count on their
    /// descriptor numbers, or close those they do not know.
    pub fn close_descriptor(&mut self) {
        self.event = None;
    }

    /// The count of bytes the kernel has written since the ring was opened; one load.
    #[inline(always)]
    pub fn head(&self) -> u64 {
        // Acquire pairs with the kernel's barrier before it publishes the head, so that the records
        // below it are read as written.
        self.counter(DATA_HEAD_OFFSET).load(Ordering::Acquire)
    }

    /// The count of bytes drained so far; a value other than [`Ring::head`] means there are
    /// records.
    #[inline(always)]
    pub fn tail(&self) -> u64 {
        self.tail.get()
    }

    /// Bytes of records the ring has room for.
    pub fn capacity(&self) -> u64 {
        self.data_bytes
    }

    /// Whether so little room is left that the kernel may have dropped a record. It says so only in
    /// front of the next one that fits; [`Ring::force_record`] makes one.
    pub fn is_nearly_full(&self) -> bool {
        self.head().wrapping_sub(self.tail()) + RECORD_BYTES_MAX > self.capacity()
    }

    /// Sleeps for a moment, so that the kernel writes a record and, before it, how many were lost.
    ///
    /// A sleep this short may be over before the thread has left the CPU, so it is tried up to
    /// [`SLEEP_TRIES_MAX`] times.
    pub fn force_record(&self) {
        let head = self.head();
        for _ in 0..SLEEP_TRIES_MAX {
            if self.head() != head {
                break;
            }
            let moment = rustix::thread::Timespec {
                tv_sec: 0,
                tv_nsec: 1000,
            };
            let _ = rustix::thread::nanosleep(&moment);
        }
    }

    /// Hands every record written before the call to `visit`, oldest first, and frees its space.
    ///
    /// Bounded by the size of the ring: what arrives meanwhile stays for the next call.
    pub fn drain(&self, mut visit: impl FnMut(Record<'_>)) {
        let head = self.head();
        let mut frames = [0; STACK_FRAMES_MAX];
        loop {
            let tail = self.tail.get();
            // Not `tail != head`: a `visit` that drains as well may have passed this head.
            let unread = head.wrapping_sub(tail) as i64;
            if unread <= 0 {
                break;
            }
            let (record, bytes) = self.parse(tail, unread as u64, &mut frames);
            self.tail.set(tail.wrapping_add(bytes));
            visit(record);
        }
        // Release: the reads above must be over before the kernel may overwrite the space.
        self.counter(DATA_TAIL_OFFSET)
            .store(self.tail.get(), Ordering::Release);
    }

    /// How many records the kernel had to drop since the ring was opened, or `None` where the
    /// kernel cannot say (before 6.0) or the descriptor was given up.
    ///
    /// A system call, for reports and not for the fast path. It also counts the losses no
    /// [`Record::Lost`] has announced yet, because that record comes only with the next one that
    /// fits.
    pub fn lost(&self) -> Option<u64> {
        let event = self.event.as_ref().filter(|_| self.reports_lost)?;
        // With PERF_FORMAT_LOST alone the answer is the event's value, then the count of lost
        // records.
        let mut answer = [0_u8; 16];
        let bytes = rustix::io::retry_on_intr(|| rustix::io::read(event.as_fd(), &mut answer));
        match bytes {
            Ok(16) => Some(u64::from_ne_bytes(
                answer[8..].try_into().expect("eight bytes"),
            )),
            _ => None,
        }
    }

    /// Reads the record at `at`; returns it with its length in bytes.
    fn parse<'f>(
        &self,
        at: u64,
        unread_bytes: u64,
        frames: &'f mut [u64; STACK_FRAMES_MAX],
    ) -> (Record<'f>, u64) {
        let header = Header::from_word(self.word(at));
        let bytes = u64::from(header.bytes);
        if bytes < 16 || bytes % 8 != 0 || bytes > unread_bytes {
            // No kernel writes this. Skipping all of it and saying so beats guessing where the next
            // record starts.
            return (Record::Lost { count: 1 }, unread_bytes);
        }
        let record = match header.kind {
            RECORD_SAMPLE => self.parse_sample(at, bytes, frames),
            // `sample_id_all` puts the time behind the header, which is all a SWITCH record has.
            RECORD_SWITCH => switch(header.misc, self.word(at + 8)),
            // The identifier of the event comes first, then the count.
            RECORD_LOST if bytes >= 24 => Record::Lost {
                count: self.word(at + 16),
            },
            _ => Record::Other,
        };
        (record, bytes)
    }

    /// A sample is the header, the time, the length of the call chain and the call chain.
    fn parse_sample<'f>(
        &self,
        at: u64,
        bytes: u64,
        frames: &'f mut [u64; STACK_FRAMES_MAX],
    ) -> Record<'f> {
        let time_ns = self.word(at + 8);
        // The Dummy event never takes a sample, so a sample without a chain does not occur; a
        // length that does not fit the record is cut to what does.
        let entries = if bytes >= 24 {
            self.word(at + 16).min((bytes - 24) / 8)
        } else {
            0
        };
        let mut kept = 0;
        for entry in 0..entries {
            let address = self.word(at + 24 + 8 * entry);
            if address < CONTEXT_MARKER_MIN && kept < STACK_FRAMES_MAX {
                frames[kept] = address;
                kept += 1;
            }
        }
        Record::Sample {
            time_ns,
            stack: &frames[..kept],
        }
    }

    /// The word of the ring at a byte count. Records are multiples of 8 bytes and so is the ring,
    /// so a record that wraps around the end is read word by word like any other.
    fn word(&self, at: u64) -> u64 {
        let index = (at & (self.data_bytes - 1)) / 8;
        // SAFETY: the mask keeps the index within the mapped data.
        let word = unsafe { self.data.add(index as usize) };
        // SAFETY: mapped and aligned. Volatile, since the kernel wrote it behind the compiler's
        // back.
        unsafe { word.as_ptr().read_volatile() }
    }

    #[inline(always)]
    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both offsets lie in the first page of the mapping.
        let counter = unsafe { self.map.add(offset) }.cast::<AtomicU64>();
        // SAFETY: mapped as long as `self` lives, 8-byte aligned, and shared with the kernel as an
        // atomic 64-bit counter.
        unsafe { counter.as_ref() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // In a forked child another mapping may be at this address.
        if !self.fork_guard.is_same_process() {
            return;
        }
        // SAFETY: this is the mapping `open` made, and no reference into it outlives `self`.
        // Failing to unmap could only leak it, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

/// `struct perf_event_header`.
struct Header {
    kind: u32,
    misc: u16,
    bytes: u16,
}

impl Header {
    fn from_word(word: u64) -> Header {
        let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
        Header {
            kind: u32::from_ne_bytes([a, b, c, d]),
            misc: u16::from_ne_bytes([e, f]),
            bytes: u16::from_ne_bytes([g, h]),
        }
    }
}

fn switch(misc: u16, time_ns: u64) -> Record<'static> {
    if misc & MISC_SWITCH_OUT == 0 {
        return Record::SwitchIn { time_ns };
    }
    Record::SwitchOut {
        time_ns,
        preempted: misc & MISC_SWITCH_OUT_PREEMPT != 0,
    }
}

#[cfg(test)]
mod tests;
