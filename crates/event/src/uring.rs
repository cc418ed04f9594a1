//! io_uring as a readiness mechanism: polls armed once each, in batches, with the call that waits.
//!
//! Level-triggered like the others: a poll that has answered is armed again at the next wait, and answers at once if
//! the condition still holds. The kernel's multishot poll would save that request, but it answers on changes only, which
//! this crate refuses. Registering, changing and forgetting are requests in memory shared with the kernel, so the one system
//! call of a turn is the wait, whatever was registered meanwhile.
//!
//! A shared listener is polled with `EPOLLEXCLUSIVE`. Each answer takes a poll out of the listener's wait queue, and arming it again puts it
//! at the end, so those who share it are told in turn.
//!
//! An armed poll holds its open file. What is removed is disarmed with the next wait, so a socket that is closed right
//! after its removal is closed for its peer then: within the same turn of a loop.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use os::ring::{PollAnswer, PollRing, PollWanted};

use crate::table::Table;
use crate::vocabulary::{Condition, Interest, Ready, Registration, Token};
use crate::{Backend, EVENTS_PER_WAIT_MAX};

/// Requests between two calls: one for each event of a wait, and for as many clients that come and go.
const SUBMISSIONS: u32 = 4 * EVENTS_PER_WAIT_MAX as u32;

/// Answers between two waits: of twice as many descriptors as one process usually has.
const ANSWERS: u32 = 32 * 1024;

pub(crate) struct Uring {
    ring: PollRing,
    table: Table<Entry>,
    /// Descriptors whose poll has answered, to be armed again. One may have been forgotten since.
    answered: Vec<RawFd>,
    generation: u32,
}

const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
const ENOSYS: i32 = rustix::io::Errno::NOSYS.raw_os_error();

struct Entry {
    registration: Registration,
    /// Others watch the same file, and one of them is to be told.
    shared: bool,
    /// The generation under which its poll is armed; answers under others are of the past.
    armed: Option<u32>,
}

impl Uring {
    pub fn new() -> io::Result<Uring> {
        Ok(Uring {
            ring: PollRing::new(SUBMISSIONS, ANSWERS).map_err(explained)?,
            table: Table::new(),
            answered: Vec::new(),
            generation: 0,
        })
    }

    /// Arms the poll of a registered descriptor.
    fn arm(&mut self, fd: RawFd) -> io::Result<()> {
        let Ok(entry) = self.table.known(fd) else {
            return Ok(());
        };
        let interest = entry.registration.interest;
        // Who shares a listener and does not want to be told must not be the one who is.
        if entry.armed.is_some() || (entry.shared && interest == Interest::NONE) {
            return Ok(());
        }
        self.generation = self.generation.wrapping_add(1);
        let key = key(fd, self.generation);
        let wanted = PollWanted {
            input: interest.reads(),
            output: interest.writes(),
            exclusively: entry.shared,
        };
        self.ring.arm(fd, wanted, key)?;
        entry.armed = Some(self.generation);
        Ok(())
    }

    fn arm_again(&mut self) -> io::Result<()> {
        while let Some(fd) = self.answered.pop() {
            if let Err(error) = self.arm(fd) {
                self.answered.push(fd);
                return Err(error);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, answer: PollAnswer, ready: &mut Vec<Ready>) {
        let fd = answer.key as u32 as RawFd;
        let Ok(entry) = self.table.known(fd) else {
            return;
        };
        if entry.armed != Some((answer.key >> 32) as u32) {
            return;
        }
        entry.armed = None;
        self.answered.push(fd);
        if !answer.void {
            ready.extend(entry.registration.ready(Condition {
                input: answer.input,
                output: answer.output,
                hangup: answer.hangup,
                error: answer.error,
            }));
        }
    }

    fn wait_for(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        self.arm_again()?;
        self.ring.wait(timeout)?;
        while ready.len() < EVENTS_PER_WAIT_MAX {
            let Some(answer) = self.ring.answer() else {
                break;
            };
            self.deliver(answer, ready);
        }
        Ok(())
    }
}

/// The descriptor and the generation of its poll.
fn key(fd: RawFd, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(fd as u32)
}

/// Who forbids it, in words.
pub(crate) fn explained(error: io::Error) -> io::Error {
    let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    match who_forbids(&error, setting.trim(), is_filtered(&status)) {
        Some(why) => io::Error::new(error.kind(), format!("io_uring_setup: {error}: {why}")),
        None => error,
    }
}

/// By the error, what the kernel's setting is (nothing before Linux 6.6), and whether the calls of this thread are filtered.
fn who_forbids(error: &io::Error, setting: &str, filtered: bool) -> Option<&'static str> {
    match (error.raw_os_error()?, setting) {
        (ENOSYS, _) if filtered => {
            Some("a filter of system calls (a container's seccomp profile) hides it")
        }
        (ENOSYS, _) => Some("this kernel has none"),
        (EPERM, "1") if filtered => Some(
            "sysctl kernel.io_uring_disabled = 1 forbids it to those without privilege, or a filter of system calls does",
        ),
        (EPERM, "1") => {
            Some("sysctl kernel.io_uring_disabled = 1 forbids it to those without privilege")
        }
        (EPERM, "2") => Some("sysctl kernel.io_uring_disabled = 2 forbids it to all"),
        (EPERM, _) => Some(
            "a filter of system calls (a container's seccomp profile) or another policy forbids it",
        ),
        _ => None,
    }
}

/// From the text of proc(5) `status`.
fn is_filtered(status: &str) -> bool {
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

impl Backend for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn register(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
        shared: bool,
    ) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        self.table.check_unknown(fd)?;
        let entry = Entry {
            registration: Registration { token, interest },
            shared,
            armed: None,
        };
        self.table.insert(fd, entry);
        self.arm(fd).inspect_err(|_| {
            let _ = self.table.remove(fd);
        })
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let entry = self.table.known(fd)?;
        let same = entry.registration.interest == interest;
        entry.registration = Registration { token, interest };
        if same {
            return Ok(());
        }
        // Armed anew with the next wait; where its poll has answered that is so already.
        match entry.armed.take() {
            Some(generation) => {
                self.answered.push(fd);
                self.ring.disarm(key(fd, generation))
            }
            // A shared one is not armed while nothing is of interest, and so has no answer that would bring it back.
            None if entry.shared => {
                self.answered.push(fd);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn pass_on(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let entry = self.table.known(fd)?;
        // Who has been told goes to the end by being armed again; who has not, by being disarmed first.
        match entry.armed.take_if(|_| entry.shared) {
            Some(generation) => {
                self.answered.push(fd);
                self.ring.disarm(key(fd, generation))
            }
            None => Ok(()),
        }
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let entry = self.table.remove(fd)?;
        match entry.armed {
            Some(generation) => self.ring.disarm(key(fd, generation)),
            None => Ok(()),
        }
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()> {
        let timeout = timeout_ms.map(|ms| Duration::from_millis(ms.into()));
        self.wait_for(ready, timeout)
    }

    fn wait_finely(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        // Beyond the kernel's range a wait may end early.
        self.wait_for(
            ready,
            Some(timeout.min(Duration::from_secs(i32::MAX as u64))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_says_who_may_forbid_it_when_the_kernel_refuses() {
        let filter = "a filter of system calls";
        for (code, setting, filtered, word) in [
            (EPERM, "2", true, "io_uring_disabled = 2"),
            (EPERM, "1", false, "io_uring_disabled = 1"),
            (EPERM, "1", true, filter),
            (EPERM, "0", true, filter),
            (EPERM, "", false, filter),
            (ENOSYS, "0", true, filter),
            (ENOSYS, "", false, "has none"),
        ] {
            let error = io::Error::from_raw_os_error(code);
            let why = who_forbids(&error, setting, filtered).unwrap();
            assert!(why.contains(word), "{code}, {setting:?}: {why}");
            let told = explained(error).to_string();
            assert!(told.starts_with("io_uring_setup: "), "{told}");
        }
        let other = explained(io::Error::from_raw_os_error(24));
        assert_eq!(other.raw_os_error(), Some(24));
        assert!(is_filtered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!is_filtered("Seccomp:\t0\nSeccomp_filters:\t2\n"));
    }
}
