//! The ring of both ways that accept by io_uring: how it is made, waited for and filled.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;

/// A ring whose work is done in the call that waits for it, where the kernel can (6.1).
pub fn new() -> io::Result<IoUring> {
    let best = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(32 * 1024)
        .build(4096);
    match best {
        Err(error) if errno(&error) == Some(Errno::INVAL) => {
            IoUring::builder().setup_cqsize(32 * 1024).build(4096)
        }
        other => other,
    }
}

/// One request for all clients that come (multishot, Linux 5.19).
pub fn accept(listener: &TcpListener) -> squeue::Entry {
    // As the other ways have it.
    let flags = rustix::net::SocketFlags::CLOEXEC.bits() as i32;
    let entry = opcode::AcceptMulti::new(Fd(listener.as_raw_fd()));
    entry.flags(flags).build()
}

/// Waits for an answer, and hands over what is in the ring.
pub fn wait(ring: &mut IoUring) -> io::Result<()> {
    match ring.submit_and_wait(1) {
        Ok(_) => Ok(()),
        Err(error) if matches!(errno(&error), Some(Errno::INTR | Errno::BUSY)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Everything that is wanted, in as many calls as it takes; usually none, for the wait hands it
/// over.
pub fn hand_over(ring: &mut IoUring, wanted: &mut Vec<squeue::Entry>) -> io::Result<()> {
    for entry in wanted.drain(..) {
        loop {
            // SAFETY: what an entry points to is the response, which is static, or the kernel's own
            // buffers; a poll points to nothing.
            let pushed = unsafe { ring.submission().push(&entry) };
            if pushed.is_ok() {
                break;
            }
            ring.submit()?;
        }
    }
    Ok(())
}

fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}
