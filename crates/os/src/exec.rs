//! What a process keeps when it executes another program: descriptors and blocked signals.
//!
//! Sources: execve(2), fcntl(2), sigprocmask(2), sigtimedwait(2), signal-safety(7).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use rustix::io::{Errno, FdFlags, Result, fcntl_setfd};

/// Takes a descriptor that the program before, or the one that has started this process, has left
/// open. It is close-on-exec then.
///
/// Every descriptor that this process opens is close-on-exec. One that is not has been inherited, and
/// can be taken once.
///
/// # Errors
/// `EBADF`: there is no such descriptor, or this process has opened or taken it.
pub fn take_inherited(number: RawFd) -> Result<OwnedFd> {
    // SAFETY: integers only.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if number <= libc::STDERR_FILENO || flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is open, and nothing in this process owns it: what is owned is close-on-exec, as this one is
    // from now on.
    let taken = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&taken, FdFlags::CLOEXEC)?;
    Ok(taken)
}

/// Sets whether the next program gets this descriptor.
///
/// # Errors
/// Those of fcntl(2).
pub fn keep_on_exec(descriptor: impl AsFd, is_kept: bool) -> Result<()> {
    let flags = match is_kept {
        true => FdFlags::empty(),
        false => FdFlags::CLOEXEC,
    };
    fcntl_setfd(descriptor, flags)
}

/// Signals that the calling thread has blocked, until this is dropped.
#[derive(Debug)]
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks all signals in the calling thread, and in threads that it starts meanwhile. A program that
    /// it executes begins with them blocked.
    pub fn all() -> BlockedSignals {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: it fills the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: both point to live variables, and the first one is filled.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: the call has filled it; its only error is an unknown first argument.
        BlockedSignals(unsafe { before.assume_init() })
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is one that the system has given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Unblocks all signals in the calling thread: those that the program before has blocked, and which wait.
pub fn unblock_signals() {
    let mut none = MaybeUninit::uninit();
    // SAFETY: it empties the set.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut()) };
}

/// Waits for one of these signals, which the calling thread has blocked; `None` if none comes in time.
///
/// # Errors
/// Those of sigtimedwait(2).
pub fn wait_for_signal(signals: &[i32], timeout: Duration) -> io::Result<Option<i32>> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: it empties the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in signals {
        // SAFETY: the set is initialised.
        unsafe { libc::sigaddset(set.as_mut_ptr(), *signal) };
    }
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: the set and the time are initialised, and no information is asked for.
    match unsafe { libc::sigtimedwait(set.as_ptr(), ptr::null_mut(), &raw const timeout) } {
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            error => Err(error),
        },
        signal => Ok(Some(signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_an_inherited_descriptor_is_taken_and_only_once() {
        let own = File::open("/dev/null").unwrap();
        assert_eq!(take_inherited(own.as_raw_fd()).unwrap_err(), Errno::BADF);
        let inherited = OwnedFd::from(own);
        keep_on_exec(&inherited, true).unwrap();
        // As execve(2) leaves it: open, with no owner.
        let number = std::os::fd::IntoRawFd::into_raw_fd(inherited);
        let taken = take_inherited(number).unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert_eq!(take_inherited(number).unwrap_err(), Errno::BADF);
        for never in [-1, 0, 2] {
            assert_eq!(take_inherited(never).unwrap_err(), Errno::BADF);
        }
    }

    #[test]
    fn blocked_signal_waits_and_is_received() {
        let thread = std::thread::spawn(|| {
            let blocked = BlockedSignals::all();
            // SAFETY: the calling thread gets a signal that it has blocked.
            unsafe { libc::raise(libc::SIGUSR2) };
            let both = [libc::SIGUSR1, libc::SIGUSR2];
            let got = wait_for_signal(&both, Duration::from_secs(20)).unwrap();
            assert_eq!(got, Some(libc::SIGUSR2));
            assert_eq!(wait_for_signal(&both, Duration::ZERO).unwrap(), None);
            drop(blocked);
        });
        thread.join().unwrap();
    }
}
