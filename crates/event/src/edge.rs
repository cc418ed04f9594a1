//! epoll(7), edge-triggered: the kernel speaks of changes only, and what holds until the next one is kept here.
//!
//! A descriptor is registered once, for both directions, and never changed in the kernel: a `modify` costs no call,
//! which is what edge-triggering can gain. What it takes away is given back here, so that callers see what they see
//! of the other mechanisms: whoever was delivered stays in line and is delivered again, after one poll(2) of all in line has
//! found that the condition still holds. A caller that has met the end of what there was may say so
//! ([`drained`](crate::Events::drained)), which spares that look.
//!
//! A believed condition is never wrong for long. It becomes true by an edge, and false by a poll that says so or by the caller's
//! word; whatever happens after either is a new edge (`ep_poll_callback`). The word of a caller that has read less than it
//! asked for is not taken when the peer has ended its side: that edge is over, and the end is still to be read.
//!
//! Refused by the kernel, as by [`epoll`](super::epoll): regular files (`EPERM`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use os::select::PollEntry;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::table::Table;
use crate::vocabulary::{Condition, Interest, Ready, Registration, Token};
use crate::{Backend, EVENTS_PER_WAIT_MAX};

const INVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();

pub(crate) struct Edge {
    epoll: OwnedFd,
    table: Table<Entry>,
    /// Grows with every registration, so that a number in line that is another file's by now is passed over.
    generation: u32,
    /// Who may be ready, by number and generation; whoever was delivered last stands last.
    line: VecDeque<(RawFd, u32)>,
    /// Those in line as poll(2) is asked about them, kept so that a wait allocates nothing.
    asked: Vec<PollEntry>,
    /// Room for the kernel's answer, allocated once.
    events: Vec<Event>,
}

struct Entry {
    registration: Registration,
    generation: u32,
    /// Others watch the same file, and one of them is to be told of a change.
    shared: bool,
    /// What is believed to hold.
    condition: Condition,
    /// The peer has ended its side: no edge will tell of it again.
    ended: bool,
    in_line: bool,
    /// The descriptor as poll(2) is asked about it.
    poll: PollEntry,
}

impl Entry {
    fn ready(&self) -> Option<Ready> {
        self.registration.ready(self.condition)
    }
}

impl Edge {
    pub fn new() -> io::Result<Edge> {
        let nothing = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        Ok(Edge {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            table: Table::new(),
            generation: 0,
            line: VecDeque::new(),
            asked: Vec::new(),
            events: vec![nothing; EVENTS_PER_WAIT_MAX],
        })
    }

    /// A descriptor that may be ready for what is of interest stands in line, once.
    fn line_up(&mut self, fd: RawFd) {
        if let Some(entry) = self.table.get_mut(fd)
            && !entry.in_line
            && entry.ready().is_some()
        {
            entry.in_line = true;
            self.line.push_back((fd, entry.generation));
        }
    }

    /// Whether the condition of everybody in line still holds; whoever is not ready any more leaves the line.
    fn look_again(&mut self) -> io::Result<()> {
        let table = &mut self.table;
        let asked = &mut self.asked;
        asked.clear();
        self.line.retain(|&(fd, generation)| {
            let Some(entry) = same(table, fd, generation) else {
                return false;
            };
            entry.in_line = entry.ready().is_some();
            if entry.in_line {
                let interest = entry.registration.interest;
                entry.poll.ask(interest.reads(), interest.writes());
                asked.push(entry.poll);
            }
            entry.in_line
        });
        if self.asked.is_empty() {
            return Ok(());
        }
        match os::select::poll(&mut self.asked, Some(0)) {
            Ok(_) => {}
            // Of more than may be open now, since somebody has lowered the limit, poll(2) says nothing. What is believed may be wrong, and callers bear that.
            Err(error) if error.raw_os_error() == Some(INVAL) => return Ok(()),
            Err(error) => return Err(error),
        }
        let (table, mut answers) = (&mut self.table, self.asked.iter());
        self.line.retain(|&(fd, generation)| {
            let (Some(entry), Some(answer)) = (same(table, fd, generation), answers.next()) else {
                return false;
            };
            believe(entry, answer);
            entry.in_line = entry.ready().is_some();
            entry.in_line
        });
        Ok(())
    }

    /// Takes all edges there are, waiting for the first: an edge that were left with the kernel would come later than those
    /// who have been in line before, and they would come first again and again.
    ///
    /// How many there were.
    fn hear(&mut self, timeout_ms: Option<u32>) -> io::Result<usize> {
        let (mut timeout_ms, mut heard) = (timeout_ms, 0);
        loop {
            let timeout = timeout_ms.map(|ms| Timespec {
                tv_sec: (ms / 1000).into(),
                tv_nsec: (ms % 1000 * 1_000_000).into(),
            });
            let count = epoll::wait(&self.epoll, &mut self.events[..], timeout.as_ref())?;
            for at in 0..count {
                let Event { flags, data } = self.events[at];
                self.learn(data.u64() as RawFd, flags);
            }
            heard += count;
            if count < EVENTS_PER_WAIT_MAX {
                return Ok(heard);
            }
            timeout_ms = Some(0);
        }
    }

    fn learn(&mut self, fd: RawFd, flags: EventFlags) {
        let Some(entry) = self.table.get_mut(fd) else {
            return;
        };
        let condition = &mut entry.condition;
        condition.input |= flags.contains(EventFlags::IN);
        condition.output |= flags.contains(EventFlags::OUT);
        condition.hangup |= flags.contains(EventFlags::HUP);
        condition.error |= flags.contains(EventFlags::ERR);
        entry.ended |= flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.line_up(fd);
    }

    /// Delivers from the front of the line; who was delivered goes to its end.
    fn deliver(&mut self, ready: &mut Vec<Ready>) {
        for _ in 0..self.line.len() {
            if ready.len() == EVENTS_PER_WAIT_MAX {
                return;
            }
            let Some((fd, generation)) = self.line.pop_front() else {
                return;
            };
            let Some(entry) = same(&mut self.table, fd, generation) else {
                continue;
            };
            match entry.ready() {
                Some(event) => {
                    ready.push(event);
                    self.line.push_back((fd, generation));
                }
                None => entry.in_line = false,
            }
        }
    }
}

/// The entry that stood in line under this number, if it is still the same one.
fn same(table: &mut Table<Entry>, fd: RawFd, generation: u32) -> Option<&mut Entry> {
    let entry = table.get_mut(fd)?;
    (entry.generation == generation).then_some(entry)
}

/// What poll(2) says of the directions it was asked about, and of hang-ups.
fn believe(entry: &mut Entry, answer: &PollEntry) {
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

/// The event's data is the descriptor number, under which the entry is found.
fn data(fd: BorrowedFd<'_>) -> EventData {
    EventData::new_u64(fd.as_raw_fd() as u64)
}

/// What is asked for, once and for all. The end of the peer's side is not to be had of a file whose changes one of several is
/// told (`EPOLLEXCLUSIVE_OK_BITS`); those are listeners, which have no peer.
fn flags(shared: bool) -> EventFlags {
    match shared {
        true => EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE,
        false => EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET,
    }
}

impl Backend for Edge {
    fn name(&self) -> &'static str {
        "epoll-edge"
    }

    fn register(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
        shared: bool,
    ) -> io::Result<()> {
        self.table.check_unknown(fd.as_raw_fd())?;
        if !shared || interest != Interest::NONE {
            epoll::add(&self.epoll, fd, data(fd), flags(shared))?;
        }
        self.generation = self.generation.wrapping_add(1);
        let entry = Entry {
            registration: Registration { token, interest },
            generation: self.generation,
            shared,
            condition: Condition::NOTHING,
            ended: false,
            in_line: false,
            poll: PollEntry::new(fd),
        };
        self.table.insert(fd.as_raw_fd(), entry);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let entry = self.table.known(fd.as_raw_fd())?;
        let before = entry.registration.interest;
        entry.registration.token = token;
        if entry.shared && before != interest {
            // Whoever does not want to be told must not be the one who is.
            match (before, interest) {
                (_, Interest::NONE) => {
                    epoll::delete(&self.epoll, fd)?;
                    entry.condition = Condition::NOTHING;
                }
                (Interest::NONE, _) => epoll::add(&self.epoll, fd, data(fd), flags(true))?,
                _ => {}
            }
        }
        entry.registration.interest = interest;
        self.line_up(fd.as_raw_fd());
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let entry = self.table.remove(fd.as_raw_fd())?;
        match entry.shared && entry.registration.interest == Interest::NONE {
            true => Ok(()),
            false => Ok(epoll::delete(&self.epoll, fd)?),
        }
    }

    fn forget(&mut self, fd: BorrowedFd<'_>) {
        let _ = self.table.remove(fd.as_raw_fd());
    }

    fn pass_on(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let entry = self.table.known(fd.as_raw_fd())?;
        if !entry.shared || entry.registration.interest == Interest::NONE {
            return Ok(());
        }
        // The registration says again what holds now; what comes later is another one's, and must not be found by looking.
        entry.condition = Condition::NOTHING;
        super::epoll::to_the_end_of_the_queue(&self.epoll, fd, data(fd), flags(true))
    }

    fn drained(&mut self, fd: BorrowedFd<'_>) {
        if let Some(entry) = self.table.get_mut(fd.as_raw_fd())
            && !entry.ended
        {
            entry.condition.input = false;
        }
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()> {
        self.look_again()?;
        let timeout_ms = match self.line.is_empty() {
            true => timeout_ms,
            false => Some(0),
        };
        let (begun, mut left_ms) = (Instant::now(), timeout_ms);
        loop {
            let heard = self.hear(left_ms)?;
            self.deliver(ready);
            if heard == 0 || !ready.is_empty() {
                return Ok(());
            }
            // Changes that are of no interest: the wait goes on.
            left_ms = timeout_ms.map(|ms| {
                let timeout = Duration::from_millis(ms.into());
                crate::timeout_ms(timeout.saturating_sub(begun.elapsed()))
            });
        }
    }

    fn wait_finely(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        self.look_again()?;
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            if self.line.is_empty() && !super::epoll::is_readable_within(&self.epoll, left)? {
                return Ok(());
            }
            let heard = self.hear(Some(0))?;
            self.deliver(ready);
            if heard == 0 || !ready.is_empty() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn now(edge: &mut Edge) -> Vec<Ready> {
        let mut ready = Vec::new();
        edge.wait(&mut ready, Some(0)).unwrap();
        ready
    }

    #[test]
    fn nobody_is_asked_about_when_the_caller_has_read_everything() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let mut edge = Edge::new().unwrap();
        edge.register(near.as_fd(), Token(1), Interest::READ, false)
            .unwrap();
        for round in 0..3 {
            far.write_all(b"x").unwrap();
            assert_eq!(now(&mut edge).len(), 1, "round {round}");
            near.read_exact(&mut [0]).unwrap();
            edge.drained(near.as_fd());
            assert_eq!(now(&mut edge), []);
            assert!(edge.asked.is_empty() && edge.line.is_empty());
        }
    }

    #[test]
    fn what_came_after_the_last_read_is_told_when_the_caller_says_that_there_is_nothing() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let mut edge = Edge::new().unwrap();
        edge.register(near.as_fd(), Token(1), Interest::READ, false)
            .unwrap();
        far.write_all(b"x").unwrap();
        assert_eq!(now(&mut edge).len(), 1);
        near.read_exact(&mut [0]).unwrap();
        far.write_all(b"y").unwrap();
        edge.drained(near.as_fd());
        assert_eq!(now(&mut edge).len(), 1);
    }

    #[test]
    fn end_of_the_stream_is_told_when_it_came_with_the_last_bytes() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let mut edge = Edge::new().unwrap();
        edge.register(near.as_fd(), Token(1), Interest::READ, false)
            .unwrap();
        far.write_all(b"x").unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(now(&mut edge).len(), 1);
        let mut buffer = [0; 16];
        assert_eq!(near.read(&mut buffer).unwrap(), 1);
        // The read was shorter than asked for, and yet it was not all.
        edge.drained(near.as_fd());
        assert_eq!(now(&mut edge).len(), 1);
        assert_eq!(near.read(&mut buffer).unwrap(), 0);
    }
}
