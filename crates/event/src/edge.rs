//! epoll(7), edge-triggered: the kernel speaks of changes only, and what holds until the next one
//! is kept in the [line](super::line).
//!
//! A descriptor is registered once, for both directions, and never changed in the kernel.
//!
//! Refused by the kernel, as by [`epoll`](super::epoll): regular files (`EPERM`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::line::{Change, Line};
use crate::vocabulary::{Condition, Interest, Ready, Token};
use crate::{Backend, EVENTS_PER_WAIT_MAX};

pub(crate) struct Edge {
    epoll: OwnedFd,
    line: Line<()>,
    /// Room for the kernel's answer, allocated once.
    events: Vec<Event>,
}

impl Edge {
    pub fn new() -> io::Result<Edge> {
        let nothing = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        Ok(Edge {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            line: Line::new(),
            events: vec![nothing; EVENTS_PER_WAIT_MAX],
        })
    }

    /// Takes all edges there are, waiting for the first: an edge that were left with the kernel
    /// would come later than those who have been in line before, and they would come first again
    /// and again.
    fn hear(&mut self, timeout_ms: Option<u32>) -> io::Result<()> {
        let mut timeout_ms = timeout_ms;
        loop {
            let timeout = timeout_ms.map(|ms| Timespec {
                tv_sec: (ms / 1000).into(),
                tv_nsec: (ms % 1000 * 1_000_000).into(),
            });
            let count = epoll::wait(&self.epoll, &mut self.events[..], timeout.as_ref())?;
            for &Event { flags, data } in &self.events[..count] {
                self.line.learn(data.u64() as RawFd, &change(flags));
            }
            if count < EVENTS_PER_WAIT_MAX {
                return Ok(());
            }
            timeout_ms = Some(0);
        }
    }
}

fn change(flags: EventFlags) -> Change {
    Change {
        condition: Condition {
            input: flags.contains(EventFlags::IN),
            output: flags.contains(EventFlags::OUT),
            hangup: flags.contains(EventFlags::HUP),
            error: flags.contains(EventFlags::ERR),
        },
        ended: flags.contains(EventFlags::RDHUP),
    }
}

/// The event's data is the descriptor number, under which the entry is found.
fn data(fd: BorrowedFd<'_>) -> EventData {
    EventData::new_u64(fd.as_raw_fd() as u64)
}

/// What is asked for, once and for all. The end of the peer's side is not to be had of a file whose
/// changes one of several is told (`EPOLLEXCLUSIVE_OK_BITS`); those are listeners, which have no
/// peer.
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
        self.line.check_unknown(fd)?;
        if !shared || interest != Interest::NONE {
            epoll::add(&self.epoll, fd, data(fd), flags(shared))?;
        }
        self.line.insert(fd, token, interest, shared, ());
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let entry = self.line.known(fd.as_raw_fd())?;
        let before = entry.registration.interest;
        entry.registration.token = token;
        if entry.shared && before != interest {
            // Whoever does not want to be told must not be the one who is.
            match (before, interest) {
                (_, Interest::NONE) => {
                    epoll::delete(&self.epoll, fd)?;
                    entry.believe_nothing();
                }
                (Interest::NONE, _) => epoll::add(&self.epoll, fd, data(fd), flags(true))?,
                _ => {}
            }
        }
        entry.registration.interest = interest;
        self.line.line_up(fd.as_raw_fd());
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let entry = self.line.remove(fd.as_raw_fd())?;
        match entry.shared && entry.registration.interest == Interest::NONE {
            true => Ok(()),
            false => Ok(epoll::delete(&self.epoll, fd)?),
        }
    }

    fn forget(&mut self, fd: BorrowedFd<'_>) {
        let _ = self.line.remove(fd.as_raw_fd());
    }

    fn pass_on(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let entry = self.line.known(fd.as_raw_fd())?;
        if !entry.shared || entry.registration.interest == Interest::NONE {
            return Ok(());
        }
        // The registration says again what holds now; what comes later is another one's, and must
        // not be found by looking.
        entry.believe_nothing();
        super::epoll::to_the_end_of_the_queue(&self.epoll, fd, data(fd), flags(true))
    }

    fn drained(&mut self, fd: BorrowedFd<'_>) {
        self.line.drained(fd.as_raw_fd());
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()> {
        let timeout = timeout_ms.map(|ms| Duration::from_millis(ms.into()));
        let patience = self.line.look_again(timeout)?;
        loop {
            self.hear(patience.left().map(crate::timeout_ms))?;
            self.line.deliver(ready);
            // After changes that are of no interest the wait goes on.
            if !ready.is_empty() || patience.is_over() {
                return Ok(());
            }
        }
    }

    fn wait_finely(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        let patience = self.line.look_again(Some(timeout))?;
        loop {
            let left = patience.left().unwrap_or(timeout);
            if !left.is_zero() && !super::epoll::is_readable_within(&self.epoll, left)? {
                return Ok(());
            }
            self.hear(Some(0))?;
            self.line.deliver(ready);
            if !ready.is_empty() || patience.is_over() {
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
            assert!(edge.line.is_idle());
        }
    }
}
