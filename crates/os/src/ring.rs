//! Readiness from io_uring: polls that are armed in batches, and answered through memory shared
//! with the kernel.
//!
//! Only operations that carry no pointer, `POLL_ADD`, `POLL_REMOVE` and `ASYNC_CANCEL`, so nothing
//! here can outlive a buffer. What io_uring can do with buffers is refused here: the kernel would
//! write into memory that the caller may have given up.
//!
//! Descriptors go in by number, as with [`select`](crate::select): what is asked again outlives any
//! borrow, nothing is read from or written to them, and a number that is not open is answered with
//! an error.
//!
//! Two things differ from epoll. A poll answers once, at once if the condition holds already; or,
//! where that is wanted, until it is disarmed (multishot, Linux 5.13): then at once and at every
//! change, as an edge-triggered registration does. And an armed poll holds its open file: a socket
//! that is closed meanwhile stays open until the poll is disarmed and the ring has been entered
//! again.
//!
//! Answers are made in the call that waits for them, where the kernel can (Linux 6.1), so they
//! are current.
//!
//! Sources: io_uring_setup(2), io_uring_enter(2), io_uring_prep_poll_multishot(3),
//! `io_uring/poll.c` of the Linux sources.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

/// The key of completions of no poll: those of [`PollRing::disarm`] itself.
const NO_KEY: u64 = u64::MAX;

/// A ring that polls.
pub struct PollRing {
    ring: IoUring,
    /// Whether a thread has entered the ring. The ring belongs to that thread, not to the one that
    /// created it.
    entered: bool,
}

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollCompletion {
    /// The key under which the poll was armed.
    pub key: u64,
    /// The poll was disarmed, or never armed for want of memory: nothing is known of its
    /// descriptor.
    pub void: bool,
    /// Whether the completion was the last: the poll is not armed any more.
    pub last: bool,
    /// There is input, or the end of it (`POLLIN`).
    pub input: bool,
    /// There is room for output (`POLLOUT`).
    pub output: bool,
    /// The peer has ended its side (`POLLRDHUP`).
    pub ended: bool,
    /// Both directions are closed (`POLLHUP`).
    pub hangup: bool,
    /// An error is pending (`POLLERR`), or the descriptor cannot be polled.
    pub error: bool,
}

/// What a poll is to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollRequest {
    /// Input, or the end of it (`POLLIN`).
    pub input: bool,
    /// Room for output (`POLLOUT`).
    pub output: bool,
    /// The end of the peer's side by itself (`POLLRDHUP`); not together with `exclusively`.
    pub end: bool,
    /// Not one answer, but one at every change, until it is disarmed.
    pub for_good: bool,
    /// Only one of the pollers that wait for the file in this way is woken (`EPOLLEXCLUSIVE`).
    pub exclusively: bool,
}

impl PollRequest {
    fn mask(self) -> u32 {
        let flags = [
            (self.input, libc::POLLIN as u32),
            (self.output, libc::POLLOUT as u32),
            (self.end, libc::POLLRDHUP as u32),
            (self.exclusively, libc::EPOLLEXCLUSIVE as u32),
        ];
        let wanted = flags.iter().filter(|(is_wanted, _)| *is_wanted);
        wanted.fold(0, |mask, (_, flag)| mask | flag)
    }
}

impl PollRing {
    /// A ring for `submissions` requests between two calls to the kernel and `answers` between two
    /// waits. Beyond either nothing is lost: the kernel is called in between, and keeps what does
    /// not fit.
    ///
    /// # Errors
    /// `ENOSYS`: the kernel has no io_uring, or a filter of system calls hides it. `EPERM`: it is
    /// forbidden, by the sysctl `kernel.io_uring_disabled` or by such a filter. `Unsupported`: the
    /// kernel is older than 5.17, whose polls lose no change between two answers. Also `EMFILE`,
    /// `ENFILE`, `ENOMEM`.
    pub fn new(submissions: u32, answers: u32) -> io::Result<PollRing> {
        let mut builder = IoUring::builder();
        builder
            .setup_clamp()
            .setup_cqsize(answers)
            .setup_r_disabled();
        let plain = builder.clone();
        let best = builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag();
        let ring = match best.build(submissions) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => plain.build(submissions)?,
            made => made?,
        };
        match ring.params().is_feature_skip_cqe_on_success() {
            true => Ok(PollRing {
                ring,
                entered: false,
            }),
            false => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the io_uring of this kernel is older than 5.17",
            )),
        }
    }

    /// Arms a poll of a descriptor. It completes, with `key`, when there is what is `wanted`, and
    /// at a hang-up or an error in any case. The request is submitted with the next
    /// [`PollRing::wait`] at the latest.
    ///
    /// # Errors
    /// Those of io_uring_enter(2), when the queue was full and had to be submitted.
    pub fn arm(&mut self, fd: RawFd, wanted: PollRequest, key: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(fd), wanted.mask()).multi(wanted.for_good);
        self.push(entry.build().user_data(key))
    }

    /// Disarms the poll with this `key`. It may have completed already, so its completions are to
    /// be ignored from here on.
    ///
    /// # Errors
    /// As [`PollRing::arm`].
    pub fn disarm(&mut self, key: u64) -> io::Result<()> {
        // Not by POLL_REMOVE: it skips a poll that has just fired, which would then stay armed.
        self.push(without_completion(opcode::AsyncCancel::new(key).build()))
    }

    /// Disarms a poll that was armed [exclusively](PollRequest::exclusively): from then on another
    /// one is notified.
    ///
    /// # Errors
    /// As [`PollRing::arm`].
    pub fn disarm_exclusive(&mut self, key: u64) -> io::Result<()> {
        // A cancelled poll still consumes events until the ring is entered again; a removed one
        // does not. A poll that cannot be removed has already fired, and consumes nothing more.
        self.push(without_completion(opcode::PollRemove::new(key).build()))?;
        self.disarm(key)
    }

    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        for _ in 0..2 {
            // SAFETY: the operations that are pushed take a descriptor number and a mask or key, by
            // value: there is no memory that would have to stay valid until they are done.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Submits the polls that were armed and disarmed, now and not with the next wait.
    ///
    /// # Errors
    /// Those of io_uring_enter(2) that waiting does not cure.
    pub fn submit(&mut self) -> io::Result<()> {
        self.enable()?;
        ignore_transient(self.ring.submit())
    }

    fn enable(&mut self) -> io::Result<()> {
        if !self.entered {
            self.ring.submitter().register_enable_rings()?;
            self.entered = true;
        }
        Ok(())
    }

    /// Submits the polls that were armed and disarmed, and waits until there is a completion or for
    /// `timeout` (`None`: no timeout). With a timeout of zero it only polls.
    ///
    /// # Errors
    /// `Interrupted` when a signal handler ran.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.enable()?;
        let there = !self.ring.completion().is_empty();
        let entered = match timeout {
            _ if there => self.enter_without_wait(),
            Some(Duration::ZERO) => self.enter_without_wait(),
            Some(timeout) => {
                let time = Timespec::new()
                    .sec(timeout.as_secs())
                    .nsec(timeout.subsec_nanos());
                let arguments = SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &arguments)
            }
            None => self.ring.submit_and_wait(1),
        };
        ignore_transient(entered)
    }

    /// Whether the kernel has answers that it has not made yet: it makes some twenty a call. It may
    /// say so with none left: the flag is set after an answer is added, and the answer may have
    /// been made meanwhile (`io_req_local_work_add`).
    pub fn has_more(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    /// Submits the polls that were armed and disarmed, and has the kernel post its completions.
    fn enter_without_wait(&mut self) -> io::Result<usize> {
        let new = self.ring.submission().len() as u32;
        // SAFETY: as many entries as were pushed, all of them without memory of ours, and no signal
        // mask.
        unsafe {
            let no_mask: Option<&libc::sigset_t> = None;
            let flags = EnterFlags::GETEVENTS.bits();
            self.ring.submitter().enter(new, 0, flags, no_mask)
        }
    }

    /// The next answer, if there is one.
    pub fn answer(&mut self) -> Option<PollCompletion> {
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() != NO_KEY {
                return Some(PollCompletion::new(&entry));
            }
        }
    }
}

/// Marks a request so that its completion is not reported.
fn without_completion(entry: squeue::Entry) -> squeue::Entry {
    entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(NO_KEY)
}

/// The result of a call without the errors that pass by themselves.
fn ignore_transient(entered: io::Result<usize>) -> io::Result<()> {
    let Err(error) = entered else {
        return Ok(());
    };
    match error.raw_os_error() {
        Some(libc::ETIME) => Ok(()),
        // Answers that found no room wait in the kernel: take those that are there first.
        Some(libc::EBUSY) => Ok(()),
        // The kernel has no memory for more requests. They are submitted again with the next wait,
        // after a pause, so that this does not become a busy loop.
        Some(libc::EAGAIN) => {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        }
        _ => Err(error),
    }
}

impl PollCompletion {
    fn new(entry: &cqueue::Entry) -> PollCompletion {
        let result = entry.result();
        let void = matches!(-result, libc::ECANCELED | libc::ENOMEM);
        let has = |flag: libc::c_short| result >= 0 && result & i32::from(flag) != 0;
        PollCompletion {
            key: entry.user_data(),
            void,
            last: !cqueue::more(entry.flags()),
            input: has(libc::POLLIN),
            output: has(libc::POLLOUT),
            ended: has(libc::POLLRDHUP),
            hangup: has(libc::POLLHUP),
            error: has(libc::POLLERR) || (result < 0 && !void),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_test_support::skip;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn poll_completes_once_when_armed_and_not_when_disarmed() {
        let mut ring = match PollRing::new(4, 8) {
            Ok(ring) => ring,
            Err(error) => return skip("io_uring", &error.to_string()),
        };
        let (near, mut far) = UnixStream::pair().unwrap();
        let poll_now = |ring: &mut PollRing| {
            ring.wait(Some(Duration::ZERO)).unwrap();
            std::iter::from_fn(|| ring.answer()).collect::<Vec<_>>()
        };
        let input = PollRequest {
            input: true,
            ..PollRequest::default()
        };
        ring.arm(near.as_raw_fd(), input, 7).unwrap();
        assert_eq!(poll_now(&mut ring), []);
        far.write_all(b"x").unwrap();
        let answers = poll_now(&mut ring);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].key == 7 && answers[0].input && !answers[0].output);
        assert_eq!(poll_now(&mut ring), [], "it was armed once");
        // More than the queue holds.
        for key in 0..40 {
            ring.arm(near.as_raw_fd(), input, key).unwrap();
        }
        let mut keys: Vec<u64> = Vec::new();
        while keys.len() < 40 {
            let answers = poll_now(&mut ring);
            assert!(!answers.is_empty(), "{keys:?}");
            keys.extend(answers.iter().map(|answer| answer.key));
        }
        assert_eq!(keys, (0..40).collect::<Vec<_>>());
    }
}
