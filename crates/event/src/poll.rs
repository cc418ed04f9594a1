//! poll(2): one dense table, passed to the kernel on every call.
//!
//! The cost of a wait grows with the number of registered descriptors, not with their numbers.
//! Removal moves the last entry into the gap, so the table stays dense. An index by file descriptor
//! has the position of each entry.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use headway_os::select::PollEntry;

use crate::table::Table;
use crate::types::{Condition, Ready, Registration};
use crate::{Backend, EVENTS_PER_WAIT_MAX};

pub(crate) struct Poll {
    /// The entries for the kernel; `registrations` has the same positions.
    entries: Vec<PollEntry>,
    registrations: Vec<Registration>,
    positions: Table<usize>,
    /// Start of the next scan: after the last entry that was reported when the limit was reached.
    cursor: usize,
}

impl Poll {
    pub fn new() -> Poll {
        Poll {
            entries: Vec::new(),
            registrations: Vec::new(),
            positions: Table::new(),
            cursor: 0,
        }
    }

    /// Every registration, in no particular order.
    pub fn registrations(&self) -> &[Registration] {
        &self.registrations
    }

    fn set(&mut self, position: usize, registration: Registration) {
        let interest = registration.interest;
        self.entries[position].set_interest(interest.reads(), interest.writes());
        self.registrations[position] = registration;
    }

    /// Turns the kernel's `answers` into events, from the cursor to the end and from the start to
    /// the cursor.
    fn collect(&mut self, mut answers: usize, ready: &mut Vec<Ready>) {
        let count = self.entries.len();
        let start = if self.cursor < count { self.cursor } else { 0 };
        for position in (start..count).chain(0..start) {
            if answers == 0 {
                return;
            }
            let entry = &self.entries[position];
            if !entry.answered() {
                continue;
            }
            answers -= 1;
            let condition = Condition {
                input: entry.input(),
                output: entry.output(),
                hangup: entry.hangup(),
                error: entry.error(),
            };
            ready.extend(self.registrations[position].ready(condition));
            if ready.len() == EVENTS_PER_WAIT_MAX {
                self.cursor = position + 1;
                return;
            }
        }
    }
}

impl Backend for Poll {
    fn name(&self) -> &'static str {
        "poll"
    }

    fn register(
        &mut self,
        fd: BorrowedFd<'_>,
        registration: Registration,
        _shared: bool,
    ) -> io::Result<()> {
        self.positions.check_unknown(fd.as_raw_fd())?;
        let position = self.entries.len();
        self.positions.insert(fd.as_raw_fd(), position);
        self.entries.push(PollEntry::new(fd));
        self.registrations.push(registration);
        self.set(position, registration);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, registration: Registration) -> io::Result<()> {
        let position = *self.positions.known(fd.as_raw_fd())?;
        self.set(position, registration);
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let position = self.positions.remove(fd.as_raw_fd())?;
        self.entries.swap_remove(position);
        self.registrations.swap_remove(position);
        if let Some(moved) = self.entries.get(position) {
            self.positions.insert(moved.descriptor(), position);
        }
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()> {
        let answers = headway_os::select::poll(&mut self.entries, timeout_ms)?;
        self.collect(answers, ready);
        Ok(())
    }
}
