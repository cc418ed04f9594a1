//! Signals as readable file descriptors, so that the master has a single wait.

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;

/// Readable when a signal has come.
#[derive(Debug)]
pub(super) struct Signals {
    /// SIGTERM and SIGINT.
    pub(super) stop: UnixStream,
    /// SIGHUP.
    pub(super) reload: UnixStream,
    /// SIGUSR1.
    pub(super) reopen: UnixStream,
    /// SIGUSR2.
    pub(super) upgrade: UnixStream,
    /// SIGCHLD.
    pub(super) child: UnixStream,
}

impl Signals {
    pub(super) fn new() -> io::Result<Signals> {
        Ok(Signals {
            stop: readable_on(&[SIGTERM, SIGINT])?,
            reload: readable_on(&[SIGHUP])?,
            reopen: readable_on(&[SIGUSR1])?,
            upgrade: readable_on(&[SIGUSR2])?,
            child: readable_on(&[SIGCHLD])?,
        })
    }
}

/// A pipe that becomes readable on these signals. The handler writes one byte per signal, which is
/// async-signal-safe.
fn readable_on(signals: &[i32]) -> io::Result<UnixStream> {
    let (ours, handlers) = pair()?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, handlers.try_clone()?)?;
    }
    Ok(ours)
}

/// Two connected ends, both non-blocking.
pub(super) fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (left, right) = UnixStream::pair()?;
    left.set_nonblocking(true)?;
    right.set_nonblocking(true)?;
    Ok((left, right))
}

/// Empties a pipe and returns how many bytes it had.
pub(super) fn drain(mut pipe: &UnixStream) -> usize {
    let (mut buffer, mut total) = ([0; 256], 0);
    while let Ok(bytes @ 1..) = pipe.read(&mut buffer) {
        total += bytes;
    }
    total
}
