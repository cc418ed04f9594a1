//! epoll(7), level-triggered: the kernel keeps the table and returns only what is ready.
//!
//! A copy of each registration is kept here by file descriptor, for three reasons: a hang-up alone
//! must count as readable only when reading is of interest; misuse gets the same errors as with
//! select and poll; and a `modify` that changes nothing in the kernel needs no system call. The
//! kernel provides fairness: a level-triggered file descriptor that was reported goes to the end of
//! the ready list (`ep_send_events`).
//!
//! A shared file descriptor is watched with `EPOLLEXCLUSIVE`: of all sleeping processes that watch
//! it so, the first in its wait queue is woken. That queue is in the order of registration, so the
//! first process would be woken again and again. Therefore a process that was woken registers again
//! and stands at the end ([`reregister`]). The kernel does not permit changing such a registration
//! (epoll_ctl(2)), so it is removed and added.
//!
//! Unlike select and poll, the kernel rejects regular files (`EPERM`), which are always ready.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::table::Table;
use crate::types::{Condition, Interest, Ready, Registration};
use crate::{Backend, EVENTS_PER_WAIT_MAX};

pub(crate) struct Epoll {
    epoll: OwnedFd,
    table: Table<EpollEntry>,
    /// Buffer for the kernel's answer, allocated once.
    events: Vec<Event>,
}

struct EpollEntry {
    registration: Registration,
    /// Whether other processes watch the same file, and only one of them should wake up.
    shared: bool,
}

impl EpollEntry {
    /// Whether the fd is in the epoll set. A shared listener without interest must not be, or it
    /// could absorb an exclusive wakeup.
    fn is_registered(&self) -> bool {
        !self.shared || self.registration.interest != Interest::NONE
    }
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

/// Registers a shared file descriptor again, so that the next change wakes another process. The
/// registration reports what is ready now, so nothing is lost in between.
pub(crate) fn reregister(
    epoll: &OwnedFd,
    fd: BorrowedFd<'_>,
    data: EventData,
    flags: EventFlags,
) -> io::Result<()> {
    epoll::delete(epoll, fd)?;
    Ok(epoll::add(epoll, fd, data, flags)?)
}

/// Sleeps until an epoll file descriptor has events or the timeout has passed. Returns whether it
/// has events.
///
/// epoll_wait(2) counts in milliseconds, and epoll_pwait2(2) is missing from older kernels and many
/// system-call filters. An epoll file descriptor can itself be polled, and ppoll(2) counts in
/// nanoseconds.
pub(crate) fn is_readable_within(epoll: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    if timeout.is_zero() {
        return Ok(true);
    }
    let exact = Timespec {
        // Beyond the kernel's range a wait may end early.
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut itself = [PollFd::new(epoll, PollFlags::IN)];
    Ok(rustix::event::poll(&mut itself, Some(&exact))? > 0)
}

/// The event's data: the file descriptor, by which the registration is found.
fn data(fd: BorrowedFd<'_>) -> EventData {
    EventData::new_u64(fd.as_raw_fd() as u64)
}

fn flags(interest: Interest, shared: bool) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::EXCLUSIVE, shared);
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

    fn register(
        &mut self,
        fd: BorrowedFd<'_>,
        registration: Registration,
        shared: bool,
    ) -> io::Result<()> {
        self.table.check_unknown(fd.as_raw_fd())?;
        let known = EpollEntry {
            registration,
            shared,
        };
        if known.is_registered() {
            epoll::add(
                &self.epoll,
                fd,
                data(fd),
                flags(registration.interest, shared),
            )?;
        }
        self.table.insert(fd.as_raw_fd(), known);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, registration: Registration) -> io::Result<()> {
        let interest = registration.interest;
        let known = self.table.known(fd.as_raw_fd())?;
        let before = known.registration.interest;
        if before != interest && !known.shared {
            epoll::modify(&self.epoll, fd, data(fd), flags(interest, false))?;
        } else if before != interest {
            if known.is_registered() {
                epoll::delete(&self.epoll, fd)?;
            }
            // If adding fails, this is the actual state.
            known.registration.interest = Interest::NONE;
            if interest != Interest::NONE {
                epoll::add(&self.epoll, fd, data(fd), flags(interest, true))?;
            }
        }
        known.registration = registration;
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // Whatever the kernel answers, the fd is not in its set afterwards, so remove it here too.
        match self.table.remove(fd.as_raw_fd())?.is_registered() {
            true => Ok(epoll::delete(&self.epoll, fd)?),
            false => Ok(()),
        }
    }

    fn requeue_shared(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let known = self.table.known(fd.as_raw_fd())?;
        if !known.shared || !known.is_registered() {
            return Ok(());
        }
        let flags = flags(known.registration.interest, true);
        reregister(&self.epoll, fd, data(fd), flags)
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
            let known = self.table.get(data.u64() as i32);
            ready.extend(known.and_then(|known| known.registration.ready(condition(flags))));
        }
        Ok(())
    }

    fn wait_precise(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        match is_readable_within(&self.epoll, timeout)? {
            true => self.wait(ready, Some(0)),
            false => Ok(()),
        }
    }
}
