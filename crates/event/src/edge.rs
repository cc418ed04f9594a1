//! epoll(7), edge-triggered: the kernel reports changes only, and the
//! [ready list](super::ready_list) keeps readiness between them.
//!
//! A file descriptor is registered once, for both directions, and never changed in the kernel.
//!
//! As with [`epoll`](super::epoll), the kernel rejects regular files (`EPERM`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::ready_list::{ReadinessChange, ReadyList};
use crate::types::{Condition, Interest, Ready, Registration};
use crate::{Backend, EVENTS_PER_WAIT_MAX};

pub(crate) struct Edge {
    epoll: OwnedFd,
    ready_list: ReadyList<()>,
    /// Buffer for the kernel's answer, allocated once.
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
            ready_list: ReadyList::new(),
            events: vec![nothing; EVENTS_PER_WAIT_MAX],
        })
    }

    /// Reads all edges, and waits for the first one. An edge left in the kernel would come after
    /// the listed file descriptors, which would come first again and again.
    fn read_edges(&mut self, timeout_ms: Option<u32>) -> io::Result<()> {
        let mut timeout_ms = timeout_ms;
        loop {
            let timeout = timeout_ms.map(|ms| Timespec {
                tv_sec: (ms / 1000).into(),
                tv_nsec: (ms % 1000 * 1_000_000).into(),
            });
            let count = epoll::wait(&self.epoll, &mut self.events[..], timeout.as_ref())?;
            for &Event { flags, data } in &self.events[..count] {
                self.ready_list.record(data.u64() as RawFd, &change(flags));
            }
            if count < EVENTS_PER_WAIT_MAX {
                return Ok(());
            }
            timeout_ms = Some(0);
        }
    }
}

fn change(flags: EventFlags) -> ReadinessChange {
    ReadinessChange {
        condition: Condition {
            input: flags.contains(EventFlags::IN),
            output: flags.contains(EventFlags::OUT),
            hangup: flags.contains(EventFlags::HUP),
            error: flags.contains(EventFlags::ERR),
        },
        ended: flags.contains(EventFlags::RDHUP),
    }
}

/// The event's data: the file descriptor, by which the entry is found.
fn data(fd: BorrowedFd<'_>) -> EventData {
    EventData::new_u64(fd.as_raw_fd() as u64)
}

/// The events to watch, which never change. `EPOLLEXCLUSIVE` does not permit `EPOLLRDHUP`
/// (`EPOLLEXCLUSIVE_OK_BITS`), but those are listeners, which have no peer.
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
        registration: Registration,
        shared: bool,
    ) -> io::Result<()> {
        self.ready_list.check_unknown(fd)?;
        if !shared || registration.interest != Interest::NONE {
            epoll::add(&self.epoll, fd, data(fd), flags(shared))?;
        }
        self.ready_list.insert(fd, registration, shared, ());
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, registration: Registration) -> io::Result<()> {
        let Registration { token, interest } = registration;
        let entry = self.ready_list.known(fd.as_raw_fd())?;
        let before = entry.registration.interest;
        entry.registration.token = token;
        if entry.shared && before != interest {
            // A listener without interest must not absorb an exclusive wakeup.
            match (before, interest) {
                (_, Interest::NONE) => {
                    epoll::delete(&self.epoll, fd)?;
                    entry.clear_readiness();
                }
                (Interest::NONE, _) => epoll::add(&self.epoll, fd, data(fd), flags(true))?,
                _ => {}
            }
        }
        entry.registration.interest = interest;
        self.ready_list.enqueue(fd.as_raw_fd());
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let entry = self.ready_list.remove(fd.as_raw_fd())?;
        match entry.shared && entry.registration.interest == Interest::NONE {
            true => Ok(()),
            false => Ok(epoll::delete(&self.epoll, fd)?),
        }
    }

    fn forget(&mut self, fd: BorrowedFd<'_>) {
        let _ = self.ready_list.remove(fd.as_raw_fd());
    }

    fn requeue_shared(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let entry = self.ready_list.known(fd.as_raw_fd())?;
        if !entry.shared || entry.registration.interest == Interest::NONE {
            return Ok(());
        }
        // The registration reports current readiness again. Later changes belong to other processes
        // and must not be found by a recheck.
        entry.clear_readiness();
        super::epoll::reregister(&self.epoll, fd, data(fd), flags(true))
    }

    fn drained(&mut self, fd: BorrowedFd<'_>) {
        self.ready_list.drained(fd.as_raw_fd());
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()> {
        let timeout = timeout_ms.map(|ms| Duration::from_millis(ms.into()));
        let wait_time = self.ready_list.recheck(timeout)?;
        loop {
            self.read_edges(wait_time.left().map(crate::timeout_ms))?;
            self.ready_list.deliver(ready);
            // After changes of no interest the wait continues.
            if !ready.is_empty() || wait_time.is_over() {
                return Ok(());
            }
        }
    }

    fn wait_precise(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        let wait_time = self.ready_list.recheck(Some(timeout))?;
        loop {
            let left = wait_time.left().unwrap_or(timeout);
            if !left.is_zero() && !super::epoll::is_readable_within(&self.epoll, left)? {
                return Ok(());
            }
            self.read_edges(Some(0))?;
            self.ready_list.deliver(ready);
            if !ready.is_empty() || wait_time.is_over() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Token;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn now(edge: &mut Edge) -> Vec<Ready> {
        let mut ready = Vec::new();
        edge.wait(&mut ready, Some(0)).unwrap();
        ready
    }

    #[test]
    fn no_poll_is_made_when_the_caller_has_read_everything() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let mut edge = Edge::new().unwrap();
        let registration = Registration {
            token: Token(1),
            interest: Interest::READ,
        };
        edge.register(near.as_fd(), registration, false).unwrap();
        for round in 0..3 {
            far.write_all(b"x").unwrap();
            assert_eq!(now(&mut edge).len(), 1, "round {round}");
            near.read_exact(&mut [0]).unwrap();
            edge.drained(near.as_fd());
            assert_eq!(now(&mut edge), []);
            assert!(edge.ready_list.is_idle());
        }
    }
}
