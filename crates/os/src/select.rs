//! select and poll over descriptors known by number.
//!
//! Both calls look at a table that outlives any one borrow of a descriptor, so the table holds
//! numbers, not `BorrowedFd`s. Nothing is read from or written to a descriptor here: the kernel
//! only reports its readiness. A number that was closed and reused reports the readiness of its new
//! owner; a number that is not open is `EBADF` from [`select`] and an invalid entry from [`poll`].
//! The `event` crate keeps the tables and requires its users to remove a descriptor before closing
//! it.
//!
//! EINTR is returned as an error of kind `Interrupted`, since whether to wait again is the caller's
//! choice.
//!
//! Refused: `exceptfds` and `POLLPRI` (out-of-band data), signal masks, and timeouts finer than 1
//! ms.
//!
//! Sources: select(2), poll(2), and `fs/select.c` of the Linux sources for what the bits mean.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

/// Descriptors a word of a bit set stands for: descriptor `n` is bit `n % WORD_BITS` of word `n /
/// WORD_BITS`.
///
/// The kernel's sets are arrays of `unsigned long`, which has the size of `usize` on every Linux
/// target.
pub const WORD_BITS: usize = usize::BITS as usize;

/// The timeout of pselect6 as the kernel reads it: two longs, whatever the C library calls a
/// `timespec`.
#[repr(C)]
struct KernelTimespec {
    seconds: libc::c_long,
    nanoseconds: libc::c_long,
}

/// Waits until a descriptor of `read` is readable or one of `write` is writable, or for
/// `timeout_ms` (`None`: without end). The sets are replaced by the ready descriptors; returned is
/// the number of bits set.
///
/// The system call is made directly: `FD_SETSIZE` (1024) is the size of the C library's `fd_set`,
/// while the kernel takes sets of any length. Both slices must have the same length; their length
/// is the bound on descriptor numbers, so sets cut after the highest interesting descriptor are the
/// cheapest. A descriptor whose peer is gone counts as readable; one with an error as readable and
/// writable.
///
/// # Errors
/// `EBADF` when a descriptor in a set is not open; `Interrupted` when a signal handler ran. The
/// sets are then as they were.
///
/// # Panics
/// When the slices differ in length.
pub fn select(
    read: &mut [usize],
    write: &mut [usize],
    timeout_ms: Option<u32>,
) -> io::Result<usize> {
    assert_eq!(read.len(), write.len(), "select takes sets of one length");
    let descriptors = libc::c_int::try_from(read.len() * WORD_BITS)
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // The kernel writes the time left into it, so it must be ours and mutable.
    let mut timeout = timeout_ms.map(|ms| KernelTimespec {
        seconds: (ms / 1000) as libc::c_long,
        nanoseconds: (ms % 1000 * 1_000_000) as libc::c_long,
    });
    let timeout = timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: both sets hold exactly `descriptors` bits in words of the kernel's `unsigned long`,
    // so it reads and writes inside them; `timeout` is null or points to a live KernelTimespec; no
    // set of exceptions and no signal mask are given. Readiness of a descriptor number is observed,
    // nothing is done to it.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_pselect6,
            libc::c_long::from(descriptors),
            read.as_mut_ptr(),
            write.as_mut_ptr(),
            ptr::null_mut::<usize>(),
            timeout,
            ptr::null_mut::<libc::c_void>(),
        )
    };
    usize::try_from(ready).map_err(|_| io::Error::last_os_error())
}

/// One descriptor of a [`poll`] table: what is asked of it, and the kernel's last answer.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct PollEntry(libc::pollfd);

impl PollEntry {
    /// An entry for `fd` without interest; hang-ups and errors are reported all the same.
    pub fn new(fd: BorrowedFd<'_>) -> PollEntry {
        PollEntry(libc::pollfd {
            fd: fd.as_raw_fd(),
            events: 0,
            revents: 0,
        })
    }

    /// The descriptor's number.
    pub fn descriptor(&self) -> RawFd {
        self.0.fd
    }

    /// Sets whether the next call reports input and room for output.
    pub fn set_interest(&mut self, input: bool, output: bool) {
        let input = if input { libc::POLLIN } else { 0 };
        let output = if output { libc::POLLOUT } else { 0 };
        self.0.events = input | output;
    }

    /// Whether the last call reported anything about this entry.
    pub fn answered(&self) -> bool {
        self.0.revents != 0
    }

    /// There is input, or the end of it (`POLLIN`).
    pub fn input(&self) -> bool {
        self.0.revents & libc::POLLIN != 0
    }

    /// There is room for output (`POLLOUT`).
    pub fn output(&self) -> bool {
        self.0.revents & libc::POLLOUT != 0
    }

    /// Both directions are closed (`POLLHUP`).
    pub fn hangup(&self) -> bool {
        self.0.revents & libc::POLLHUP != 0
    }

    /// An error is pending (`POLLERR`), or the number is not open (`POLLNVAL`).
    pub fn error(&self) -> bool {
        self.0.revents & (libc::POLLERR | libc::POLLNVAL) != 0
    }
}

/// Waits until an entry has an answer, or for `timeout_ms` (`None`: without end; capped at
/// `i32::MAX`). Returned is the number of entries with an answer.
///
/// # Errors
/// `EINVAL` when there are more entries than the limit on open files; `Interrupted` when a signal
/// handler ran.
pub fn poll(entries: &mut [PollEntry], timeout_ms: Option<u32>) -> io::Result<usize> {
    let timeout = timeout_ms.map_or(-1, |ms| {
        libc::c_int::try_from(ms).unwrap_or(libc::c_int::MAX)
    });
    let count = entries.len() as libc::nfds_t;
    let table = entries.as_mut_ptr().cast::<libc::pollfd>();
    // SAFETY: PollEntry is a transparent pollfd, so `table` points to `count` initialised,
    // exclusively borrowed ones; the kernel writes only their `revents`.
    let answered = unsafe { libc::poll(table, count, timeout) };
    usize::try_from(answered).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_test_support::skip;
    use std::io::Write;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    fn sets_with(fd: RawFd) -> (Vec<usize>, Vec<usize>) {
        let words = fd as usize / WORD_BITS + 1;
        let mut read = vec![0; words];
        read[words - 1] = 1 << (fd as usize % WORD_BITS);
        (read, vec![0; words])
    }

    #[test]
    fn select_reports_a_descriptor_when_its_number_is_past_1024() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        if limit.maximum.is_some_and(|maximum| maximum < 1600) {
            skip(
                "select_reports_a_descriptor_when_its_number_is_past_1024",
                "nofile below 1600",
            );
            return;
        }
        let raised = rustix::process::Rlimit {
            current: limit.maximum,
            ..limit
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
        let high: OwnedFd = rustix::io::fcntl_dupfd_cloexec(&near, 1500).unwrap();
        let (mut read, mut write) = sets_with(high.as_raw_fd());
        let wanted = read.clone();
        assert_eq!(select(&mut read, &mut write, Some(0)).unwrap(), 0);
        assert!(
            read.iter().all(|word| *word == 0),
            "the set holds only what is ready"
        );
        far.write_all(b"x").unwrap();
        read.clone_from(&wanted);
        assert_eq!(select(&mut read, &mut write, Some(0)).unwrap(), 1);
        assert_eq!(read, wanted);
    }

    #[test]
    fn select_refuses_when_a_descriptor_is_not_open() {
        // A number this high is not taken again by a test that runs beside this one.
        let (near, _far) = UnixStream::pair().unwrap();
        let high = rustix::io::fcntl_dupfd_cloexec(&near, 900).unwrap();
        let (mut read, mut write) = sets_with(high.as_raw_fd());
        drop(high);
        let error = select(&mut read, &mut write, Some(0)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn poll_reports_input_and_room_when_both_are_of_interest() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"x").unwrap();
        let mut entries = [PollEntry::new(near.as_fd())];
        entries[0].set_interest(true, true);
        assert_eq!(poll(&mut entries, Some(0)).unwrap(), 1);
        assert!(entries[0].input() && entries[0].output() && !entries[0].hangup());
        entries[0].set_interest(false, false);
        assert_eq!(poll(&mut entries, Some(0)).unwrap(), 0);
        assert!(!entries[0].answered());
    }
}
