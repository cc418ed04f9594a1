//! The pinner as a process: pins small files for all workers of a server, so that the workers need
//! no copies of their own.
//!
//! The master starts the process with one end of a `SOCK_SEQPACKET` pair as its standard input, and
//! gives each worker the other end. A worker submits a small file when it caches it
//! ([`PinnerSocket`]): a [`Submission`] with the file attached. The pinner sends its statistics
//! back ([`receive_pinner_statistics`]); only the master reads them. There is one message each way,
//! so neither has a number; [`headway_os::codec`] says how the tables become bytes.
//!
//! What it refuses: to make its callers wait. A worker whose message finds no room goes on, and may
//! submit the file again. The process ends when all other ends are closed.
//!
//! Sources: unix(7), mlock(2).

use super::{
    Candidate, CandidateSource, FILE_BYTES_MAX, MEMORY_CHECK_INTERVAL, Next, PinLimits,
    PinStatistics, PinnedFiles, SharedStatistics,
};
use crate::file::OpenFile;
use headway_os::codec::{Field, decode};
use headway_os::encoding;
use headway_os::fd_passing::{ReceiveError, Wait, receive_with_descriptors, send_with_descriptors};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SUBMISSION_BYTES: usize = size_of::<u64>();
const STATISTICS_BYTES: usize = 5 * size_of::<u64>();

/// From a worker; the file to pin is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Submission {
    /// The limit of all pinned bytes.
    bytes_max: u64,
}

encoding! {
    struct Submission { bytes_max }
}

encoding! {
    struct PinStatistics { files, bytes, bytes_max, evicted, rejected }
}

/// Pins the files submitted on `socket` until its other end is closed. `available` is that of
/// [`PinLimits`].
///
/// # Errors
/// A broken socket.
///
/// # Example
/// ```
/// let (worker, pinner) = headway_os::fd_passing::pair()?;
/// drop(worker);
/// headway_files::pinner_main(pinner, || None)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn pinner_main(socket: OwnedFd, available: fn() -> Option<u64>) -> io::Result<()> {
    // The limit comes with each submission.
    let limits = PinLimits {
        bytes_max: 0,
        available,
    };
    let statistics = Arc::new(SharedStatistics::default());
    let mut submissions = Submissions {
        socket,
        statistics: Arc::clone(&statistics),
        limit: 0,
        delayed: None,
        sent: None,
    };
    PinnedFiles::new(limits, statistics).run(&mut submissions)
}

/// Returns the newest statistics that the pinner has sent since the last call; never blocks.
///
/// # Errors
/// As recvmsg(2).
pub fn receive_pinner_statistics(pinner: impl AsFd) -> io::Result<Option<PinStatistics>> {
    let (mut newest, mut message) = (None, [0; STATISTICS_BYTES]);
    while let Some(received) = receive_with_descriptors(&pinner, &mut message, 0, Wait::Never)? {
        if received.is_end() {
            break;
        }
        newest = decode(&message[..received.length]).ok().or(newest);
    }
    Ok(newest)
}

/// The worker's side of the socket to the pinner.
#[derive(Debug)]
pub struct PinnerSocket {
    socket: OwnedFd,
    bytes_max: u64,
}

impl PinnerSocket {
    /// Takes over the socket. `bytes_max` is the limit of pinned bytes.
    pub fn new(socket: OwnedFd, bytes_max: u64) -> PinnerSocket {
        PinnerSocket { socket, bytes_max }
    }

    /// Submits a small file that is in memory now, and returns whether the message was sent. Never
    /// blocks.
    pub fn submit(&self, file: &OpenFile) -> bool {
        if !(1..=FILE_BYTES_MAX).contains(&file.meta().size) {
            return false;
        }
        let mut message = Vec::with_capacity(SUBMISSION_BYTES);
        let bytes_max = self.bytes_max;
        Submission { bytes_max }.write(&mut message);
        let parts = [IoSlice::new(&message)];
        let sent = send_with_descriptors(&self.socket, &parts, &[file.as_fd()], Wait::Never);
        matches!(sent, Ok(Some(_)))
    }
}

/// The submissions of the workers. Between them the process sends its statistics.
struct Submissions {
    socket: OwnedFd,
    statistics: Arc<SharedStatistics>,
    limit: u64,
    /// A file that came with a new limit, which is returned first.
    delayed: Option<Candidate>,
    /// The statistics that the master has, and when they were sent.
    sent: Option<(PinStatistics, Instant)>,
}

impl CandidateSource for Submissions {
    fn next(&mut self, timeout: Duration) -> io::Result<Next> {
        if let Some(file) = self.delayed.take() {
            return Ok(Next::File(file));
        }
        let timeout = match self.send_statistics() {
            true => timeout,
            false => timeout.min(MEMORY_CHECK_INTERVAL),
        };
        if !self.wait(timeout)? {
            return Ok(Next::Timeout);
        }
        let mut message = [0; SUBMISSION_BYTES];
        let received = match receive_with_descriptors(&self.socket, &mut message, 1, Wait::Never) {
            Ok(Some(received)) if received.is_end() => return Ok(Next::End),
            Ok(Some(received)) => received,
            Err(ReceiveError::Os(Errno::CONNRESET)) => return Ok(Next::End),
            Err(ReceiveError::Os(errno)) => return Err(errno.into()),
            // A message whose descriptor was lost is ignored.
            Ok(None) | Err(_) => return Ok(Next::Timeout),
        };
        let file = received.descriptors.into_iter().next();
        let candidate = file.and_then(|file| {
            let meta = headway_os::open::status(&file).ok()?.into();
            Some(Candidate { file, meta })
        });
        Ok(match (candidate, decode(&message[..received.length])) {
            (Some(file), Ok(submission)) => self.received(submission, file),
            _ => Next::Timeout,
        })
    }
}

impl Submissions {
    fn received(&mut self, submission: Submission, file: Candidate) -> Next {
        let limit = submission.bytes_max;
        if limit == self.limit {
            return Next::File(file);
        }
        (self.limit, self.delayed) = (limit, Some(file));
        Next::Limit(limit)
    }

    /// Waits for a message; whether there is one.
    fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = (timeout < Duration::MAX).then(|| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut watched, timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends the statistics if they have changed and the last ones are old enough. Returns whether
    /// the master has the current ones.
    fn send_statistics(&mut self) -> bool {
        let now = self.statistics.now();
        let due = match self.sent {
            Some((known, _)) if known == now => return true,
            Some((_, at)) => at.elapsed() >= MEMORY_CHECK_INTERVAL,
            None => true,
        };
        if !due {
            return false;
        }
        let mut message = Vec::with_capacity(STATISTICS_BYTES);
        now.write(&mut message);
        let sent = send_with_descriptors(&self.socket, &[IoSlice::new(&message)], &[], Wait::Never);
        match sent {
            Ok(Some(_)) => self.sent = Some((now, Instant::now())),
            // The socket is full, or closed; the next receive shows which.
            Ok(None) | Err(_) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_length_that_is_received() {
        let mut submission = Vec::new();
        Submission { bytes_max: 258 }.write(&mut submission);
        assert_eq!(submission, [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(submission.len(), SUBMISSION_BYTES);
        let statistics = PinStatistics {
            files: 1,
            bytes: 2,
            bytes_max: 3,
            evicted: 4,
            rejected: 5,
        };
        let mut report = Vec::new();
        statistics.write(&mut report);
        assert_eq!(report.len(), STATISTICS_BYTES);
        assert_eq!(decode(&report), Ok(statistics));
        assert!(decode::<PinStatistics>(&report[1..]).is_err());
    }
}
