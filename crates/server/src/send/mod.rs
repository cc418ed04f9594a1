//! How the bytes of a reply leave: memory in one write together with the head, files one resident
//! window at a time, never more than a budget a turn.
//!
//! Files leave in one of two ways of ours. [`copy`], the default: a window is read into memory of
//! our own by a call that cannot wait, then the file is compared with what was opened, then the
//! window is sent. The order is what makes the invariant: a byte that reaches the socket was in
//! memory of our own when the file was seen to be unchanged, so a body is one version of its file,
//! or the connection closes before the promised length. [`lend`]: `sendfile` hands over the file's
//! own pages, which saves the copy, but what a client has not received yet changes with the file,
//! and nobody is told when no window is left to be compared.
//!
//! Three more ways are the papers' servers': [`mapped`], and `sendfile` of all files, by exact
//! check or by guess. They may wait where these two do not, and it is said where.
//!
//! It refuses to wait. What is not in memory is [`Progress::Cold`], and the worker asks a helper.
//! What the socket does not take is not kept for it: a connection owns no buffer, the rest is found
//! or read again.
//!
//! Not promised: to see a change that the file's size and modification time do not show, such as a
//! store through a writable mapping, or the rest of a single `write` that was under way when the
//! file was opened.
//!
//! Sources: dissertation 3.5 and Table 3.3 (`New-Flash`: sendfile without disk access);
//! sendfile(2), preadv2(2), cachestat(2), tcp(7) on `MSG_MORE`.

mod chunks;
mod copy;
mod lend;
mod mapped;
mod window;
mod windows;

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use headway_debox::{Call, Tracer};
use headway_files::{OpenFile, Residency};
use headway_os::mapping::Mapping;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::config::SendMethod;
use crate::request::{Counters, Outgoing};

pub use chunks::Chunks;
use copy::Gathered;
use windows::SPARED_MAX;
pub use windows::Windows;

/// Memory pieces that leave in one call.
const PIECES_AT_ONCE: usize = 16;

/// What a reply needs in order to leave.
pub struct Means<'a> {
    /// Records the calls.
    pub tracer: &'a Tracer,
    /// Tells what is resident.
    pub residency: &'a Residency,
    /// How files leave.
    pub method: SendMethod,
    /// What files are read into on their way.
    pub windows: &'a mut Windows,
    /// What is mapped of files; only [`SendMethod::Mmap`] maps.
    pub maps: &'a mut Chunks<Mapping>,
    /// What was used lately of files; only [`SendMethod::SendfileRecent`] keeps note.
    pub recent: &'a mut Chunks<()>,
    /// What the client's socket is likely to take at once; 0 while nobody knows.
    pub uptake_bytes: &'a mut u32,
    /// Bytes of files this reply may still send in this turn.
    pub budget_bytes: u64,
    /// Counts windows and bytes.
    pub counters: &'a mut Counters,
    /// What is worth reading in before it is needed, from the beginning of a window on.
    pub prefetch: &'a mut Vec<(Rc<OpenFile>, Range<u64>)>,
    /// What this turn has found resident last: counting the pages of a window once a turn is
    /// enough.
    pub proven: Option<(Rc<OpenFile>, Range<u64>)>,
}

/// How far a reply got.
pub enum Progress {
    /// All of it has left.
    Finished,
    /// The socket takes no more now.
    SocketFull,
    /// The budget of this turn is spent; others come first.
    TurnSpent,
    /// The window at this offset is not resident.
    Cold(Rc<OpenFile>, u64),
    /// This file system cannot say what is resident: a helper has to copy these bytes.
    Opaque(Rc<OpenFile>, u64),
    /// The file was rewritten or truncated while it was sent.
    Changed,
    /// The file could not be read.
    Unreadable,
    /// The client is gone.
    Gone,
}

/// Sends as much of `outgoing` as may leave now.
pub fn send(outgoing: &mut Outgoing, socket: BorrowedFd<'_>, means: &mut Means<'_>) -> Progress {
    while !outgoing.pieces.is_empty() {
        let progress = match means.method {
            SendMethod::Copy => copy::send_some(outgoing, socket, means),
            SendMethod::Mmap => mapped::send_some(outgoing, socket, means),
            _ => lend::send_some(outgoing, socket, means),
        };
        if let Some(progress) = progress {
            return progress;
        }
        if means.budget_bytes == 0 && !outgoing.pieces.is_empty() {
            return Progress::TurnSpent;
        }
    }
    Progress::Finished
}

/// Sends with one call the memory pieces in front and behind them what was `gathered` of the file
/// piece that follows. `None`: all of it has left, go on.
fn send_memory(
    outgoing: &mut Outgoing,
    gathered: &Gathered,
    socket: BorrowedFd<'_>,
    means: &mut Means<'_>,
) -> Option<Progress> {
    let mut slices = [IoSlice::new(&[]); PIECES_AT_ONCE + SPARED_MAX];
    let (mut count, mut length) = (0, gathered.length);
    for piece in outgoing.pieces.iter().take(PIECES_AT_ONCE) {
        let Some(memory) = piece.memory() else { break };
        slices[count] = IoSlice::new(memory);
        count += 1;
        length += memory.len() as u64;
    }
    count = gathered.append(means.windows, &mut slices, count);
    // What follows joins the last packet of this call (tcp(7)).
    let more = match outgoing.bytes_left() > length {
        true => SendFlags::MORE,
        false => SendFlags::empty(),
    };
    // Whatever the descriptor says: a program that was given it may have made it wait.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | more;
    let sent = means.tracer.call(Call::Send, || match &slices[..count] {
        [one] => rustix::net::send(socket, one, flags),
        many => rustix::net::sendmsg(socket, many, &mut SendAncillaryBuffer::default(), flags),
    });
    match sent {
        Ok(sent) => {
            account(outgoing, sent as u64, means);
            let left = length - sent as u64;
            if gathered.length > 0 {
                gathered.learn(left, means);
            }
            // A short count means that the socket is full: asking again would only be told so.
            (left > 0).then_some(Progress::SocketFull)
        }
        Err(error) => refused(error),
    }
}

fn account(outgoing: &mut Outgoing, sent: u64, means: &mut Means<'_>) {
    means.counters.bytes_sent += sent;
    outgoing.advance(sent);
}

/// What a failed send means. Would-block is a value; the rest are ways for a client to be gone, but
/// for `EIO`, which is the disk's.
fn refused(error: Errno) -> Option<Progress> {
    match error {
        Errno::AGAIN => Some(Progress::SocketFull),
        Errno::INTR => None,
        Errno::IO => Some(Progress::Unreadable),
        _ => Some(Progress::Gone),
    }
}

/// The only call of the hot path: a whole prepared reply in one write. Returns what left.
pub fn send_whole(
    socket: &impl AsFd,
    bytes: &[u8],
    more: bool,
    tracer: &Tracer,
) -> Result<usize, Errno> {
    let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    flags.set(SendFlags::MORE, more);
    tracer.call(Call::Send, || rustix::net::send(socket, bytes, flags))
}

#[cfg(test)]
mod tests;
