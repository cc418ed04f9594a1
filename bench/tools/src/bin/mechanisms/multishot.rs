//! io_uring with polls that stay armed (multishot, Linux 5.13): one request per connection for as long as it lives, and one
//! call per iteration, which submits what is new and waits. The loop then receives and sends, a call each.
//!
//! Such a poll answers when something changes, so a connection that is not drained is not reported again. Here a byte comes and all of it is
//! taken; a server would have to remember the others and ask about them.
//!
//! Sources: io_uring_prep_poll_multishot(3), io_uring_prep_multishot_accept(3).

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use io_uring::types::Fd;
use io_uring::{cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::ring;

/// What an answer is about; the descriptor stands in the lower half.
const ACCEPT: u64 = 1 << 32;
const POLL: u64 = 2 << 32;
const REMOVE: u64 = 3 << 32;

/// Serves until it fails. `listening` is called when clients may come.
pub fn serve(listener: &TcpListener, listening: impl FnOnce()) -> io::Result<Infallible> {
    let mut ring = ring::new()?;
    let accept = ring::accept(listener).user_data(ACCEPT);
    let mut wanted = vec![accept.clone()];
    // By descriptor number: the kernel gives the lowest free one.
    let mut connections: Vec<Option<OwnedFd>> = Vec::new();
    listening();
    loop {
        ring::hand_over(&mut ring, &mut wanted)?;
        ring::wait(&mut ring)?;
        for answer in ring.completion() {
            let fd = answer.user_data() as u32 as RawFd;
            match answer.user_data() & !u64::from(u32::MAX) {
                ACCEPT => {
                    accepted(answer.result(), &mut connections, &mut wanted)?;
                    if !cqueue::more(answer.flags()) {
                        wanted.push(accept.clone());
                    }
                }
                // One that was taken back is of a connection that is closed.
                POLL if answer.result() != -Errno::CANCELED.raw_os_error() => {
                    answered(fd, &answer, &mut connections, &mut wanted);
                }
                _ => {}
            }
        }
    }
}

fn accepted(
    result: i32,
    connections: &mut Vec<Option<OwnedFd>>,
    wanted: &mut Vec<squeue::Entry>,
) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the kernel has just made it for this process, and no other code knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(result) };
    sockopt::set_tcp_nodelay(&socket, true)?;
    let slot = result as usize;
    if connections.len() <= slot {
        connections.resize_with(slot + 1, || None);
    }
    connections[slot] = Some(socket);
    wanted.push(poll(result));
    Ok(())
}

fn poll(fd: RawFd) -> squeue::Entry {
    let entry = opcode::PollAdd::new(Fd(fd), u32::from(PollFlags::IN.bits())).multi(true);
    entry.build().user_data(POLL | fd as u64)
}

fn answered(
    fd: RawFd,
    answer: &cqueue::Entry,
    connections: &mut [Option<OwnedFd>],
    wanted: &mut Vec<squeue::Entry>,
) {
    let Some(place) = connections.get_mut(fd as usize) else {
        return;
    };
    let Some(socket) = place else {
        return;
    };
    let is_there = match recv(&*socket, &mut [0; 64], RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN) => true,
        Ok((1.., _)) => send(&*socket, b"x", SendFlags::NOSIGNAL).is_ok(),
        Ok(_) | Err(_) => false,
    };
    if is_there {
        if !cqueue::more(answer.flags()) {
            wanted.push(poll(fd));
        }
        return;
    }
    *place = None;
    // An armed poll keeps what was closed.
    let remove = opcode::PollRemove::new(POLL | fd as u64)
        .build()
        .flags(squeue::Flags::SKIP_SUCCESS);
    wanted.push(remove.user_data(REMOVE));
}
