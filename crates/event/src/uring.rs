//! io_uring as a readiness mechanism: multishot polls, which stay armed as long as their file
//! descriptor is registered, and are submitted with the call that waits.
//!
//! Such a poll reports changes, and the [ready list](super::ready_list) keeps readiness between
//! them. It covers input, and room for output from the first time that is of interest. Registering,
//! changing and removing are requests in memory shared with the kernel, so the only system call of
//! an iteration is the wait, whatever was registered meanwhile.
//!
//! A shared listener is polled with `EPOLLEXCLUSIVE`, for one report at a time: each report takes
//! the poll out of the listener's wait queue, and arming it again puts it at the end, so the
//! processes that share the listener are woken in turn.
//!
//! An armed poll holds its open file. A removed one is disarmed with the next wait, so the peer of
//! a socket that is closed right after its removal sees the close then, within the same iteration.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use headway_os::ring::{PollCompletion, PollRequest, PollRing};

use crate::ready_list::{Entry, ReadinessChange, ReadyList};
use crate::types::{Condition, Interest, Ready, Registration};
use crate::{Backend, EVENTS_PER_WAIT_MAX};

/// Requests between two calls: one for each event of a wait, and as many again for connections that
/// are opened and closed.
const SUBMISSIONS_MAX: u32 = 4 * EVENTS_PER_WAIT_MAX as u32;

/// Answers between two waits: for twice as many file descriptors as one process usually has.
const COMPLETIONS_MAX: u32 = 32 * 1024;

/// Answers that the kernel produces in one call (`IO_LOCAL_TW_DEFAULT_MAX`). If another kernel
/// produces fewer, the others come with the next wait.
const COMPLETIONS_PER_CALL: usize = 20;

pub(crate) struct Uring {
    ring: PollRing,
    ready_list: ReadyList<PollState>,
    /// File descriptors whose poll is armed with the next wait. One may have been removed since.
    unarmed: Vec<RawFd>,
    generation: u32,
}

/// The poll of a file descriptor.
struct PollState {
    /// The generation under which the poll is armed. Answers of other generations are stale.
    armed: Option<u32>,
    /// Whether room for output was ever of interest.
    output: bool,
}

const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
const ENOSYS: i32 = rustix::io::Errno::NOSYS.raw_os_error();

impl Uring {
    pub fn new() -> io::Result<Uring> {
        Ok(Uring {
            ring: PollRing::new(SUBMISSIONS_MAX, COMPLETIONS_MAX).map_err(explained)?,
            ready_list: ReadyList::new(),
            unarmed: Vec::new(),
            generation: 0,
        })
    }

    /// Arms the poll of a registered file descriptor.
    fn arm(&mut self, fd: RawFd) -> io::Result<()> {
        let Ok(entry) = self.ready_list.known(fd) else {
            return Ok(());
        };
        // A shared listener without interest must not absorb an exclusive wakeup.
        let is_aside = entry.shared && entry.registration.interest == Interest::NONE;
        if entry.known.armed.is_some() || is_aside {
            return Ok(());
        }
        self.generation = self.generation.wrapping_add(1);
        let key = key(fd, self.generation);
        let wanted = PollRequest {
            input: true,
            output: entry.known.output,
            end: !entry.shared,
            for_good: !entry.shared,
            exclusively: entry.shared,
        };
        self.ring.arm(fd, wanted, key)?;
        entry.known.armed = Some(self.generation);
        Ok(())
    }

    fn arm_again(&mut self) -> io::Result<()> {
        while let Some(fd) = self.unarmed.pop() {
            if let Err(error) = self.arm(fd) {
                self.unarmed.push(fd);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Disarms a poll, if it is armed. The next wait arms it again if it is still registered and of
    /// interest.
    fn disarm(&mut self, fd: RawFd) -> io::Result<()> {
        let entry = self.ready_list.known(fd)?;
        take_back(&mut self.ring, fd, entry)?;
        entry.known.armed = None;
        self.unarmed.push(fd);
        Ok(())
    }

    fn handle_completion(&mut self, answer: &PollCompletion) {
        let fd = answer.key as u32 as RawFd;
        let Ok(entry) = self.ready_list.known(fd) else {
            return;
        };
        if entry.known.armed != Some((answer.key >> 32) as u32) {
            return;
        }
        if answer.last {
            entry.known.armed = None;
            self.unarmed.push(fd);
        }
        if !answer.void {
            self.ready_list.record(fd, &change(answer));
        }
    }

    /// Reads all answers, and waits for the first one.
    fn receive_completions(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.arm_again()?;
        self.ring.wait(timeout)?;
        // The kernel may report more answers although it has just delivered the last one. After
        // fewer answers than a call produces there are none.
        while self.take_answers() >= COMPLETIONS_PER_CALL && self.ring.has_more() {
            self.ring.wait(Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Number of answers read.
    fn take_answers(&mut self) -> usize {
        let mut taken = 0;
        while let Some(answer) = self.ring.answer() {
            self.handle_completion(&answer);
            taken += 1;
        }
        taken
    }

    fn wait_for(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        let wait_time = self.ready_list.recheck(timeout)?;
        loop {
            self.receive_completions(wait_time.left())?;
            self.ready_list.deliver(ready);
            // After changes of no interest the wait continues.
            if !ready.is_empty() || wait_time.is_over() {
                return Ok(());
            }
        }
    }
}

fn take_back(ring: &mut PollRing, fd: RawFd, entry: &Entry<PollState>) -> io::Result<()> {
    match (entry.known.armed, entry.shared) {
        (None, _) => Ok(()),
        (Some(generation), true) => ring.disarm_exclusive(key(fd, generation)),
        (Some(generation), false) => ring.disarm(key(fd, generation)),
    }
}

fn change(answer: &PollCompletion) -> ReadinessChange {
    ReadinessChange {
        condition: Condition {
            input: answer.input,
            output: answer.output,
            hangup: answer.hangup,
            error: answer.error,
        },
        ended: answer.ended,
    }
}

/// The file descriptor and the generation of its poll.
fn key(fd: RawFd, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(fd as u32)
}

/// Adds to an error what may have forbidden io_uring.
pub(crate) fn explained(error: io::Error) -> io::Error {
    let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    match who_forbids(&error, setting.trim(), is_filtered(&status)) {
        Some(why) => io::Error::new(error.kind(), format!("io_uring_setup: {error}: {why}")),
        None => error,
    }
}

/// The reason, from the error, the kernel's setting (absent before Linux 6.6), and whether the
/// system calls of this thread are filtered.
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

/// Parses the text of proc(5) `status`.
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
        registration: Registration,
        shared: bool,
    ) -> io::Result<()> {
        self.ready_list.check_unknown(fd)?;
        let poll = PollState {
            armed: None,
            output: registration.interest.writes(),
        };
        self.ready_list.insert(fd, registration, shared, poll);
        let fd = fd.as_raw_fd();
        self.arm(fd).inspect_err(|_| {
            let _ = self.ready_list.remove(fd);
        })
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, registration: Registration) -> io::Result<()> {
        let Registration { token, interest } = registration;
        let fd = fd.as_raw_fd();
        let entry = self.ready_list.known(fd)?;
        let before = std::mem::replace(&mut entry.registration.interest, interest);
        entry.registration.token = token;
        if entry.shared && before != interest {
            if interest != Interest::NONE {
                return self.disarm(fd);
            }
            entry.clear_readiness();
            self.disarm(fd)?;
            // At once, because until then other processes are not woken.
            return self.ring.submit();
        }
        if interest.writes() && !entry.known.output {
            entry.known.output = true;
            self.disarm(fd)?;
        }
        self.ready_list.enqueue(fd);
        Ok(())
    }

    fn requeue_shared(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let entry = self.ready_list.known(fd)?;
        if !entry.shared {
            return Ok(());
        }
        // Arming reports current readiness again. Later changes belong to other processes and must
        // not be found by a recheck.
        entry.clear_readiness();
        self.disarm(fd)
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let entry = self.ready_list.remove(fd)?;
        take_back(&mut self.ring, fd, &entry)
    }

    fn drained(&mut self, fd: BorrowedFd<'_>) {
        self.ready_list.drained(fd.as_raw_fd());
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()> {
        let timeout = timeout_ms.map(|ms| Duration::from_millis(ms.into()));
        self.wait_for(ready, timeout)
    }

    fn wait_precise(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
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
    fn error_names_what_may_forbid_io_uring_when_the_kernel_refuses() {
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
            let message = explained(error).to_string();
            assert!(message.starts_with("io_uring_setup: "), "{message}");
        }
        let other = explained(io::Error::from_raw_os_error(24));
        assert_eq!(other.raw_os_error(), Some(24));
        assert!(is_filtered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!is_filtered("Seccomp:\t0\nSeccomp_filters:\t2\n"));
    }
}
