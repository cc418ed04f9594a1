//! epoll(7), level-triggered: the kernel keeps the table and returns only what is ready.
//!
//! A copy of each registration is kept here by descriptor number, for three reasons: a hang-up
//! alone must count as readable only when reading is of interest; misuse gets the same answers as
//! with select and poll; and a `modify` that changes nothing in the kernel needs no system call.
//! Fairness is the kernel's: a level-triggered descriptor that was delivered goes to the end of the
//! ready list (`ep_send_events`).
//!
//! Refused by the kernel, unlike select and poll: regular files (`EPERM`), which are always ready.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::table::Table;
use crate::vocabulary::{Condition, Interest, Ready, Registration, Token};
use crate::{Backend, EVENTS_PER_WAIT_MAX};

pub(crate) struct Epoll {
    epoll: OwnedFd,
    table: Table<Registration>,
    /// Room for the kernel's answer, allocated once.
    events: Vec<Event>,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        let nothing = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        Ok(Epoll {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            table: Table::new(),
            events: vec![nothing; EVENTS_PER_WAIT_MAX],
        })
    }
}

/// The event's data is the descriptor number, under which the token is found.
fn data(fd: BorrowedFd<'_>) -> EventData {
    EventData::new_u64(fd.as_raw_fd() as u64)
}

fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, interest.reads());
    flags.set(EventFlags::OUT, interest.writes());
    flags
}

fn condition(flags: EventFlags) -> Condition {
    Condition {
        input: flags.contains(EventFlags::IN),
        output: flags.contains(EventFlags::OUT),
        hangup: flags.contains(EventFlags::HUP),
        error: flags.contains(EventFlags::ERR),
    }
}

impl Backend for Epoll {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        self.table.check_unknown(fd.as_raw_fd())?;
        epoll::add(&self.epoll, fd, data(fd), flags(interest))?;
        self.table
            .insert(fd.as_raw_fd(), Registration { token, interest });
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let registration = self.table.known(fd.as_raw_fd())?;
        if registration.interest != interest {
            epoll::modify(&self.epoll, fd, data(fd), flags(interest))?;
        }
        *registration = Registration { token, interest };
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // Whatever the kernel answers, it does not know the descriptor afterwards; so neither must
        // we.
        self.table.remove(fd.as_raw_fd())?;
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    fn forget(&mut self, fd: BorrowedFd<'_>) {
        let _ = self.table.remove(fd.as_raw_fd());
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()> {
        let timeout = timeout_ms.map(|ms| Timespec {
            tv_sec: (ms / 1000).into(),
            tv_nsec: (ms % 1000 * 1_000_000).into(),
        });
        let count = epoll::wait(&self.epoll, &mut self.events[..], timeout.as_ref())?;
        for event in &self.events[..count] {
            let Event { flags, data } = *event;
            let registration = self.table.get(data.u64() as i32);
            ready.extend(registration.and_then(|known| known.ready(condition(flags))));
        }
        Ok(())
    }

    /// epoll_wait(2) counts in milliseconds, and its successor is missing from older kernels and many
    /// system-call filters. An epoll descriptor can itself be polled, and ppoll(2) counts in
    /// nanoseconds.
    fn wait_finely(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        if !timeout.is_zero() {
            let exact = Timespec {
                // Beyond the kernel's range a wait may end early.
                tv_sec: timeout.as_secs().min(i32::MAX as u64) as i64,
                tv_nsec: timeout.subsec_nanos().into(),
            };
            let mut itself = [PollFd::new(&self.epoll, PollFlags::IN)];
            if rustix::event::poll(&mut itself, Some(&exact))? == 0 {
                return Ok(());
            }
        }
        self.wait(ready, Some(0))
    }
}
