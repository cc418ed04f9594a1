//! The ready list of edge-triggered mechanisms: it keeps readiness between the edges.
//!
//! A file descriptor is registered once and rarely changed in the kernel, so a `modify` makes no
//! system call, which is the advantage of edges. To look level-triggered to the caller, a file
//! descriptor that was reported stays in the list and is reported again, after one poll(2) of all
//! that are listed has confirmed that it is still ready. A caller that has read everything may say
//! so ([`drained`](crate::Events::drained)), which saves that poll.
//!
//! Recorded readiness is never wrong for long. It is set by an edge, and cleared by a poll or by
//! the caller; whatever happens afterwards is a new edge (`ep_poll_callback`, `io_poll_wake`). The
//! caller's report is ignored when the peer has shut down its side: that edge is over, and the end
//! of the stream still has to be read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use headway_os::select::PollEntry;

use crate::EVENTS_PER_WAIT_MAX;
use crate::table::Table;
use crate::types::{Condition, Ready, Registration};

const INVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// All registered file descriptors with their mechanism's data, and the list of those that may be
/// ready.
pub(crate) struct ReadyList<K> {
    table: Table<Entry<K>>,
    /// Grows with every registration, so that a listed number that belongs to another file by now
    /// is skipped.
    generation: u32,
    /// File descriptors that may be ready, by number and generation, the last reported one last.
    list: VecDeque<(RawFd, u32)>,
    /// Entries for poll(2), kept so that a wait allocates nothing.
    polled: Vec<PollEntry>,
}

pub(crate) struct Entry<K> {
    pub registration: Registration,
    /// Whether other processes watch the same file, and only one of them should wake up.
    pub shared: bool,
    pub known: K,
    generation: u32,
    /// Recorded readiness.
    condition: Condition,
    /// Whether the peer has shut down its side, which no further edge reports.
    ended: bool,
    is_listed: bool,
    /// The entry for poll(2).
    poll: PollEntry,
}

impl<K> Entry<K> {
    fn ready(&self) -> Option<Ready> {
        self.registration.ready(self.condition)
    }

    pub fn clear_readiness(&mut self) {
        self.condition = Condition::NOTHING;
    }
}

/// A change that the kernel reports once.
pub(crate) struct ReadinessChange {
    pub condition: Condition,
    /// Whether the peer has shut down its side (`POLLRDHUP`), if the kernel was polled about that.
    pub ended: bool,
}

impl<K> ReadyList<K> {
    pub fn new() -> ReadyList<K> {
        ReadyList {
            table: Table::new(),
            generation: 0,
            list: VecDeque::new(),
            polled: Vec::new(),
        }
    }

    pub fn check_unknown(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.table.check_unknown(fd.as_raw_fd())
    }

    pub fn insert(
        &mut self,
        fd: BorrowedFd<'_>,
        registration: Registration,
        shared: bool,
        known: K,
    ) {
        self.generation = self.generation.wrapping_add(1);
        let entry = Entry {
            registration,
            shared,
            known,
            generation: self.generation,
            condition: Condition::NOTHING,
            ended: false,
            is_listed: false,
            poll: PollEntry::new(fd),
        };
        self.table.insert(fd.as_raw_fd(), entry);
    }

    pub fn known(&mut self, fd: RawFd) -> io::Result<&mut Entry<K>> {
        self.table.known(fd)
    }

    pub fn remove(&mut self, fd: RawFd) -> io::Result<Entry<K>> {
        self.table.remove(fd)
    }

    /// Lists a file descriptor that may be ready for what is of interest, once.
    pub fn enqueue(&mut self, fd: RawFd) {
        if let Some(entry) = self.table.get_mut(fd)
            && !entry.is_listed
            && entry.ready().is_some()
        {
            entry.is_listed = true;
            self.list.push_back((fd, entry.generation));
        }
    }

    pub fn record(&mut self, fd: RawFd, change: &ReadinessChange) {
        let Some(entry) = self.table.get_mut(fd) else {
            return;
        };
        let (recorded, new) = (&mut entry.condition, change.condition);
        recorded.input |= new.input;
        recorded.output |= new.output;
        recorded.hangup |= new.hangup;
        recorded.error |= new.error;
        entry.ended |= change.ended || new.hangup || new.error;
        self.enqueue(fd);
    }

    /// Records that the caller has read all input.
    pub fn drained(&mut self, fd: RawFd) {
        if let Some(entry) = self.table.get_mut(fd)
            && !entry.ended
        {
            entry.condition.input = false;
        }
    }

    /// Rechecks all listed file descriptors before a wait. Returns how long the wait may last: not
    /// at all while the list is not empty.
    pub fn recheck(&mut self, timeout: Option<Duration>) -> io::Result<WaitTime> {
        self.poll_listed()?;
        Ok(WaitTime::new(match self.list.is_empty() {
            true => timeout,
            false => Some(Duration::ZERO),
        }))
    }

    /// Removes file descriptors that are no longer ready from the list.
    fn poll_listed(&mut self) -> io::Result<()> {
        let table = &mut self.table;
        let polled = &mut self.polled;
        polled.clear();
        self.list.retain(|&(fd, generation)| {
            let Some(entry) = same(table, fd, generation) else {
                return false;
            };
            entry.is_listed = entry.ready().is_some();
            if entry.is_listed {
                let interest = entry.registration.interest;
                entry.poll.set_interest(interest.reads(), interest.writes());
                polled.push(entry.poll);
            }
            entry.is_listed
        });
        if self.polled.is_empty() {
            return Ok(());
        }
        match headway_os::select::poll(&mut self.polled, Some(0)) {
            Ok(_) => {}
            // poll(2) fails if there are more entries than files may be open, because the limit was
            // lowered. Then the recorded readiness may be wrong, which callers must tolerate.
            Err(error) if error.raw_os_error() == Some(INVAL) => return Ok(()),
            Err(error) => return Err(error),
        }
        let (table, mut answers) = (&mut self.table, self.polled.iter());
        self.list.retain(|&(fd, generation)| {
            let (Some(entry), Some(answer)) = (same(table, fd, generation), answers.next()) else {
                return false;
            };
            update(entry, answer);
            entry.is_listed = entry.ready().is_some();
            entry.is_listed
        });
        Ok(())
    }

    /// Reports from the front of the list, and moves what was reported to its end.
    pub fn deliver(&mut self, ready: &mut Vec<Ready>) {
        for _ in 0..self.list.len() {
            if ready.len() == EVENTS_PER_WAIT_MAX {
                return;
            }
            let Some((fd, generation)) = self.list.pop_front() else {
                return;
            };
            let Some(entry) = same(&mut self.table, fd, generation) else {
                continue;
            };
            match entry.ready() {
                Some(event) => {
                    ready.push(event);
                    self.list.push_back((fd, generation));
                }
                None => entry.is_listed = false,
            }
        }
    }
}

#[cfg(test)]
impl<K> ReadyList<K> {
    /// Whether the list is empty, and was empty before the last wait.
    pub fn is_idle(&self) -> bool {
        self.list.is_empty() && self.polled.is_empty()
    }
}

/// The entry of a listed number, if it is still the same file.
fn same<K>(table: &mut Table<Entry<K>>, fd: RawFd, generation: u32) -> Option<&mut Entry<K>> {
    let entry = table.get_mut(fd)?;
    (entry.generation == generation).then_some(entry)
}

/// Records what poll(2) reports about the directions of interest, and about hang-ups.
fn update<K>(entry: &mut Entry<K>, answer: &PollEntry) {
    let interest = entry.registration.interest;
    if interest.reads() {
        entry.condition.input = answer.input();
    }
    if interest.writes() {
        entry.condition.output = answer.output();
    }
    entry.condition.hangup = answer.hangup();
    entry.condition.error = answer.error();
}

/// Time left of a wait that changes of no interest have interrupted.
pub(crate) struct WaitTime {
    begun: Instant,
    timeout: Option<Duration>,
}

impl WaitTime {
    pub fn new(timeout: Option<Duration>) -> WaitTime {
        WaitTime {
            begun: Instant::now(),
            timeout,
        }
    }

    pub fn left(&self) -> Option<Duration> {
        let timeout = self.timeout?;
        Some(timeout.saturating_sub(self.begun.elapsed()))
    }

    pub fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}
