//! The rings of all CPUs, merged in the order of returns.
//!
//! A thread may be moved to another CPU in the middle of a call, so its functions are spread over
//! several rings. The rings are read one after another. Functions from one ring wait here until the
//! others have been read up to the same time.
//! the others have been read as far.

use std::fs::File;
use std::io::Read;

use super::format::{Exit, ExitFormat};
use super::page;

/// Limit of pages per read, from all rings together: 16 MB.
const PAGES_PER_READ_MAX: usize = 4096;

/// Limit of functions that wait for other rings. A ring that is further behind is not waited for.
const FUNCTIONS_WAITING_MAX: usize = 1 << 20;

#[derive(Debug)]
pub struct Rings {
    files: Vec<File>,
    format: ExitFormat,
    page: Vec<u8>,
    returned: ReturnQueue,
    lost: u64,
    gap: Overwritten,
}

/// Events that were overwritten since the last query.
#[derive(Debug, Default)]
struct Overwritten {
    events: u64,
    /// When the first event behind the last of them came.
    end_ns: u64,
}

impl Rings {
    /// Creates a reader without rings. `page_bytes` is the size of a page of the ring.
    pub fn new(format: ExitFormat, page_bytes: usize) -> Rings {
        Rings {
            files: Vec::new(),
            format,
            page: vec![0; page_bytes],
            returned: ReturnQueue::default(),
            lost: 0,
            gap: Overwritten::default(),
        }
    }

    pub fn are_open(&self) -> bool {
        !self.files.is_empty()
    }

    /// Reads these files, one per CPU.
    pub fn open(&mut self, files: Vec<File>) {
        self.files = files;
    }

    /// Passes on the functions that have returned up to a time, each with the time of its return.
    /// Later ones wait for the next round. Returns false if a ring holds more than one round reads,
    /// so that others may have waited for it.
    pub fn read_until(&mut self, until_ns: u64, mut each: impl FnMut(Exit, u64)) -> bool {
        let mut known_ns = until_ns;
        let mut are_empty = true;
        let pages = PAGES_PER_READ_MAX / self.files.len().max(1) + 1;
        for ring in 0..self.files.len() {
            if let Some(last_ns) = self.read(ring, pages) {
                known_ns = known_ns.min(last_ns);
                are_empty = false;
            }
        }
        for (returned_ns, exit) in self.returned.until(known_ns) {
            each(exit, returned_ns);
        }
        are_empty
    }

    /// Reads at most this many pages of a ring. Returns the time of the last event if there may be
    /// more.
    fn read(&mut self, ring: usize, pages: usize) -> Option<u64> {
        let mut last_ns = 0;
        for _ in 0..pages {
            let bytes = match self.files[ring].read(&mut self.page) {
                Ok(bytes @ 1..) => bytes,
                // Empty, or interrupted: the next round reads on.
                Ok(0) | Err(_) => return None,
            };
            let mut first_ns = None;
            let lost = page::read(&self.page[..bytes], |event| {
                last_ns = event.time_ns;
                first_ns = first_ns.or(Some(last_ns));
                if let Some(exit) = self.format.read(event.bytes) {
                    self.returned.push(exit, event.time_ns);
                }
            });
            if lost > 0 {
                self.lost += lost;
                self.gap.events += lost;
                self.gap.end_ns = self.gap.end_ns.max(first_ns.unwrap_or(u64::MAX));
            }
        }
        Some(last_ns)
    }

    /// Events that were overwritten before they were read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// How many events were lost since the last query, if the last of them came after a time. Some
    /// may be earlier; how many is unknown.
    pub fn lost_after(&mut self, start_ns: u64) -> u64 {
        let gap = std::mem::take(&mut self.gap);
        if gap.end_ns > start_ns { gap.events } else { 0 }
    }
}

/// Functions that have returned, until all that returned before them is known.
#[derive(Debug, Default)]
struct ReturnQueue(Vec<(u64, Exit)>);

impl ReturnQueue {
    fn push(&mut self, exit: Exit, returned_ns: u64) {
        self.0.push((returned_ns, exit));
    }

    /// Removes and returns the functions that returned until a time, in that order.
    fn until(&mut self, known_ns: u64) -> impl Iterator<Item = (u64, Exit)> {
        // Stable: it keeps the order of a ring where two of its times are the same.
        self.0.sort_by_key(|&(returned_ns, _)| returned_ns);
        let ready = (self.0).partition_point(|&(returned_ns, _)| returned_ns <= known_ns);
        let late = self.0.len().saturating_sub(FUNCTIONS_WAITING_MAX);
        self.0.drain(..ready.max(late))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::{Exit, ExitFormat, FUNCTIONS_WAITING_MAX, PAGES_PER_READ_MAX, ReturnQueue, Rings};

    const PAGE: &[u8] = include_bytes!("../../tests/data/functions/page");
    const FORMAT: &str = include_str!("../../tests/data/functions/format");

    fn exit(address: u64) -> Exit {
        Exit {
            thread: 1,
            address,
            depth: 0,
            called_ns: 0,
            length_ns: 0,
        }
    }

    fn addresses(returned: &mut ReturnQueue, until_ns: u64) -> Vec<u64> {
        let taken = returned.until(until_ns);
        taken.map(|(_, exit)| exit.address).collect()
    }

    #[test]
    fn functions_come_in_the_order_of_their_returns_when_rings_are_read_one_after_another() {
        let mut returned = ReturnQueue::default();
        // The first CPU's ring, then the second's; the thread ran there from 12 to 14.
        for (address, returned_ns) in [(1, 10), (4, 15), (5, 15), (6, 30), (2, 12), (3, 14)] {
            returned.push(exit(address), returned_ns);
        }
        assert_eq!(addresses(&mut returned, 20), [1, 2, 3, 4, 5]);
        // What the second ring had not delivered yet.
        returned.push(exit(7), 25);
        assert_eq!(addresses(&mut returned, 30), [7, 6]);
        assert_eq!(addresses(&mut returned, u64::MAX), [0; 0]);
    }

    #[test]
    fn remaining_functions_are_returned_by_the_next_read_when_a_ring_exceeds_one_read() {
        let pages = PAGES_PER_READ_MAX + 10;
        let mut file = tempfile::tempfile().expect("room for a ring");
        file.write_all(&PAGE.repeat(pages))
            .and_then(|()| file.rewind())
            .expect("room for a ring");
        let format = ExitFormat::parse(FORMAT).expect("a kernel wrote it");
        let mut rings = Rings::new(format, PAGE.len());
        rings.open(vec![file]);
        let mut functions = 0;
        assert!(!rings.read_until(u64::MAX, |_, _| functions += 1));
        assert!(rings.read_until(u64::MAX, |_, _| functions += 1));
        assert!(functions > 0 && functions % pages == 0, "{functions}");
    }

    #[test]
    fn overwritten_events_are_counted_for_calls_that_began_before() {
        // The kernel's mark for events that are missing before a page.
        let mut page = PAGE.to_vec();
        page[11] |= 0x80;
        let lost_after = |start_ns: u64| {
            let mut file = tempfile::tempfile().expect("room for a page");
            file.write_all(&page)
                .and_then(|()| file.rewind())
                .expect("room for a page");
            let format = ExitFormat::parse(FORMAT).expect("a kernel wrote it");
            let mut rings = Rings::new(format, page.len());
            rings.open(vec![file]);
            let mut first_ns = u64::MAX;
            assert!(rings.read_until(u64::MAX, |_, returned_ns| first_ns =
                first_ns.min(returned_ns)));
            assert_eq!(rings.lost(), 1);
            (rings.lost_after(start_ns), rings.lost_after(0), first_ns)
        };
        let (before, again, first_ns) = lost_after(0);
        assert_eq!((before, again), (1, 0));
        assert_eq!(lost_after(first_ns).0, 0, "the gap was over");
    }

    #[test]
    fn oldest_functions_are_released_when_too_many_wait_for_a_slow_ring() {
        let mut returned = ReturnQueue::default();
        for at in 0..FUNCTIONS_WAITING_MAX as u64 + 3 {
            returned.push(exit(at), at);
        }
        assert_eq!(addresses(&mut returned, 0), [0, 1, 2]);
    }
}
