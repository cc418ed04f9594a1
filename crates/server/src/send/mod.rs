//! How the bytes of a reply leave: memory in one write together with the head, files by `sendfile`
//! one resident window at a time, never more than a budget a turn.
//!
//! It refuses to wait. Before each window it asks whether the pages are resident; if not it says
//! [`Progress::Cold`] and the worker asks a helper. It also watches for other versions: the open
//! descriptor's size and modification time are compared before each window, and a file that changed
//! under the reply ends the connection ([`Progress::Changed`]) since its length is promised already.
//!
//! Not promised: that bytes already handed to the socket stay as they were. `sendfile` lends the
//! file's pages to the socket instead of copying them, so a file rewritten *in place* changes what a
//! slow client has not received yet, and nobody is told if no window is left to be checked. Files
//! replaced by rename are not concerned, nor are small files, which leave from our own memory.
//!
//! Sources: dissertation 3.5 and Table 3.3 (`New-Flash`: sendfile without disk access); sendfile(2),
//! cachestat(2), tcp(7) on `MSG_MORE`.

use std::io::{ErrorKind, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use debox::{Call, Tracer};
use files::{OpenFile, Residency, WINDOW_BYTES};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::request::{Counters, Outgoing, Piece};

/// Memory pieces that leave in one call.
const PIECES_AT_ONCE: usize = 16;

/// What a reply needs in order to leave.
pub struct Means<'a> {
    /// Records the calls.
    pub tracer: &'a Tracer,
    /// Tells what is resident.
    pub residency: &'a Residency,
    /// Bytes this reply may still send in this turn.
    pub budget_bytes: u64,
    /// Counts windows and bytes.
    pub counters: &'a mut Counters,
    /// Windows worth reading in before they are needed.
    pub prefetch: &'a mut Vec<(Rc<OpenFile>, u64)>,
    /// What this turn has found resident last: counting the pages of a window once a turn is enough.
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
    loop {
        let progress = match outgoing.pieces.front() {
            None => return Progress::Finished,
            Some(Piece::File(..)) => send_window(outgoing, socket, means),
            Some(_) => match first_file_is_cold(outgoing, means) {
                Some(cold) => Some(cold),
                None => send_memory(outgoing, socket, means),
            },
        };
        if let Some(progress) = progress {
            return progress;
        }
        if means.budget_bytes == 0 && !outgoing.pieces.is_empty() {
            return Progress::TurnSpent;
        }
    }
}

/// A head leaves only when the first window behind it can follow: until then an unreadable file can
/// still become an honest `500`, and the head does not travel as a packet of its own.
fn first_file_is_cold(outgoing: &Outgoing, means: &mut Means<'_>) -> Option<Progress> {
    if outgoing.sent_bytes > 0 {
        return None;
    }
    // In multipart/byteranges a part's head stands between.
    let mut pieces = outgoing.pieces.iter();
    let (file, range) = pieces.find_map(|piece| match piece {
        Piece::File(file, range) => Some((file, range)),
        _ => None,
    })?;
    let window_end = window_end(range.start, range.end);
    check_window(file, range.start, window_end, means)
}

/// Sends the leading memory pieces with one call. `None`: went well, go on.
fn send_memory(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    means: &mut Means<'_>,
) -> Option<Progress> {
    let mut slices = [IoSlice::new(&[]); PIECES_AT_ONCE];
    let mut count = 0;
    for piece in outgoing.pieces.iter().take(PIECES_AT_ONCE) {
        let Some(memory) = piece.memory() else { break };
        slices[count] = IoSlice::new(memory);
        count += 1;
    }
    // What follows joins the last packet of this call (tcp(7)).
    let more = if outgoing.pieces.len() > count {
        SendFlags::MORE
    } else {
        SendFlags::empty()
    };
    let flags = SendFlags::NOSIGNAL | more;
    let sent = means.tracer.call(Call::Send, || {
        if count == 1 {
            rustix::net::send(socket, &slices[0], flags)
        } else {
            let mut none = SendAncillaryBuffer::default();
            rustix::net::sendmsg(socket, &slices[..count], &mut none, flags)
        }
    });
    match sent {
        Ok(sent) => {
            account(outgoing, sent as u64, means);
            advance_memory(outgoing, sent);
            None
        }
        Err(error) => refused(error),
    }
}

/// Drops what has left from the front pieces.
fn advance_memory(outgoing: &mut Outgoing, mut sent: usize) {
    while let Some(piece) = outgoing.pieces.front_mut() {
        let Some(length) = piece.memory().map(<[u8]>::len) else {
            return;
        };
        if sent < length {
            match piece {
                Piece::Bytes(_, at) => *at += sent,
                Piece::Content(_, range) => range.start += sent,
                Piece::File(..) => {}
            }
            return;
        }
        sent -= length;
        outgoing.pieces.pop_front();
    }
}

/// Sends from the file piece in front, within one window. `None`: went well, go on.
fn send_window(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    means: &mut Means<'_>,
) -> Option<Progress> {
    let last = outgoing.pieces.len() == 1;
    let Some(Piece::File(file, range)) = outgoing.pieces.front_mut() else {
        return None;
    };
    if range.is_empty() {
        outgoing.pieces.pop_front();
        return None;
    }
    let end = window_end(range.start, range.end).min(range.start + means.budget_bytes);
    if let Some(progress) = check_window(file, range.start, end, means) {
        return Some(progress);
    }
    if range.start % WINDOW_BYTES == 0 && range.end > range.start + WINDOW_BYTES {
        prefetch(file, range.start + WINDOW_BYTES, range.end, means);
    }
    let mut at = range.start;
    let length = (end - range.start) as usize;
    let sent = means.tracer.call(Call::Sendfile, || {
        rustix::fs::sendfile(socket, file.as_fd(), Some(&mut at), length)
    });
    match sent {
        // Shorter than its size says: truncated between the check and the call.
        Ok(0) => Some(Progress::Changed),
        Ok(sent) => {
            range.start += sent as u64;
            let done = range.is_empty();
            account(outgoing, sent as u64, means);
            if done {
                outgoing.pieces.pop_front();
                if last {
                    return Some(Progress::Finished);
                }
            }
            // A short count means the socket is full: asking again would only be told so.
            (sent < length).then_some(Progress::SocketFull)
        }
        Err(error) => refused(error),
    }
}

/// Is `[start, end)` resident and still the file that was opened? `None`: yes to both.
fn check_window(
    file: &Rc<OpenFile>,
    start: u64,
    end: u64,
    means: &mut Means<'_>,
) -> Option<Progress> {
    match means.tracer.call(Call::Status, || file.unchanged()) {
        Ok(true) => {}
        Ok(false) => return Some(Progress::Changed),
        Err(_) => return Some(Progress::Unreadable),
    }
    match is_resident(file, start, end, means) {
        Ok(true) => {
            means.counters.windows_resident += 1;
            None
        }
        Ok(false) => {
            means.counters.windows_cold += 1;
            Some(Progress::Cold(
                file.clone(),
                start / WINDOW_BYTES * WINDOW_BYTES,
            ))
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            means.counters.windows_cold += 1;
            Some(Progress::Opaque(file.clone(), start))
        }
        Err(_) => Some(Progress::Unreadable),
    }
}

/// Asks the kernel whether `[start, end)` is in memory, unless this turn has asked already.
fn is_resident(
    file: &Rc<OpenFile>,
    start: u64,
    end: u64,
    means: &mut Means<'_>,
) -> std::io::Result<bool> {
    if let Some((proven, range)) = &means.proven
        && Rc::ptr_eq(proven, file)
        && range.start <= start
        && end <= range.end
    {
        return Ok(true);
    }
    let resident = means.tracer.call(Call::Residency, || {
        means.residency.resident(file, start, end - start)
    })?;
    if resident {
        means.proven = Some((file.clone(), start..end));
    }
    Ok(resident)
}

/// Asks for the next window while this one leaves, if it is not there yet.
fn prefetch(file: &Rc<OpenFile>, start: u64, end: u64, means: &mut Means<'_>) {
    let end = window_end(start, end);
    if let Ok(false) = is_resident(file, start, end, means) {
        means.counters.windows_prefetched += 1;
        means.prefetch.push((file.clone(), start));
    }
}

/// The end of the window that `start` lies in, or of the file piece.
fn window_end(start: u64, end: u64) -> u64 {
    ((start / WINDOW_BYTES + 1) * WINDOW_BYTES).min(end)
}

fn account(outgoing: &mut Outgoing, sent: u64, means: &mut Means<'_>) {
    outgoing.sent_bytes += sent;
    means.counters.bytes_sent += sent;
    means.budget_bytes = means.budget_bytes.saturating_sub(sent);
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
    let flags = if more {
        SendFlags::NOSIGNAL | SendFlags::MORE
    } else {
        SendFlags::NOSIGNAL
    };
    tracer.call(Call::Send, || rustix::net::send(socket, bytes, flags))
}

#[cfg(test)]
mod tests;
