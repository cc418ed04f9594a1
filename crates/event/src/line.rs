//! For mechanisms whose kernel speaks of changes only: what holds until the next change is kept
//! here.
//!
//! A descriptor is registered once and seldom changed in the kernel, so a `modify` costs no call,
//! which is what being told of edges can gain. What it takes away is given back here, so that
//! callers see what they see of the other mechanisms: whoever was delivered stays in line and is
//! delivered again, after one poll(2) of all in line has found that the condition still holds. A
//! caller that has met the end of what there was may say so ([`drained`](crate::Events::drained)),
//! which spares that look.
//!
//! A believed condition is never wrong for long. It becomes true by an edge, and false by a poll
//! that says so or by the caller's word; whatever happens after either is a new edge
//! (`ep_poll_callback`, `io_poll_wake`). The word of a caller that has read less than it asked for
//! is not taken when the peer has ended its side: that edge is over, and the end is still to be
//! read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use headway_os::select::PollEntry;

use crate::EVENTS_PER_WAIT_MAX;
use crate::table::Table;
use crate::vocabulary::{Condition, Interest, Ready, Registration, Token};

const INVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// All who are registered, each with what its mechanism has to know about it, and the line of those
/// who may be ready.
pub(crate) struct Line<K> {
    table: Table<Entry<K>>,
    /// Grows with every registration, so that a number in line that is another file's by now is
    /// passed over.
    generation: u32,
    /// Who may be ready, by number and generation; whoever was delivered last stands last.
    line: VecDeque<(RawFd, u32)>,
    /// Those in line as poll(2) is asked about them, kept so that a wait allocates nothing.
    asked: Vec<PollEntry>,
}

pub(crate) struct Entry<K> {
    pub registration: Registration,
    /// Others watch the same file, and one of them is to be told of a change.
    pub shared: bool,
    pub known: K,
    generation: u32,
    /// What is believed to hold.
    condition: Condition,
    /// The peer has ended its side: no edge will tell of it again.
    ended: bool,
    in_line: bool,
    /// The descriptor as poll(2) is asked about it.
    poll: PollEntry,
}

impl<K> Entry<K> {
    fn ready(&self) -> Option<Ready> {
        self.registration.ready(self.condition)
    }

    pub fn believe_nothing(&mut self) {
        self.condition = Condition::NOTHING;
    }
}

/// What the kernel tells of a descriptor once.
pub(crate) struct Change {
    pub condition: Condition,
    /// The peer has ended its side (`POLLRDHUP`), if the kernel was asked about that.
    pub ended: bool,
}

impl<K> Line<K> {
    pub fn new() -> Line<K> {
        Line {
            table: Table::new(),
            generation: 0,
            line: VecDeque::new(),
            asked: Vec::new(),
        }
    }

    pub fn check_unknown(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.table.check_unknown(fd.as_raw_fd())
    }

    pub fn insert(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
        shared: bool,
        known: K,
    ) {
        self.generation = self.generation.wrapping_add(1);
        let entry = Entry {
            registration: Registration { token, interest },
            shared,
            known,
            generation: self.generation,
            condition: Condition::NOTHING,
            ended: false,
            in_line: false,
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

    /// A descriptor that may be ready for what is of interest stands in line, once.
    pub fn line_up(&mut self, fd: RawFd) {
        if let Some(entry) = self.table.get_mut(fd)
            && !entry.in_line
            && entry.ready().is_some()
        {
            entry.in_line = true;
            self.line.push_back((fd, entry.generation));
        }
    }

    pub fn learn(&mut self, fd: RawFd, change: &Change) {
        let Some(entry) = self.table.get_mut(fd) else {
            return;
        };
        let (believed, told) = (&mut entry.condition, change.condition);
        believed.input |= told.input;
        believed.output |= told.output;
        believed.hangup |= told.hangup;
        believed.error |= told.error;
        entry.ended |= change.ended || told.hangup || told.error;
        self.line_up(fd);
    }

    /// The caller's word that there is no more input.
    pub fn drained(&mut self, fd: RawFd) {
        if let Some(entry) = self.table.get_mut(fd)
            && !entry.ended
        {
            entry.condition.input = false;
        }
    }

    /// Before a wait: whether the condition of everybody in line still holds. How long the wait may
    /// last: while somebody is in line it is but a look.
    pub fn look_again(&mut self, timeout: Option<Duration>) -> io::Result<Patience> {
        self.ask_those_in_line()?;
        Ok(Patience::new(match self.line.is_empty() {
            true => timeout,
            false => Some(Duration::ZERO),
        }))
    }

    /// Whoever is not ready any more leaves the line.
    fn ask_those_in_line(&mut self) -> io::Result<()> {
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
        match headway_os::select::poll(&mut self.asked, Some(0)) {
            Ok(_) => {}
            // Of more than may be open now, since somebody has lowered the limit, poll(2) says
            // nothing. What is believed may be wrong, and callers bear that.
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

    /// Delivers from the front of the line; who was delivered goes to its end.
    pub fn deliver(&mut self, ready: &mut Vec<Ready>) {
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

#[cfg(test)]
impl<K> Line<K> {
    /// Nobody stands in it, and nobody was asked about before the last wait.
    pub fn is_idle(&self) -> bool {
        self.line.is_empty() && self.asked.is_empty()
    }
}

/// The entry that stood in line under this number, if it is still the same one.
fn same<K>(table: &mut Table<Entry<K>>, fd: RawFd, generation: u32) -> Option<&mut Entry<K>> {
    let entry = table.get_mut(fd)?;
    (entry.generation == generation).then_some(entry)
}

/// What poll(2) says of the directions it was asked about, and of hang-ups.
fn believe<K>(entry: &mut Entry<K>, answer: &PollEntry) {
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

/// How long a wait may still last that changes of no interest have interrupted.
pub(crate) struct Patience {
    begun: Instant,
    timeout: Option<Duration>,
}

impl Patience {
    pub fn new(timeout: Option<Duration>) -> Patience {
        Patience {
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
